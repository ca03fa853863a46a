"""Every listener speaks everything: the first bytes of a connection decide which protocol serves it."""

from __future__ import annotations

import asyncio
import enum
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, cast

from tandem.wire.tls_transport import TlsProtocol

ProtocolFactory = Callable[[], asyncio.Protocol]


class FirstBytes(enum.Enum):
    """What the first bytes say."""

    AMQP = "amqp"
    TLS = "tls"
    HTTP = "http"
    UNDECIDED = "undecided"
    UNKNOWN = "unknown"


_OPENINGS: Final = (
    (b"AMQP", FirstBytes.AMQP),
    (b"\x16\x03", FirstBytes.TLS),
    *((verb + b" ", FirstBytes.HTTP) for verb in (b"GET", b"PUT", b"POST", b"DELETE", b"HEAD", b"OPTIONS", b"PATCH", b"TRACE")),
    # what WebDAV and its relatives say: a relay passes on every method
    *((verb + b" ", FirstBytes.HTTP) for verb in (b"PROPFIND", b"PROPPATCH", b"MKCOL", b"COPY", b"MOVE", b"LOCK", b"UNLOCK")),
    *((verb + b" ", FirstBytes.HTTP) for verb in (b"REPORT", b"SEARCH", b"MERGE", b"PURGE", b"LINK", b"UNLINK")),
)


def recognise(first: bytes) -> FirstBytes:
    """Name the protocol that begins like this; UNDECIDED while the bytes could still become one."""
    undecided = False
    for opening, meaning in _OPENINGS:
        if first.startswith(opening):
            return meaning
        undecided = undecided or opening.startswith(first)
    return FirstBytes.UNDECIDED if undecided else FirstBytes.UNKNOWN


def _ignore(reason: str) -> None:
    """Nobody listens."""


def _room_for_all(descriptor: int) -> str:
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Doors:
    """Where a recognised connection goes. Factories make one protocol per connection."""

    amqp: ProtocolFactory
    http: ProtocolFactory
    tls: ssl.SSLContext | None = None
    """None: TLS is not spoken here."""
    silent_ms_max: int = 20_000
    """From accept until the protocol is known, TLS handshake included."""
    on_dropped: Callable[[str], None] = _ignore
    """Told why a connection was hung up before any protocol served it."""
    full: Callable[[int], str] = _room_for_all
    """Asked for each newcomer, by its descriptor: why there is no room left, or nothing."""
    lobby: set[SniffProtocol] = field(default_factory=set)
    """Those that have not said yet what they speak."""


class SniffProtocol(asyncio.Protocol):
    """Give to `loop.create_server`. Replaces itself by the protocol that the peer speaks, feeding it what was read."""

    def __init__(self, doors: Doors, *, inside: SniffProtocol | None = None) -> None:
        self._doors = doors
        self._outer = inside
        """The sniffer outside the TLS layer this one sits in: it holds the timer."""
        self._first = b""
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._decided = False
        self._settled = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._outer is None:
            accepted = transport.get_extra_info("socket")
            full = self._doors.full(accepted.fileno() if accepted is not None else -1)
            if full:
                self._decided = True
                self._drop(full)
                return
            self._doors.lobby.add(self)
            delay = self._doors.silent_ms_max / 1000
            self._timer = asyncio.get_running_loop().call_later(delay, self._silent)

    def data_received(self, data: bytes) -> None:
        if self._decided:
            return
        self._first += data
        opening = recognise(self._first)
        if opening is FirstBytes.UNDECIDED:
            return
        self._decided = True
        if opening is FirstBytes.AMQP:
            self._hand_to(self._doors.amqp())
        elif opening is FirstBytes.HTTP:
            self._hand_to(self._doors.http())
        elif opening is FirstBytes.TLS and self._outer is None and self._doors.tls is not None:
            self._start_tls(self._doors.tls)
        elif opening is FirstBytes.TLS:
            self._drop("TLS is not spoken here")
        else:
            self._drop(f"unknown protocol: first bytes {self._first[:8].hex()}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._decided = True
        self._report("hung up in the first bytes" if self._first else "hung up before saying anything")

    def _hand_to(self, protocol: asyncio.Protocol) -> None:
        transport = self._transport
        assert transport is not None
        self._outermost.settle()
        first, self._first = self._first, b""
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if not transport.is_closing():
            protocol.data_received(first)

    def _start_tls(self, context: ssl.SSLContext) -> None:
        assert self._transport is not None
        layer = TlsProtocol(context, SniffProtocol(self._doors, inside=self), self._handshake_failed)
        first, self._first = self._first, b""
        self._transport.set_protocol(layer)
        layer.connection_made(self._transport)
        layer.data_received(first)

    def _handshake_failed(self, reason: str) -> None:
        self._report(f"TLS handshake failed: {reason}")

    def _silent(self) -> None:
        self._timer = None
        self._decided = True
        self._drop(f"said nothing that names a protocol within {self._doors.silent_ms_max} ms")

    def _drop(self, reason: str) -> None:
        self._report(reason)
        assert self._transport is not None
        self._transport.abort()

    def _report(self, reason: str) -> None:
        """Say why nobody serves this connection: once, whichever layer noticed first."""
        if self._outermost.settle():
            self._doors.on_dropped(reason)

    @property
    def _outermost(self) -> SniffProtocol:
        return self._outer or self

    def settle(self) -> bool:
        """The connection's fate is known: stop the timer. True the first time."""
        self._doors.lobby.discard(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        first_time, self._settled = not self._settled, True
        return first_time
