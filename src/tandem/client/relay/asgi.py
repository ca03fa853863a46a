"""An ASGI application served through a relay: FastAPI, Starlette, Django or any other, unchanged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

from tandem.client.relay.errors import RelayUnavailableError
from tandem.client.relay.requests import Handler, RelayRequest, RelayResponse

Message = MutableMapping[str, Any]
Application = Callable[[MutableMapping[str, Any], Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]


def asgi(application: Application) -> Handler:
    """`listener.handle_http(asgi(app))`. The relay's name is the application's `root_path`; lifespan events are the caller's."""

    async def handle(request: RelayRequest) -> RelayResponse:
        call = _AsgiCall(request)
        running = asyncio.get_running_loop().create_task(call.run(application))
        await call.started.wait()
        if call.failure is not None:
            await asyncio.gather(running, return_exceptions=True)
            raise call.failure
        return RelayResponse(status=call.status, headers=call.headers, body=call.body(running))

    return handle


class _AsgiCall:
    """One request on its way through the application."""

    def __init__(self, request: RelayRequest) -> None:
        self.request = request
        self.started = asyncio.Event()
        self.status = 500
        self.headers: dict[str, str] = {}
        self.failure: BaseException | None = None
        self._chunks: asyncio.Queue[bytes | None] = asyncio.Queue(16)
        self._received_all = False
        self._over = asyncio.Event()

    def _scope(self) -> dict[str, Any]:
        request = self.request
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": "https",
            "path": request.path,
            "raw_path": request.target.partition("?")[0].encode("latin-1", "replace"),
            "query_string": request.query.encode("latin-1", "replace"),
            "root_path": f"/{request.relay}",
            "headers": [(name.encode("latin-1", "replace"), value.encode("latin-1", "replace")) for name, value in request.headers.items()],
            "client": request.remote,
            "server": None,
        }

    async def run(self, application: Application) -> None:
        try:
            await application(self._scope(), self._receive, self._send)
            if not self.started.is_set():
                raise RuntimeError("the application returned without a response")
        except BaseException as error:
            self.failure = error
            if not isinstance(error, Exception):
                raise
        finally:
            self.started.set()
            await self._chunks.put(None)

    async def _receive(self) -> Message:
        if self._received_all:
            await self._over.wait()
            return {"type": "http.disconnect"}
        try:
            piece = await anext(self.request.body)
        except StopAsyncIteration:
            self._received_all = True
            return {"type": "http.request", "body": b"", "more_body": False}
        except RelayUnavailableError:
            self._received_all = True
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": piece, "more_body": True}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            for name, value in message.get("headers", ()):
                told = name.decode("latin-1")
                text = value.decode("latin-1")
                self.headers[told] = f"{self.headers[told]}, {text}" if told in self.headers else text
            self.started.set()
        elif message["type"] == "http.response.body" and message.get("body"):
            await self._chunks.put(message["body"])

    async def body(self, running: asyncio.Task[None]) -> AsyncIterator[bytes]:
        try:
            while (chunk := await self._chunks.get()) is not None:
                yield chunk
            if self.failure is not None:
                raise self.failure
        finally:
            self._over.set()
            if not running.done():
                running.cancel()
            await asyncio.gather(running, return_exceptions=True)
