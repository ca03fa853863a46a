"""TLS over a transport that has already been read from: the first bytes may be handed in, on any event loop.

`loop.start_tls` takes over a transport but not the ClientHello that somebody else has read from it, and the event
loops differ in how such bytes could be smuggled in. Two memory buffers and `ssl.SSLObject` work the same everywhere.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable
from typing import Any, Final, cast

_READ_BYTES: Final = 16_384
"""One TLS record: a larger buffer would be allocated for every read and never filled."""
_DELIVER_BYTES_MAX: Final = 1_048_576
"""Plain text handed to the protocol in one call at most; keeps one peer from holding the loop."""


class TlsTransport(asyncio.Transport):
    """What the protocol inside sees: plain text in and out, the socket's own facts by `get_extra_info`."""

    def __init__(self, layer: TlsProtocol) -> None:
        super().__init__()
        self._layer = layer

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "ssl_object":
            return self._layer.tls
        if name == "sslcontext":
            return self._layer.tls.context
        if name == "cipher":
            return self._layer.tls.cipher()
        return self._layer.raw.get_extra_info(name, default)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._layer.write(data)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self._layer.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        self._layer.close()

    def abort(self) -> None:
        self._layer.abort()

    def is_closing(self) -> bool:
        return self._layer.closing or self._layer.raw.is_closing()

    def pause_reading(self) -> None:
        self._layer.pause_reading()

    def resume_reading(self) -> None:
        self._layer.resume_reading()

    def is_reading(self) -> bool:
        return not self._layer.reading_paused and not self.is_closing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._layer.raw.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._layer.raw.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._layer.raw.get_write_buffer_limits()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._layer.set_protocol(protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._layer.inner


class TlsProtocol(asyncio.Protocol):
    """Server side of TLS between a raw transport and the protocol inside.

    The inner protocol is told `connection_made` once the handshake is done, and not at all if it fails:
    then `on_failed` hears why, and the raw transport is closed. The caller bounds the handshake's time.
    """

    raw: asyncio.Transport

    def __init__(self, context: ssl.SSLContext, inner: asyncio.Protocol, on_failed: Callable[[str], None]) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.inner = inner
        self.closing = False
        self.reading_paused = False
        self.transport = TlsTransport(self)
        self._on_failed = on_failed
        self._handshaken = False
        self._inner_connected = False
        self._peer_done = False
        self._reading = False
        self._reported = False

    # --- told by the raw transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.raw = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self.closing:
            return
        self._incoming.write(data)
        if not self._handshaken and not self._shake():
            return
        self._read()

    def eof_received(self) -> bool | None:
        # An end without close_notify may be a truncation; both protocols we carry frame their own messages, so
        # they notice, and whatever was complete is theirs.
        if self._inner_connected and not self._peer_done:
            self._peer_done = True
            self.inner.eof_received()
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self.closing = True
        if self._inner_connected:
            self._inner_connected = False
            self.inner.connection_lost(exc)
        elif not self._handshaken:
            self._report("the peer hung up")

    def pause_writing(self) -> None:
        if self._inner_connected:
            self.inner.pause_writing()

    def resume_writing(self) -> None:
        if self._inner_connected:
            self.inner.resume_writing()

    # --- told by the protocol inside, through its transport

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        if not isinstance(protocol, asyncio.Protocol):
            raise TypeError(f"a streaming asyncio.Protocol is needed, not {type(protocol).__name__}")
        self.inner = protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.closing or not data:
            return
        try:
            sent = self.tls.write(data)
            view = memoryview(data)
            while sent < len(view):
                sent += self.tls.write(view[sent:])
        except ssl.SSLError as error:
            self._fail(error)
            return
        self._flush()

    def close(self) -> None:
        if self.closing:
            return
        self.closing = True
        if self._handshaken:
            try:
                self.tls.unwrap()
            except ssl.SSLError:
                pass  # our close_notify is written; the peer's may never come, and we do not wait for it
            self._flush()
        self.raw.close()

    def abort(self) -> None:
        self.closing = True
        self.raw.abort()

    def pause_reading(self) -> None:
        self.reading_paused = True
        if not self.raw.is_closing():
            self.raw.pause_reading()

    def resume_reading(self) -> None:
        if not self.reading_paused:
            return
        self.reading_paused = False
        if self.raw.is_closing():
            return
        self.raw.resume_reading()
        # Never from inside the caller: it may be resuming in the middle of its own data_received.
        asyncio.get_running_loop().call_soon(self._read)

    # --- the two buffers

    def _flush(self) -> None:
        if self._outgoing.pending and not self.raw.is_closing():
            self.raw.write(self._outgoing.read())

    def _fail(self, error: ssl.SSLError) -> None:
        self._flush()  # the alert that tells the peer why
        self.closing = True
        self.raw.close()
        if not self._handshaken:
            self._report(error.reason or str(error))

    def _report(self, reason: str) -> None:
        if not self._reported:
            self._reported = True
            self._on_failed(reason)

    def _shake(self) -> bool:
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return False
        except ssl.SSLError as error:
            self._fail(error)
            return False
        self._handshaken = True
        self._flush()
        self._inner_connected = True
        self.inner.connection_made(self.transport)
        return True

    def _read(self) -> None:
        """Hand over what can be decrypted, in as few calls as possible."""
        if self._reading or not self._handshaken:
            return
        self._reading = True
        try:
            while not self.reading_paused and not self.closing and self._deliver():
                pass
        finally:
            self._reading = False

    def _deliver(self) -> bool:
        """One call to the inner protocol; True if there may be more."""
        chunks: list[bytes] = []
        taken = 0
        ended = False
        try:
            while taken < _DELIVER_BYTES_MAX:
                chunk = self.tls.read(_READ_BYTES)
                if not chunk:
                    ended = True
                    break
                chunks.append(chunk)
                taken += len(chunk)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            ended = True
        except ssl.SSLError as error:
            self._hand_over(chunks)
            self._fail(error)
            return False
        self._flush()  # key updates and session tickets that reading may have caused
        self._hand_over(chunks)
        if ended:
            self._end_of_input()
            return False
        return bool(chunks)

    def _hand_over(self, chunks: list[bytes]) -> None:
        if chunks and self._inner_connected:
            self.inner.data_received(chunks[0] if len(chunks) == 1 else b"".join(chunks))

    def _end_of_input(self) -> None:
        """The peer said close_notify. TLS as we speak it has no half-open state: answer and hang up."""
        if not self._peer_done:
            self._peer_done = True
            if self._inner_connected:
                self.inner.eof_received()
        self.close()
