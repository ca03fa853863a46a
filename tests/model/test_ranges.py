"""Sequence numbers as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.model.ranges import pack_ranges, unpack_ranges


def test_runs_become_ranges_and_order_is_kept() -> None:
    assert pack_ranges([1, 2, 3, 7, 9, 10, 5]) == "1-3,7,9-10,5"
    assert unpack_ranges("1-3,7,9-10,5") == [1, 2, 3, 7, 9, 10, 5]


def test_empty_places_are_left_out() -> None:
    assert pack_ranges([0, 4, 0, 5]) == "4-5"
    assert pack_ranges([]) == ""
    assert unpack_ranges("") == []


@given(st.lists(st.integers(min_value=1, max_value=2**62), max_size=50))
def test_every_list_comes_back(numbers: list[int]) -> None:
    assert unpack_ranges(pack_ranges(numbers)) == numbers


@pytest.mark.parametrize("text", ["x", "1-", "-1", "0", "5-3", "1,,2", "1-99999999999", "1;2", "1-2-3"])
def test_anything_else_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="range"):
        unpack_ranges(text)
