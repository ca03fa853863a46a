"""Compiled code is the source, only faster: both answer generated messages and frames alike, and nothing escapes from either."""

from __future__ import annotations

import os

import pytest

from tests.differential import cases
from tests.differential.compare import BLOCK_FRAMES, compare, compiled_place

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
