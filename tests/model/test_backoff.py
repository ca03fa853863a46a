from __future__ import annotations

from tandem.model.backoff import Backoff, unforeseeable


def test_pauses_double_up_to_the_most_and_begin_anew_after_a_success() -> None:
    backoff = Backoff(0.5, 3.0)
    assert [backoff.next_pause() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert backoff.last == 3.0
    backoff.reset()
    assert (backoff.last, backoff.next_pause()) == (0.0, 0.5)


def test_with_chance_a_pause_is_between_half_of_itself_and_all_of_it() -> None:
    chances = iter((0.0, 1.0, 0.5))
    backoff = Backoff(1.0, 100.0, lambda: next(chances))
    assert [backoff.next_pause() for _ in range(3)] == [0.5, 2.0, 3.0]


def test_a_chance_lies_between_nothing_and_certainty() -> None:
    assert all(0.0 <= unforeseeable() <= 1.0 for _ in range(100))
