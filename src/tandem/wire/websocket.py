"""AMQP inside WebSocket, seen as a byte stream: frame boundaries mean nothing in either direction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from aiohttp import WSCloseCode, WSMsgType, web

SUB_PROTOCOLS: Final = ("AMQPWSB10", "amqp")
"""Service Bus's own name for it, and the registered one, which clients that know AMQP alone offer."""
_HIGH_WATER_BYTES: Final = 262_144
_MESSAGE_BYTES_MAX: Final = 32_768
"""Of one WebSocket message out. AMQP is a stream in them, and there are clients that take no larger one (nhooyr.io/websocket of Go)."""


_REFUSED_BY_EVERY_PARSER: Final = b"\xf0\x80"
"""A frame header with reserved bits set: the connection ends with 1002 (protocol error)."""
_FRAMES_AT_ONCE: Final = 16
"""Of one connection in one round of the loop."""


class FrameParser(Protocol):
    """What turns bytes into WebSocket messages."""

    def feed_data(self, data: bytes) -> tuple[bool, bytes]: ...

    def feed_eof(self) -> None: ...


class FrameSource(Protocol):
    """The connection that frames come from."""

    def takes_frames(self) -> bool:
        """The messages of before are not too many; when they were, `MaskedFrames.go_on` is called in the end."""
        ...

    def listen(self, on: bool) -> None:
        """Whether more is read."""
        ...

    def soon(self, function: Callable[[], None]) -> None:
        """In the loop's next round."""
        ...

    def close(self) -> None: ...


class MaskedFrames:
    """Stands before a parser and lets through what a client may send: frames that are not masked end the connection (RFC 6455 5.1).
    A read holds tens of thousands of small ones, and the loop has others to serve: they go through a few at a time."""

    def __init__(self, parser: FrameParser, source: FrameSource) -> None:
        self._parser = parser
        self._source = source
        self._read = b""
        self._at = 0
        """What the parser has seen of it. It sees headers whole, so that it sees none that is not masked."""
        self._left = 0
        """Bytes of mask and payload still to come of the frame under way."""
        self._planned = False
        self._over = False

    @property
    def behind(self) -> bool:
        return self._at < len(self._read)

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        if self._over:
            return True, b""
        self._read = self._read[self._at :] + data if self.behind else data
        self._at = 0
        if self._source.takes_frames() and not self._planned:
            return self._next_portion()
        self._source.listen(False)  # whoever handed us the connection may have let it be read again
        return False, b""

    def feed_eof(self) -> None:
        self._over = True
        self._parser.feed_eof()

    def go_on(self) -> None:
        if not self._planned:
            self._planned = True
            self._source.soon(self._take_portion)

    def _take_portion(self) -> None:
        self._planned = False
        if not self._over and self._source.takes_frames() and self._next_portion()[0]:
            self._source.close()

    def _next_portion(self) -> tuple[bool, bytes]:
        begin, data = self._at, self._read
        whole = self._find_end()
        portion = data[begin : self._at]
        if self._over:
            portion += _REFUSED_BY_EVERY_PARSER
        answer = self._parser.feed_data(portion) if portion else (False, b"")
        self._source.listen(whole or self._over)
        if not whole:
            self.go_on()
        return answer

    def _find_end(self) -> bool:
        """Moves behind the frames of this portion. True if nothing can be done before more is read."""
        data = self._read
        end = len(data)
        for _ in range(_FRAMES_AT_ONCE):
            step = min(self._left, end - self._at)
            self._at += step
            self._left -= step
            size = _header_size(data, self._at)
            if not size:
                return True
            if not data[self._at + 1] & 0x80:
                self._over = True
                return True
            short = data[self._at + 1] & 0x7F
            self._left = 4 + (short if size == 2 else int.from_bytes(data[self._at + 2 : self._at + size], "big"))
            self._at += size
        return False


def _header_size(data: bytes, at: int) -> int:
    """Of the frame that begins here, without its mask; 0 while it is not there whole. Two bytes say already that there is no mask."""
    there = len(data) - at
    if there < 2:
        return 0
    short = data[at + 1]
    size = 4 if short == 0xFE else 10 if short == 0xFF else 2
    return size if there >= size else 0


