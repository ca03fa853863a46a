"""The table of sessions: one holder each, the oldest waiting session first, nothing kept for nobody."""

from __future__ import annotations

import pytest

from tandem.broker.queue.index import READY, Index
from tandem.broker.queue.sessions import SessionTable
from tandem.model.entity import QueueDescription
from tandem.model.errors import NotAllowed, SessionCannotBeLocked, SessionLockLost
from tests.broker.desk import Desk, Hand, Waiter

SESSIONS = QueueDescription(name="q", requires_session=True, lock_duration_ms=30_000)


def held(desk: Desk, session: str) -> Hand:
    hand = Hand()
    desk.queue().sessions.accept(session, hand, desk.now)
    desk.queue().add_consumer(hand)
    return hand


def give(desk: Desk, hand: Hand, credit: int) -> Hand:
    hand.credit = credit
    desk.queue().consumer_ready(hand)
    desk.run()
    return hand


def test_two_holders_of_one_session_are_a_defect() -> None:
    table = SessionTable()
    session = table.get("s")
    table.hold(session, Hand(), 1000)
    with pytest.raises(AssertionError, match="one holder"):
        table.hold(session, Hand(), 1000)


def test_a_session_without_messages_state_or_holder_is_forgotten() -> None:
    table, index = SessionTable(), Index()
    session = table.get("s")
    table.hold(session, Hand(), 1000)
    table.let_go(session, index)
    assert table.by_id == table.by_number == {}
    kept = table.get("with state")
    kept.state = b"x"
    table.refresh(kept, index)
    assert list(table.by_id) == ["with state"]
    assert kept.number != session.number, "numbers are not used again: rows of the old one may still be looked at"


def test_what_was_given_back_comes_before_what_is_new() -> None:
    table, index = SessionTable(), Index()
    session = table.get("s")
    for seq in range(1, 6):
        index.add(seq, READY, 1, 1, 1, 0, 0)
        session.ready.append(seq)
    for _ in range(3):
        session.take_first()
    session.give_back(3)
    session.give_back(1)
    order = []
    while seq := session.first(index):
        session.take_first()
        order.append(seq)
    assert order == [1, 3, 4, 5]


@pytest.mark.compiled_too
def test_the_session_that_has_waited_longest_is_next() -> None:
    desk = Desk(SESSIONS)
    for session in ("b", "a", "c"):
        desk.send("x", session=session)
    waiters = [Waiter(Hand(), desk.now + 1000) for _ in range(4)]
    for waiter in waiters:
        desk.queue().sessions.await_next(waiter)
    desk.run()
    assert [w.session.id if w.session else None for w in waiters] == ["b", "a", "c", None]
    desk.wait(1001)
    assert [w.gave_up for w in waiters] == [False, False, False, True]


def test_closing_gives_messages_back_uncounted_and_expiry_counts_them() -> None:
    desk = Desk(SESSIONS)
    desk.send("one", "two", session="s")
    first = give(desk, held(desk, "s"), 2)
    assert first.got == [("one", 0), ("two", 0)]
    assert first.session is not None
    desk.queue().sessions.close(first.session, first, desk.now)
    second = give(desk, held(desk, "s"), 1)
    assert second.got == [("one", 0)]
    desk.wait(30_001)
    assert isinstance(second.lost_with, SessionLockLost)
    third = give(desk, held(desk, "s"), 2)
    assert third.got == [("one", 1), ("two", 0)]


def test_a_holder_that_is_not_the_holder_closes_nothing() -> None:
    desk = Desk(SESSIONS)
    hand = held(desk, "s")
    assert hand.session is not None
    desk.queue().sessions.close(hand.session, Hand(), desk.now)
    with pytest.raises(SessionCannotBeLocked):
        held(desk, "s")


def test_renewal_moves_the_locks_of_the_sessions_messages_too() -> None:
    desk = Desk(SESSIONS)
    desk.send("one", session="s")
    hand = give(desk, held(desk, "s"), 1)
    desk.wait(20_000)
    until = desk.queue().sessions.renew("s", desk.now)
    assert [lock.locked_until for lock in hand.locks] == [until]
    desk.wait(20_000)
    desk.queue().settlement.complete(hand.locks[0], desk.now)
    assert desk.queue().index.total == 0


def test_a_message_for_an_expired_holder_frees_the_session_for_others() -> None:
    desk = Desk(SESSIONS)
    old = held(desk, "s")
    desk.wait(30_001)
    assert old.lost_with is None, "nothing to read, nobody asks: it is left in peace"
    waiter = Waiter(Hand(), desk.now + 60_000)
    desk.queue().sessions.await_next(waiter)
    desk.send("news", session="s")
    assert isinstance(old.lost_with, SessionLockLost)
    assert waiter.session is not None
    assert waiter.session.id == "s"


def test_sessions_whose_messages_expire_or_are_purged_leave_nothing_behind() -> None:
    desk = Desk(SESSIONS)
    desk.send("x", session="expires", ttl_ms=1000)
    desk.send("x", session="purged")
    desk.queue().browsing.purge(desk.now, 10, desk.now)
    desk.wait(2500)
    sessions = desk.queue().sessions.table
    assert sessions is not None
    assert (sessions.by_id, sessions.by_number, sessions.free) == ({}, {}, {})


def test_sessions_belong_to_queues_that_have_them() -> None:
    desk = Desk(QueueDescription(name="q"))
    with pytest.raises(NotAllowed):
        desk.queue().sessions.accept("s", Hand(), desk.now)
    with pytest.raises(NotAllowed):
        desk.queue().sessions.await_next(Waiter(Hand(), desk.now + 1))
    with pytest.raises(NotAllowed):
        desk.queue().sessions.list_ids(None, 0, 10)


@pytest.mark.compiled_too
def test_a_session_lock_of_a_duration_that_became_shorter_ends_before_those_taken_earlier() -> None:
    desk = Desk(SESSIONS)
    desk.send("x", session="long")
    desk.send("y", session="short")
    long = give(desk, held(desk, "long"), 1)
    desk.queue().configure(QueueDescription(name="q", requires_session=True, lock_duration_ms=5_000))
    short = give(desk, held(desk, "short"), 1)
    waiter = Waiter(Hand(), desk.now + 60_000)
    desk.queue().sessions.await_next(waiter)
    desk.wait(5_001)
    assert isinstance(short.lost_with, SessionLockLost)
    assert long.lost_with is None
    assert waiter.session is not None
    assert waiter.session.id == "short"
