"""Partitioned queues: fragments in several stores that look like one queue, and go on when a store is down."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from tandem.broker.entities.namespace import Namespace
from tandem.broker.entities.partitioned import PartitionedQueue
from tandem.broker.ports import Loaded, Selector
from tandem.broker.queue.queue import Queue
from tandem.broker.turn import Turn
from tandem.gateway.translate import Translator
from tandem.model.entity import QueueDescription
from tandem.model.errors import MessageNotFound, StoreUnavailable
from tandem.model.limits import Limits
from tandem.model.message import Message
from tandem.stores.memory import MemoryStore, Shelf
from tandem.stores.settings import LogSettings
from tests.broker.desk import Done, Hand, message, text_of
from tests.stores.harness import Loop, ManualClock

STORES = 3
SPREAD = QueueDescription(name="q", enable_partitioning=True, partition_count=STORES)


class Spread:
    """One partitioned queue over three stores in memory."""

    def __init__(self, description: QueueDescription = SPREAD) -> None:
        self.loop = Loop()
        self.turn = Turn(ManualClock(), lambda: None)
        self.stores = [MemoryStore(self.loop.call, LogSettings(), Shelf()) for _ in range(STORES)]
        self.namespace = Namespace("n", self.turn, Limits(), Translator(uuid.uuid4), lambda: 0x1234_5678)
        for store in self.stores:
            self.namespace.attach_store(store)
        self.namespace.add_queue(1, 0, description)
        self.namespace.replay()
        self.run()

    @property
    def front(self) -> PartitionedQueue:
        entity: Any = self.namespace.find("q")
        assert isinstance(entity.main, PartitionedQueue)
        return entity.main

    @property
    def now(self) -> int:
        return self.turn.begin()

    def run(self) -> None:
        for _ in range(12):
            self.turn.run()
            self.loop.run_ready()

    def send(self, *texts: str, **options: Any) -> list[int]:
        """Each in a turn of its own; returns the fragments that took them."""
        parts = []
        for text in texts:
            parts.append(self.parts.index(self.front.enqueue(message(text, **options), self.now).part))
            self.run()
        return parts

    @property
    def parts(self) -> list[Queue]:
        return self.front.parts()

    def receive(self, count: int, selector: Selector | None = None) -> Hand:
        hand = Hand(credit=count)
        hand.select(selector)
        self.front.add_consumer(hand)
        self.front.consumer_ready(hand)
        self.run()
        self.front.remove_consumer(hand)
        return hand

    def fall(self, number: int) -> None:
        self.stores[number].fail("the disk is gone")
        self.run()


class Texts(Loaded):
    def __init__(self) -> None:
        self.found: list[str] = []

    def loaded(self, messages: list[Message | None], error: BaseException | None) -> None:
        self.found = [text_of(one) for one in messages if one is not None]


def test_a_front_is_no_queue_itself() -> None:
    """What is not written for fragments is a type error, and never acts on an empty queue."""
    assert not issubclass(PartitionedQueue, Queue)


@pytest.mark.compiled_too
def test_messages_without_a_key_go_round_and_those_of_one_turn_together() -> None:
    spread = Spread()
    assert sorted(spread.send("a", "b", "c")) == [0, 1, 2]
    together = {spread.front.enqueue(message(text), spread.now).part for text in "de"}
    assert len(together) == 1


def test_a_key_always_leads_to_the_same_fragment() -> None:
    spread = Spread(QueueDescription(name="q", enable_partitioning=True, partition_count=STORES, requires_session=True))
    found = {session: set(spread.send("1", "2", "3", session=session)) for session in ("s", "t", "u", "v")}
    assert all(len(parts) == 1 for parts in found.values())


def test_duplicates_are_found_although_there_are_several_fragments() -> None:
    description = QueueDescription(name="q", enable_partitioning=True, partition_count=STORES, requires_duplicate_detection=True)
    spread = Spread(description)
    spread.send("a", "a again", "b", message_id="same")
    assert [text for text, _ in spread.receive(5).got] == ["a"]


@pytest.mark.compiled_too
def test_one_receiver_gets_the_messages_of_all_fragments_and_each_lock_leads_back_to_its_own() -> None:
    spread = Spread()
    spread.send(*"abcdef")
    hand = spread.receive(10)
    assert sorted(text for text, _ in hand.got) == list("abcdef")
    now = spread.now
    for lock in hand.locks:
        assert spread.front.complete_run([spread.front.find_lock(lock.token)], 0, now) == 1
    spread.run()
    assert spread.front.counts().total == 0


def test_counts_and_peeks_are_those_of_the_whole() -> None:
    spread = Spread()
    spread.send(*"abcd")
    counts = spread.front.counts()
    assert (counts.active, counts.total, counts.incomplete) == (4, 4, False)
    numbers = spread.front.browsing.peek(0, 10, None, spread.now)
    texts = Texts()
    spread.front.browsing.load(numbers, texts)
    spread.run()
    assert sorted(texts.found) == list("abcd")


def test_deferred_messages_are_received_by_number_wherever_they_are() -> None:
    spread = Spread()
    spread.send("a", "b", "c")
    hand = spread.receive(3)
    for lock in hand.locks:
        spread.front.part_of(lock.seq).settlement.defer(spread.front.find_lock(lock.token), spread.now, None, None)
    spread.run()
    assert sorted(lock.seq for lock in spread.front.browsing.receive_deferred(hand.seqs, None, spread.now)) == sorted(hand.seqs)
    with pytest.raises(MessageNotFound):
        spread.front.browsing.receive_deferred([1 << 52], None, spread.now)


def test_the_front_is_durable_when_every_fragment_is() -> None:
    spread = Spread()
    for text in "abc":
        spread.front.enqueue(message(text), spread.now)
        spread.turn.run()
    done = Done()
    spread.front.when_durable(done)
    assert done.errors == []
    spread.run()
    assert done.errors == [None]


@pytest.mark.compiled_too
def test_with_one_store_down_messages_without_a_key_go_elsewhere_and_the_others_are_refused() -> None:
    spread = Spread()
    spread.send(*"abc")
    spread.fall(1)
    assert 1 not in spread.send(*"defg")
    assert spread.front.counts().incomplete
    got = [text for text, _ in spread.receive(10).got]
    assert sorted(got)[-4:] == list("defg") and len(got) == 6


@pytest.mark.compiled_too
@pytest.mark.parametrize("selector", [None, Selector()], ids=["all", "selected"])
def test_with_one_store_suspended_messages_without_a_key_go_elsewhere_and_the_others_are_delivered(selector: Selector | None) -> None:
    """Its engine does not answer just now: nothing of it may be handed out, and nothing else waits for it."""
    spread = Spread()
    spread.send(*"abc")
    held = spread.parts[1].rows.backing
    held.suspended = True
    assert 1 not in spread.send(*"defg")
    got = [text for text, _ in spread.receive(10, selector).got]
    assert len(got) == 6
    held.suspended = False
    spread.parts[1].slot.touch()
    assert sorted([*got, *(text for text, _ in spread.receive(10, selector).got)]) == list("abcdefg")


@pytest.mark.compiled_too
def test_with_every_store_suspended_messages_wait_and_nothing_is_delivered() -> None:
    spread = Spread()
    spread.send("a")
    for part in spread.parts:
        part.rows.backing.suspended = True
    spread.send("b")
    assert spread.receive(10).got == []
    for part in spread.parts:
        part.rows.backing.suspended = False
    assert sorted(text for text, _ in spread.receive(10).got) == ["a", "b"]


def test_a_message_whose_fragment_is_down_is_refused_in_words() -> None:
    spread = Spread(QueueDescription(name="q", enable_partitioning=True, partition_count=STORES, requires_session=True))
    (home,) = spread.send("1", session="s")
    spread.fall(home)
    with pytest.raises(StoreUnavailable):
        spread.send("2", session="s")
    with pytest.raises(StoreUnavailable, match="key"):
        spread.send("3", session="s")


def test_with_every_store_down_nothing_is_accepted() -> None:
    spread = Spread()
    for number in range(STORES):
        spread.fall(number)
    with pytest.raises(StoreUnavailable):
        spread.send("a")
