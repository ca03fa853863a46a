"""A store over a ledger that lies, hangs and forgets: effects run for what is there, and for nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tandem.broker.facts import ENQUEUED
from tandem.broker.ports import StoreState
from tandem.model.errors import EngineAway, StoreUnavailable
from tandem.model.store_row import StoreRow
from tandem.stores import LogSettings
from tandem.stores.ledger import Block, Deposed, Entry, InDoubt, NotOurs, Part
from tandem.stores.ledger_store import LedgerStore
from tests.stores.harness import Fetched, Loop, ManualClock, Note, Sink


class ScriptedLedger:
    """One store in memory, which does what it is asked, or what the test has told it to do instead."""

    where = "store-0"

    def __init__(self) -> None:
        self.epoch = 0
        self.owned = 0
        self.rows: dict[int, dict[int, tuple[int, int, bytes, bytes]]] = {}
        self.first, self.last, self.first_block = 1, 1, 1
        self.appends: list[Callable[[Callable[[], None]], None]] = []
        """What the next appends do instead of being done."""
        self.confirms: list[Exception] = []
        self.elsewhere = ""

    def acquire(self) -> StoreRow:
        if self.elsewhere:
            raise NotOurs(f"served by node {self.elsewhere}")
        self.epoch += 1
        self.owned = self.epoch
        return StoreRow(1, "tandem", 0, bytes(16), 2, self.epoch, "a", 1, "", self.first, self.last, self.first_block)

    def read_entries(self, segment: int, after: int, most: int) -> list[Entry]:
        rows = sorted(self.rows.get(segment, {}).items())
        return [(number, epoch, at, entry) for number, (epoch, at, entry, _) in rows if number > after][:most]

    def release(self) -> None:
        """Nobody else wants it."""

    def close(self) -> None:
        """It has nothing open."""

    def append(self, segment: int, number: int, at: int, entry: bytes, block: bytes) -> None:
        def do() -> None:
            if self.owned == self.epoch:
                self.rows.setdefault(segment, {}).setdefault(number, (self.epoch, at, entry, block))

        if self.appends:
            self.appends.pop(0)(do)
        else:
            if self.owned != self.epoch:
                raise InDoubt("no row")
            do()

    def confirm(self, segment: int) -> int:
        if self.confirms:
            raise self.confirms.pop(0)
        if self.owned != self.epoch:
            raise Deposed("another node")
        return max(self.rows.get(segment, {}), default=0)

    def begin_segment(self, segment: int) -> None:
        self.last = max(self.last, segment)

    def read_parts(self, segment: int, parts: list[Part]) -> list[bytes]:
        return [self.rows[segment][number][3][offset : offset + size] for number, offset, size in parts]

    def walk_entries(self, segment: int, after: int, most: int) -> list[Entry]:
        return self.read_entries(segment, after, most)

    def read_blocks(self, segment: int, after: int, most: int) -> list[Block]:
        rows = sorted(self.rows.get(segment, {}).items())
        return [(number, at, block) for number, (_, at, _, block) in rows if number > after][:most]

    def prepare_segment(self, segment: int) -> None:
        """Made when it is written."""

    def retire(self, first_segment: int, first_block: int) -> None:
        self.first, self.first_block = first_segment, first_block

    def drop_retired(self) -> bool:
        for segment in [segment for segment in self.rows if segment < self.first]:
            del self.rows[segment]
        return True

    def use_reserve(self) -> None:
        """It is never full."""

    def keep_reserve(self, size: int) -> str:
        return ""

    def size_bytes(self) -> int:
        return 0

    def give_up_after(self, milliseconds: int) -> None:
        """Nothing hangs."""

    def abandon(self) -> None:
        """Nothing hangs."""


def told_nobody(do: Callable[[], None]) -> None:
    """Done, and the caller is not told."""
    do()
    raise InDoubt("the connection broke")


def lost(do: Callable[[], None]) -> None:
    raise InDoubt("the connection broke")


class Bench:
    def __init__(self) -> None:
        self.loop = Loop()
        self.clock = ManualClock()
        self.ledger = ScriptedLedger()
        self.store = LedgerStore(self.ledger, "store-0", self.loop.call, LogSettings(), self.clock)
        self.store.replay(Sink())
        self.log: list[tuple[str, BaseException | None]] = []
        self.states: list[StoreState] = []
        self.store.when_room_changes(lambda: self.states.append(self.store.health.state))

    def put(self, name: str) -> int:
        location = self.store.append(ENQUEUED, 0, 1, 1, 0, 0, b"key", name.encode())
        self.store.when_durable(Note(self.log, name))
        self.store.flush()
        return location

    def wait(self, count: int) -> None:
        self.loop.run_until(lambda: len(self.log) >= count)

    def kept(self) -> list[int]:
        sink = Sink()
        other = LedgerStore(self.ledger, "store-0", self.loop.call, LogSettings(), self.clock)
        other.replay(sink)
        other.close()
        return [fact[6] == b"key" for fact in sink.replayed_facts].count(True) * [1]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_block_that_landed_though_nobody_was_told_is_announced_once_and_kept_once(bench: Bench) -> None:
    bench.ledger.appends = [told_nobody]
    bench.put("a")
    bench.wait(1)
    assert bench.log == [("a", None)]
    assert bench.store.doubts == {"landed": 1, "sent again": 0}
    bench.store.close()
    assert len(bench.kept()) == 1


def test_a_block_that_did_not_land_is_sent_again_as_it_was(bench: Bench) -> None:
    bench.ledger.appends = [lost, lost]
    bench.put("a")
    bench.wait(1)
    assert bench.log == [("a", None)]
    assert bench.store.doubts == {"landed": 0, "sent again": 2}
    bench.put("b")
    bench.wait(2)
    bench.store.close()
    assert len(bench.kept()) == 2


def test_while_a_block_is_in_doubt_the_store_is_suspended_and_then_goes_on_without_a_replay(bench: Bench) -> None:
    bench.ledger.appends = [lost]
    bench.ledger.confirms = [EngineAway("away"), EngineAway("away")]
    bench.put("a")
    bench.wait(1)
    bench.loop.run_until(lambda: bench.store.health.state is StoreState.UP)
    assert StoreState.SUSPENDED in bench.states or bench.states, "whoever watches was told"
    assert bench.store.epoch == 1
    bench.store.close()


def test_a_deposed_store_tells_everybody_that_waits_and_takes_nothing_more(bench: Bench) -> None:
    bench.put("a")
    bench.wait(1)
    bench.ledger.epoch += 1  # somebody has acquired it
    bench.put("b")
    bench.wait(2)
    assert isinstance(bench.log[1][1], StoreUnavailable)
    with pytest.raises(StoreUnavailable):
        bench.put("c")
    assert len(bench.ledger.rows[1]) == 1


def test_an_engine_that_forgot_what_it_had_acknowledged_makes_the_store_corrupt_and_nothing_is_cut_off(bench: Bench) -> None:
    for name in "abc":
        bench.put(name)
        bench.wait(len(bench.log) + 1)
    del bench.ledger.rows[1][3]
    bench.ledger.appends = [lost]
    bench.put("d")
    bench.wait(4)
    assert bench.store.health.state is StoreState.CORRUPT
    assert "forgotten" in bench.store.health.cause
    assert sorted(bench.ledger.rows[1]) == [1, 2]


def test_a_store_held_by_its_node_is_suspended_until_it_is_let_go(bench: Bench) -> None:
    bench.store.hold("no beat for long")
    assert bench.store.health.state is StoreState.SUSPENDED
    bench.put("a")
    bench.wait(1)
    assert bench.log == [("a", None)], "what comes in is still written"
    bench.store.hold("")
    assert bench.store.health.state is StoreState.UP
    assert bench.states == [StoreState.SUSPENDED, StoreState.UP]
    bench.store.close()


def test_a_store_that_another_node_serves_says_so_and_can_be_opened_when_it_is_free(bench: Bench) -> None:
    location = bench.put("a")
    bench.wait(1)
    bench.store.hand_back("node b has taken the store over")
    assert bench.store.health.state is StoreState.ELSEWHERE
    bench.ledger.elsewhere = "b"
    with pytest.raises(NotOurs):
        bench.store.take()
    assert bench.store.health.state is StoreState.ELSEWHERE
    bench.ledger.elsewhere = ""
    assert bench.store.take().epoch == 2
    bench.store.reopen(Sink())
    assert bench.store.health.state is StoreState.UP
    fetched = Fetched()
    bench.store.fetch([location], fetched)
    bench.loop.run_until(lambda: fetched.arrived)
    assert fetched.bodies == [b"a"]
    bench.store.close()


def test_a_store_moves_away_only_with_everything_written(bench: Bench) -> None:
    bench.put("a")
    bench.store.append(ENQUEUED, 0, 1, 2, 0, 0, b"key", b"lazily")
    bench.store.move_away("moving to node b")
    assert bench.log == [("a", None)]
    assert bench.store.health.state is StoreState.ELSEWHERE
    assert bench.store.epoch == 0
    assert len(bench.kept()) == 2
