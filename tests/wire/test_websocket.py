"""WebSocket frames on their way to a parser: all of them, as they came, and a few in each round of the loop."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tandem.wire.websocket import MaskedFrames

EMPTY = b"\x82\x80mask"


class Parser:
    """Keeps what it is fed."""

    def __init__(self) -> None:
        self.fed: list[bytes] = []

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        self.fed.append(data)
        return data.endswith(b"\xf0\x80"), b""

    def feed_eof(self) -> None:
        self.fed.append(b"end")


class Source:
    """A connection whose loop goes round when the test says so."""

    def __init__(self) -> None:
        self.takes = self.listens = True
        self.closed = False
        self.planned: list[Callable[[], None]] = []

    def takes_frames(self) -> bool:
        return self.takes

    def listen(self, on: bool) -> None:
        self.listens = on

    def soon(self, function: Callable[[], None]) -> None:
        self.planned.append(function)

    def close(self) -> None:
        self.closed = True

    def rounds(self) -> int:
        """Until nothing is left to do."""
        count = 0
        while self.planned:
            planned, self.planned = self.planned, []
            assert len(planned) == 1
            planned[0]()
            count += 1
        return count


def test_many_small_frames_leave_the_loop_to_others_and_nothing_more_is_read_meanwhile() -> None:
    parser, source = Parser(), Source()
    frames = MaskedFrames(parser, source)
    frames.feed_data(EMPTY * 10_000)
    assert len(parser.fed[0]) <= 100 * len(EMPTY)
    assert not source.listens
    source.listens = True
    frames.feed_data(EMPTY * 10_000)  # what was on its way when reading was let go on by somebody else
    assert not source.listens
    assert source.rounds() >= 200
    assert b"".join(parser.fed) == EMPTY * 20_000
    assert max(map(len, parser.fed)) <= 100 * len(EMPTY)
    assert source.listens and not frames.behind


def test_frames_wait_while_messages_are_not_taken_and_go_on_when_they_are() -> None:
    parser, source = Parser(), Source()
    frames = MaskedFrames(parser, source)
    source.takes = False
    frames.feed_data(EMPTY * 3)
    assert parser.fed == [] and frames.behind and not source.listens
    source.takes = True
    frames.go_on()
    frames.go_on()
    source.rounds()
    assert b"".join(parser.fed) == EMPTY * 3 and source.listens


def test_what_is_left_of_a_connection_that_is_lost_is_dropped() -> None:
    parser, source = Parser(), Source()
    frames = MaskedFrames(parser, source)
    frames.feed_data(EMPTY * 1_000)
    frames.feed_eof()
    seen = len(parser.fed)
    source.rounds()
    assert len(parser.fed) == seen and parser.fed[-1] == b"end"


def test_a_frame_without_a_mask_that_waits_behind_others_ends_the_connection() -> None:
    parser, source = Parser(), Source()
    frames = MaskedFrames(parser, source)
    frames.feed_data(EMPTY * 100 + b"\x82\x03raw" + EMPTY)
    source.rounds()
    assert b"".join(parser.fed) == EMPTY * 100 + b"\xf0\x80"
    assert source.closed
    assert frames.feed_data(EMPTY) == (True, b"")


@pytest.mark.parametrize("seed", range(20))
def test_the_parser_sees_what_came_however_it_was_cut(seed: int) -> None:
    dice = random.Random(seed)
    parser, source = Parser(), Source()
    frames = MaskedFrames(parser, source)
    stream = b""
    for _ in range(dice.randint(1, 60)):
        size = dice.choice((0, 1, 125, 126, 300, 65_535, 65_536))
        short, more = (size, 0) if size < 126 else (126, 2) if size < 65_536 else (127, 8)
        stream += bytes((0x82, 0x80 | short)) + (size.to_bytes(more, "big") if more else b"") + dice.randbytes(4 + size)
    at = 0
    while at < len(stream):
        size = dice.choice((1, 2, 3, 9, 1_000, 100_000))
        frames.feed_data(stream[at : at + size])
        at += size
        if dice.random() < 0.7:
            source.rounds()
    source.rounds()
    assert b"".join(parser.fed) == stream
    assert source.listens and not frames.behind
