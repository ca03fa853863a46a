"""Batches stay within their bytes whatever the sizes of the messages."""

from __future__ import annotations

from tandem.client.batch_budget import BatchBudget


def test_the_first_batch_is_for_messages_of_the_usual_limit_and_small_ones_soon_come_in_full_batches() -> None:
    budget = BatchBudget(16_000_000)
    counts = []
    for _ in range(8):
        counts.append(budget.count(100))
        budget.seen([1_000] * counts[-1])
    assert counts == [61, 100, 100, 100, 100, 100, 100, 100]


def test_large_messages_come_a_few_at_a_time_and_one_that_is_too_large_alone() -> None:
    budget = BatchBudget(16_000_000)
    budget.seen([3_000_000])
    assert budget.count(100) == 5
    budget.seen([100_000_000])
    assert budget.count(100) == 1
    budget.seen([1_000])
    assert budget.count(100) == 1, "there may be more of those"
