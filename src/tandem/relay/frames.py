"""WebSocket frames (RFC 6455) as a relay sees them: pieces of messages that go on as they come, unmasked, bounded, checked."""

from __future__ import annotations

from typing import Final

from tandem.relay.close_codes import INVALID_DATA, NO_STATUS, PROTOCOL_ERROR
from tandem.relay.masking import unmask

CONTINUATION: Final = 0
TEXT: Final = 1
BINARY: Final = 2
CLOSE: Final = 8
PING: Final = 9
PONG: Final = 10

PIECE_BYTES_MAX: Final = 65_536
"""No frame leaves with more: the Java client takes none that is larger. A larger one is passed on in pieces, as they come."""
_CONTROL_BYTES_MAX: Final = 125
_REASON_BYTES_MAX: Final = 123
_SHORT_16: Final = 126
_SHORT_64: Final = 127

Piece = tuple[int, bool, bytearray]
"""(opcode, is it the last of its message, payload). A control frame is always one piece."""


class FrameRefused(Exception):
    """The peer broke the protocol: `code` is what it is told when the connection is closed."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{code} {reason}")
        self.code = code
        self.reason = reason


class FrameReader:
    """Bytes of one peer, in any portions, become pieces. Holds at most one piece that is not whole."""

    def __init__(self) -> None:
        self._rest: bytes = b""
        """Bytes of a frame that cannot be told, or is small and not whole."""
        self._left: int = 0
        """Payload bytes still to come of a large frame under way."""
        self._mask: bytes = b""
        self._fin: bool = False
        self._opcode: int = CONTINUATION
        """Of the next piece of the message under way: its kind for the first, then CONTINUATION."""
        self._in_message: bool = False
        self._in_text: bool = False
        self._utf8: Utf8Check = Utf8Check()

    def feed(self, data: bytes) -> list[Piece]:
        """Raises FrameRefused; what came before the fault is lost with the connection."""
        if self._rest:
            data = self._rest + data
            self._rest = b""
        pieces: list[Piece] = []
        view = memoryview(data)
        at = 0
        end = len(data)
        while at < end:
            if self._left:
                at = self._large(view, at, end, pieces)
                if at < 0:
                    break
                continue
            if end - at < 2:
                self._rest = data[at:]
                break
            first = data[at]
            second = data[at + 1]
            opcode = first & 0x0F
            if first & 0x70:
                raise FrameRefused(PROTOCOL_ERROR, "reserved bits are set: no extension was agreed on")
            if not second & 0x80:
                raise FrameRefused(PROTOCOL_ERROR, "frames of a client must be masked")
            length = second & 0x7F
            start = at + 6
            if length == _SHORT_16:
                start = at + 8
            elif length == _SHORT_64:
                start = at + 14
            if start > end:
                self._rest = data[at:]
                break
            if length == _SHORT_16:
                length = (data[at + 2] << 8) | data[at + 3]
            elif length == _SHORT_64:
                length = int.from_bytes(data[at + 2 : at + 10], "big")
            fin = first >= 0x80
            self._check(opcode, fin, length)
            if length > PIECE_BYTES_MAX:
                self._mask = data[start - 4 : start]
                self._left = length
                self._fin = fin
                self._begin(opcode)
                at = start
                continue
            if start + length > end:
                self._rest = data[at:]
                break
            payload = bytearray(view[start : start + length])
            unmask(data[start - 4 : start], payload)
            at = start + length
            if opcode >= CLOSE:
                pieces.append((opcode, True, payload))
                continue
            self._begin(opcode)
            self._emit(fin, payload, pieces)
        return pieces

    def _large(self, data: memoryview, at: int, end: int, pieces: list[Piece]) -> int:
        """A piece of a large frame; -1 when there is too little of it to go on with."""
        step = min(self._left, end - at, PIECE_BYTES_MAX)
        if step < self._left:
            step -= step % 4  # so that the mask begins anew with every piece
            if not step:
                self._rest = bytes(data[at:])
                return -1
        payload = bytearray(data[at : at + step])
        unmask(self._mask, payload)
        self._left -= step
        self._emit(self._fin and not self._left, payload, pieces)
        return at + step

    def _begin(self, opcode: int) -> None:
        if opcode != CONTINUATION:
            self._opcode = opcode
            self._in_message = True
            self._in_text = opcode == TEXT

    def _emit(self, fin: bool, payload: bytearray, pieces: list[Piece]) -> None:
        if self._in_text:
            self._utf8.feed(payload, fin)
        pieces.append((self._opcode, fin, payload))
        self._opcode = CONTINUATION
        if fin:
            self._in_message = False
            self._in_text = False

    def _check(self, opcode: int, fin: bool, length: int) -> None:
        if opcode >= CLOSE:
            if opcode > PONG:
                raise FrameRefused(PROTOCOL_ERROR, f"unknown opcode {opcode}")
            if not fin or length > _CONTROL_BYTES_MAX:
                raise FrameRefused(PROTOCOL_ERROR, "a control frame is whole and has at most 125 bytes")
        elif opcode == CONTINUATION:
            if not self._in_message:
                raise FrameRefused(PROTOCOL_ERROR, "a continuation of no message")
        elif opcode > BINARY:
            raise FrameRefused(PROTOCOL_ERROR, f"unknown opcode {opcode}")
        elif self._in_message:
            raise FrameRefused(PROTOCOL_ERROR, "a new message in the middle of another")
        if length >> 63:
            raise FrameRefused(PROTOCOL_ERROR, "a frame length beyond 63 bits")


class Utf8Check:
    """Text may be split anywhere, also inside a character; it must be UTF-8 all the same (RFC 6455 8.1)."""

    def __init__(self) -> None:
        self._tail: bytes = b""
        """Bytes of a character that is not whole."""

    def feed(self, payload: bytearray, final: bool) -> None:
        text = self._tail + bytes(payload)
        self._tail = b""
        try:
            text.decode("utf-8")
        except UnicodeDecodeError as error:
            if final or error.end != len(text) or error.reason != "unexpected end of data":
                raise FrameRefused(INVALID_DATA, "text that is not UTF-8") from None
            self._tail = text[error.start :]


def frame_header(opcode: int, fin: bool, length: int) -> bytes:
    """Of a frame to a client: not masked."""
    first = opcode | 0x80 if fin else opcode
    if length < _SHORT_16:
        return bytes((first, length))
    if length < 65_536:
        return bytes((first, _SHORT_16, length >> 8, length & 0xFF))
    return bytes((first, _SHORT_64)) + length.to_bytes(8, "big")


def close_payload(code: int, reason: str) -> bytes:
    """1005, 1006 and 1015 say something about a connection and are never sent (RFC 6455 7.4.1): no code is sent instead."""
    if not may_be_sent(code):
        return b""
    text = reason.encode("utf-8", "replace")[:_REASON_BYTES_MAX]
    return code.to_bytes(2, "big") + text.decode("utf-8", "ignore").encode()


def may_be_sent(code: int) -> bool:
    return 3000 <= code <= 4999 or (1000 <= code <= 1014 and code not in (1004, 1005, 1006))


def read_close(payload: bytearray) -> tuple[int, str]:
    """Code and reason of a close frame; NO_STATUS when it has none. Raises FrameRefused for what must not be sent."""
    if not payload:
        return NO_STATUS, ""
    code = int.from_bytes(payload[:2], "big")
    if len(payload) == 1 or not may_be_sent(code):
        raise FrameRefused(PROTOCOL_ERROR, f"a close code that must not be sent: {code}")
    try:
        return code, payload[2:].decode("utf-8")
    except UnicodeDecodeError:
        raise FrameRefused(INVALID_DATA, "a close reason that is not UTF-8") from None
