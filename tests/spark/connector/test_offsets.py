"""Offsets as JSON, and where tasks begin."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.spark.connector.offsets import BatchShare, Offset, cut


def test_an_offset_comes_back_from_the_checkpoint() -> None:
    offset = Offset("q", 3, {"orders": BatchShare("orders", "q/3/0", 10, "1-9,12", (0, 5), 1_700_000_000_000)})
    assert Offset.from_json(json.loads(json.dumps(offset.to_json()))) == offset


def test_an_offset_of_another_version_is_refused() -> None:
    with pytest.raises(ValueError, match="version 7"):
        Offset.from_json({"v": 7})


@given(st.integers(0, 10_000), st.integers(1, 3_000))
def test_tasks_cover_everything_once_in_parts_that_are_small_enough(count: int, per_task: int) -> None:
    share = BatchShare("e", "l", count, "", cut(count, per_task))
    places = [place for start, end in share.fragments for place in range(start, end)]
    assert places == list(range(count))
    assert all(0 < end - start <= per_task for start, end in share.fragments)


@given(st.lists(st.integers(1, 50), max_size=60), st.integers(1, 100))
def test_sessions_are_never_cut_apart(runs: list[int], per_task: int) -> None:
    count = sum(runs)
    share = BatchShare("e", "l", count, "", cut(count, per_task, runs))
    starts, at = set(), 0
    for run in runs:
        starts.add(at)
        at += run
    assert {start for start, _ in share.fragments} <= starts
    assert [place for start, end in share.fragments for place in range(start, end)] == list(range(count))
    assert all(end - start <= max(per_task, max(runs)) for start, end in share.fragments)
