"""Locks end in order, once, and are found by their token alone."""

from __future__ import annotations

from tandem.broker.queue.locks import LockTable
from tandem.broker.queue.sessions import MessageSession


def test_locks_end_in_the_order_in_which_they_were_taken() -> None:
    table = LockTable(7)
    locks = [table.take(seq, 1000 + seq, 0, None, False) for seq in range(1, 6)]
    assert table.next_end() == 1001
    assert table.ended(1000) == []
    assert table.ended(1003) == locks[:3]
    assert all(lock.held for lock in locks), "the queue decides what becomes of a message, not the table"
    for lock in locks[:3]:
        table.drop(lock)
    assert table.next_end() == 1004


def test_a_lock_of_a_duration_that_became_shorter_ends_before_those_taken_earlier() -> None:
    table = LockTable(7)
    long = [table.take(seq, 300_000 + seq, 0, None, False) for seq in (1, 2, 3)]
    short = [table.take(seq, 5_000 + seq, 0, None, False) for seq in (4, 5)]
    table.renew(long[1], 5_004)
    assert table.next_end() == 5_004
    assert table.ended(5_010) == [short[0], long[1], short[1]]
    for lock in (*short, long[1]):
        table.drop(lock)
    assert table.next_end() == 300_001
    assert table.ended(300_010) == [long[0], long[2]]


def test_a_renewed_lock_ends_at_its_new_time_only() -> None:
    table = LockTable(7)
    first, second = table.take(1, 1000, 0, None, False), table.take(2, 1001, 0, None, False)
    table.renew(first, 2000)
    assert table.ended(1500) == [second]
    table.drop(second)
    assert table.next_end() == 2000
    assert table.ended(2000) == [first]


def test_a_lock_renewed_twice_in_one_millisecond_ends_once() -> None:
    table = LockTable(7)
    lock = table.take(1, 1000, 0, None, False)
    table.renew(lock, 1000)
    table.renew(lock, 1500)
    table.renew(lock, 1500)
    assert table.ended(5000) == [lock]


def test_a_dropped_lock_is_neither_found_nor_ended() -> None:
    table = LockTable(7)
    lock = table.take(1, 1000, 0, None, False)
    assert table.find(lock.token) is lock
    table.drop(lock)
    assert table.find(lock.token) is None
    assert table.next_end() == 0
    assert table.ended(9999) == []


def test_tokens_are_sixteen_bytes_and_never_repeat_not_even_for_the_same_message() -> None:
    table = LockTable(0x1122_3344_5566_7788)
    tokens = set()
    for _ in range(100):
        lock = table.take(1, 1000, 0, None, False)
        tokens.add(lock.token)
        table.drop(lock)
    assert len(tokens) == 100
    assert {len(token) for token in tokens} == {16}


def test_locks_of_sessions_end_with_their_session_and_not_by_themselves() -> None:
    table = LockTable(7)
    lock = table.take(1, 1000, 0, MessageSession("s", 1), False)
    assert table.next_end() == 0
    assert table.ended(9999) == []
    assert table.find(lock.token) is lock


def test_locks_that_were_dropped_are_not_kept_in_line_while_others_stand() -> None:
    table = LockTable(7)
    for seq in range(1, 5_001):
        lock = table.take(seq, 1000 + seq, 0, None, False)
        if seq % 100:
            table.drop(lock)
        assert table.next_end() == (1100 if seq >= 100 else 0)
    assert [lock.seq for lock in table.ended(9_999)] == list(range(100, 5_001, 100))
    assert table.next_end() == 0


def test_a_token_of_another_length_or_another_lock_of_the_same_message_finds_nothing() -> None:
    table = LockTable(7)
    first = table.take(1, 1000, 0, None, False)
    table.drop(first)
    second = table.take(1, 1000, 0, None, False)
    assert [table.find(token) for token in (b"", b"abc", first.token, second.token)] == [None, None, None, second]
