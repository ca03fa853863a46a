"""Whole nodes of one cluster in one simulated loop: beats, takeovers, carried links and an engine that lies; every promise holds.

`TANDEM_CLUSTER_SEEDS=10000` tells more of them, `TANDEM_SIM_FIRST` says from where."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tandem.cluster.node import Node
from tandem.model.errors import EngineAway
from tandem.simulator.engine import LedgerState, SimLedger
from tandem.simulator.simulate import ClusterOutages
from tandem.stores.ledger import InDoubt

FIRST = int(os.environ.get("TANDEM_SIM_FIRST", "1"))
COUNT = int(os.environ.get("TANDEM_CLUSTER_SEEDS", "6"))
STORY_SECONDS = 100.0

FOUND = {
    (12, 120.0): "a deposed owner whose beats came through again handed out from memory what others had completed, until it looked",
    (2095, 60.0): "scheduled messages that were due while the engine could not be read for a moment were never tried for again",
    (2159, 60.0): "the same",
    (2249, 60.0): "a store that was wanted elsewhere while it was down was opened by nobody: its owner kept it for the one who waited",
    (30205, 60.0): "a store that was down here when another node took it over stayed down here: nothing was forwarded to it any more",
    (603221, 20.0): "a store that others acquired while it was read here was served here too, for a beat: messages were locked by two",
    (700584, 20.0): "a node that could not be reached left a traceback if whoever wanted to go there had gone meanwhile",
    (713903, 20.0): "the simulator's own: a process that stopped by itself after the last fault was started by nobody",
    (717052, 20.0): "the simulator's own: bytes overtook the connection they came by when a machine was woken early",
    (
        806552,
        20.0,
    ): "a machine's clock was set right in the moment of a takeover: the new owner went ahead of it by what it had been behind",
}
"""Seeds that once broke a promise, with the length of the story, and which."""


@pytest.mark.slow
@pytest.mark.compiled_instead
@pytest.mark.timeout(60)
@pytest.mark.parametrize(("seed", "seconds"), FOUND)
def test_a_seed_of_a_cluster_that_once_broke_a_promise_holds(seed: int, seconds: float) -> None:
    outcome = ClusterOutages(seed, story_seconds=seconds).run()
    assert not outcome.broken, "\n".join((*outcome.last_events, str(outcome)))


@pytest.mark.slow
@pytest.mark.compiled_instead
@pytest.mark.timeout(120 + 10 * COUNT)
def test_nodes_that_take_over_by_beats_and_carry_links_keep_every_promise() -> None:
    seen = takeovers = carried = compared = 0
    for seed in range(FIRST, FIRST + COUNT):
        simulation = ClusterOutages(seed, story_seconds=STORY_SECONDS)
        outcome = simulation.run()
        assert not outcome.broken, "\n".join((*outcome.last_events, str(outcome)))
        seen += outcome.verdict.seen
        compared += outcome.replays_compared
        takeovers += simulation.world.engine.takeovers()
        carried += simulation.world.carried()
    assert seen > 50 * COUNT, "next to nothing happened, so this proves nothing"
    assert takeovers > COUNT, "and stores went from node to node"
    assert carried > 5 * COUNT, "and nodes spoke with each other"
    assert compared > 20 * COUNT


@pytest.mark.slow
@pytest.mark.compiled_instead
@pytest.mark.timeout(60)
def test_a_seed_of_a_cluster_tells_the_same_story_to_the_last_byte() -> None:
    def trace(hash_seed: str) -> str:
        command = [sys.executable, "-m", "tandem.simulator", "--story", "cluster", "--seed", "3", "--seconds", "60"]
        told = subprocess.run(command, capture_output=True, text=True, timeout=50, env=os.environ | {"PYTHONHASHSEED": hash_seed})
        return told.stdout.rpartition("trace ")[2].strip()

    first, second = trace("1"), trace("2")
    assert first and first == second


def _append_without_a_fence(self: SimLedger, segment: int, number: int, at: int, entry: bytes, block: bytes) -> None:
    def do(state: LedgerState) -> None:
        state.segments.setdefault(segment, {})[number] = (self._epoch, at, entry, block)

    try:
        self._engine.write(do)
    except EngineAway as error:
        raise InDoubt(error.description) from error


@pytest.mark.slow
@pytest.mark.compiled_instead
@pytest.mark.timeout(60)
def test_an_engine_that_takes_blocks_of_a_deposed_owner_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimLedger, "append", _append_without_a_fence)
    broken = [ClusterOutages(seed, story_seconds=STORY_SECONDS).run().broken for seed in (2, 3, 7)]
    assert any("took a block under epoch" in one for one in broken), broken


@pytest.mark.slow
@pytest.mark.compiled_instead
@pytest.mark.timeout(60)
def test_a_node_that_wakes_and_does_not_look_at_its_lease_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Node, "check", lambda self: None)
    broken = [ClusterOutages(seed, story_seconds=STORY_SECONDS).run().broken for seed in (8, 14)]
    assert any("by one client, and delivered to another" in one for one in broken), broken
