from __future__ import annotations

import pytest

from tandem.broker.rules.sql_lexer import Lexer, SqlSyntaxError
from tandem.model.errors import ArgumentRefused


def tokens(text: str) -> list[tuple[str, object]]:
    return [(t.kind, t.text if t.value is None else t.value) for t in Lexer(text, 1_000).tokens()[:-1]]


def refusal(text: str) -> SqlSyntaxError:
    with pytest.raises(SqlSyntaxError) as caught:
        Lexer(text, 1_000).tokens()
    return caught.value


def test_keywords_are_known_in_any_case_and_names_keep_theirs() -> None:
    assert tokens("Select aNd Order_1") == [("name", "Select"), ("keyword", "AND"), ("name", "Order_1")]


def test_signs_of_two_characters_are_taken_before_those_of_one() -> None:
    assert [text for _, text in tokens("a<>b<=c!=d>e")] == ["a", "<>", "b", "<=", "c", "!=", "d", ">", "e"]


@pytest.mark.parametrize(
    ("text", "value"),
    [("1894", 1894), ("2.0", 2.0), ("2.", 2.0), (".5", 0.5), ("101.5E5", 10_150_000.0), ("0.5e-2", 0.005), ("0x1f", 31), ("007", 7)],
)
def test_numbers_are_read_as_64_bit_integers_or_doubles(text: str, value: float) -> None:
    ((kind, found),) = tokens(text)
    assert (kind, found, type(found)) == ("number", value, type(value))


def test_quotes_inside_quotes_are_doubled() -> None:
    assert tokens("'it''s' '' \"a\"\"b\" [c]]d]") == [
        ("string", "it's"),
        ("string", ""),
        ("delimited name", 'a"b'),
        ("delimited name", "c]d"),
    ]


def test_letters_of_every_script_make_names() -> None:
    assert tokens("größe 数量２") == [("name", "größe"), ("name", "数量２")]


@pytest.mark.parametrize(
    ("text", "line", "column", "reason"),
    [
        ("a = 'x", 1, 5, "the string constant has no closing '"),
        ("a = 'x''", 1, 5, "the string constant has no closing '"),
        ("[x = 1", 1, 1, "the name in brackets has no closing ]"),
        ('"x', 1, 1, 'the quoted name has no closing "'),
        ("[] = 1", 1, 1, "a name cannot be empty"),
        ("a =\n\n  $", 3, 3, "unexpected character '$'"),
        ("a = 1\n AND _b = 2", 2, 6, "a name starts with a letter: write [_b]"),
        ("a = 9223372036854775809", 1, 5, "out of the range of a 64-bit integer"),
        ("a = " + "9" * 900, 1, 5, "out of the range of a 64-bit integer"),
        ("a = 0x10000000000000000", 1, 5, "out of the range of a 64-bit integer"),
        ("a = 1e999", 1, 5, "out of the range of a 64-bit floating-point number"),
        ("a = 5x", 1, 6, "a number ends where 'x' begins"),
        ("a = 1.2.3", 1, 8, "a number ends where '.3' begins"),
        ("a = @", 1, 5, "expected the name of a parameter"),
        ("a ! b", 1, 3, "unexpected character '!'"),
    ],
)
def test_what_is_no_token_is_refused_with_line_and_column(text: str, line: int, column: int, reason: str) -> None:
    error = refusal(text)
    assert (error.line, error.column) == (line, column)
    assert reason in error.reason
    assert error.description == f"line {line}, column {column}: {error.reason}"


def test_the_refusal_is_an_argument_error_to_clients() -> None:
    error = refusal("'")
    assert isinstance(error, ArgumentRefused)
    assert (error.condition, error.status) == ("com.microsoft:argument-error", 400)


def test_the_number_of_tokens_is_bounded() -> None:
    with pytest.raises(SqlSyntaxError, match="more than 10 words and signs"):
        Lexer("a " * 11, 10).tokens()
