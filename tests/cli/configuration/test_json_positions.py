"""JSON with lines, and with the liberties the emulator takes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.cli.configuration.json_positions import JsonError, parse

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@given(VALUES, st.sampled_from([None, 2]), st.booleans())
def test_whatever_json_writes_is_read_the_same(value: object, indent: int | None, ascii_only: bool) -> None:
    assert parse(json.dumps(value, indent=indent, ensure_ascii=ascii_only))[0] == value


def test_every_key_and_item_knows_its_line() -> None:
    _, lines = parse('{\n  "a": 1,\n  "b": [\n    {"c": true},\n\n    {\n      "c": false\n    }\n  ]\n}')
    assert lines[("a",)] == 2
    assert lines[("b",)] == 3
    assert lines[("b", 0, "c")] == 4
    assert lines[("b", 1)] == 6
    assert lines[("b", 1, "c")] == 7


def test_comments_trailing_commas_and_byte_order_mark_are_forgiven() -> None:
    text = '\ufeff{ // first\n "a": [1, 2, ], /* a\n long one */ "b": "//no comment", }'
    value, lines = parse(text)
    assert value == {"a": [1, 2], "b": "//no comment"}
    assert lines[("b",)] == 3


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("", 1, "the end of the file"),
        ('{\n"a": 1\n"b": 2}', 3, "',' or '}' is expected"),
        ('{\n\n"a" 1}', 3, "':' is expected after the key 'a'"),
        ('{"a": 1,\n"a": 2}', 2, "appears twice"),
        ("{\n'a': 1}", 2, "double quotes"),
        ('["\\x"]', 1, "not valid"),
        ('["a\nb"]', 1, "double quotes"),
        ("[1] x", 1, "nothing may follow"),
        ("[nul]", 1, "a value is expected"),
        ("00", 1, "nothing may follow"),
        ("[\u0661]", 1, "a value is expected"),
        ("[,]", 1, "a value is expected"),
        ("[" * 100, 1, "nested deeper"),
        ("[" + "1" * 5000 + "]", 1, "a value is expected"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text: str, line: int, says: str) -> None:
    with pytest.raises(JsonError, match=says) as caught:
        parse(text)
    assert caught.value.line == line


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    for candidate in (text, "{" + text, '{"a":' + text + "}"):
        try:
            parse(candidate)
        except JsonError as error:
            assert error.line >= 1
