"""The columns agree with a plain dictionary, whatever is done to them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.broker.queue.index import DEFERRED, DELAYED, GONE, LOCKED, READY, SCHEDULED, Index


def test_rows_come_and_go_and_chunks_with_them() -> None:
    index = Index()
    for seq in (1, 1023, 1024, 10_000_000):
        index.add(seq, READY, seq * 10, 100, 5, 0, 2)
    assert (index.total, index.size_bytes, index.by_state[READY], len(index.chunks)) == (4, 400, 4, 3)
    assert index.seqs_from(0, 10) == [1, 1023, 1024, 10_000_000]
    assert index.seqs_from(1024, 1) == [1024]
    assert index.remove(10_000_000) == 100_000_000
    assert (index.total, len(index.chunks)) == (3, 2)
    assert index.state(10_000_000) == GONE
    assert index.state(123_456_789) == GONE


def test_a_chunk_that_went_is_not_asked_again() -> None:
    index = Index()
    index.add(1, READY, 10, 100, 5, 0, 2)
    assert index.remove_all([1]) == [10]
    assert (index.state(1), index.chunks) == (GONE, {})
    index.add(2, READY, 20, 100, 5, 0, 0)
    assert (index.state(1), index.state(2), index.location(2), index.count(2)) == (GONE, READY, 20, 0)
    index.add(5000, READY, 30, 100, 5, 0, 0)
    assert [index.location(seq) for seq in (2, 5000, 2)] == [20, 30, 20]


def test_a_number_is_used_once_and_removed_once() -> None:
    index = Index()
    index.add(1, READY, 1, 1, 1, 0, 0)
    with pytest.raises(AssertionError, match="used twice"):
        index.add(1, READY, 1, 1, 1, 0, 0)
    index.add(2, READY, 1, 1, 1, 0, 0)
    index.remove(1)
    with pytest.raises(AssertionError, match="removed twice"):
        index.remove(1)


def test_the_next_row_in_a_state_is_found_across_gaps() -> None:
    index = Index()
    for seq in (5, 9000, 50_000_000):
        index.add(seq, READY if seq != 9000 else LOCKED, 1, 1, 1, 0, 0)
    assert index.next_in_state(READY, 1, 100_000_000) == 5
    assert index.next_in_state(READY, 6, 100_000_000) == 50_000_000
    assert index.next_in_state(LOCKED, 6, 100_000_000) == 9000
    assert index.next_in_state(READY, 6, 9_000_000) == 9_000_000
    assert index.next_in_state(READY, 50_000_001, 60_000_000) == 60_000_000


def test_a_rewritten_body_changes_what_the_queue_weighs() -> None:
    index = Index()
    index.add(1, READY, 10, 100, 1, 0, 0)
    index.add(2, READY, 20, 50, 1, 0, 0)
    index.set_body(1, 30, 160)
    assert (index.location(1), index.size(1), index.size_bytes) == (30, 160, 210)
    index.remove(1)
    assert index.size_bytes == 50


def test_expiry_takes_active_rows_and_leaves_what_is_in_hand() -> None:
    index = Index()
    for seq, state in enumerate((READY, LOCKED, DEFERRED, DELAYED, READY, READY), start=1):
        index.add(seq, state, 1, 1, 1, 0 if seq == 5 else 9000 if seq == 6 else 1000, 0)
    assert index.next_expiry() == 1000
    assert index.expired(999, 10) == []
    assert index.expired(1000, 10) == [1, 4]
    for seq in (1, 4):
        index.remove(seq)
    assert index.next_expiry() == 2000, "the locked one is looked at again, within a second"
    index.set_state(2, READY)
    assert index.expired(2000, 10) == [2]


def test_expiry_stops_at_its_limit_and_goes_on_at_once() -> None:
    index = Index()
    for seq in range(1, 11):
        index.add(seq, READY, 1, 1, 1, 1000, 0)
    first = index.expired(1000, 4)
    assert first == [1, 2, 3, 4]
    for seq in first:
        index.remove(seq)
    assert index.next_expiry() <= 1000
    assert index.expired(1000, 100) == [5, 6, 7, 8, 9, 10]


@given(st.lists(st.tuples(st.sampled_from(["add", "remove", "state", "count"]), st.integers(1, 9000), st.integers(1, 6)), max_size=120))
def test_columns_agree_with_a_dictionary(steps: list[tuple[str, int, int]]) -> None:
    index = Index()
    rows: dict[int, list[int]] = {}
    for step, seq, number in steps:
        if step == "add" and seq not in rows:
            index.add(seq, number, seq, number, seq, 0, 0)
            rows[seq] = [number, number, 0]
        elif seq in rows and step == "remove":
            assert index.remove(seq) == seq
            del rows[seq]
        elif seq in rows and step == "state":
            index.set_state(seq, number)
            rows[seq][0] = number
        elif seq in rows and step == "count":
            index.set_count(seq, number)
            rows[seq][2] = number
    assert index.seqs_from(0, 10_000) == sorted(rows)
    assert [(index.state(s), index.size(s), index.count(s)) for s in sorted(rows)] == [tuple(rows[s]) for s in sorted(rows)]
    assert index.total == len(rows)
    assert index.size_bytes == sum(row[1] for row in rows.values())
    for state in (READY, LOCKED, SCHEDULED):
        expected = [s for s in sorted(rows) if rows[s][0] == state]
        found, at = [], 1
        while (at := index.next_in_state(state, at, 9001)) < 9001:
            found.append(at)
            at += 1
        assert found == expected
