"""A queue by itself: what it takes in, gives out, takes back and lets go, with nothing around it but a store in memory."""

from __future__ import annotations

import pytest

from tandem.broker.ports import Loaded
from tandem.broker.queue.index import DEFERRED, DELAYED, LOCKED, READY, SCHEDULED
from tandem.model.address import SubQueue
from tandem.model.entity import EntityStatus, QueueDescription
from tandem.model.errors import EntityDisabled, MessageLockLost, MessageNotFound, MessageSizeExceeded, QuotaExceeded
from tests.broker.desk import Desk, Done, Hand, message

PLAIN = QueueDescription(name="q", lock_duration_ms=30_000, max_delivery_count=3)


@pytest.mark.compiled_too
def test_nobody_sees_a_message_before_the_disk_does() -> None:
    desk = Desk(PLAIN)
    hand = Hand(credit=5)
    desk.queue().consumer_ready(hand)
    desk.run()
    desk.queue().enqueue(message("x"), desk.now)
    desk.turn.run()
    assert hand.got == []
    assert desk.queue().browsing.peek(0, 10, None, desk.now) == []
    desk.loop.run_ready()
    desk.run()
    assert hand.got == [("x", 0)]


def test_received_and_deleted_leaves_only_once_the_disk_knows() -> None:
    desk = Desk(PLAIN)
    desk.send("x")
    hand = Hand(peek_lock=False, credit=1)
    desk.queue().consumer_ready(hand)
    desk.turn.run()
    assert (hand.got, hand.reserved) == ([], 1)
    desk.run()
    assert (hand.got, hand.reserved, desk.queue().index.total) == ([("x", 0)], 0, 0)


@pytest.mark.compiled_too
def test_what_comes_back_comes_in_front_in_its_old_order() -> None:
    desk = Desk(PLAIN)
    desk.send(*"abcdef")
    hand = desk.receive(4)
    for lock in (hand.locks[2], hand.locks[0]):
        desk.queue().settlement.abandon(lock, desk.now, 0, None, None)
    assert desk.receive(4).got == [("a", 1), ("c", 1), ("e", 0), ("f", 0)]


def test_expired_locks_come_back_in_order_too() -> None:
    desk = Desk(PLAIN)
    desk.send(*"abc")
    first = desk.receive(1)
    desk.wait(1000)
    second = desk.receive(1)
    desk.queue().settlement.renew(first.locks[0], desk.now)
    desk.wait(30_000)
    assert not first.locks[0].held
    assert not second.locks[0].held
    assert desk.receive(3).got == [("a", 1), ("b", 1), ("c", 0)]
    with pytest.raises(MessageLockLost):
        desk.queue().settlement.complete(first.locks[0], desk.now)


def test_a_lock_is_worth_nothing_from_the_instant_it_ends() -> None:
    desk = Desk(PLAIN)
    desk.send("a")
    [lock] = desk.receive().locks
    desk.clock.now += 30_000
    with pytest.raises(MessageLockLost):
        desk.queue().settlement.complete(lock, desk.now)
    assert desk.queue().index.state(1) == LOCKED, "the timer has not run yet, and the answer is the same"


def test_too_many_deliveries_lead_to_the_dead_letter_queue_in_one_fact() -> None:
    desk = Desk(PLAIN)
    desk.send("a")
    for count in range(3):
        hand = desk.receive()
        assert hand.got == [("a", count)]
        desk.queue().settlement.abandon(hand.locks[0], desk.now, 0, None, None)
        desk.run()
    assert (desk.queue().index.total, desk.dead().index.total) == (0, 1)
    assert desk.receive(sub_queue=SubQueue.DEAD_LETTER).got == [("a", 3)]
    for _ in range(20):
        desk.wait(30_000)
        assert len(desk.receive(sub_queue=SubQueue.DEAD_LETTER).got) == 1, "there is no further place to go"


def test_a_dead_letter_queue_that_dead_letters_keeps_its_message() -> None:
    desk = Desk(PLAIN)
    desk.send("a")
    desk.queue().settlement.dead_letter(desk.receive().locks[0], "r", "d", {}, desk.now, None)
    desk.run()
    done = Done()
    desk.dead().settlement.dead_letter(desk.receive(sub_queue=SubQueue.DEAD_LETTER).locks[0], "again", "", {}, desk.now, done)
    desk.run()
    assert done.errors == [None]
    assert desk.texts(sub_queue=SubQueue.DEAD_LETTER) == ["a"]


