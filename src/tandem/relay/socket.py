"""One WebSocket leg after its handshake: frames over a transport, pings answered, closes exchanged, writes bounded."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from tandem.relay.close_codes import NO_STATUS, NORMAL
from tandem.relay.frames import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PIECE_BYTES_MAX,
    PING,
    PONG,
    TEXT,
    FrameReader,
    FrameRefused,
    Piece,
    close_payload,
    frame_header,
    read_close,
)
from tandem.relay.share import PIECE_COST, LoopShare

_CLOSE_SECONDS: Final = 5.0
"""For the answer to a close, and for a peer to take what is still written to it."""
_JOIN_BYTES_MAX: Final = 16_384
"""Small frames leave in one piece: copying them costs less than a vector of many parts."""
_SILENT_PULSES_MAX: Final = 2
_SMALL_FRAME: Final = 512
_SMALL_PORTION: Final = 8_192
_LARGE_PORTION: Final = 1_048_576
"""Of what was read at once: frames as small as this are taken so many bytes at a time, larger ones as they come."""


class SocketOwner(Protocol):
    """Who is told what happens on a socket."""

    def pieces_came(self, socket: RelaySocket, pieces: list[Piece]) -> None:
        """Data only, in order."""
        ...

    def peer_closed(self, socket: RelaySocket, code: int, reason: str) -> None:
        """The peer will send nothing more; it still reads until it is answered with `close`."""
        ...

    def socket_lost(self, socket: RelaySocket) -> None:
        """The last that is heard of it, always."""
        ...

    def writing_paused(self, socket: RelaySocket, paused: bool) -> None:
        """The peer takes less than it is given; or it does again."""
        ...


class RelaySocket(asyncio.Protocol):
    """Owns the transport that its WebSocket was agreed on."""

    __slots__ = (
        "_closing",
        "_held",
        "_paused",
        "_portion",
        "_reader",
        "_share",
        "_waiting",
        "close_received",
        "close_sent",
        "lost",
        "owner",
        "reading_paused",
        "silent_pulses",
        "transport",
    )

    def __init__(self, transport: asyncio.Transport, owner: SocketOwner, buffered_bytes_max: int, share: LoopShare) -> None:
        self.transport = transport
        self.owner = owner
        self.close_sent = False
        self.close_received = False
        self.lost = False
        self.reading_paused = False
        self.silent_pulses = 0
        self._reader = FrameReader()
        self._closing: asyncio.TimerHandle | None = None
        self._paused = False
        self._held: list[bytes] = []
        """Came while nobody was to be told, or when it was not our turn. Nothing more is read while there is any."""
        self._waiting = False
        self._share = share
        self._portion = _SMALL_PORTION
        transport.set_write_buffer_limits(high=buffered_bytes_max)
        transport.set_protocol(self)

    # -- told by the transport

    def data_received(self, data: bytes) -> None:
        self.silent_pulses = 0
        if self._held or self.reading_paused or self._share.is_used_up:
            self._held.append(data)
            self._wait()
        else:
            self._take(data)

    def take_turn(self) -> None:
        self._waiting = False
        while self._held and not self.reading_paused and not self.lost and not self._share.is_used_up:
            self._take(self._held.pop(0))
        if self._held:
            self._wait()
        elif not self.reading_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def _wait(self) -> None:
        """For our turn; unless it is our owner who does not want to hear us now."""
        if not self.transport.is_closing():
            self.transport.pause_reading()
        if not self.reading_paused and not self._waiting:
            self._waiting = True
            self._share.wait(self)

    def _take(self, data: bytes) -> None:
        """A portion of it, if it is made of small frames: thousands of them take a while."""
        if self.close_received:
            return
        if len(data) > self._portion:
            self._held.insert(0, data[self._portion :])
            data = data[: self._portion]
        try:
            pieces = self._reader.feed(data)
        except FrameRefused as refusal:
            self.close(refusal.code, refusal.reason)
            self._hang_up()
            return
        self._share.spend(len(data) + PIECE_COST * len(pieces))
        self._portion = _SMALL_PORTION if len(data) < _SMALL_FRAME * len(pieces) else _LARGE_PORTION
        self._deliver(pieces)
        if self._held:
            self._wait()

    def _deliver(self, pieces: list[Piece]) -> None:
        run: list[Piece] = []
        for piece in pieces:
            if piece[0] < CLOSE:
                run.append(piece)
            elif piece[0] == PING:
                if not self._paused and not self.close_sent:  # who does not read gets no answers to keep for it
                    self.transport.write(frame_header(PONG, True, len(piece[2])) + piece[2])
            elif piece[0] == CLOSE:
                if run:
                    self.owner.pieces_came(self, run)
                self._closed(piece[2])
                return
        if run:
            self.owner.pieces_came(self, run)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self._held.clear()
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None
        self.owner.socket_lost(self)

    def pause_writing(self) -> None:
        self._paused = True
        self.owner.writing_paused(self, True)

    def resume_writing(self) -> None:
        self._paused = False
        self.owner.writing_paused(self, False)

    # -- told by its owner

    def belong_to(self, owner: SocketOwner) -> None:
        """What comes is told to this one from now on."""
        self.owner = owner

    @property
    def is_writable(self) -> bool:
        return not self._paused

    @property
    def is_open(self) -> bool:
        return not (self.lost or self.close_sent or self.close_received)

    def send(self, pieces: list[Piece]) -> None:
        """In order, each as one frame. After a close nothing is sent."""
        if self.close_sent or self.lost:
            return
        parts: list[bytes | bytearray] = []
        total = 0
        for opcode, fin, payload in pieces:
            parts.append(frame_header(opcode, fin, len(payload)))
            parts.append(payload)
            total += len(payload)
        if total <= _JOIN_BYTES_MAX:
            self.transport.write(b"".join(parts))
        else:
            self.transport.writelines(parts)

    def send_text(self, text: str) -> None:
        """A whole message, in frames that every client takes."""
        self._send_message(TEXT, text.encode())

    def send_binary(self, data: bytes) -> None:
        self._send_message(BINARY, data)

    def _send_message(self, opcode: int, data: bytes) -> None:
        pieces: list[Piece] = []
        for at in range(0, max(len(data), 1), PIECE_BYTES_MAX):
            kind = opcode if at == 0 else CONTINUATION
            pieces.append((kind, at + PIECE_BYTES_MAX >= len(data), bytearray(data[at : at + PIECE_BYTES_MAX])))
        self.send(pieces)

    def pause_reading(self) -> None:
        if not self.reading_paused and not self.lost:
            self.reading_paused = True
            if not self.transport.is_closing():
                self.transport.pause_reading()

    def resume_reading(self) -> None:
        if not self.reading_paused or self.lost:
            return
        self.reading_paused = False
        if self._held:
            self._wait()
        elif not self.transport.is_closing():
            self.transport.resume_reading()

    def close(self, code: int = NORMAL, reason: str = "", *, patient: bool = False) -> None:
        """Say goodbye, or answer the peer's; the connection ends when both have, or after a moment.

        `patient`: the peer may go on sending for as long as it is heard of, and is waited for.
        """
        if self.close_sent or self.lost:
            return
        payload = close_payload(code, reason)
        self.transport.write(frame_header(CLOSE, True, len(payload)) + payload)
        self.close_sent = True
        if self.close_received:
            self._hang_up()
        else:
            self.resume_reading()  # the peer's answer must be seen
            if not patient:
                self.expect_end()

    def ping(self) -> None:
        """Once in a while. A peer that answered nothing for two rounds is gone, unless it was us who did not read."""
        if self.reading_paused or self.lost:
            return
        if self.silent_pulses >= _SILENT_PULSES_MAX:
            self.transport.abort()
            return
        self.silent_pulses += 1
        if not self.close_sent and not self._paused:
            self.transport.write(b"\x89\x00")

    def abort(self) -> None:
        if not self.lost:
            self.transport.abort()

    # -- closing

    def _closed(self, payload: bytearray) -> None:
        try:
            code, reason = read_close(payload)
        except FrameRefused as refusal:
            self.close(refusal.code, refusal.reason)
            self._hang_up()
            return
        self.close_received = True
        answered = self.close_sent
        self.owner.peer_closed(self, code, reason)
        if answered:
            self._hang_up()

    def _hang_up(self) -> None:
        """What is written still leaves."""
        self.close_received = True
        self.expect_end()
        self.transport.close()

    def expect_end(self) -> None:
        """Nothing more is wanted of the peer: it has a moment to go by itself."""
        if self._closing is None and not self.lost:
            self._closing = asyncio.get_running_loop().call_later(_CLOSE_SECONDS, self.transport.abort)


def answer_code(code: int) -> int:
    """What a close without a code is answered with."""
    return NORMAL if code == NO_STATUS else code
