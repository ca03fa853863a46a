"""Stores over an engine that lies, in virtual time: thousands of seeds in seconds."""

from __future__ import annotations

import os

import pytest

from tandem.simulator.ledger_story import LedgerStory

SEEDS = int(os.environ.get("TANDEM_LEDGER_SEEDS", "400"))
"""10,000 in the long form."""


@pytest.mark.slow
@pytest.mark.timeout(120 + SEEDS)
def test_whatever_the_engine_does_what_was_announced_is_there_once_and_in_one_order() -> None:
    announced = landed = again = fail_overs = 0
    for seed in range(SEEDS):
        story = LedgerStory(seed)
        story.run()
        announced += len(story.announced)
        fail_overs += sum(engine.fail_overs for engine in story.engines)
        landed += sum(node.store.doubts["landed"] for node in story.nodes)
        again += sum(node.store.doubts["sent again"] for node in story.nodes)
    assert announced > SEEDS, "something was tried"
    assert min(landed, again, fail_overs) > 0, "and all that may happen did"


@pytest.mark.slow
@pytest.mark.timeout(120 + SEEDS)
def test_ownership_by_beats_gives_every_epoch_one_owner_and_loses_nothing_while_nodes_sleep() -> None:
    announced = takeovers = 0
    for seed in range(SEEDS // 2):
        story = LedgerStory(seed, steps=200, by_beats=True)
        story.run()
        announced += len(story.announced)
        takeovers += story.takeovers
    assert announced > SEEDS, "something was tried"
    assert takeovers > SEEDS // 20, "and taken over"


@pytest.mark.slow
@pytest.mark.timeout(120 + SEEDS)
@pytest.mark.parametrize("by_beats", [False, True])
def test_of_several_engines_one_that_is_away_takes_down_its_own_store_only(by_beats: bool) -> None:
    announced = [0, 0, 0]
    meanwhile = takeovers = 0
    for seed in range(SEEDS // 4):
        story = LedgerStory(seed, steps=200, by_beats=by_beats, stores=3)
        story.run()
        announced = [before + len(told) for before, told in zip(announced, story.told, strict=True)]
        meanwhile += story.meanwhile
        takeovers += story.takeovers
    assert min(announced) > SEEDS // 4, "each of them took something"
    assert meanwhile > SEEDS // 4, "and the others while one of them was away"
    assert takeovers > SEEDS // 20


def test_a_seed_tells_the_same_story_again() -> None:
    first, second = LedgerStory(7), LedgerStory(7)
    first.run()
    second.run()
    assert first.announced == second.announced
    assert [engine.kept for engine in first.engines] == [engine.kept for engine in second.engines]
