"""What every engine behind the journal port promises, asked of each of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem.broker.facts import ENQUEUED, SETTLED, STATE
from tandem.broker.ports import Journal, StoreState, Tenant
from tandem.model.errors import StoreUnavailable
from tandem.stores import LogSettings, MemoryStore, SegmentStore, Shelf
from tests.stores.harness import Fetched, Loop, ManualClock, Note, Shop, Sink
from tests.stores.ledgers import ledger_store
from tests.stores.sqlite_store import SqliteStore

SMALL = LogSettings(segment_bytes=16_384, compaction_records_per_step=7)


class House:
    """One engine, its loop, and a way to restart it."""

    def __init__(self, engine: str, directory: Path, settings: LogSettings = SMALL, dsn: str = "") -> None:
        self.engine = engine
        self.dsn = dsn
        self.directory = directory
        self.settings = settings
        self.loop = Loop()
        self.clock = ManualClock()
        self.shelf = Shelf()
        self.opened: list[Journal] = []

    def make(self) -> Journal:
        store: Journal
        if self.engine == "memory":
            store = MemoryStore(self.loop.call, self.settings, self.shelf)
        elif self.engine == "sqlite":
            store = SqliteStore(self.directory, self.loop.call, self.settings, self.clock)
        elif self.engine == "postgres":
            store = ledger_store(self.dsn, self.loop.call, self.settings, self.clock)
        else:
            store = SegmentStore(self.directory, self.loop.call, self.settings, self.clock)
        self.opened.append(store)
        return store

    def open(self, tenant: Tenant | None = None) -> Journal:
        store = self.make()
        if isinstance(tenant, Shop):
            tenant.journal = store
        store.replay(tenant or Sink())
        return store

    def settle_down(self, store: Journal) -> None:
        """Everything appended so far is durable."""
        log: list[tuple[str, BaseException | None]] = []
        store.when_durable(Note(log, "x"))
        store.flush()
        self.loop.run_until(lambda: bool(log))
        assert log == [("x", None)]

    def fetch(self, store: Journal, locations: list[int]) -> list[bytes]:
        effect = Fetched()
        store.fetch(locations, effect)
        assert not effect.arrived, "never called back before fetch returns"
        self.loop.run_until(lambda: effect.arrived)
        assert effect.error is None
        assert effect.bodies is not None
        return effect.bodies

    def compact(self, store: Journal) -> None:
        """Until nothing is left to compact."""
        assert store.step_compaction()
        self.loop.run_until(lambda: not store.step_compaction())


@pytest.fixture(params=["memory", "segment", "sqlite", "postgres"])
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
    dsn = request.getfixturevalue("cluster_dsn") if request.param == "postgres" else ""
    made = House(request.param, tmp_path / "store", dsn=dsn)
    yield made
    for store in made.opened:
        store.close()


def test_facts_come_back_in_order_with_every_field(house: House) -> None:
    store = house.open()
    facts = [
        (ENQUEUED, 3, 4 * 17 + 1, 2**63 - 1, 1_700_000_000_000, 2**64 - 1, b"key one", b"body one"),
        (SETTLED, 255, 2**32 - 1, 0, 0, 0, b"", b""),
        (STATE, 0, 0, 2**64 - 1, 2**64 - 1, 5, b"\x00" * 300, b""),
        (ENQUEUED, 0, 1, 2, 3, 4, b"", b"\xff" * 70_000),
    ]
    locations = [store.append(*fact) for fact in facts]
    house.settle_down(store)
    store.close()
    sink = Sink()
    house.open(sink)
    expected = [(*fact[:7], location, len(fact[7])) for fact, location in zip(facts, locations, strict=True)]
    assert sink.replayed_facts == expected


def test_locations_only_grow_and_are_never_shared(house: House) -> None:
    store = house.open()
    locations = []
    for i in range(300):
        locations.append(store.append(ENQUEUED, 0, 4, i, 0, 0, b"k" * (i % 5), b"b" * (i * 7 % 900)))
        if i % 11 == 0:
            house.settle_down(store)
    assert locations == sorted(set(locations))


def test_effects_run_in_order_of_registration_and_only_after_flush(house: House) -> None:
    store = house.open()
    log: list[tuple[str, BaseException | None]] = []
    for i in range(5):
        store.append(ENQUEUED, 0, 4, i, 0, 0, b"", b"x")
        store.when_durable(Note(log, str(i)))
    house.loop.run_ready()
    assert log == []
    store.flush()
    assert log == [], "never called back before flush returns"
    store.append(ENQUEUED, 0, 4, 9, 0, 0, b"", b"x")
    store.when_durable(Note(log, "later"))
    store.flush()
    house.loop.run_until(lambda: len(log) == 6)
    assert log == [("0", None), ("1", None), ("2", None), ("3", None), ("4", None), ("later", None)]


def test_an_effect_with_nothing_appended_before_it_runs_all_the_same(house: House) -> None:
    store = house.open()
    house.settle_down(store)
    house.settle_down(store)


def test_an_effect_may_append_and_wait_again(house: House) -> None:
    store = house.open()
    log: list[tuple[str, BaseException | None]] = []

    class Again(Note):
        def done(self, error: BaseException | None) -> None:
            super().done(error)
            store.append(ENQUEUED, 0, 4, 2, 0, 0, b"", b"second")
            store.when_durable(Note(log, "second"))

    store.append(ENQUEUED, 0, 4, 1, 0, 0, b"", b"first")
    store.when_durable(Again(log, "first"))
    store.flush()
    house.loop.run_until(lambda: len(log) == 2)
    assert [name for name, _ in log] == ["first", "second"]


def test_one_effect_that_raises_does_not_silence_the_others(house: House) -> None:
    store = house.open()
    log: list[tuple[str, BaseException | None]] = []

    class Bad(Note):
        def done(self, error: BaseException | None) -> None:
            raise RuntimeError("bad effect")

    store.append(ENQUEUED, 0, 4, 1, 0, 0, b"", b"first")
    store.when_durable(Note(log, "before"))
    store.when_durable(Bad(log, "bad"))
    store.when_durable(Note(log, "after"))
    store.flush()
    with pytest.raises(RuntimeError, match="bad effect"):
        house.loop.run_until(lambda: False)
    assert [name for name, _ in log] == ["before", "after"]
    house.settle_down(store)


def test_bodies_are_read_back_before_and_after_they_are_durable(house: House) -> None:
    store = house.open()
    bodies = [bytes([i % 251]) * (i * 37 % 4_000) for i in range(200)]
    locations = []
    for i, body in enumerate(bodies):
        locations.append(store.append(ENQUEUED, 0, 4, i, 0, 0, b"key", body))
        if i in (50, 120):
            house.settle_down(store)
        if i == 160:
            store.when_durable(Note([], "in flight"))
            store.flush()
    assert house.fetch(store, locations) == bodies
    assert house.fetch(store, list(reversed(locations))) == list(reversed(bodies))
    assert house.fetch(store, locations[::3]) == bodies[::3]
    assert house.fetch(store, [locations[199], locations[0], locations[0]]) == [bodies[199], bodies[0], bodies[0]]
    assert house.fetch(store, []) == []
    house.settle_down(store)
    assert house.fetch(store, locations) == bodies


def test_bodies_larger_than_a_segment_and_than_one_read_come_back(house: House) -> None:
    store = house.open()
    bodies = [bytes([i]) * size for i, size in enumerate((3_000_000, 10, 200_000, 0, 1_100_000))]
    locations = [store.append(ENQUEUED, 0, 4, i, 0, 0, b"key", body) for i, body in enumerate(bodies)]
    house.settle_down(store)
    assert house.fetch(store, locations) == bodies


def test_what_nobody_waited_for_is_kept_on_close(house: House) -> None:
    store = house.open()
    store.append(STATE, 0, 4, 1, 0, 0, b"lazy", b"")
    store.flush()
    store.close()
    sink = Sink()
    house.open(sink)
    assert [fact[6] for fact in sink.replayed_facts] == [b"lazy"]


def test_close_runs_the_effects_of_what_it_makes_durable(house: House) -> None:
    store = house.open()
    log: list[tuple[str, BaseException | None]] = []
    store.append(ENQUEUED, 0, 4, 1, 0, 0, b"", b"x")
    store.when_durable(Note(log, "a"))
    store.flush()
    store.append(ENQUEUED, 0, 4, 2, 0, 0, b"", b"x")
    store.when_durable(Note(log, "b"))
    store.close()
    assert log == [("a", None), ("b", None)]
    house.loop.run_ready()
    assert len(log) == 2


def test_an_engine_that_is_not_open_refuses_appends_with_a_retryable_error(house: House) -> None:
    store = house.make()
    assert store.health.state is StoreState.RECOVERING
    with pytest.raises(StoreUnavailable):
        store.append(ENQUEUED, 0, 4, 1, 0, 0, b"", b"x")
    store.replay(Sink())
    assert store.health.state is StoreState.UP
    store.close()
    assert store.health.state is StoreState.DOWN
    with pytest.raises(StoreUnavailable):
        store.append(ENQUEUED, 0, 4, 1, 0, 0, b"", b"x")
    with pytest.raises(StoreUnavailable):
        store.when_durable(Note([], "x"))


def test_pending_bytes_go_up_with_appends_and_back_to_nothing(house: House) -> None:
    store = house.open()
    assert store.pending_bytes == 0
    store.append(ENQUEUED, 0, 4, 1, 0, 0, b"key", b"x" * 1_000)
    assert 1_003 <= store.pending_bytes <= 1_100
    house.settle_down(store)
    assert store.pending_bytes == 0


def test_compaction_gives_back_segments_and_loses_nothing_that_lives(house: House) -> None:
    shop = Shop()
    store = house.open(shop)
    alive = {}
    for i in range(600):
        entity = 4 * (i % 3)
        seq = shop.put(entity, b"key%d" % i, b"body%d" % i * 20)
        if i % 29 == 0:
            alive[entity, seq] = (b"key%d" % i, b"body%d" % i * 20)
        else:
            shop.settle(entity, seq)
        if i % 10 == 0:
            house.settle_down(store)
    house.settle_down(store)
    before = store.segment_count  # type: ignore[attr-defined]
    assert before > 5
    house.compact(store)
    assert store.segment_count <= 4  # type: ignore[attr-defined]
    counters = dict(shop.counters)

    def check(shop: Shop, store: Journal) -> None:
        assert shop.counters == counters
        assert set(shop.messages) == set(alive)
        names = sorted(alive)
        assert house.fetch(store, [shop.messages[name][1] for name in names]) == [alive[name][1] for name in names]
        assert [shop.messages[name][0] for name in names] == [alive[name][0] for name in names]

    check(shop, store)
    store.close()
    again = Shop()
    store = house.open(again)
    check(again, store)


def test_compaction_does_nothing_while_most_is_alive(house: House) -> None:
    shop = Shop()
    store = house.open(shop)
    for i in range(400):
        shop.put(4, b"", b"x" * 300)
        if i % 10 == 0:
            house.settle_down(store)
    house.settle_down(store)
    assert not store.step_compaction()
    house.settle_down(store)
    assert not store.step_compaction()
    assert store.segment_count > 5  # type: ignore[attr-defined]


def test_settlements_are_not_offered_to_the_tenant_again(house: House) -> None:
    sink = Sink()
    store = house.open(sink)
    for i in range(3_000):
        store.append(SETTLED, 0, 4, i, 0, 0, b"", b"")
        if i % 50 == 0:
            store.append(STATE, 0, 8, i, 0, 0, b"kept", b"")
            house.settle_down(store)
    house.settle_down(store)
    house.compact(store)
    assert len(sink.left) >= 2
    assert {fact[0] for fact in sink.offered} == {STATE}
    assert sink.left[0] == {4, 8}


def test_a_counter_outlives_the_segment_that_held_its_last_message(house: House) -> None:
    shop = Shop()
    store = house.open(shop)
    for _ in range(5):
        shop.settle(8, shop.put(8, b"", b"short lived"))
    for _ in range(20):
        for seq in [shop.put(4, b"", b"x" * 400) for _ in range(20)]:
            shop.settle(4, seq)
        house.settle_down(store)
    house.compact(store)
    store.close()
    again = Shop()
    store = house.open(again)
    assert again.counters == {8: 5, 4: 400}
