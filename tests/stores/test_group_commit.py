"""Groups of facts: what goes together, what waits, who is told when. The disk's thread is held still and run by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest

from tandem.broker.facts import ENQUEUED, SETTLED
from tandem.broker.ports import StoreState
from tandem.model.errors import StoreUnavailable
from tandem.stores import LogSettings, SegmentStore
from tests.stores.harness import Fetched, Loop, ManualClock, Note, Sink

Log = list[tuple[str, BaseException | None]]


class HeldWorker:
    """Does its jobs when told to; all but the committer's at once."""

    committers: ClassVar[list[HeldWorker]] = []

    def __init__(self, name: str) -> None:
        self._jobs: list[Callable[[], None]] = []
        self._held = name == "tandem-committer"
        if self._held:
            HeldWorker.committers.append(self)

    def submit(self, job: Callable[[], None]) -> None:
        self._jobs.append(job)
        if not self._held:
            self.run()

    def run(self) -> int:
        jobs, self._jobs = self._jobs, []
        for job in jobs:
            job()
        return len(jobs)

    def stop(self, timeout_seconds: float) -> bool:
        self.run()
        return True


class Bench:
    def __init__(self, directory: Path) -> None:
        HeldWorker.committers = []
        self.loop = Loop()
        self.clock = ManualClock()
        self.store = SegmentStore(directory, self.loop.call, LogSettings(), self.clock, new_worker=HeldWorker)
        self.store.replay(Sink())
        self.log: Log = []

    def put(self, name: str) -> int:
        location = self.store.append(ENQUEUED, 0, 1, 1, 0, 0, b"", name.encode())
        self.store.when_durable(Note(self.log, name))
        return location

    def commit(self) -> int:
        done = HeldWorker.committers[-1].run()
        self.loop.run_ready()
        return done


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "store")


def names(log: Log) -> list[str]:
    return [name for name, _ in log]


def test_what_is_appended_while_a_block_is_on_its_way_is_one_block_after_it(bench: Bench) -> None:
    bench.put("a")
    bench.store.flush()
    for name in "bcd":
        bench.put(name)
        bench.store.flush()
    assert bench.commit() == 1
    assert names(bench.log) == ["a"]
    assert bench.commit() == 1, "all three together"
    assert names(bench.log) == ["a", "b", "c", "d"]
    assert bench.store.sync_count == 2
    bench.store.close()


def test_numbers_and_instants_of_any_size_are_read_as_they_were_written(tmp_path: Path) -> None:
    """What neighbours have in common is packed once: none of them may get another's."""
    seqs = [1, (1 << 32) - 1, 1 << 32, (5 << 48) + 7, 7, (1 << 64) - 1]
    instants = [0, 1_700_000_000_000, 1_700_000_000_000, 1 << 40, 0, (1 << 64) - 1]
    bench = Bench(tmp_path / "store")
    for seq in seqs:
        for at in instants:
            bench.store.append(ENQUEUED, 3, 2, seq, at, seq, b"key", b"")
    assert bench.store.append_run(SETTLED, 1, 2, seqs, 5) == len(seqs)
    bench.store.append(ENQUEUED, 3, 2, 7, 6, 0, b"", b"")
    bench.store.flush()
    bench.commit()
    bench.store.close()
    sink = Sink()
    again = SegmentStore(tmp_path / "store", bench.loop.call, LogSettings(), bench.clock, new_worker=HeldWorker)
    again.replay(sink)
    again.close()
    assert [fact[:7] for fact in sink.replayed_facts] == [
        *((ENQUEUED, 3, 2, seq, at, seq, b"key") for seq in seqs for at in instants),
        *((SETTLED, 1, 2, seq, 5, 0, b"") for seq in seqs),
        (ENQUEUED, 3, 2, 7, 6, 0, b""),
    ]


def test_a_turn_that_is_not_over_is_not_torn_apart_by_a_commit_that_returns(bench: Bench) -> None:
    bench.put("a")
    bench.store.flush()
    bench.put("b")  # its turn goes on
    assert bench.commit() == 1
    assert bench.commit() == 0, "the commit of a did not take half a turn along"
    bench.put("c")
    bench.store.flush()
    assert bench.commit() == 1
    assert names(bench.log) == ["a", "b", "c"]
    bench.store.close()


def test_bodies_are_read_from_memory_while_they_are_pending_and_while_they_are_on_their_way(bench: Bench) -> None:
    first = bench.put("first")
    bench.store.flush()
    second = bench.put("second")
    fetched = Fetched()
    bench.store.fetch([second, first], fetched)
    bench.loop.run_ready()
    assert fetched.bodies == [b"second", b"first"]
    assert bench.store.pending_bytes > 0
    bench.store.close()
    assert bench.store.pending_bytes == 0


def test_a_block_that_does_not_return_stops_the_store_and_everybody_is_told_once(bench: Bench) -> None:
    bench.put("a")
    bench.store.flush()
    bench.put("b")
    bench.clock.now += 6_000
    assert bench.store.health.state is StoreState.DEGRADED
    bench.store.check_stalled(5_000)
    assert bench.store.health.state is StoreState.DOWN
    assert names(bench.log) == ["a", "b"]
    assert all(isinstance(error, StoreUnavailable) for _, error in bench.log)
    with pytest.raises(StoreUnavailable):
        bench.put("c")
    with pytest.raises(StoreUnavailable, match="has not returned"):
        bench.store.reopen(Sink())
    bench.commit()
    assert names(bench.log) == ["a", "b"], "nobody hears of the late commit"
    again = Sink()
    bench.store.reopen(again)
    assert again.replayed_facts == [], "what everybody was refused is cut off"
    bench.store.close()
