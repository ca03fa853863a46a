"""The append log and SQLite, given the same commands, never disagree on what is there, in what order, and with which bytes."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tandem.broker.facts import DELIVERED, ENQUEUED
from tandem.broker.ports import Journal
from tandem.stores import InlineWorker, LogSettings, SegmentStore
from tests.stores.harness import Fetched, Loop, ManualClock, Note, Shop
from tests.stores.sqlite_store import SqliteStore

SETTINGS = LogSettings(segment_bytes=2_048, compaction_records_per_step=5, lazy_bytes_max=700, index_spill_bytes=300, read_bytes_max=900)


class Side:
    """One engine with a tenant of its own."""

    def __init__(self, engine: str, directory: Path) -> None:
        self.engine = engine
        self.directory = directory
        self.clock = ManualClock()
        self.log: list[tuple[str, BaseException | None]] = []
        self.open()

    def open(self) -> None:
        self.loop = Loop()
        self.shop = Shop()
        self.store: Journal
        if self.engine == "segment":
            self.store = SegmentStore(self.directory, self.loop.call, SETTINGS, self.clock, new_worker=InlineWorker)
        else:
            self.store = SqliteStore(self.directory, self.loop.call, SETTINGS, self.clock, new_worker=InlineWorker)
        self.shop.journal = self.store
        self.store.replay(self.shop)

    def fetch(self, names: list[tuple[int, int]]) -> list[bytes]:
        effect = Fetched()
        self.store.fetch([self.shop.messages[name][1] for name in names], effect)
        self.loop.run_until(lambda: effect.arrived)
        assert effect.error is None
        assert effect.bodies is not None
        return effect.bodies


class Twins(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.base = Path(tempfile.mkdtemp(prefix="twins-"))
        self.sides = [Side("segment", self.base / "segment"), Side("sqlite", self.base / "sqlite")]
        self.bodies: dict[tuple[int, int], bytes] = {}
        self.waited = 0

    def teardown(self) -> None:
        if hasattr(self, "sides"):
            for side in self.sides:
                side.store.close()
            shutil.rmtree(self.base)

    @rule(entity=st.sampled_from((4, 5, 400)), key=st.binary(max_size=40), body=st.binary(max_size=300), times=st.integers(1, 6))
    def put(self, entity: int, key: bytes, body: bytes, times: int) -> None:
        for _ in range(times):
            first, second = (side.shop.put(entity, key, body) for side in self.sides)
            assert first == second
            self.bodies[entity, first] = body

    @precondition(lambda self: self.sides[0].shop.messages)
    @rule(data=st.data(), times=st.integers(1, 12))
    def settle(self, data: st.DataObject, times: int) -> None:
        names = sorted(self.sides[0].shop.messages)
        for entity, seq in data.draw(st.lists(st.sampled_from(names), unique=True, max_size=times)):
            for side in self.sides:
                side.shop.settle(entity, seq)
            del self.bodies[entity, seq]

    @rule(seq=st.integers(0, 2**64 - 1), aux=st.integers(0, 2**64 - 1), key=st.binary(max_size=20))
    def append_lazily(self, seq: int, aux: int, key: bytes) -> None:
        for side in self.sides:
            side.store.append(DELIVERED, 0, 8, seq, 2**63, aux, key, b"")

    @rule()
    def flush(self) -> None:
        for side in self.sides:
            side.store.flush()

    @rule()
    def wait(self) -> None:
        self.waited += 1
        for side in self.sides:
            side.store.when_durable(Note(side.log, str(self.waited)))
            side.store.flush()
            side.loop.run_until(lambda side=side: len(side.log) == self.waited)
            assert side.store.pending_bytes == 0

    @rule(data=st.data())
    def fetch(self, data: st.DataObject) -> None:
        names = sorted(self.bodies)
        if names:
            chosen = data.draw(st.lists(st.sampled_from(names), max_size=30))
            for side in self.sides:
                assert side.fetch(chosen) == [self.bodies[name] for name in chosen]

    @rule(ms=st.integers(0, 2_000))
    def pass_time(self, ms: int) -> None:
        for side in self.sides:
            side.clock.now += ms

    @rule()
    def compact(self) -> None:
        for side in self.sides:
            side.store.step_compaction()
            side.loop.run_ready()

    @rule()
    def restart(self) -> None:
        for side in self.sides:
            side.store.close()
            side.open()
            assert side.fetch(sorted(self.bodies)) == [self.bodies[name] for name in sorted(self.bodies)]

    @invariant()
    def both_know_the_same(self) -> None:
        if not hasattr(self, "sides"):
            return
        one, two = self.sides
        assert {name: key for name, (key, _) in one.shop.messages.items()} == {name: key for name, (key, _) in two.shop.messages.items()}
        assert one.shop.counters == two.shop.counters
        assert set(one.shop.messages) == set(self.bodies)
        assert one.log == two.log


Twins.TestCase.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
)
TestTwins = Twins.TestCase


@pytest.mark.parametrize("seed", range(3))
def test_both_engines_replay_exactly_the_same_facts(tmp_path: Path, seed: int) -> None:
    sides = [Side("segment", tmp_path / "segment"), Side("sqlite", tmp_path / "sqlite")]
    facts = [(ENQUEUED, i % 256, i * 7 % 2**32, i * 13**15 % 2**64, i, seed * i, b"k" * (i % 9), b"b" * (i * 31 % 200)) for i in range(500)]

    class Recorder(Shop):
        def __init__(self) -> None:
            super().__init__()
            self.facts: list[tuple[int, int, int, int, int, int, bytes, int]] = []

        def replayed(
            self, kind: int, flags: int, entity: int, seq: int, at: int, aux: int, key: bytes, location: int, body_bytes: int
        ) -> None:
            self.facts.append((kind, flags, entity, seq, at, aux, key, body_bytes))

    heard = []
    for side in sides:
        for i, fact in enumerate(facts):
            side.store.append(*fact)
            if i % (7 + seed) == 0:
                side.store.when_durable(Note(side.log, str(i)))
                side.store.flush()
                side.loop.run_ready()
        side.store.close()
        recorder = Recorder()
        side.open()
        side.store.close()
        again = type(side.store)(side.directory, side.loop.call, SETTINGS, side.clock)
        recorder.journal = again
        again.replay(recorder)
        heard.append(recorder.facts)
        again.close()
    assert heard[0] == heard[1] == [(*fact[:7], len(fact[7])) for fact in facts]
