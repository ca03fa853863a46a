"""What settings may hold, in files and in the environment."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.cli.configuration import setting_types
from tandem.model.entity import MAX_DURATION_MS


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("PT1M", 60_000),
        ("PT1M30S", 90_000),
        ("P1DT2H3M4.5S", 93_784_500),
        ("P7D", 604_800_000),
        ("pt20s", 20_000),
        ("PT0.25S", 250),
        ("P10675199DT2H48M5.4775807S", MAX_DURATION_MS),
        ("P99999999D", MAX_DURATION_MS),
        ("30s", 30_000),
        ("1m 30s", 90_000),
        ("1h30m", 5_400_000),
        ("250ms", 250),
        ("2d", 172_800_000),
    ],
)
def test_duration_is_read_in_both_notations(text: str, ms: int) -> None:
    assert setting_types.parse_duration(text) == ms


@pytest.mark.parametrize("text", ["", "P", "PT", "P1DT", "1", "s", "30 seconds", "PT1X", "-PT1S", "1m1h", "P1Y", "٣s", "1.5s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    assert setting_types.parse_duration(text) is None


@given(st.integers(min_value=1, max_value=MAX_DURATION_MS - 1))
def test_shown_duration_reads_back(ms: int) -> None:
    assert setting_types.parse_duration(setting_types.show_duration(ms)) == ms


@given(st.text(max_size=40))
def test_any_text_is_a_duration_or_not_and_never_crashes(text: str) -> None:
    found = setting_types.parse_duration(text)
    assert found is None or 0 <= found <= MAX_DURATION_MS


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (setting_types.Flag(), [True, False], [1, "true", None]),
        (setting_types.Integer(1, 10), [1, 10], [0, 11, True, "5", 2.0]),
        (setting_types.Text(chars_max=3), ["a", "abc"], ["", "abcd", 1]),
        (setting_types.Name(), ["a", "a/b.c-d_e", "-x"], ["", "/a", "a/", "a//b", "a b", "ä", "$a", "a" * 261, 5]),
        (setting_types.Name(plain=True), ["a-b_c"], ["..", ".a", "a.b", "a/b", "-a"]),
        (setting_types.Duration(1000, 5000), ["PT1S", "5s"], ["999ms", "PT6S", 3, "x"]),
        (setting_types.Choice(("thread", "process")), ["thread", "PROCESS"], ["fiber", 1]),
        (setting_types.Many(setting_types.Integer(1, 3), least=1), [[1], [1, 3]], [[], [4], "1", 1]),
        (setting_types.File(), ["a/b"], ["", "a\0b", 1]),
    ],
)
def test_each_kind_takes_what_it_allows_and_nothing_else(kind: setting_types.SettingType, good: list[object], bad: list[object]) -> None:
    for value in good:
        kind.read(value)
    for value in bad:
        with pytest.raises(setting_types.InvalidSetting):
            kind.read(value)
    assert kind.allowed


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (setting_types.Flag(), "Yes", True),
        (setting_types.Flag(), "0", False),
        (setting_types.Integer(1, 100_000), " 65_536 ", 65_536),
        (setting_types.Many(setting_types.Integer(0, 65_535), least=1), "5672, 5671,", (5672, 5671)),
        (setting_types.Duration(), "PT1H", 3_600_000),
        (setting_types.File(), "x/y", Path("x/y")),
        (setting_types.Choice(("thread",)), "Thread", "thread"),
        (setting_types.Text(), "x", "x"),
        (setting_types.Name(), "a/b", "a/b"),
    ],
)
def test_text_from_the_environment_is_converted(kind: setting_types.SettingType, text: str, value: object) -> None:
    assert kind.read_text(text) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (setting_types.Flag(), "maybe"),
        (setting_types.Integer(), "1e3"),
        (setting_types.Integer(), "9" * 30),
        (setting_types.Many(setting_types.Integer(), 1), " , "),
    ],
)
def test_text_that_cannot_be_converted_is_refused(kind: setting_types.SettingType, text: str) -> None:
    with pytest.raises(setting_types.InvalidSetting):
        kind.read_text(text)


def test_kilobytes_become_bytes() -> None:
    assert setting_types.Integer(1, 10, scale=1024).read(2) == 2048
