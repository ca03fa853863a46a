"""Batch leases of one queue: what is set aside, for how long, and how it ends."""

from __future__ import annotations

import pytest

from tandem.broker.ports import LeaseWaiter
from tandem.broker.queue.index import LEASED, READY
from tandem.model.address import SubQueue
from tandem.model.entity import EntityStatus, QueueDescription
from tandem.model.errors import ArgumentRefused, EntityDisabled, LeaseLost
from tests.broker.desk import Desk, Done, Hand, message

PLAIN = QueueDescription(name="q", lock_duration_ms=30_000, max_delivery_count=3)
SESSIONS = QueueDescription(name="q", requires_session=True)
MINUTE = 60_000
MANY = 1_000_000


class Waiting(LeaseWaiter):
    def __init__(self) -> None:
        self.told = 0

    def ready(self) -> None:
        self.told += 1


@pytest.mark.compiled_too
def test_a_lease_sets_aside_the_first_in_line_and_receivers_get_the_rest() -> None:
    desk = Desk(PLAIN)
    numbers = desk.send(*"abcde")
    lease = desk.queue().leases.lease("batch", 3, MANY, MINUTE, desk.now)
    assert (lease.seqs, lease.expires_at) == (numbers[:3], desk.now + MINUTE)
    assert desk.receive(5).got == [("d", 0), ("e", 0)]
    assert desk.texts(state=LEASED) == ["a", "b", "c"]


def test_a_lease_is_bounded_by_bytes_too_but_never_empty_for_that() -> None:
    desk = Desk(PLAIN)
    numbers = desk.send("a" * 100, "b" * 100, "c" * 100)
    size = desk.queue().index.size(numbers[0])
    assert desk.queue().leases.lease("two", 10, 2 * size, MINUTE, desk.now).seqs == numbers[:2]
    assert desk.queue().leases.lease("one", 10, 1, MINUTE, desk.now).seqs == numbers[2:]


def test_the_same_id_again_is_the_same_lease_whatever_the_limits() -> None:
    desk = Desk(PLAIN)
    desk.send(*"abc")
    leases = desk.queue().leases
    first = leases.lease("batch", 2, MANY, MINUTE, desk.now)
    assert leases.lease("batch", 99, MANY, 2 * MINUTE, desk.now) is first
    assert len(first.seqs) == 2


def test_an_empty_queue_gives_an_empty_lease_that_is_not_remembered() -> None:
    desk = Desk(PLAIN)
    assert desk.queue().leases.lease("batch", 5, MANY, MINUTE, desk.now).seqs == []
    assert not desk.queue().leases.holds("batch")


def test_only_messages_from_before_an_instant_are_taken_if_one_is_given() -> None:
    desk = Desk(PLAIN)
    old = desk.send("old")
    instant = desk.now
    desk.wait(1000)
    desk.send("new")
    assert desk.queue().leases.lease("batch", 5, MANY, MINUTE, desk.now, before=instant).seqs == old


@pytest.mark.compiled_too
def test_what_is_given_back_stands_where_it_stood_and_no_delivery_is_counted() -> None:
    desk = Desk(PLAIN)
    desk.send(*"abc")
    leases = desk.queue().leases
    leases.lease("batch", 2, MANY, MINUTE, desk.now)
    assert leases.abandon("batch", desk.now) == 2
    assert leases.abandon("batch", desk.now) == 0
    assert desk.receive(3).got == [("a", 0), ("b", 0), ("c", 0)]


def test_a_lease_that_nobody_renews_ends_by_itself() -> None:
    desk = Desk(PLAIN)
    desk.send("a")
    leases = desk.queue().leases
    leases.lease("batch", 1, MANY, MINUTE, desk.now)
    desk.wait(MINUTE - 1)
    assert desk.texts() == []
    leases.renew("batch", MINUTE, desk.now)
    desk.wait(MINUTE - 1)
    assert desk.texts() == []
    desk.wait(1)
    assert desk.texts() == ["a"]
    with pytest.raises(LeaseLost, match="expired"):
        leases.renew("batch", MINUTE, desk.now)


