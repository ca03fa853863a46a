"""Seeds by the hundred: in several processes, in pieces, with a summary."""

from __future__ import annotations

import os
import signal
from random import Random

import pytest

from tandem.simulator import many
from tandem.simulator.many import ProcessDied, SeedTotals, outcomes
from tandem.simulator.simulate import SeedOutcome, simulate


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_seed_tells_the_same_story_whatever_process_tells_it() -> None:
    seeds = range(40, 43)
    together = {outcome.seed: outcome for outcome in outcomes(seeds, "outage", 20.0, 2)}
    assert sorted(together) == list(seeds)
    alone = simulate(41, story_seconds=20.0)
    assert (together[41].digest, together[41].events, together[41].checks) == (alone.digest, alone.events, alone.checks)
    totals = SeedTotals(seeds)
    for outcome in together.values():
        totals.add(outcome)
    assert str(totals).startswith("3 of the seeds 40-42: 0 broken")
    assert "broken: none" in totals.summary()
    assert "0 looks" not in totals.summary()


def test_a_process_that_dies_is_told_with_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(seed: int, *, story: str, story_seconds: float) -> SeedOutcome | None:
        if seed == 8 and story_seconds > 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return None

    monkeypatch.setattr(many, "simulate", dies)
    with pytest.raises(ProcessDied, match="seed 8 ended with -9"):
        list(outcomes(range(8, 9), "outage", 5.0, 1))


def test_pieces_are_named_by_their_first_and_last_seed() -> None:
    assert many.seeds_of("10000-19999") == range(10_000, 20_000)
    assert many.seeds_of("7") == range(7, 8)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_story_does_not_depend_on_where_things_lie_in_memory() -> None:
    """The order of a set of objects does: sends that a lost connection left unanswered were once tried again in such an order."""

    def digest(junk_seed: int) -> str:
        dice = Random(junk_seed)
        junk = [[object() for _ in range(dice.randrange(9))] for _ in range(100_000)]
        dice.shuffle(junk)
        del junk[:60_000]
        return simulate(248, story_seconds=80.0).digest

    assert digest(1) == digest(2) == digest(3)
