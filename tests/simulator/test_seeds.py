"""The real broker code, two brokers, clients and syphon through the faults of a seed: promises hold, the same seed tells the same story.

`make sim SEED=n` tells one of them aloud. `TANDEM_SIM_SEEDS=500` tells more of them, `TANDEM_SIM_FIRST` says from where."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tandem.simulator.engine import SimEngine
from tandem.simulator.simulate import EngineOutages, IssuerOutages, simulate

FIRST = int(os.environ.get("TANDEM_SIM_FIRST", "1000"))
COUNT = int(os.environ.get("TANDEM_SIM_SEEDS", "12"))
STORY_SECONDS = 300.0

FOUND = {
    30005: "a commit that stalled, filled its segment and came through late was cut off, and the index that knew it made the store corrupt",
    1: "a receiver of a partitioned session queue could not leave: it stood in the line of a fragment",
    4: "a store that failed twice between two looks left its queues in service, and their numbers were given out again",
    7: "bodies read before a store stopped were delivered after it, and what followed could not be written",
    108: "a session of a partitioned queue could not be closed while its store was down, nor anything else of that connection",
    109: "a message delivered before its fragment was replaced broke the connection that settled it afterwards",
    114: "the same, on another road",
    9011: "a pair was closed while fences stood in its backlog queues, and the loop complained of their end",
    91015: "a session with messages in a queue that a new process had seen had earlier ones in another that could not be looked into",
    300298: "a message was forwarded again, to another fragment, while the store that had it already could not be read",
}
"""Seeds that once broke a promise, and which."""


FOUND_SHORT = {
    200486: "a broker was killed before the disk knew that its clock had been set right, and forgot which ids it had seen",
    200639: "the same, with the clock set ahead",
    200780: "a diverted message whose body had rotted was set aside and told, and counted as left behind",
}
"""In stories of 80 seconds."""


@pytest.mark.slow
@pytest.mark.compiled_instead
@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", FOUND | FOUND_SHORT)
def test_a_seed_that_once_broke_a_promise_holds(seed: int) -> None:
    outcome = simulate(seed, story_seconds=80.0 if seed in FOUND_SHORT else 400.0)
    assert not outcome.broken, "\n".join((*outcome.last_events, str(outcome)))


@pytest.mark.slow
@pytest.mark.compiled_instead
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
def test_every_promise_holds_through_the_faults_of_a_seed(seed: int) -> None:
    outcome = simulate(seed, story_seconds=STORY_SECONDS)
    assert not outcome.broken, "\n".join((*outcome.last_events, str(outcome)))
    assert outcome.verdict.seen > 100, f"next to nothing happened, so this proves nothing: {outcome}"
    assert outcome.faults, f"nothing went wrong, so this proves nothing: {outcome}"
    assert outcome.replays_compared > 20, f"live rows were hardly ever compared with a replay: {outcome.replays_compared}"


@pytest.mark.slow
@pytest.mark.compiled_instead
@pytest.mark.timeout(120)
def test_tokens_are_good_to_their_end_and_no_further_while_their_issuer_comes_and_goes() -> None:
    sent = cut = outages = 0
    for seed in range(1, 13):
        simulation = IssuerOutages(seed, story_seconds=600.0)
        outcome = simulation.run()
        assert not outcome.broken, "\n".join((*outcome.last_events, str(outcome)))
        sent += simulation.issued.sent_without_issuer
        cut += simulation.issued.cut
        outages += simulation.issued.issuer.outages
    assert min(sent, cut, outages) > 5, "next to nothing happened, so this proves nothing"


@pytest.mark.slow
@pytest.mark.compiled_instead
@pytest.mark.timeout(300)
def test_brokers_with_their_stores_in_engines_keep_every_promise_while_those_fail_over_and_others_take_over() -> None:
    seen = taken = landed = again = compared = 0
    for seed in range(FIRST, FIRST + COUNT):
        simulation = EngineOutages(seed, story_seconds=200.0)
        outcome = simulation.run()
        assert not outcome.broken, "\n".join((*outcome.last_events, str(outcome)))
        seen += outcome.verdict.seen
        compared += outcome.replays_compared
        taken += simulation.taken_over()
        doubts = simulation.doubts()
        landed += doubts["landed"]
        again += doubts["sent again"]
    assert seen > 100 * COUNT, "next to nothing happened, so this proves nothing"
    assert min(taken, landed, again) > COUNT, "and all that may happen did"
    assert compared > 20 * COUNT


@pytest.mark.slow
@pytest.mark.compiled_instead
@pytest.mark.timeout(120)
def test_an_engine_that_forgets_what_it_acknowledged_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimEngine, "fail_over", lambda self: self._primary.segments.clear())
    assert any(EngineOutages(seed, story_seconds=200.0).run().broken for seed in range(1, 5))


@pytest.mark.slow
@pytest.mark.compiled_instead
@pytest.mark.timeout(120)
def test_the_same_seed_tells_the_same_story_to_the_last_byte() -> None:
    """As `make sim SEED=n` promises it: in a process of its own, whatever that process's hashes are."""

    def trace(seed: int, hash_seed: str) -> str:
        command = [sys.executable, "-m", "tandem.simulator", "--seed", str(seed), "--seconds", "200"]
        environ = os.environ | {"PYTHONHASHSEED": hash_seed}
        told = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environ)
        return told.stdout.rpartition("trace ")[2].strip()

    first, second, other = trace(7, "1"), trace(7, "2"), trace(8, "1")
    assert first == second
    assert first and other and first != other


@pytest.mark.slow
@pytest.mark.compiled_instead
@pytest.mark.timeout(120)
def test_a_broken_promise_is_found_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that forgets what it said it had synced: somebody has to notice."""
    from tandem.simulator import disk

    monkeypatch.setattr(disk.Inode, "sync", lambda self: None)
    outcomes = [simulate(seed, story_seconds=300.0) for seed in range(2, 6)]
    assert any(outcome.broken for outcome in outcomes)
    broken = next(outcome for outcome in outcomes if outcome.broken)
    assert broken.last_events, "whoever reads this needs to see what led to it"