@pytest.mark.compiled_too
def test_completing_takes_everything_out_once() -> None:
    desk = Desk(PLAIN)
    desk.send(*"abc")
    leases = desk.queue().leases
    leases.lease("batch", 2, MANY, MINUTE, desk.now)
    assert (leases.complete("batch", desk.now), leases.complete("batch", desk.now)) == (2, 0)
    assert desk.texts() == ["c"]
    with pytest.raises(ArgumentRefused, match="new id"):
        leases.lease("batch", 1, MANY, MINUTE, desk.now)
    desk.restart()
    assert desk.queue().leases.complete("batch", desk.now) == 0
    assert desk.texts() == ["c"]


def test_parts_are_settled_returned_and_dead_lettered_and_the_rest_stays() -> None:
    desk = Desk(PLAIN)
    a, b, c, d = desk.send(*"abcd")
    leases = desk.queue().leases
    leases.lease("batch", 4, MANY, MINUTE, desk.now)
    assert leases.complete_part("batch", [a, a, 999], desk.now) == 1
    assert leases.return_part("batch", [b], desk.now) == 1
    done = Done()
    assert leases.dead_letter_part("batch", c, "bad", "very", desk.now, done)
    assert not leases.dead_letter_part("batch", c, "bad", "very", desk.now, Done())
    desk.run()
    assert done.errors == [None]
    assert (desk.texts(), desk.texts(state=LEASED), desk.texts(sub_queue=SubQueue.DEAD_LETTER)) == (["b"], ["d"], ["c"])
    assert leases.find("batch", desk.now).remaining() == 1
    assert leases.complete("batch", desk.now) == 1
    assert desk.queue().index.state(d) == 0


def cold_lease(texts: str) -> tuple[Desk, list[int]]:
    """Of messages that are in the store only."""
    desk = Desk(PLAIN)
    desk.send(*texts)
    desk.restart()
    return desk, desk.queue().leases.lease("batch", len(texts), MANY, MINUTE, desk.now).seqs.copy()


def test_a_part_that_cannot_be_read_to_be_dead_lettered_stays_in_the_lease_and_is_there_after_a_restart() -> None:
    desk, (a, b) = cold_lease("ab")
    leases, done = desk.queue().leases, Done()
    kept = desk.shelf.bodies.pop(desk.queue().index.location(b))
    assert leases.dead_letter_part("batch", b, "bad", "very", desk.now, done)
    assert leases.complete_part("batch", [b], desk.now) == 0, "it is on its way"
    desk.shelf.bodies[desk.queue().index.location(b)] = kept
    desk.run()
    assert len(done.errors) == 1 and done.errors[0] is not None
    assert (desk.queue().index.state(b), leases.find("batch", desk.now).seqs) == (LEASED, [a, b])
    again = Done()
    desk.restart()
    assert desk.queue().leases.dead_letter_part("batch", b, "bad", "very", desk.now, again)
    desk.run()
    assert (again.errors, desk.texts(sub_queue=SubQueue.DEAD_LETTER)) == ([None], ["b"])


@pytest.mark.parametrize("others", ["", "a"])
def test_a_part_that_is_on_its_way_when_the_lease_is_completed_does_not_leave_with_it(others: str) -> None:
    desk, seqs = cold_lease(others + "b")
    leases, done = desk.queue().leases, Done()
    desk.shelf.bodies.pop(desk.queue().index.location(seqs[-1]))
    assert leases.dead_letter_part("batch", seqs[-1], "bad", "very", desk.now, done)
    assert leases.complete("batch", desk.now) == len(others)
    desk.run()
    assert len(done.errors) == 1 and done.errors[0] is not None
    assert desk.queue().index.state(seqs[-1]) == READY
    desk.restart()
    assert (desk.queue().index.state(seqs[-1]), desk.queue().index.total) == (READY, 1)


def test_a_leased_dead_letter_that_is_dead_lettered_stays_and_is_out_of_the_lease_after_a_restart_too() -> None:
    desk, (a,) = cold_lease("a")
    desk.queue().leases.dead_letter_part("batch", a, "bad", "very", desk.now, Done())
    desk.run()
    dead, done = desk.dead().leases, Done()
    (seq,) = dead.lease("again", 1, MANY, MINUTE, desk.now).seqs
    assert dead.dead_letter_part("again", seq, "bad", "very", desk.now, done)
    desk.run()
    assert (done.errors, desk.dead().index.state(seq)) == ([None], READY)
    desk.restart()
    assert desk.dead().index.state(seq) == READY