class WebSocketTransport(asyncio.Transport):
    """What the AMQP protocol inside sees. Writes of one turn of the loop leave in one frame."""

    def __init__(self, socket: web.WebSocketResponse, raw: asyncio.Transport | None) -> None:
        super().__init__()
        self._socket = socket
        self._raw = raw
        self._protocol: asyncio.BaseProtocol | None = None
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._wake = asyncio.Event()
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._closing = False
        self._paused_writing = False
        self._high, self._low = _HIGH_WATER_BYTES, _HIGH_WATER_BYTES // 4

    # --- asyncio.Transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "websocket":
            return self._socket
        return self._raw.get_extra_info(name, default) if self._raw is not None else default

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or not data:
            return
        self._pending.append(bytes(data))
        self._pending_bytes += len(data)
        self._wake.set()
        if self._pending_bytes > self._high and not self._paused_writing:
            self._paused_writing = True
            if self._protocol is not None:
                self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        """What was written still leaves."""
        self._closing = True
        self._may_read.set()
        self._wake.set()

    def abort(self) -> None:
        self._pending.clear()
        self._pending_bytes = 0
        self.close()
        if self._raw is not None:
            self._raw.abort()

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        self._may_read.clear()

    def resume_reading(self) -> None:
        self._may_read.set()

    def is_reading(self) -> bool:
        return self._may_read.is_set() and not self._closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = _HIGH_WATER_BYTES if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        return self._pending_bytes

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    # --- the two directions

    async def run(self, protocol: asyncio.Protocol) -> None:
        """Serve until either side is done. The protocol hears `connection_made` first and `connection_lost` last."""
        self._protocol = protocol
        protocol.connection_made(self)
        writing = asyncio.ensure_future(self._write_out())
        reading = asyncio.ensure_future(self._read_in())
        error: Exception | None = None
        try:
            done, _ = await asyncio.wait((writing, reading), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                failure = task.exception()
                if isinstance(failure, Exception):
                    error = failure
            self.close()
            if not writing.done() and error is None:
                await writing
        except ConnectionError as lost:
            error = lost
        finally:
            self._closing = True
            for task in (writing, reading):
                task.cancel()
            await asyncio.gather(writing, reading, return_exceptions=True)
            protocol.connection_lost(error)

    async def _write_out(self) -> None:
        while True:
            if not self._pending:
                if self._closing:
                    return
                self._wake.clear()
                await self._wake.wait()
                continue
            data = self._pending[0] if len(self._pending) == 1 else b"".join(self._pending)
            self._pending.clear()
            for at in range(0, len(data), _MESSAGE_BYTES_MAX):
                await self._socket.send_bytes(data[at : at + _MESSAGE_BYTES_MAX])  # returns when the peer has taken enough
            self._pending_bytes -= len(data)
            if self._paused_writing and self._pending_bytes <= self._low:
                self._paused_writing = False
                if self._protocol is not None:
                    self._protocol.resume_writing()

    async def _read_in(self) -> None:
        while not self._closing:
            await self._may_read.wait()
            message = await self._socket.receive()
            if message.type is WSMsgType.BINARY:
                while not self._may_read.is_set():
                    await self._may_read.wait()
                protocol = self._protocol
                if message.data and isinstance(protocol, asyncio.Protocol) and not self._closing:
                    protocol.data_received(message.data)
            elif message.type is WSMsgType.TEXT:
                await self._socket.close(code=WSCloseCode.UNSUPPORTED_DATA, message=b"AMQP travels in binary frames")
                return
            else:  # closed by the peer, or broken
                if isinstance(self._protocol, asyncio.Protocol):
                    self._protocol.eof_received()
                return


async def serve_websocket(request: web.BaseRequest, factory: Callable[[], asyncio.Protocol], message_bytes_max: int) -> web.StreamResponse:
    """Upgrade and serve AMQP. A sub-protocol must be offered by the client and is answered with, or the upgrade is refused."""
    offered = [name.strip() for value in request.headers.getall("Sec-WebSocket-Protocol", []) for name in value.split(",")]
    socket = web.WebSocketResponse(protocols=SUB_PROTOCOLS, compress=False, max_msg_size=message_bytes_max, timeout=5.0)
    if not socket.can_prepare(request).ok:
        return web.Response(status=426, headers={"Upgrade": "websocket"}, text="AMQP over WebSocket is served here: upgrade to websocket")
    if not any(name in offered for name in SUB_PROTOCOLS):
        return web.Response(status=400, text=f"the sub-protocol {' or '.join(SUB_PROTOCOLS)} is needed")
    await socket.prepare(request)
    await WebSocketTransport(socket, request.transport).run(factory())
    await socket.close()
    return socket