def test_scheduled_messages_line_up_behind_what_is_there() -> None:
    desk = Desk(PLAIN)
    desk.send("later", scheduled_at=desk.now + 5000)
    desk.send("now")
    assert desk.texts(state=SCHEDULED) == ["later"]
    desk.wait(5000)
    assert desk.receive(5).got == [("now", 0), ("later", 0)]
    assert desk.queue().index.state(1) == 0


def test_what_is_due_before_it_is_durable_waits_for_its_commit_and_wakes_nobody_meanwhile() -> None:
    desk = Desk(PLAIN)
    desk.queue().enqueue(message("late", scheduled_at=desk.now + 100), desk.now)
    desk.clock.now += 100
    desk.turn.run()  # the store has not answered: a disk that stalls
    assert desk.turn.deadline() == 0
    desk.loop.run_ready()  # now it has
    assert desk.turn.deadline() > 0
    desk.wait(1)
    assert desk.receive(2).got == [("late", 0)]


def test_cancelling_is_all_or_nothing() -> None:
    desk = Desk(PLAIN)
    numbers = desk.send("a", "b", scheduled_at=desk.now + 5000)
    with pytest.raises(MessageNotFound):
        desk.queue().browsing.cancel_scheduled([numbers[0], 99], desk.now)
    assert desk.texts(state=SCHEDULED) == ["a", "b"]
    desk.queue().browsing.cancel_scheduled([numbers[0], numbers[0]], desk.now)
    assert desk.texts(state=SCHEDULED) == ["b"]


def test_a_delay_keeps_a_message_away_and_outlives_a_restart() -> None:
    desk = Desk(PLAIN)
    desk.send("a", "b")
    [lock] = desk.receive(1).locks
    desk.queue().settlement.abandon(lock, desk.now, desk.now + 60_000, None, None)
    desk.run()
    desk.restart()
    assert desk.texts(state=DELAYED) == ["a"]
    assert desk.receive(5).got == [("b", 0)]
    desk.wait(60_000)
    assert desk.receive(5).got[0] == ("a", 1)


def test_messages_expire_where_they_lie_but_not_in_hand() -> None:
    desk = Desk(PLAIN)
    desk.send("lies", "held", "deferred", ttl_ms=10_000)
    hand = desk.receive(3)
    desk.queue().settlement.release(hand.locks[0], desk.now)
    desk.queue().settlement.defer(hand.locks[2], desk.now, None, None)
    desk.wait(11_000)
    assert desk.texts(state=READY) == []
    assert (desk.texts(state=LOCKED), desk.texts(state=DEFERRED)) == (["held"], ["deferred"])
    desk.wait(30_000)
    assert desk.texts(state=READY) == []


def test_many_messages_expire_in_bearable_portions() -> None:
    desk = Desk(PLAIN)
    for _ in range(25):
        desk.send(*["x"] * 100, ttl_ms=1000)
    desk.clock.now += 3000
    desk.turn.run()
    assert desk.queue().index.total == 1500
    desk.wait(2)
    desk.wait(2)
    assert desk.queue().index.total == 0


@pytest.mark.compiled_too
def test_a_backlog_beyond_memory_is_read_back_in_order() -> None:
    desk = Desk(PLAIN, hot_bytes=400)
    texts = [f"message {n}" for n in range(1200)]
    for start in range(0, 1200, 100):
        desk.send(*texts[start : start + 100])
    assert len(desk.queue().rows.hot) < 20
    got = []
    while hand := desk.receive(150, delete=True).got:
        got += hand
    assert got == [(text, 0) for text in texts]
    assert desk.queue().rows.hot == {}
    assert desk.queue().rows.backing.used_bytes == 0


def test_refusals_leave_no_trace() -> None:
    desk = Desk(QueueDescription(name="q", requires_duplicate_detection=True, max_message_bytes=1024 * 1024))
    queue = desk.queue()
    queue.terms.quota_bytes = 200
    desk.send("x" * 50, message_id="one")
    with pytest.raises(QuotaExceeded):
        queue.enqueue(message("y" * 100, message_id="two"), desk.now)
    queue.terms.quota_bytes = 1 << 40
    queue.terms.message_bytes_max = 60
    with pytest.raises(MessageSizeExceeded):
        queue.enqueue(message("y" * 100, message_id="two"), desk.now)
    queue.terms.message_bytes_max = 1000
    assert desk.send("taken", message_id="two") == [2]
    assert desk.send("dropped", message_id="two") == [0]
    assert (queue.index.total, queue.rows.next_seq, queue.intake.duplicates_dropped) == (2, 3, 1)