@pytest.mark.compiled_too
def test_a_lease_settled_in_part_is_the_same_after_a_restart() -> None:
    desk = Desk(PLAIN)
    a, b, c = desk.send(*"abc")
    leases = desk.queue().leases
    leases.lease("batch", 3, MANY, MINUTE, desk.now)
    leases.complete_part("batch", [a], desk.now)
    leases.return_part("batch", [b], desk.now)
    desk.restart()
    assert (desk.texts(), desk.texts(state=LEASED)) == (["b"], ["c"])
    desk.wait(MINUTE)
    assert desk.texts() == ["b", "c"]
    assert desk.queue().index.state(c) == READY


def test_a_lapsed_lease_is_taken_again_whole_or_not_at_all() -> None:
    desk = Desk(PLAIN)
    numbers = desk.send(*"abc")
    leases = desk.queue().leases
    leases.lease("batch", 2, MANY, MINUTE, desk.now)
    desk.wait(MINUTE)
    assert leases.lease_again("batch", numbers[:2], MINUTE, desk.now).seqs == numbers[:2]
    leases.abandon("batch", desk.now)
    desk.receive(1)
    with pytest.raises(LeaseLost, match="1 of its 2"):
        leases.lease_again("batch", numbers[:2], MINUTE, desk.now)
    with pytest.raises(LeaseLost, match="1 of its 1"):
        leases.lease_again("batch", numbers[2:], MINUTE, desk.now, before=1)


def test_whole_sessions_are_leased_and_nobody_else_receives_from_them() -> None:
    desk = Desk(SESSIONS)
    first = desk.send("1", "2", session="s")
    desk.send("3", session="t")
    leases = desk.queue().leases
    lease = leases.lease("batch", 2, MANY, MINUTE, desk.now)
    assert (lease.seqs, [session.id for session in lease.sessions]) == (first, ["s"])
    held = desk.queue().rows.sessions
    assert held is not None and held.by_id["s"].holder is not None and held.by_id["t"].holder is None
    leases.complete("batch", desk.now)
    assert held.by_id["t"].holder is None


def test_those_who_wait_hear_of_what_receivers_leave_once() -> None:
    desk = Desk(PLAIN)
    hand = Hand(credit=1)
    desk.queue().add_consumer(hand)
    desk.queue().consumer_ready(hand)
    waiter, gone = Waiting(), Waiting()
    desk.queue().leases.await_ready(waiter)
    desk.queue().leases.await_ready(gone)
    desk.queue().leases.forget_waiter(gone)
    desk.send("for the receiver")
    assert (hand.got, waiter.told) == ([("for the receiver", 0)], 0)
    desk.send("for the lease", "and more")
    assert (waiter.told, gone.told) == (1, 0)


def test_what_was_delivered_too_often_is_dead_lettered_instead_of_leased() -> None:
    desk = Desk(PLAIN)
    desk.send("bad", "good")
    for _ in range(2):
        lock = desk.receive(1).locks[0]
        desk.queue().settlement.abandon(lock, desk.now, 0, None, None)
    desk.receive(1)
    desk.restart()  # the third delivery was under way
    lease = desk.queue().leases.lease("batch", 5, MANY, MINUTE, desk.now)
    desk.run()
    assert [desk.text(desk.queue(), seq) for seq in lease.seqs] == ["good"]
    assert desk.texts(sub_queue=SubQueue.DEAD_LETTER) == ["bad"]


def test_a_queue_that_may_not_be_received_from_lends_nothing() -> None:
    desk = Desk(QueueDescription(name="q", status=EntityStatus.RECEIVE_DISABLED))
    desk.queue().enqueue(message("x"), desk.now)
    desk.run()
    with pytest.raises(EntityDisabled):
        desk.queue().leases.lease("batch", 5, MANY, MINUTE, desk.now)
