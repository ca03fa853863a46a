"""Compiled code is the source, only faster: both answer generated messages and frames alike, and nothing escapes from either."""

from __future__ import annotations

import asyncio
import os

import pytest

from tests.differential import answers, cases
from tests.differential.answers import ATTACH, BEGIN, CLOSE, DETACH, DISPOSITION, END, FLOW, TRANSFER, StillLoop, play
from tests.differential.compare import BLOCK_FRAMES, Share, compare, compiled_place

FRAMES = int(os.environ.get("TANDEM_FUZZ_FRAMES", "60000"))


@pytest.mark.timeout(900)
def test_compiled_and_source_answer_alike() -> None:
    compiled = compiled_place()
    if isinstance(compiled, str):
        pytest.skip(compiled)
    outcomes = list(compare(compiled, 1, -(-FRAMES // BLOCK_FRAMES)))
    assert [outcome for outcome in outcomes if outcome is not None] == []
    assert len(outcomes) == -(-FRAMES // BLOCK_FRAMES)


def test_frames_follow_from_the_seed_alone() -> None:
    def some(seed: int) -> list[bytes]:
        talk = cases.Conversation(cases.Dice(seed))
        return [talk.next() for _ in range(200)] + [cases.message(talk.dice) for _ in range(200)]

    assert some(1) == some(1)
    assert some(1) != some(2)


def test_frames_reach_a_broker_that_answers_each_kind_of_them() -> None:
    """A conversation that the broker has given up before its first frame compares nothing."""
    with asyncio.Runner(loop_factory=StillLoop) as runner:
        played = runner.run(play(1, BLOCK_FRAMES))
    assert played.broken == []
    told = {BEGIN: 20, ATTACH: 50, FLOW: 20, TRANSFER: 100, DISPOSITION: 400, DETACH: 10, END: 5, CLOSE: 50}
    assert {code: played.said[code] for code in told if played.said[code] < told[code]} == {}
    assert BLOCK_FRAMES // 2 / played.connections > 8, "too many frames cost the connection"


def test_a_connection_that_cannot_be_begun_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "OPENING", answers.OPENING.replace(b"localhost", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff"))
    with asyncio.Runner(loop_factory=StillLoop) as runner:
        played = runner.run(play(1, 8))
    assert played.broken and "no connection could be begun" in played.broken[0]


def test_pieces_of_a_run_are_played_once_each() -> None:
    shares = [Share(7 + number, 40, step=3, every=4) for number in range(3)]
    assert sorted(block for share in shares for block in share.blocks()) == list(range(7, 40))
    assert sorted(block for share in shares for block in share.both()) == [8, 12, 16, 20, 24, 28, 32, 36]
