"""Frames as the relay reads them: whole, byte by byte, and broken in every way."""

from __future__ import annotations

import pytest

from tandem.relay.frames import BINARY, CONTINUATION, PIECE_BYTES_MAX, TEXT, FrameReader, FrameRefused, close_payload, read_close
from tests.relay.raw import frame

TALK = (
    frame(1, "grüße".encode())
    + frame(2, b"a" * 200, fin=False)
    + frame(9, b"ping")
    + frame(0, b"b" * 70_000)
    + frame(2)
    + frame(8, b"\x03\xe8bye")
)


def told(pieces: list[tuple[int, bool, bytearray]]) -> list[tuple[str, bytes]]:
    """Messages and control frames, in the order in which they end."""
    messages: list[tuple[str, bytes]] = []
    kind, body = "", b""
    for opcode, fin, payload in pieces:
        if opcode >= 8:
            messages.append((f"control {opcode}", bytes(payload)))
            continue
        assert (opcode == CONTINUATION) == bool(kind)
        kind = kind or {TEXT: "text", BINARY: "binary"}[opcode]
        body += payload
        assert len(payload) <= PIECE_BYTES_MAX
        if fin:
            messages.append((kind, body))
            kind, body = "", b""
    return messages


EXPECTED = [
    ("text", "grüße".encode()),
    ("control 9", b"ping"),
    ("binary", b"a" * 200 + b"b" * 70_000),
    ("binary", b""),
    ("control 8", b"\x03\xe8bye"),
]


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000, 65_536, 10**9])
def test_the_same_is_read_whatever_the_portions(step: int) -> None:
    reader = FrameReader()
    pieces = [piece for at in range(0, len(TALK), step) for piece in reader.feed(TALK[at : at + step])]
    assert told(pieces) == EXPECTED


def test_a_large_frame_goes_on_in_pieces_before_it_is_whole() -> None:
    reader = FrameReader()
    large = frame(2, bytes(range(256)) * 2_000)
    pieces = reader.feed(large[:300_000])
    assert len(pieces) >= 4 and not any(fin for _, fin, _ in pieces)
    assert told(pieces + reader.feed(large[300_000:])) == [("binary", bytes(range(256)) * 2_000)]


def test_text_may_be_split_inside_a_character() -> None:
    reader = FrameReader()
    text = "ü€😀".encode()
    pieces = []
    for at in range(len(text)):
        pieces += reader.feed(frame(1 if at == 0 else 0, text[at : at + 1], fin=at == len(text) - 1))
    assert told(pieces) == [("text", text)]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(2, b"x", rsv=4), 1002),  # compressed, and nobody agreed to that
        (frame(2, b"x", rsv=1), 1002),
        (frame(2, b"x", masked=False), 1002),
        (frame(3, b"x"), 1002),
        (frame(11), 1002),
        (frame(0, b"x"), 1002),  # continues nothing
        (frame(2, b"x", fin=False) + frame(2, b"y"), 1002),
        (frame(9, fin=False), 1002),
        (frame(9, b"x" * 126), 1002),
        (bytes([0x82, 0xFF]) + b"\xff" * 8 + b"mask", 1002),
        (frame(1, b"\xff"), 1007),
        (frame(1, b"\xc3"), 1007),
        (frame(1, b"\xc3", fin=False) + frame(0, b"x"), 1007),
        (frame(1, b"\xed\xa0\x80"), 1007),  # half of a surrogate pair
    ],
)
def test_what_breaks_the_protocol_is_refused_with_its_code(data: bytes, code: int) -> None:
    reader = FrameReader()
    with pytest.raises(FrameRefused) as refused:
        reader.feed(data)
    assert refused.value.code == code


@pytest.mark.parametrize("code", [0, 999, 1004, 1005, 1006, 1015, 1016, 2999, 5000, 65_535])
def test_close_codes_that_must_not_be_sent_are_neither_sent_nor_taken(code: int) -> None:
    assert close_payload(code, "why") == b""
    with pytest.raises(FrameRefused):
        read_close(bytearray(code.to_bytes(2, "big")))


def test_a_reason_is_cut_between_characters() -> None:
    payload = close_payload(1001, "ü" * 200)
    assert len(payload) <= 125 and read_close(bytearray(payload)) == (1001, "ü" * 61)
