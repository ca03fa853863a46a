"""What several workers say of themselves is joined into what the broker says."""

from __future__ import annotations

import pytest

from tandem.gateway.http.joined_figures import joined_columns, joined_sample, joined_stores


def columns(first_ms: int, *active: float, every: int = 1_000) -> dict[str, list[float]]:
    count = len(active)
    return {
        "at_ms": [float(first_ms + every * at) for at in range(count)],
        "active": list(active),
        "oldest_ms": [value * 10 for value in active],
        "loop_lag_ms": list(active),
        "disk_free_bytes": [100.0 - value for value in active],
    }


def test_rates_and_depths_are_added_up_and_of_ages_and_lags_the_worst_is_taken() -> None:
    own = {
        "at_ms": 5.0,
        "sent_per_second": 1.5,
        "active": 3.0,
        "oldest_ms": 7.0,
        "loop_lag_ms": 0.5,
        "disk_free_bytes": 9.0,
        "disk_bytes": 20.0,
    }
    other = {
        "at_ms": 4.0,
        "sent_per_second": 2.0,
        "active": 4.0,
        "oldest_ms": 6.0,
        "loop_lag_ms": 2.5,
        "disk_free_bytes": 8.0,
        "disk_bytes": 20.0,
    }
    assert joined_sample(own, [other]) == {
        "at_ms": 5.0,
        "sent_per_second": 3.5,
        "active": 7.0,
        "oldest_ms": 7.0,
        "loop_lag_ms": 2.5,
        "disk_free_bytes": 8.0,
        "disk_bytes": 20.0,
    }


def test_a_worker_that_has_no_sample_yet_adds_nothing() -> None:
    assert joined_sample({"at_ms": 5.0, "active": 3.0}, [{}]) == {"at_ms": 5.0, "active": 3.0}


@pytest.mark.parametrize("shift", [-499, 0, 300])
def test_samples_of_the_same_second_go_together_whenever_in_it_they_were_taken(shift: int) -> None:
    found = joined_columns(columns(10_000, 1, 2, 3, 4), [columns(10_000 + shift, 10, 20, 30, 40)])
    assert found["active"] == [11, 22, 33, 44]
    assert found["oldest_ms"] == [100, 200, 300, 400]
    assert found["disk_free_bytes"] == [90, 80, 70, 60]


def test_a_worker_that_was_away_is_not_counted_for_that_time_and_a_late_sample_counts_for_three_seconds() -> None:
    other = columns(10_000, 10, 20)
    found = joined_columns(columns(10_000, 1, 1, 1, 1, 1, 1, 1), [other])
    assert found["active"] == [11, 21, 21, 21, 1, 1, 1]


def test_the_hour_is_that_of_the_worker_that_remembers_most() -> None:
    found = joined_columns(columns(12_000, 1, 1), [columns(10_000, 5, 5, 5, 5)])
    assert (found["at_ms"], found["active"]) == ([10_000, 11_000, 12_000, 13_000], [5, 5, 6, 6])


def test_a_store_is_told_by_the_worker_that_has_it_and_is_down_if_that_does_not_answer() -> None:
    up, elsewhere = {"name": "store-0", "state": "up"}, {"name": "store-1", "state": "elsewhere"}
    third = {"name": "store-2", "state": "elsewhere"}
    theirs = [{"name": "store-0", "state": "elsewhere"}, {"name": "store-1", "state": "degraded"}, third]
    found = joined_stores([up, elsewhere, third], {"worker-1": theirs})
    assert [one["state"] for one in found] == ["up", "degraded", "down"]
    assert (found[1]["worker"], found[2]["cause"]) == ("worker-1", "nobody who has it answers")
