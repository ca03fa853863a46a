from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.broker.rules.message_view import PropertyKind
from tandem.broker.rules.sql_convert import as_existing, float_text, text_of, to_kind

ID = UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.0, "-0"),
        (1.0, "1"),
        (1.5, "1.5"),
        (-2.25, "-2.25"),
        (0.1, "0.1"),
        (0.0001, "0.0001"),
        (0.00001, "1E-05"),
        (123456789012345.0, "123456789012345"),
        (1e15, "1E+15"),
        (1.25e20, "1.25E+20"),
        (5e-324, "5E-324"),
        (math.inf, "Infinity"),
        (-math.inf, "-Infinity"),
        (math.nan, "NaN"),
    ],
)
def test_doubles_are_written_as_dot_net_writes_them(value: float, text: str) -> None:
    assert float_text(value) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_written_double_reads_back_as_itself(value: float) -> None:
    assert float(float_text(value)) == value


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (timedelta(hours=1), "01:00:00"),
        (timedelta(days=3, seconds=61, microseconds=5), "3.00:01:01.0000050"),
        (-timedelta(minutes=90), "-01:30:00"),
    ],
)
def test_durations_are_written_and_read_as_time_spans(span: timedelta, text: str) -> None:
    assert text_of(span) == text
    assert to_kind(text, PropertyKind.DURATION) == span


def test_durations_are_read_in_iso_form_too() -> None:
    assert to_kind("P1DT2H3M4.5S", PropertyKind.DURATION) == timedelta(days=1, hours=2, minutes=3, seconds=4, milliseconds=500)
    assert to_kind("-PT1M", PropertyKind.DURATION) == -timedelta(minutes=1)
    assert to_kind("P", PropertyKind.DURATION) is None
    assert to_kind("PT", PropertyKind.DURATION) is None
    assert to_kind("90", PropertyKind.DURATION) is None


def test_instants_are_written_and_read_in_iso_form() -> None:
    at = datetime(2024, 5, 6, 7, 8, 9, 123_000, tzinfo=UTC)
    assert text_of(at) == "2024-05-06T07:08:09.1230000Z"
    assert to_kind("2024-05-06T07:08:09.123Z", PropertyKind.INSTANT) == at
    assert to_kind(at.astimezone(timezone(timedelta(hours=2))), PropertyKind.INSTANT) == at
    assert to_kind("yesterday", PropertyKind.INSTANT) is None


@pytest.mark.parametrize(
    ("value", "existing", "expected"),
    [
        ("42", 1, 42),
        (" -7 ", 1, -7),
        ("x", 1, "x"),
        ("99999999999999999999", 1, "99999999999999999999"),
        (2.0, 1, 2),
        (2.5, 1, 2.5),
        (math.inf, 1, math.inf),
        (True, 1, True),
        (3, 1.5, 3.0),
        ("1e3", 1.5, 1000.0),
        ("1" * 500, 1.5, "1" * 500),
        (5, "x", "5"),
        (True, "x", "True"),
        (ID, "x", str(ID)),
        (b"x", "x", b"x"),
        ("TRUE", False, True),
        ("yes", False, "yes"),
        (1, False, 1),
        (str(ID), UUID(int=0), ID),
        ("00:01:00", timedelta(1), timedelta(minutes=1)),
        ("2024-01-01", datetime(2000, 1, 1, tzinfo=UTC), datetime(2024, 1, 1, tzinfo=UTC)),
        (None, 1, None),
        (1, None, 1),
        ("x", [1], "x"),
    ],
)
def test_a_value_takes_the_sort_a_property_had_where_nothing_is_lost(value: object, existing: object, expected: object) -> None:
    converted = as_existing(value, existing)
    assert converted == expected
    assert type(converted) is type(expected)
