"""A whole ASGI application behind a relay: its HTTP requests, its WebSockets, and its lifespan."""

from __future__ import annotations

import asyncio
import logging
import urllib.parse
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol

from tandem.client.relay.asgi import asgi
from tandem.client.relay.asgi_scope import Application, Message, scope_of
from tandem.client.relay.errors import RelayUnavailableError
from tandem.client.relay.requests import Handler
from tandem.client.relay.stream import RelayStream

log = logging.getLogger("tandem.client.relay")

_ABNORMAL: Final = 1006
_REFUSED: Final = 1008
_FAILED: Final = 1011


class AsgiListener(Protocol):
    """A RelayListener, or a PairListener."""

    def handle_http(self, handler: Handler) -> None: ...

    def __aiter__(self) -> AsyncIterator[RelayStream]: ...


async def serve_asgi(listener: AsgiListener, application: Application) -> None:
    """`await serve_asgi(listener, app)`: until the listener is closed, or this is cancelled. The relay's name is its `root_path`.

    A WebSocket is accepted by the relay before the application sees it, with the first sub-protocol of its sender: one that the
    application refuses is closed with 1008.
    """
    running: set[asyncio.Task[None]] = set()
    async with _lifespan(application) as state:
        listener.handle_http(asgi(application, state))
        try:
            async for stream in listener:
                task = asyncio.get_running_loop().create_task(_WebSocket(stream).run(application, state))
                running.add(task)
                task.add_done_callback(running.discard)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)


class _WebSocket:
    """One of them on its way through the application."""

    def __init__(self, stream: RelayStream) -> None:
        self._stream = stream
        self._connected = False
        self._accepted = False
        self._closed = False

    async def run(self, application: Application, state: Mapping[str, Any]) -> None:
        code = 1000
        try:
            await application(self._scope(state), self._receive, self._send)
        except RelayUnavailableError as error:
            log.info("a sender was lost: %s", error)
        except Exception:
            log.exception("a WebSocket at %s failed", self._stream.path[:100])
            code = _FAILED
        finally:
            if not self._closed:
                await self._stream.close(code)

    def _scope(self, state: Mapping[str, Any]) -> dict[str, Any]:
        stream, endpoint = self._stream, self._stream.endpoint
        assert endpoint is not None
        suffix, _, query = stream.path.partition("?")
        path = f"/{endpoint.relay}{suffix}"
        target = urllib.parse.quote(path) + (f"?{query}" if query else "")
        scheme = "wss" if endpoint.tls else "ws"
        scope = scope_of("websocket", scheme, target, path, endpoint.relay, stream.headers, endpoint.host, stream.remote, state)
        return {**scope, "subprotocols": [stream.sub_protocol] if stream.sub_protocol else []}

    async def _receive(self) -> Message:
        if not self._connected:
            self._connected = True
            return {"type": "websocket.connect"}
        try:
            message = await self._stream.receive()
        except RelayUnavailableError:
            return {"type": "websocket.disconnect", "code": self._stream.close_code or _ABNORMAL, "reason": self._stream.close_reason}
        if message is None:
            return {"type": "websocket.disconnect", "code": self._stream.close_code or 1000, "reason": self._stream.close_reason}
        if isinstance(message, str):
            return {"type": "websocket.receive", "text": message}
        return {"type": "websocket.receive", "bytes": message}

    async def _send(self, message: Message) -> None:
        kind = message["type"]
        if kind == "websocket.accept":
            wanted = message.get("subprotocol")
            if wanted and wanted != self._stream.sub_protocol:
                raise ValueError(f"the sub-protocol is {self._stream.sub_protocol!r}, the sender's first; {wanted!r} cannot be had")
            self._accepted = True
        elif kind == "websocket.send":
            text = message.get("text")
            await self._stream.send(text if text is not None else message["bytes"])
        elif kind == "websocket.close":
            self._closed = True
            refused = "the application refused the connection"
            code = message.get("code", 1000) if self._accepted else _REFUSED
            await self._stream.close(code, (message.get("reason") or "") if self._accepted else refused)


@asynccontextmanager
async def _lifespan(application: Application) -> AsyncIterator[dict[str, Any]]:
    """What the application keeps from its start to its end. One that knows no lifespan has none."""
    state: dict[str, Any] = {}
    told: asyncio.Queue[Message] = asyncio.Queue()
    said: asyncio.Queue[Message] = asyncio.Queue()
    scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": state}

    async def live() -> None:
        try:
            await application(scope, told.get, said.put)
        except Exception:
            log.debug("the application has no lifespan, or failed in it", exc_info=True)
        await said.put({"type": "over"})

    living = asyncio.get_running_loop().create_task(live())
    told.put_nowait({"type": "lifespan.startup"})
    started: Message = {"type": ""}
    try:
        started = await said.get()
        if started["type"] == "lifespan.startup.failed":
            raise RuntimeError(f"the application did not start: {started.get('message', '')}")
        yield state
    finally:
        if started["type"] == "lifespan.startup.complete":
            told.put_nowait({"type": "lifespan.shutdown"})
            ended = await said.get()
            if ended["type"] == "lifespan.shutdown.failed":
                log.error("the application did not shut down: %s", ended.get("message", ""))
        living.cancel()
        await asyncio.gather(living, return_exceptions=True)
