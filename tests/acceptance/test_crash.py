"""SIGKILL in a loop under load: what was confirmed holds, whatever the instant. `TANDEM_CRASH_KILLS=2000` makes a night of it."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tandem.testing.checker import Verdict
from tests.acceptance.crash_stories import ALL, Plain
from tests.acceptance.crashing import CrashingBroker, Kills, run_stories

KILLS = int(os.environ.get("TANDEM_CRASH_KILLS", "50"))
SEED = int(os.environ.get("TANDEM_CRASH_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
SMALL_SEGMENTS = "[stores]\nsegment_bytes = 1048576\ncount = 3\n"
"""So that sealing and compaction happen all the time."""


@pytest.mark.slow
@pytest.mark.compiled_too
@pytest.mark.timeout(120 + 10 * KILLS)
async def test_nothing_confirmed_is_lost_doubled_or_changed_however_often_the_broker_is_killed(tmp_path: Path) -> None:
    print(f"seed {SEED} (TANDEM_CRASH_SEED={SEED} kills at the same moments again), {KILLS} kills")
    broker = CrashingBroker(tmp_path, SMALL_SEGMENTS + "".join(story.config(story) for story in ALL))  # type: ignore[arg-type]
    stories = [story(broker, random.Random(SEED + number)) for number, story in enumerate(ALL)]
    kills = Kills(broker, list(stories), random.Random(SEED), (0.05, 0.9))
    try:
        await run_stories(list(stories), broker, kills, KILLS, drain_seconds_max=60)
    finally:
        await broker.stop()
    for story in stories:
        if isinstance(story, Plain):
            story.check_batches()
    verdicts = [checker.verdict() for story in stories for checker in story.checkers()]
    for story in stories:
        print(*(f"{checker.name}: {checker.verdict()}" for checker in story.checkers()), sep="\n")
    total = Verdict.total(verdicts)
    assert total.holds, f"seed {SEED}: {total}\n{broker.last_words()}"
    assert broker.kills >= KILLS
    for story in stories:
        for checker in story.checkers():
            verdict = checker.verdict()
            assert verdict.seen > KILLS, f"{checker.name} had next to nothing to do, so this proves nothing: {verdict}"
            assert verdict.recovered > 0, f"no crash met anything of {checker.name}, so this proves nothing: {verdict}"
