"""Who gets which message: credit meets what is ready, in order, in portions, and never twice."""

from __future__ import annotations

import pytest

from tandem.broker.queue.delivery import PUMP_MAX
from tandem.broker.queue.index import LOCKED
from tandem.model.address import SubQueue
from tandem.model.entity import EntityStatus, QueueDescription
from tandem.model.errors import EntityNotFound
from tests.broker.desk import Desk, Hand, message

PLAIN = QueueDescription(name="q", lock_duration_ms=30_000, max_delivery_count=2)


def attached(desk: Desk, credit: int, peek_lock: bool = True) -> Hand:
    hand = Hand(peek_lock, credit)
    desk.queue().add_consumer(hand)
    desk.queue().consumer_ready(hand)
    return hand


@pytest.mark.compiled_too
def test_who_asked_first_is_served_first_and_gets_no_more_than_its_credit() -> None:
    desk = Desk(PLAIN)
    first, second, third = (attached(desk, credit) for credit in (2, 1, 5))
    desk.send(*"abcde")
    assert [[text for text, _ in hand.got] for hand in (first, second, third)] == [["a", "b"], ["c"], ["d", "e"]]


def test_new_credit_means_the_end_of_the_line() -> None:
    desk = Desk(PLAIN)
    first, second = attached(desk, 1), attached(desk, 2)
    desk.send("a")
    first.credit += 1
    desk.queue().consumer_ready(first)
    desk.send("b", "c", "d")
    assert ([text for text, _ in first.got], [text for text, _ in second.got]) == (["a", "d"], ["b", "c"])


@pytest.mark.compiled_too
def test_one_turn_delivers_a_portion_and_the_next_goes_on() -> None:
    desk = Desk(PLAIN)
    count = PUMP_MAX + 10
    for number in range(count):
        desk.queue().enqueue(message(str(number)), desk.now)
    desk.run()
    hand = attached(desk, 1000)
    desk.turn.run()
    assert len(hand.got) == PUMP_MAX
    desk.run()
    assert [int(text) for text, _ in hand.got] == list(range(count))


def test_who_has_left_gets_nothing_and_the_others_what_was_meant_for_it() -> None:
    desk = Desk(PLAIN)
    gone, there = attached(desk, 5), attached(desk, 5)
    desk.queue().remove_consumer(gone)
    desk.send("a")
    assert (gone.got, there.got) == ([], [("a", 0)])


def test_every_delivery_has_a_lock_of_its_own_and_the_row_says_so() -> None:
    desk = Desk(PLAIN)
    numbers = desk.send("a", "b")
    hand = desk.receive(2)
    assert [lock.seq for lock in hand.locks] == numbers
    assert len({lock.token for lock in hand.locks}) == 2
    assert [desk.queue().index.state(seq) for seq in numbers] == [LOCKED, LOCKED]


@pytest.mark.compiled_too
def test_what_expired_in_line_is_not_delivered() -> None:
    desk = Desk(QueueDescription(name="q", dead_lettering_on_message_expiration=True))
    desk.send("short", ttl_ms=1000)
    desk.send("long")
    desk.clock.now += 1000
    assert desk.receive(5).got == [("long", 0)]
    desk.run()
    assert desk.texts(sub_queue=SubQueue.DEAD_LETTER) == ["short"]


def test_what_was_in_receivers_hands_at_a_crash_counts_as_delivered() -> None:
    desk = Desk(PLAIN)
    desk.send("a")
    for count in range(2):
        assert desk.receive(1).got == [("a", count)]
        desk.restart()
    assert desk.receive(1).got == []
    desk.run()
    assert desk.texts(sub_queue=SubQueue.DEAD_LETTER) == ["a"]


def test_nothing_is_delivered_while_receiving_is_disabled_and_all_of_it_after() -> None:
    desk = Desk(PLAIN)
    entity = desk.namespace.find("q")
    assert entity is not None
    desk.queue().configure(QueueDescription(name="q", status=EntityStatus.RECEIVE_DISABLED))
    hand = attached(desk, 2)
    desk.send("a", "b")
    assert hand.got == []
    desk.queue().configure(PLAIN)
    desk.queue().consumer_ready(hand)
    desk.run()
    assert hand.got == [("a", 0), ("b", 0)]


def test_the_receivers_of_a_deleted_queue_are_told() -> None:
    desk = Desk(PLAIN)
    hand, other = attached(desk, 1), attached(desk, 1, peek_lock=False)
    desk.namespace.remove("q")
    assert isinstance(hand.lost_with, EntityNotFound) and isinstance(other.lost_with, EntityNotFound)


def test_bodies_that_are_not_in_memory_are_read_and_come_in_order() -> None:
    desk = Desk(PLAIN, hot_bytes=1)
    desk.send(*"abcdef")
    assert [text for text, _ in desk.receive(4).got] == list("abcd")
    assert [text for text, _ in desk.receive(4).got] == ["e", "f"]
