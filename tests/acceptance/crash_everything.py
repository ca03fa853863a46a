"""Every kind of entity and operation at once, on a broker that is killed again and again, and the verdict on it."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence

from tandem.simulator.checker import CheckResult
from tests.acceptance.crash_journeys import JOURNEYS
from tests.acceptance.crash_stories import ALL, Plain
from tests.acceptance.crashing import CrashingBroker, Kills, Story, run_stories

SEED = int(os.environ.get("TANDEM_CRASH_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
SMALL_SEGMENTS = "[stores]\nsegment_bytes = 1048576\ncount = 3\n"
"""So that sealing and compaction happen all the time."""
EVERYTHING = (*ALL, *JOURNEYS)


async def crash_again_and_again(
    broker: CrashingBroker, count: int, mercy: float = 0.3, stories_told: Sequence[type[Story]] = EVERYTHING
) -> None:
    print(f"seed {SEED} (TANDEM_CRASH_SEED={SEED} kills at the same moments again), {count} kills")
    stories = [story(broker, random.Random(SEED + number)) for number, story in enumerate(stories_told)]
    broker.configure("".join(story.config() for story in stories))
    kills = Kills(broker, list(stories), random.Random(SEED), (0.05, 0.9), mercy)
    try:
        await run_stories(list(stories), broker, kills, count, drain_seconds_max=120 + 5 * count)
    finally:
        await broker.stop()
    for story in stories:
        if isinstance(story, Plain):
            story.check_batches()
        print(*(f"{checker.name}: {checker.verdict()}" for checker in story.checkers()), sep="\n")
    total = CheckResult.total(checker.verdict() for story in stories for checker in story.checkers())
    assert total.holds, f"seed {SEED}: {total}\n{broker.last_words()}"
    assert broker.kills >= count
    for story in stories:
        for checker in story.checkers():
            verdict = checker.verdict()
            assert verdict.seen > count, f"{checker.name} had next to nothing to do, so this proves nothing: {verdict}"
            assert verdict.recovered > 0, f"no crash met anything of {checker.name}, so this proves nothing: {verdict}"
