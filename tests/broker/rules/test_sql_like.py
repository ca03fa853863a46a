from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.broker.rules.sql_like import Run, compile_like
from tests.broker.rules.sql_reference import like, pattern_of


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("abc", ["abc"], ["", "ab", "abcd", "ABC"]),
        ("", [""], ["a"]),
        ("%", ["", "a", "a\nb"], []),
        ("_", ["a", "\n", "😀"], ["", "ab"]),
        ("a%", ["a", "abc"], ["", "ba"]),
        ("%c", ["c", "abc"], ["cb"]),
        ("%b%", ["b", "abc"], ["ac"]),
        ("a_c%", ["abc", "axcd"], ["ac", "abd"]),
        ("%a_c%", ["abc", "aabcx", "aaxc"], ["ac", "abbc", "cba"]),
        ("a%a", ["aa", "aba"], ["a", "ab"]),
        ("%_", ["a", "ab"], [""]),
        ("_%_", ["ab", "abc"], ["a"]),
        ("a%b%c", ["abc", "axbxc", "abbcc"], ["acb", "ab"]),
        ("%%a%%", ["a", "xax"], ["x"]),
        (".*[a]", [".*[a]"], ["xa"]),
    ],
)
def test_wildcards_mean_what_sql_means(pattern: str, matching: list[str], other: list[str]) -> None:
    compiled = compile_like(pattern, "")
    assert [text for text in matching if not compiled.matches(text)] == []
    assert [text for text in other if compiled.matches(text)] == []


def test_an_escaped_character_stands_for_itself() -> None:
    assert compile_like("100!%", "!").matches("100%")
    assert not compile_like("100!%", "!").matches("1000")
    assert compile_like("a!_b!!c", "!").matches("a_b!c")
    assert compile_like("!a%", "!").matches("abc")
    assert compile_like("%%a", "%").matches("%a")


def test_a_pattern_that_ends_with_its_escape_character_is_refused() -> None:
    with pytest.raises(ValueError, match="ends with its escape character"):
        compile_like("ab!", "!")


def test_simple_patterns_are_told_apart() -> None:
    assert compile_like("abc", "").equal_to() == "abc"
    assert compile_like("abc%", "").starts_with() == "abc"
    assert compile_like("%abc", "").ends_with() == "abc"
    assert compile_like("%abc%", "").contains() == "abc"
    for pattern in ("a%b", "a_%", "%a%b%", "_", "%_%"):
        compiled = compile_like(pattern, "")
        assert [compiled.equal_to(), compiled.starts_with(), compiled.ends_with(), compiled.contains()] == [None] * 4


@pytest.mark.slow
@settings(max_examples=2_000, deadline=None)
@given(st.text(alphabet="ab_%", max_size=12), st.text(alphabet="abc", max_size=16))
def test_every_pattern_matches_what_the_plain_matcher_matches(pattern: str, text: str) -> None:
    assert compile_like(pattern, "").matches(text) is like(pattern_of(pattern, None), text)


class CountingText(str):
    """Counts how many characters are looked at one by one."""

    looked = 0

    def __getitem__(self, at: object) -> str:  # type: ignore[override]
        CountingText.looked += 1
        return str.__getitem__(self, at)  # type: ignore[index]


@pytest.mark.parametrize("pattern", ["%" + "a_" * 500 + "b%", "%_a" * 300 + "%b%", ("%" + "a" * 9 + "_") * 100 + "%", "%a_b%" * 150])
def test_the_worst_patterns_look_at_each_character_once(pattern: str) -> None:
    text = CountingText("a" * 20_000)
    CountingText.looked = 0
    compile_like(pattern, "").matches(text)
    assert CountingText.looked <= len(text)


def test_a_run_is_found_at_its_first_place() -> None:
    run = Run(["a", "", "a"])
    assert run.find("xaabaca", 0, 7) == 2
    assert run.find("xaabaca", 3, 7) == 4
    assert run.find("xaabaca", 5, 7) == -1
