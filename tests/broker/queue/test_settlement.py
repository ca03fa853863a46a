"""What the holder of a lock may do with its message, and what the message looks like to the next receiver."""

from __future__ import annotations

import pytest

from tandem.broker.queue.index import DEFERRED, DELAYED, READY
from tandem.model.address import SubQueue
from tandem.model.entity import QueueDescription
from tandem.model.errors import MessageLockLost
from tests.broker.desk import Desk, Done

PLAIN = QueueDescription(name="q", lock_duration_ms=30_000, max_delivery_count=3)


def held(desk: Desk, count: int = 1) -> list:
    desk.send(*"abcdef"[:count])
    return desk.receive(count).locks


@pytest.mark.compiled_too
def test_a_completed_message_is_gone_and_its_lock_with_it() -> None:
    desk = Desk(PLAIN)
    (lock,) = held(desk)
    desk.queue().settlement.complete(lock, desk.now)
    with pytest.raises(MessageLockLost):
        desk.queue().settlement.complete(lock, desk.now)
    with pytest.raises(MessageLockLost):
        desk.queue().find_lock(lock.token)
    desk.restart()
    assert desk.queue().index.total == 0


@pytest.mark.compiled_too
def test_many_are_completed_in_one_go_up_to_the_first_that_cannot_be() -> None:
    desk = Desk(PLAIN)
    locks = held(desk, 4)
    desk.queue().settlement.complete(locks[2], desk.now)
    assert desk.queue().complete_run(locks, 0, desk.now) == 2
    assert desk.queue().complete_run(locks, 2, desk.now) == 0
    assert desk.queue().complete_run(locks, 3, desk.now) == 1
    assert desk.queue().index.total == 0


def test_an_abandoned_message_comes_again_with_one_delivery_more() -> None:
    desk = Desk(PLAIN)
    (lock,) = held(desk)
    done = Done()
    desk.queue().settlement.abandon(lock, desk.now, 0, None, done)
    desk.run()
    assert (done.errors, desk.receive(1).got) == ([None], [("a", 1)])


def test_an_abandoned_message_can_be_kept_away_for_a_while() -> None:
    desk = Desk(PLAIN)
    (lock,) = held(desk)
    desk.queue().settlement.abandon(lock, desk.now, desk.now + 5000, None, None)
    desk.run()
    assert (desk.receive(1).got, desk.texts(state=DELAYED)) == ([], ["a"])
    desk.wait(5000)
    assert desk.receive(1).got == [("a", 1)]


def test_an_abandoned_message_keeps_the_properties_that_came_with_it() -> None:
    desk = Desk(PLAIN)
    (lock,) = held(desk)
    done = Done()
    desk.queue().settlement.abandon(lock, desk.now, 0, {"why": "later"}, done)
    desk.run()
    body = desk.shelf.bodies[desk.queue().index.location(lock.seq)]
    assert done.errors == [None] and b"why" in body and b"later" in body
    assert desk.receive(1).got == [("a", 1)]


@pytest.mark.compiled_too
def test_a_released_message_is_as_if_it_had_never_been_delivered() -> None:
    desk = Desk(PLAIN)
    (lock,) = held(desk)
    desk.queue().settlement.release(lock, desk.now)
    desk.queue().settlement.release(lock, desk.now)  # a receiver that says it twice
    desk.run()
    assert desk.receive(1).got == [("a", 0)]


def test_a_deferred_message_is_received_by_its_number_alone() -> None:
    desk = Desk(PLAIN)
    (lock,) = held(desk)
    desk.queue().settlement.defer(lock, desk.now, None, None)
    desk.run()
    assert (desk.receive(1).got, desk.texts(state=DEFERRED)) == ([], ["a"])
    (again,) = desk.queue().browsing.receive_deferred([lock.seq], None, desk.now)
    desk.queue().settlement.complete(again, desk.now)
    assert desk.queue().index.total == 0


def test_a_deferred_message_that_cannot_be_read_to_be_dead_lettered_stays_deferred_after_a_restart_too() -> None:
    desk = Desk(PLAIN)
    (lock,) = held(desk)
    desk.queue().settlement.defer(lock, desk.now, None, None)
    desk.restart()
    (again,) = desk.queue().browsing.receive_deferred([lock.seq], None, desk.now)
    done = Done()
    kept = desk.shelf.bodies.pop(desk.queue().index.location(lock.seq))
    desk.queue().settlement.dead_letter(again, "bad", "very bad", {}, desk.now, done)
    desk.shelf.bodies[desk.queue().index.location(lock.seq)] = kept
    desk.run()
    assert len(done.errors) == 1 and done.errors[0] is not None
    assert desk.texts(state=DEFERRED) == ["a"]
    desk.restart()
    assert desk.texts(state=DEFERRED) == ["a"]


@pytest.mark.compiled_too
def test_a_dead_lettered_message_is_in_one_place_with_its_reason() -> None:
    desk = Desk(PLAIN)
    (lock,) = held(desk)
    done = Done()
    desk.queue().settlement.dead_letter(lock, "bad", "very bad", {"by": "me"}, desk.now, done)
    desk.run()
    assert (done.errors, desk.texts(), desk.texts(sub_queue=SubQueue.DEAD_LETTER)) == ([None], [], ["a"])
    (seq,) = desk.dead().browsing.peek(0, 5, None, desk.now)
    body = desk.shelf.bodies[desk.dead().index.location(seq)]
    assert all(word in body for word in (b"DeadLetterReason", b"bad", b"DeadLetterErrorDescription", b"very bad", b"by", b"me"))


def test_only_a_living_lock_settles_or_is_renewed() -> None:
    desk = Desk(PLAIN)
    (lock,) = held(desk)
    queue = desk.queue()
    desk.wait(20_000)
    assert queue.settlement.renew(lock, desk.now) == desk.now + 30_000
    desk.clock.now += 30_000
    for settle in (
        lambda: queue.settlement.complete(lock, desk.now),
        lambda: queue.settlement.abandon(lock, desk.now, 0, None, None),
        lambda: queue.settlement.defer(lock, desk.now, None, None),
        lambda: queue.settlement.dead_letter(lock, "", "", {}, desk.now, None),
        lambda: queue.settlement.renew(lock, desk.now),
    ):
        with pytest.raises(MessageLockLost):
            settle()
    desk.run()
    assert queue.index.state(lock.seq) == READY and queue.index.count(lock.seq) == 1


def test_the_last_delivery_that_is_given_back_leads_to_the_dead_letters() -> None:
    desk = Desk(PLAIN)
    desk.send("a")
    for _ in range(3):
        (lock,) = desk.receive(1).locks
        desk.queue().settlement.abandon(lock, desk.now, 0, None, None)
        desk.run()
    assert (desk.texts(), desk.texts(sub_queue=SubQueue.DEAD_LETTER)) == ([], ["a"])
