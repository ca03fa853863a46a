"""Ids are remembered for exactly one window, at the cost of two."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tandem.broker.queue.dedup import DuplicateHistory


def test_an_id_is_known_until_its_window_has_passed() -> None:
    history = DuplicateHistory(1000)
    history.remember(b"a", 5000, 5000)
    assert history.seen(b"a", 5999)
    assert not history.seen(b"a", 6000)
    assert not history.seen(b"b", 5000)


def test_forgetting_takes_whole_generations() -> None:
    history = DuplicateHistory(1000)
    for now in range(0, 10_000, 10):
        history.remember(str(now).encode(), now, now)
        assert len(history) <= 2 * 100 + 1


def test_only_the_youngest_of_an_id_stands() -> None:
    history = DuplicateHistory(1000)
    history.remember(b"a", 0, 0)
    history.remember(b"a", 1500, 1500)
    assert history.is_current(b"a", 1500, 1600)
    assert not history.is_current(b"a", 0, 1600)
    assert not history.is_current(b"a", 1500, 2500)
    assert not history.is_current(b"b", 0, 0)


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 9)), max_size=60), st.integers(1, 1500))
def test_it_agrees_with_a_book_that_forgets_nothing(steps: list[tuple[int, int]], window_ms: int) -> None:
    history = DuplicateHistory(window_ms)
    book: dict[bytes, int] = {}
    now = 1_000_000
    for later, number in steps:
        now += later
        identity = b"id %d" % number
        known = identity in book and book[identity] + window_ms > now
        assert history.seen(identity, now) == known
        if not known:
            history.remember(identity, now, now)
            book[identity] = now
