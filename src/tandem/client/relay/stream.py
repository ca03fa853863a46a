"""A relayed WebSocket as an application holds it: messages, or bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Any

from websockets.exceptions import ConnectionClosed, ConnectionClosedOK

from tandem.client.relay.endpoint import RelayEndpoint
from tandem.client.relay.errors import RelayUnavailableError

MESSAGE_BYTES_MAX = 104_857_600
"""A message is held in memory: no larger one is taken."""


class RelayStream:
    """Text and bytes go through as they are, message by message, at the pace of the slower side.

    Iterate over it, or `receive`; an ordinary end ends the iteration, a lost connection raises RelayUnavailableError.
    """

    def __init__(
        self,
        socket: Any,
        *,
        headers: dict[str, str] | None = None,
        path: str = "",
        remote: tuple[str, int] | None = None,
        endpoint: RelayEndpoint | None = None,
    ) -> None:
        self._socket = socket
        self.remote = remote
        """Address and port of the sender, on the listener's side."""
        self.endpoint = endpoint
        """Where it was taken, on the listener's side."""
        self.headers = headers or {}
        """Of the sender's handshake, on the listener's side; names in lower case."""
        self.path = path
        """What the sender appended to the relay's name, with its query, on the listener's side."""

    @property
    def sub_protocol(self) -> str | None:
        chosen: str | None = self._socket.subprotocol
        return chosen

    @property
    def close_code(self) -> int | None:
        code: int | None = self._socket.close_code
        return code

    @property
    def close_reason(self) -> str:
        return self._socket.close_reason or ""

    async def send(self, message: str | bytes) -> None:
        """Returns when there is room for it."""
        try:
            await self._socket.send(message)
        except ConnectionClosed as closed:
            raise _lost(closed) from closed

    async def receive(self) -> str | bytes | None:
        """None: the other side closed in order."""
        try:
            message: str | bytes = await self._socket.recv()
            return message
        except ConnectionClosedOK:
            return None
        except ConnectionClosed as closed:
            raise _lost(closed) from closed

    def __aiter__(self) -> AsyncIterator[str | bytes]:
        return self._messages()

    async def _messages(self) -> AsyncIterator[str | bytes]:
        while (message := await self.receive()) is not None:
            yield message

    async def close(self, code: int = 1000, reason: str = "") -> None:
        await self._socket.close(code, reason)

    async def __aenter__(self) -> RelayStream:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        await self.close(1000 if kind is None else 1011)


class Opening:
    """A stream that is opened when a block is entered and closed when it is left."""

    def __init__(self, open_: Callable[[], Awaitable[RelayStream]]) -> None:
        self._open = open_
        self._stream: RelayStream | None = None

    async def __aenter__(self) -> RelayStream:
        self._stream = await self._open()
        return self._stream

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self._stream is not None:
            await self._stream.__aexit__(kind, value, trace)


def _lost(closed: ConnectionClosed) -> RelayUnavailableError:
    said = f"{closed.rcvd.code} {closed.rcvd.reason}".strip() if closed.rcvd is not None else "without a word"
    return RelayUnavailableError(f"the connection was lost: closed {said}", delivered=True)
