"""The listening side of a relay: a control channel that is kept up, connections handed out, HTTP requests answered."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import urllib.parse
from collections.abc import AsyncIterator, Callable, Coroutine
from types import TracebackType
from typing import Any, Final

from websockets.exceptions import ConnectionClosed

from tandem.client.relay.answering import Answering
from tandem.client.relay.endpoint import RelayEndpoint
from tandem.client.relay.errors import RelayError, RelayRefusedError, RelayUnavailableError
from tandem.client.relay.opening import open_socket
from tandem.client.relay.requests import Handler, read_remote
from tandem.client.relay.stream import MESSAGE_BYTES_MAX, RelayStream
from tandem.model.backoff import Backoff, unforeseeable
from tandem.model.clock import SystemClock

log = logging.getLogger("tandem.client.relay")

_RENEW_SHARE: Final = 0.5
_RENEW_SECONDS_MIN: Final = 5.0
_WAITING_MAX: Final = 100
"""Connections that were accepted and that nobody has taken yet; further senders are told that it is busy."""

Accept = Callable[[str, dict[str, str]], "tuple[int, str] | None"]
"""(path with query, headers) of a sender -> None to take it, or the status and reason to reject it with."""
OnState = Callable[["RelayListener", bool, BaseException | None], None]


class RelayListener:
    """`async with RelayListener(endpoint) as listener: async for stream in listener: …`

    It reconnects for as long as it is open, after pauses that grow and differ, and renews its token in time. Entering waits for the first
    attempt: a refusal (key, rights, name) is raised, an endpoint that is out of reach is tried again in the background.
    """

    def __init__(
        self,
        endpoint: RelayEndpoint,
        *,
        accept: Accept | None = None,
        on_state: OnState | None = None,
        back_off: Backoff | None = None,
        requests_max: int = 1_000,
        message_bytes_max: int | None = MESSAGE_BYTES_MAX,
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.online = False
        self.last_error: BaseException | None = None
        """Why it is not online, or was not last."""
        self.reconnects = 0
        self._accept = accept
        self._on_state = on_state
        self._back_off = back_off or Backoff(0.5, 30.0, unforeseeable)
        self._message_bytes_max = message_bytes_max
        self._now_ms = now_ms or SystemClock().now_ms
        self._answering = Answering(endpoint, requests_max)
        self._streams: asyncio.Queue[RelayStream | None] = asyncio.Queue()
        self._tried = asyncio.Event()
        self._up = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def handle_http(self, handler: Handler) -> None:
        """`await handler(request)` gives the RelayResponse to every HTTP request. An error in it is answered with 500."""
        self._answering.handler = handler

    # -- life

    async def __aenter__(self) -> RelayListener:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def start(self) -> None:
        self._running = asyncio.get_running_loop().create_task(self._run())
        await self._tried.wait()
        if isinstance(self.last_error, RelayRefusedError) and not self.online:
            error = self.last_error
            await self.close()
            raise error

    async def wait_online(self, timeout: float | None = None) -> None:
        """Returns when it listens. Raises TimeoutError."""
        async with asyncio.timeout(timeout):
            await self._up.wait()

    async def serve_forever(self) -> None:
        """For listeners that only answer HTTP."""
        if self._running is not None:
            await self._running

    async def close(self) -> None:
        """Nothing new is taken; streams that were handed out go on."""
        self._closed = True
        self._streams.put_nowait(None)
        tasks = [task for task in (self._running, *self._tasks) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        while not self._streams.empty():
            stream = self._streams.get_nowait()
            if stream is not None:
                await stream.close(1001, "the listener was closed")
        self._streams.put_nowait(None)

    def __aiter__(self) -> AsyncIterator[RelayStream]:
        return self._taken()

    async def _taken(self) -> AsyncIterator[RelayStream]:
        while (stream := await self._streams.get()) is not None:
            yield stream
        self._streams.put_nowait(None)  # for others who iterate

    # -- the control channel

    async def _run(self) -> None:
        while not self._closed:
            try:
                await self._listen()
            except (RelayError, OSError, ConnectionClosed) as error:
                self._went(False, error)
            except Exception as error:
                log.exception("the listener on %s failed", self.endpoint)
                self._went(False, error)
            self._tried.set()
            await asyncio.sleep(self._back_off.next_pause())

    async def _listen(self) -> None:
        token = await self.endpoint.token()
        headers = {"ServiceBusAuthorization": token[0]} if token is not None else None
        uri = self.endpoint.websocket_uri("listen")
        channel = await open_socket(uri, headers=headers, ssl_context=self.endpoint.ssl_context, message_bytes_max=1_048_576)
        renewing = self._spawn(self._renew(channel, token[1])) if token is not None else None
        try:
            self._went(True, None)
            self._tried.set()
            self._back_off.reset()
            while True:
                message = await channel.recv()
                if isinstance(message, str):
                    await self._obey(channel, json.loads(message))
        except ConnectionClosed as closed:
            said = f"{closed.rcvd.code} {closed.rcvd.reason}".strip() if closed.rcvd is not None else "without a word"
            raise RelayUnavailableError(f"the control channel was closed {said}") from closed
        finally:
            if renewing is not None:
                renewing.cancel()
            with contextlib.suppress(Exception):
                await channel.close()

    def _went(self, online: bool, error: BaseException | None) -> None:
        if error is not None:
            self.last_error = error
        changed = online != self.online or not self._tried.is_set()
        self.online = online
        if online:
            self.reconnects += self._tried.is_set()
            self._up.set()
        else:
            self._up.clear()
        if changed and self._on_state is not None:
            self._on_state(self, online, error)

    async def _renew(self, channel: Any, expires_on: int) -> None:
        while True:
            left = expires_on - self._now_ms() / 1000
            await asyncio.sleep(max(_RENEW_SECONDS_MIN, left * _RENEW_SHARE))
            try:
                token = await self.endpoint.token()
            except Exception as error:  # noqa: BLE001 - whatever a credential raises: half of the token's life is left
                log.warning("the token for %s was not renewed, and is asked for again: %s", self.endpoint, error)
                continue
            if token is None:
                return
            if token[1] > expires_on:
                await channel.send(json.dumps({"renewToken": {"token": token[0]}}))
                expires_on = token[1]

    async def _obey(self, channel: Any, command: dict[str, Any]) -> None:
        if "accept" in command:
            self._spawn(self._take(command["accept"]))
        elif "request" in command:
            request = command["request"]
            body = b""
            if request.get("body"):
                body = await channel.recv()
            self._spawn(self._answering.answer(channel, request, body))

    # -- a sender

    async def _take(self, command: dict[str, Any]) -> None:
        headers = {name.lower(): value for name, value in (command.get("connectHeaders") or {}).items()}
        address = command["address"]
        path = _suffix(address, self.endpoint.relay)
        verdict = self._verdict(path, headers)
        if verdict is None and (self._streams.qsize() >= _WAITING_MAX or self._closed):
            verdict = (503, "the listener is busy")
        try:
            if verdict is not None:
                tail = f"&sb-hc-statusCode={verdict[0]}&sb-hc-statusDescription={urllib.parse.quote(verdict[1])}"
                await open_socket(address + tail, ssl_context=self.endpoint.ssl_context)
                return
            offered = headers.get("sec-websocket-protocol", "").split(",")[0].strip()
            socket = await open_socket(
                address,
                sub_protocols=[offered] if offered else None,
                ssl_context=self.endpoint.ssl_context,
                message_bytes_max=self._message_bytes_max,
            )
        except RelayError as error:
            if verdict is None:  # a rejection is always answered with a refusal
                log.warning("a sender on %s was lost before it was taken: %s", self.endpoint, error)
            return
        stream = RelayStream(socket, headers=headers, path=path, remote=read_remote(command), endpoint=self.endpoint)
        self._streams.put_nowait(stream)

    def _verdict(self, path: str, headers: dict[str, str]) -> tuple[int, str] | None:
        try:
            return self._accept(path, headers) if self._accept is not None else None
        except Exception:
            log.exception("accept failed for %s", path[:100])
            return 500, "the listener could not decide about this connection"

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("serving %s failed", self.endpoint, exc_info=task.exception())


def _suffix(address: str, relay: str) -> str:
    """What the sender appended, with its own query."""
    parts = urllib.parse.urlsplit(address)
    path = urllib.parse.unquote(parts.path).removeprefix("/$hc/")
    query = "&".join(part for part in parts.query.split("&") if not part.casefold().startswith("sb-hc-"))
    return path[len(relay) :] + (f"?{query}" if query else "")
