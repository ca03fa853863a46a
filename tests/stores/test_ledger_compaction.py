"""Compaction of a store in an engine: the index says what is dead, and of bodies only those are read that are wanted."""

from __future__ import annotations

import threading

import pytest

from tandem.broker.ports import StoreState
from tandem.stores import LogSettings
from tandem.stores.ledger import Block, Part
from tandem.stores.ledger_store import LedgerStore
from tests.stores.harness import Fetched, Loop, ManualClock, Note, Shop
from tests.stores.test_ledger_store import ScriptedLedger

QUEUE = 4


class WatchedLedger(ScriptedLedger):
    """Says what of blocks was read."""

    def __init__(self, loop: Loop) -> None:
        super().__init__()
        self._loop = loop
        self.blocks_read = 0
        self.asked = False
        self.parts_read: list[Part] = []
        self.may_read = threading.Event()
        self.may_read.set()

    def read_blocks(self, segment: int, after: int, most: int) -> list[Block]:
        found = super().read_blocks(segment, after, most)
        self.blocks_read += len(found)
        return found

    def read_parts(self, segment: int, parts: list[Part]) -> list[bytes]:
        self.asked = True
        self._loop.call(lambda: None)  # whoever waits looks again
        self.may_read.wait(30)
        self.parts_read += parts
        return super().read_parts(segment, parts)


class Bench:
    """Messages of a kilobyte each, most of which come and go."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.ledger = WatchedLedger(self.loop)
        self.shop = Shop()
        self.store = self.opened(self.shop)

    def opened(self, shop: Shop) -> LedgerStore:
        settings = LogSettings(segment_bytes=16_384, compaction_records_per_step=7)
        store = LedgerStore(self.ledger, "store-0", self.loop.call, settings, ManualClock())
        shop.journal = store
        store.replay(shop)
        return store

    def settle_down(self) -> None:
        log: list[tuple[str, BaseException | None]] = []
        self.store.when_durable(Note(log, "x"))
        self.store.flush()
        self.loop.run_until(lambda: bool(log))
        assert log == [("x", None)]

    def put(self, seq: int) -> None:
        assert self.shop.put(QUEUE, b"key %d" % seq, body_of(seq)) == seq

    def come_and_go(self, first: int, last: int, staying: tuple[int, ...] = ()) -> None:
        """Five to a block; each block is settled with the next one."""
        for begin in range(first, last + 1, 5):
            numbers = range(begin, begin + 5)
            for seq in numbers:
                self.put(seq)
            self.settle_down()
            for seq in numbers:
                if seq not in staying:
                    self.shop.settle(QUEUE, seq)
        self.settle_down()

    def compact(self) -> None:
        assert self.store.step_compaction()
        self.loop.run_until(lambda: not self.store.step_compaction())

    def bodies_after_a_restart(self) -> dict[int, bytes]:
        self.store.close()
        shop = Shop()
        store = self.opened(shop)
        fetched = Fetched()
        store.fetch([location for _, location in shop.messages.values()], fetched)
        self.loop.run_until(lambda: fetched.arrived)
        store.close()
        assert fetched.bodies is not None
        return dict(zip((seq for _, seq in shop.messages), fetched.bodies, strict=True))


def body_of(seq: int) -> bytes:
    return b"%04d" % seq * 256


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_segments_in_which_all_is_dead_go_without_one_body_being_read(bench: Bench) -> None:
    bench.come_and_go(1, 200)
    bench.compact()
    assert bench.ledger.first > 5
    assert (bench.ledger.blocks_read, bench.ledger.parts_read) == (0, [])
    assert bench.bodies_after_a_restart() == {}


def test_of_messages_that_stay_the_bodies_are_read_and_of_no_others(bench: Bench) -> None:
    staying = (3, 4, 17, 60)
    bench.come_and_go(1, 200, staying)
    bench.compact()
    assert bench.ledger.first > 5, "all of them were in segments that are gone"
    assert bench.ledger.blocks_read == 0
    assert len(bench.ledger.parts_read) == 3, "neighbours are read together"
    assert bench.bodies_after_a_restart() == {seq: body_of(seq) for seq in staying}


def test_many_that_stay_are_written_again_in_bounded_steps(bench: Bench) -> None:
    for seq in range(1, 101):
        bench.put(seq)
    bench.settle_down()
    bench.come_and_go(101, 800)
    bench.compact()
    assert bench.ledger.first > 5
    assert bench.bodies_after_a_restart() == {seq: body_of(seq) for seq in range(1, 101)}


def test_a_message_that_is_settled_while_its_body_is_fetched_stays_settled(bench: Bench) -> None:
    bench.come_and_go(1, 200, (3, 4))
    bench.ledger.may_read.clear()
    assert bench.store.step_compaction()
    bench.loop.run_until(lambda: bench.ledger.asked)
    bench.shop.settle(QUEUE, 3)
    bench.store.flush()
    bench.ledger.may_read.set()
    bench.loop.run_until(lambda: not bench.store.step_compaction())
    assert bench.ledger.first > 5
    assert bench.bodies_after_a_restart() == {4: body_of(4)}


def test_an_entry_that_fails_its_checksum_is_made_from_its_block(bench: Bench) -> None:
    bench.come_and_go(1, 200, (3, 4))
    epoch, at, entry, block = bench.ledger.rows[1][1]
    bench.ledger.rows[1][1] = (epoch, at, entry[:40] + b"?" + entry[41:], block)
    bench.compact()
    assert bench.ledger.blocks_read == 1
    assert bench.bodies_after_a_restart() == {3: body_of(3), 4: body_of(4)}


def test_a_wanted_body_that_fails_its_checksum_costs_that_message_alone_and_is_told(bench: Bench) -> None:
    bench.come_and_go(1, 200, (3, 4))
    epoch, at, entry, block = bench.ledger.rows[1][1]
    bench.ledger.rows[1][1] = (epoch, at, entry, block.replace(body_of(3), b"?" * 1_024))
    bench.compact()
    assert "block 1" in "".join(bench.store.health.notes)
    found = bench.bodies_after_a_restart()
    assert found[4] == body_of(4)
    assert found[3] != b"?" * 1_024


def test_a_block_that_is_missing_makes_the_store_corrupt_and_nothing_is_given_up(bench: Bench) -> None:
    bench.come_and_go(1, 200)
    del bench.ledger.rows[1][2]
    assert bench.store.step_compaction()
    bench.loop.run_until(lambda: bench.store.health.state is StoreState.CORRUPT)
    assert "block 2 is missing" in bench.store.health.cause
    assert bench.ledger.first == 1
