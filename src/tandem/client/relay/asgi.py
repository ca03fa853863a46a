"""HTTP requests of a relay for an ASGI application: FastAPI, Starlette, Django or any other, unchanged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

from tandem.client.relay.asgi_scope import Application, Message, scope_of
from tandem.client.relay.errors import RelayUnavailableError
from tandem.client.relay.requests import Handler, RelayRequest, RelayResponse

log = logging.getLogger("tandem.client.relay")


def asgi(application: Application, state: Mapping[str, Any] | None = None) -> Handler:
    """`listener.handle_http(asgi(app))`: its HTTP requests. The relay's name is the application's `root_path`; `serve_asgi` serves its
    WebSockets too and runs its lifespan, of which `state` is."""

    calls: set[asyncio.Task[None]] = set()

    async def handle(request: RelayRequest) -> RelayResponse:
        call = _AsgiCall(request, state or {})
        running = asyncio.get_running_loop().create_task(call.run(application))
        calls.add(running)  # an application may go on after its response, with tasks in the background
        running.add_done_callback(calls.discard)
        await call.started.wait()
        if call.failure is not None:
            await asyncio.gather(running, return_exceptions=True)
            raise call.failure
        return RelayResponse(status=call.status, headers=call.headers, body=call.body(running))

    return handle


class _AsgiCall:
    """One request on its way through the application."""

    def __init__(self, request: RelayRequest, state: Mapping[str, Any]) -> None:
        self.request = request
        self.started = asyncio.Event()
        self.status = 500
        self.headers: dict[str, str | list[str]] = {}
        self.failure: BaseException | None = None
        self._state = state
        self._chunks: asyncio.Queue[bytes | None] = asyncio.Queue(16)
        self._receiving = asyncio.Lock()
        self._received_all = False
        self._complete = False
        self._over = asyncio.Event()

    def _scope(self) -> dict[str, Any]:
        request = self.request
        scheme = "https" if request.tls else "http"
        scope = scope_of(
            "http", scheme, request.target, request.path, request.relay, request.headers, request.host, request.remote, self._state
        )
        return {**scope, "method": request.method}

    async def run(self, application: Application) -> None:
        try:
            await application(self._scope(), self._receive, self._send)
            if not self.started.is_set():
                raise RuntimeError("the application returned without a response")
        except BaseException as error:
            self.failure = error
            if not isinstance(error, Exception):
                raise
            if self._complete:
                log.exception("%s %s failed after its response", self.request.method, self.request.target[:100])
        finally:
            self.started.set()
            await self._end()

    async def _receive(self) -> Message:
        async with self._receiving:  # some wait for the end of the connection and read the body at the same time
            if not self._received_all:
                return await self._next_part()
        await self._over.wait()
        return {"type": "http.disconnect"}

    async def _next_part(self) -> Message:
        try:
            piece = await anext(self.request.body)
        except StopAsyncIteration:
            self._received_all = True
            return {"type": "http.request", "body": b"", "more_body": False}
        except RelayUnavailableError:
            self._received_all = True
            self._over.set()
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": piece, "more_body": True}

    async def _send(self, message: Message) -> None:
        if self._over.is_set() and not self._complete:
            raise OSError("the sender is gone")
        if message["type"] == "http.response.start":
            self.status = message["status"]
            for name, value in message.get("headers", ()):
                self._add_header(name.decode("latin-1"), value.decode("latin-1"))
            self.started.set()
        elif message["type"] == "http.response.body" and not self._complete:
            if message.get("body"):
                await self._chunks.put(message["body"])
            if not message.get("more_body"):
                await self._end()

    async def _end(self) -> None:
        if not self._complete:
            self._complete = self.failure is None
            await self._chunks.put(None)

    def _add_header(self, name: str, value: str) -> None:
        """Several of one name are joined, but cookies, which have commas of their own."""
        before = self.headers.get(name)
        if name.casefold() == "set-cookie":
            self.headers[name] = [*before, value] if isinstance(before, list) else [value]
        else:
            self.headers[name] = f"{before}, {value}" if before is not None else value

    async def body(self, running: asyncio.Task[None]) -> AsyncIterator[bytes]:
        try:
            while (chunk := await self._chunks.get()) is not None:
                yield chunk
            if not self._complete and self.failure is not None:
                raise self.failure
        finally:
            self._over.set()
            if not self._complete:  # nobody hears the rest
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