def test_status_is_obeyed_in_both_directions() -> None:
    desk = Desk(QueueDescription(name="q", status=EntityStatus.RECEIVE_DISABLED))
    desk.send("a")
    assert desk.receive().got == []
    desk.namespace.find("q").configure(QueueDescription(name="q", status=EntityStatus.SEND_DISABLED))  # type: ignore[union-attr, arg-type, call-arg]
    with pytest.raises(EntityDisabled):
        desk.send("b")
    assert desk.receive().got == [("a", 0)]


def test_pings_are_counted_and_not_kept() -> None:
    desk = Desk(QueueDescription(name="q", requires_duplicate_detection=True))
    assert desk.send("", "", ping=True, message_id="p") == [0, 0]
    assert desk.send("real", message_id="p") == [1]
    assert (desk.queue().intake.pings, desk.queue().index.total) == (2, 1)


def test_purge_takes_what_is_free_and_old_enough() -> None:
    desk = Desk(PLAIN)
    desk.send("held", "old")
    desk.receive(1)
    desk.wait(10)
    before = desk.now
    desk.wait(10)
    desk.send("young")
    assert desk.queue().browsing.purge(before, 10, desk.now) == 1
    assert desk.texts(state=READY) == ["young"]
    assert desk.queue().browsing.purge(desk.now, 0, desk.now) == 0


def test_a_deleted_queue_survives_everything_that_was_under_way() -> None:
    desk = Desk(PLAIN)
    desk.send(*"abcde", ttl_ms=5000)
    held = desk.receive(1)
    taker = Hand(peek_lock=False, credit=1)
    queue = desk.queue()
    queue.consumer_ready(taker)
    desk.turn.run()
    desk.namespace.remove("q")
    desk.wait(40_000)
    assert queue.index.total == 0
    assert not held.locks[0].held
    assert taker.got in ([], [("b", 0)])


def test_settled_deferred_and_fetched_again() -> None:
    desk = Desk(PLAIN)
    desk.send("a", "b")
    hand = desk.receive(2)
    for lock in hand.locks:
        desk.queue().settlement.defer(lock, desk.now, None, None)
    with pytest.raises(MessageNotFound):
        desk.queue().browsing.receive_deferred([1, 3], None, desk.now)
    with pytest.raises(MessageNotFound):
        desk.queue().browsing.receive_deferred([], None, desk.now)
    locks = desk.queue().browsing.receive_deferred([2, 1], None, desk.now)
    assert [lock.seq for lock in locks] == [2, 1]
    desk.queue().settlement.complete(locks[0], desk.now)
    desk.wait(30_000)
    assert desk.texts(state=DEFERRED) == ["a"]
    assert desk.queue().index.count(1) == 2


class _Seen(Loaded):
    def __init__(self) -> None:
        self.messages: list[object] = []

    def loaded(self, messages, error) -> None:
        assert error is None
        self.messages = list(messages)


def test_a_message_that_comes_back_while_others_are_read_from_disk_is_still_shown() -> None:
    desk = Desk(PLAIN)
    desk.send("a", "b")
    queue = desk.queue()
    hand = desk.receive(1)
    queue.rows.drop_hot(2)
    waiting: list[tuple[list[int], object]] = []
    queue.rows.backing.journal = _Slow(queue.rows.backing.journal, waiting)
    seen = _Seen()
    queue.browsing.load([1, 2], seen)
    queue.settlement.abandon(hand.locks[0], desk.now, 0, None, None)
    queue.rows.drop_hot(1)
    ((locations, effect),) = waiting
    queue.rows.backing.journal.real.fetch(locations, effect)
    desk.run()
    assert len(seen.messages) == 2 and None not in seen.messages


class _Slow:
    """A journal whose reads wait until the test says so."""

    def __init__(self, real, waiting) -> None:
        self.real = real
        self._waiting = waiting

    def fetch(self, locations, effect) -> None:
        self._waiting.append((locations, effect))

    def __getattr__(self, name):
        return getattr(self.real, name)
