from __future__ import annotations

import pytest

from tandem.model.duration import format_microseconds, parse_microseconds

SECOND = 1_000_000


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [
        ("PT0S", 0),
        ("PT1M30S", 90 * SECOND),
        ("P1DT2H3M4.5S", (((24 + 2) * 60 + 3) * 60 + 4) * SECOND + 500_000),
        ("-PT1S", -SECOND),
        ("P10675199DT2H48M5.477580S", 922_337_203_685_477_580),
    ],
)
def test_a_duration_is_read_and_written(text: str, microseconds: int) -> None:
    assert parse_microseconds(text) == microseconds
    assert parse_microseconds(format_microseconds(microseconds)) == microseconds


def test_what_is_finer_than_a_microsecond_is_cut_off() -> None:
    assert parse_microseconds("PT0.1234567S") == 123_456


@pytest.mark.parametrize(
    "text", ["", "P", "PT", "P1", "P1Y", "P1M", "PT1", "P1DT", "PT1.S", "PT,5S", "1D", "PT1S ", "P٣D", "P-1D", "PT1H1H"]
)
def test_what_is_no_duration_is_none(text: str) -> None:
    assert parse_microseconds(text) is None
