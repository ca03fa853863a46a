"""Stores that stop and come back under queues, partitioned or not: what the simulator found once, told directly."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from tandem.broker.entities.joined import fragment_of_key
from tandem.broker.entities.namespace import Namespace
from tandem.broker.entities.partitioned import PartitionedQueue
from tandem.broker.entities.reopening import Reopening
from tandem.broker.ports import Tenant
from tandem.broker.queue.index import MOVING
from tandem.broker.queue.queue import Queue
from tandem.broker.recovery.transfers import settle_transfers, suspend_forwarding
from tandem.broker.turn import Turn
from tandem.gateway.translate import Translator
from tandem.model.entity import QueueDescription
from tandem.model.errors import BusError, Corrupt, StoreUnavailable
from tandem.model.limits import Limits
from tandem.stores.memory import MemoryStore, Shelf
from tandem.stores.settings import LogSettings
from tests.broker.desk import Hand, message
from tests.stores.harness import Loop, ManualClock

STORES = 2


class UnreadAtFirst(MemoryStore):
    """A store that is damaged when the broker starts, and put right later."""

    damaged = True

    def replay(self, tenant: Tenant) -> None:
        if self.damaged:
            self.damaged = False
            raise Corrupt("damaged")
        super().replay(tenant)


class House:
    """A namespace over two stores in memory: a plain queue in each, and partitioned ones over both."""

    def __init__(self, shelves: list[Shelf] | None = None, unread: int = -1, forward_to: str | None = None) -> None:
        self.clock = ManualClock()
        self.loop = Loop()
        self.turn = Turn(self.clock, lambda: None)
        self.shelves = shelves or [Shelf() for _ in range(STORES)]
        self.stores = [
            (UnreadAtFirst if number == unread else MemoryStore)(self.loop.call, LogSettings(), shelf)
            for number, shelf in enumerate(self.shelves)
        ]
        self.namespace = Namespace("house", self.turn, Limits(), Translator(uuid.uuid4), lambda: 0x1234_5678)
        for store in self.stores:
            self.namespace.attach_store(store)
        self.namespace.add_queue(1, 0, QueueDescription(name="first"))
        self.namespace.add_queue(2, 1, QueueDescription(name="second"))
        self.namespace.add_queue(3, 0, QueueDescription(name="spread", enable_partitioning=True, partition_count=2))
        self.namespace.add_queue(4, 0, QueueDescription(name="grouped", enable_partitioning=True, partition_count=2, requires_session=True))
        self.namespace.add_queue(5, 0, QueueDescription(name="sent on", forward_to=forward_to))
        self.namespace.replay()
        self.run()

    @property
    def now(self) -> int:
        return self.turn.begin()

    def run(self) -> None:
        for _ in range(12):
            self.turn.run()
            self.loop.run_ready()

    def queue(self, name: str) -> Queue:
        entity: Any = self.namespace.find(name)
        main: Queue = entity.main
        return main

    def spread(self, name: str = "spread") -> PartitionedQueue:
        front = self.queue(name)
        assert isinstance(front, PartitionedQueue)
        return front

    def receive(self, queue: Queue, count: int) -> Hand:
        hand = Hand(credit=count)
        queue.add_consumer(hand)
        queue.consumer_ready(hand)
        self.run()
        return hand

    def fall(self, number: int, watched: bool = True) -> None:
        """`watched`: whoever watches the stores has noticed."""
        self.stores[number].fail("the disk is gone")
        if watched:
            tenant = self.namespace.stores[number]
            tenant.take_out_of_service()
            for queue in list(tenant.queues.values()):
                queue.tell_all(StoreUnavailable("down"))
        self.run()

    def rise(self, number: int) -> None:
        reopening = Reopening(self.namespace, number)
        self.stores[number].reopen(reopening.tenant)
        self.turn.begin()
        reopening.swap()
        self.run()


@pytest.fixture
def house() -> House:
    return House()


def test_a_queue_that_was_replaced_can_never_write_to_its_old_journal_again(house: House) -> None:
    old = house.queue("first")
    old.enqueue(message("kept"), house.now)
    house.run()
    house.fall(0)
    house.rise(0)
    with pytest.raises(StoreUnavailable):
        old.enqueue(message("by a zombie"), house.now)
    assert house.receive(house.queue("first"), 2).got == [("kept", 0)]


def test_settling_what_a_replaced_fragment_delivered_is_refused_and_breaks_nothing(house: House) -> None:
    front = house.spread()
    for number in range(4):
        front.enqueue(message(str(number)), house.now)
        house.run()
    hand = house.receive(front, 4)
    assert len(hand.locks) == 4
    house.fall(1)
    house.rise(1)
    mine = [lock for lock in hand.locks if lock.seq >> 48 == 1]
    assert mine
    again = sorted(text for (text, _), seq in zip(hand.got, hand.seqs, strict=True) if seq >> 48 == 1)
    for lock in mine:
        with pytest.raises(BusError):
            front.part_of(lock.seq).settlement.complete(lock, house.now)
    for lock in (lock for lock in hand.locks if lock.seq >> 48 == 0):
        front.part_of(lock.seq).settlement.complete(lock, house.now)
    house.run()
    hand.credit = 4
    front.consumer_ready(hand)
    house.run()
    assert sorted(text for text, _ in hand.got[4:]) == again


def test_a_holder_can_close_its_session_and_leave_while_the_store_of_the_session_is_down(house: House) -> None:
    front = house.spread("grouped")
    session_id = next(str(n) for n in range(100) if fragment_of_key(str(n), 2) == 1)
    front.enqueue(message("x", session=session_id), house.now)
    house.run()
    hand = Hand(credit=5)
    front.add_consumer(hand)
    session = front.sessions.accept(session_id, hand, house.now)
    hand.session = session
    front.consumer_ready(hand)
    house.run()
    assert [text for text, _ in hand.got] == ["x"]
    house.fall(1)
    assert hand.lost_with is not None
    front.sessions.close(session, hand, house.now)
    front.remove_consumer(hand)
    house.rise(1)
    other = Hand(credit=5)
    front.add_consumer(other)
    other.session = front.sessions.accept(session_id, other, house.now)
    front.consumer_ready(other)
    house.run()
    assert [text for text, _ in other.got] == ["x"]


def test_a_second_fall_of_a_store_detaches_no_receiver_of_a_partitioned_queue(house: House) -> None:
    front = house.spread()
    hand = house.receive(front, 10)
    for _ in range(2):
        house.fall(1)
        house.rise(1)
    assert hand.lost_with is None
    for number in range(4):
        front.enqueue(message(str(number)), house.now)
        house.run()
    assert sorted(text for text, _ in hand.got) == ["0", "1", "2", "3"]


def test_what_was_sent_on_is_not_settled_in_a_source_that_has_stopped_unnoticed(house: House) -> None:
    source = house.queue("first")
    number = source.enqueue(message("x"), house.now).seq
    house.run()
    tenant = house.namespace.stores[1]
    tenant.note_transfer((source.entity_id, number), house.queue("second").entity_id, house.now)
    house.run()
    tenant.transfers_arrived([(source.entity_id, number)])
    house.fall(0, watched=False)
    settle_transfers(house.namespace)
    assert (source.entity_id, number) in tenant.transfers
    house.namespace.stores[0].take_out_of_service()
    house.rise(0)
    assert house.queue("first").index.total == 0
    assert tenant.transfers == {}


def test_what_a_store_that_cannot_be_read_may_have_received_is_not_sent_on_a_second_time(house: House) -> None:
    source = house.queue("sent on")
    numbers = [source.enqueue(message(text), house.now).seq for text in ("arrived", "not sent yet")]
    part = house.spread().fragments.queues[1]
    part.enqueue(message("arrived"), house.now)
    house.namespace.stores[1].note_transfer((source.entity_id, numbers[0]), part.entity_id, house.now)
    house.run()
    # Now the power fails, before the source has heard of it; and the store that took it is damaged.
    again = House(house.shelves, unread=1, forward_to="spread")
    assert [part.terms.out_of_service for part in again.spread().fragments.queues] == [False, True]
    assert again.queue("sent on").counts().total == 2
    again.queue("sent on").enqueue(message("a later one"), again.now)
    again.run()
    hand = again.receive(again.spread(), 10)
    assert [text for text, _ in hand.got] == ["a later one"]
    # The store of the source stops and comes back meanwhile: it still does not know more.
    again.fall(0)
    again.rise(0)
    again.clock.now += 2_000
    again.run()
    assert again.queue("sent on").counts().total == 2
    again.rise(1)
    again.clock.now += 2_000
    again.run()
    # The later one was not settled when its store stopped, and came again; the others came once.
    assert sorted(text for text, _ in hand.got) == ["a later one", "a later one", "arrived", "not sent yet"]
    assert again.queue("sent on").counts().total == 0


def test_what_two_stores_may_have_received_waits_for_both(house: House) -> None:
    source = house.queue("sent on")
    number = source.enqueue(message("x"), house.now).seq
    house.run()
    tenant = house.namespace.stores[0]
    source.configure(QueueDescription(name="sent on", forward_to="spread"))
    suspend_forwarding(house.namespace, tenant, {0, 1})
    assert sorted(house.namespace.in_doubt) == [(0, source.entity_id, [number]), (1, source.entity_id, [number])]
    house.fall(1)
    settle_transfers(house.namespace)
    house.run()
    assert source.index.state(number) == MOVING
    house.rise(1)
    house.clock.now += 2_000
    house.run()
    assert house.queue("sent on").counts().total == 0
    assert [text for text, _ in house.receive(house.spread(), 10).got] == ["x"]
