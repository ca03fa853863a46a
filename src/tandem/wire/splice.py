"""A connection passed on, byte for byte, to a process that serves it; told first how its peer came in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, cast

_PREFACE: Final = b"TANDEM-SPLICE "
_PREFACE_BYTES_MAX: Final = 256
_HELD_BYTES_MAX: Final = 1_048_576


class Splice(asyncio.Protocol):
    """Give it to a sniffer as the protocol of what is served elsewhere. Each side is read from as fast as the other takes it."""

    def __init__(self, path: str) -> None:
        """`path`: of the unix socket where a `SplicedDoor` listens."""
        self._path = path
        self._near: asyncio.Transport | None = None
        self._far: asyncio.Transport | None = None
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._opening: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._near = cast(asyncio.Transport, transport)
        self._opening = asyncio.get_running_loop().create_task(self._open())

    async def _open(self) -> None:
        near = self._near
        assert near is not None
        try:
            transport, _ = await asyncio.get_running_loop().create_unix_connection(lambda: _Far(self), self._path)
        except OSError:
            near.abort()
            return
        self._far = transport
        peer = near.get_extra_info("peername")
        secure = "s" if near.get_extra_info("sslcontext") is not None else "-"
        host, port = (peer[0], peer[1]) if isinstance(peer, tuple) else ("-", 0)
        self._far.write(_PREFACE + f"{secure} {host} {port}\n".encode("ascii", "replace"))
        for data in self._held:
            self._far.write(data)
        self._held.clear()
        if near.is_closing():
            self._far.close()
        elif not near.is_reading():
            near.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self._far is not None:
            self._far.write(data)
            return
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes > _HELD_BYTES_MAX and self._near is not None:
            self._near.pause_reading()

    def from_far(self, data: bytes) -> None:
        if self._near is not None and not self._near.is_closing():
            self._near.write(data)

    def far_lost(self) -> None:
        if self._near is not None:
            self._near.close()

    def far_full(self, full: bool) -> None:
        _pace(self._near, full)

    def pause_writing(self) -> None:
        _pace(self._far, True)

    def resume_writing(self) -> None:
        _pace(self._far, False)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self._far is not None:
            self._far.close()


def _pace(transport: asyncio.Transport | None, full: bool) -> None:
    if transport is None or transport.is_closing():
        return
    if full and transport.is_reading():
        transport.pause_reading()
    elif not full and not transport.is_reading():
        transport.resume_reading()


class _Far(asyncio.Protocol):
    def __init__(self, splice: Splice) -> None:
        self._splice = splice

    def data_received(self, data: bytes) -> None:
        self._splice.from_far(data)

    def pause_writing(self) -> None:
        self._splice.far_full(True)

    def resume_writing(self) -> None:
        self._splice.far_full(False)

    def connection_lost(self, exc: Exception | None) -> None:
        self._splice.far_lost()


class SplicedDoor(asyncio.Protocol):
    """Where spliced connections arrive: the first line says how the peer came in, the rest is the peer's."""

    def __init__(self, serve: Callable[[], asyncio.Protocol]) -> None:
        self._serve = serve
        self._first = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        transport = self._transport
        assert transport is not None
        self._first += data
        line, newline, rest = self._first.partition(b"\n")
        words = line.removeprefix(_PREFACE).split()
        if not newline and len(self._first) < _PREFACE_BYTES_MAX:
            return
        if not line.startswith(_PREFACE) or len(words) != 3 or not words[2].isdigit():
            transport.abort()
            return
        protocol = self._serve()
        peer = (words[1].decode("ascii", "replace"), int(words[2]))
        described = _Described(transport, {"peername": peer, "sslcontext": True if words[0] == b"s" else None})
        transport.set_protocol(protocol)
        protocol.connection_made(described)
        if rest:
            protocol.data_received(rest)


class _Described(asyncio.Transport):
    """A transport that knows how its peer came in; everything else is the real one's."""

    def __init__(self, real: asyncio.Transport, known: dict[str, Any]) -> None:
        super().__init__()
        self._real = real
        self._known = known

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._known[name] if name in self._known else self._real.get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self._real.is_closing()

    def close(self) -> None:
        self._real.close()

    def abort(self) -> None:
        self._real.abort()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._real.set_protocol(protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._real.get_protocol()

    def is_reading(self) -> bool:
        return self._real.is_reading()

    def pause_reading(self) -> None:
        self._real.pause_reading()

    def resume_reading(self) -> None:
        self._real.resume_reading()

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self._real.write(data)

    def writelines(self, list_of_data: Any) -> None:
        self._real.writelines(list_of_data)

    def write_eof(self) -> None:
        self._real.write_eof()

    def can_write_eof(self) -> bool:
        return self._real.can_write_eof()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._real.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._real.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._real.get_write_buffer_limits()
