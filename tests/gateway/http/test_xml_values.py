"""Durations and instants in the forms of XML Schema, there and back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.gateway.http.xml import parse
from tandem.gateway.http.xml_values import (
    MAX_DURATION_TEXT,
    element,
    format_datetime,
    format_duration,
    format_instant,
    format_microseconds,
    parse_datetime,
    parse_duration,
    parse_timespan,
)
from tandem.model.entity import MAX_DURATION_MS
from tandem.model.errors import ArgumentRefused


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("PT1M", 60_000),
        ("PT60S", 60_000),
        ("P14D", 14 * 86_400_000),
        ("P1DT2H3M4.5S", 93_784_500),
        ("PT0S", 0),
        ("-PT1S", -1_000),
        (" PT5S ", 5_000),
        ("PT0.0009S", 0),
        (MAX_DURATION_TEXT, MAX_DURATION_MS),
        ("P10675199DT2H48M5.477581S", MAX_DURATION_MS),  # as one client rounds it
        ("P10675199DT2H48M5.47758S", MAX_DURATION_MS),  # as the same client sends it back
    ],
)
def test_durations_are_read(text: str, ms: int) -> None:
    assert parse_duration("X", text) == ms


@pytest.mark.parametrize(
    "text",
    ["", "P", "PT", "P1Y", "P1M", "P1W", "1M", "PT1", "P1D2H", "PT1.S", "P\u0661D", "PT1M ; drop", "P" + "9" * 100 + "D", "PT1S\n\nx"],
)
def test_what_is_no_duration_is_refused_by_name(text: str) -> None:
    with pytest.raises(ArgumentRefused, match="LockDuration is"):
        parse_duration("LockDuration", text)


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "PT0S"),
        (60_000, "PT1M"),
        (50_000, "PT50S"),
        (86_400_000, "P1D"),
        (90_061_500, "P1DT1H1M1.5S"),
        (MAX_DURATION_MS, MAX_DURATION_TEXT),
    ],
)
def test_durations_are_written_in_the_shortest_form(ms: int, text: str) -> None:
    assert format_duration(ms) == text


@given(st.integers(-(10**18), 10**18))
def test_microseconds_survive(micros: int) -> None:
    assert parse_timespan("X", format_microseconds(micros)) == micros


@given(st.integers(1, 253_402_300_799_999))
def test_instants_are_utc_and_exact_to_the_millisecond(ms: int) -> None:
    assert datetime.fromisoformat(format_instant(ms)) == datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)


@pytest.mark.parametrize("text", ["2020-07-05T11:12:13", "2020-07-05T11:12:13Z", "2020-07-05T11:12:13.000001", "2020-07-05T11:12:13+02:00"])
def test_zone_of_an_instant_stays_as_it_was_given(text: str) -> None:
    assert format_datetime(parse_datetime("X", text)) == text


def test_what_is_no_instant_is_refused() -> None:
    with pytest.raises(ArgumentRefused, match="X is 'tomorrow'"):
        parse_datetime("X", "tomorrow")


@given(st.text())
def test_every_text_gives_a_document_that_reads_back(text: str) -> None:
    back = parse(element("x", text).encode("utf-8", "surrogatepass")).text
    assert len(back) == len(text)
    assert all(a == b or b == "\ufffd" for a, b in zip(text, back, strict=True))
