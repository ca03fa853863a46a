"""The grammar: what is a filter or an action, what is not, and what the refusal says."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.broker.rules.message_view import view_of
from tandem.broker.rules.rules import compile_filter
from tandem.broker.rules.sql_lexer import SqlSyntaxError
from tandem.broker.rules.sql_nodes import And, Binary, Compare, Exists, In, Like, Literal, Not, Or, Property, SetProperty, SqlNode, Unary
from tandem.broker.rules.sql_parser import NESTING_CEILING, parse_action, parse_filter
from tandem.model.entity import SqlFilter
from tandem.model.errors import ArgumentRefused
from tandem.model.limits import Limits


def shape(node: SqlNode) -> object:
    """The tree without its places in the text."""
    if isinstance(node, Literal):
        return node.value
    if isinstance(node, Property):
        return ("sys." if node.is_system else "") + node.name
    if isinstance(node, Unary):
        return (node.sign, shape(node.operand))
    if isinstance(node, Binary | Compare):
        return (shape(node.left), node.sign, shape(node.right))
    if isinstance(node, Not):
        return ("NOT", shape(node.operand))
    if isinstance(node, And | Or):
        return (type(node).__name__, *[shape(item) for item in node.items])
    if isinstance(node, In):
        return ("NOT IN" if node.negated else "IN", shape(node.operand), [shape(item) for item in node.items])
    if isinstance(node, Like):
        return ("NOT LIKE" if node.negated else "LIKE", shape(node.operand), shape(node.pattern), node.escape and shape(node.escape))
    assert isinstance(node, Exists)
    return ("EXISTS", shape(node.operand))


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("a = 1 OR b = 2 AND NOT c = 3", ("Or", ("a", "=", 1), ("And", ("b", "=", 2), ("NOT", ("c", "=", 3))))),
        ("(a = 1 OR b = 2) AND c = 3", ("And", ("Or", ("a", "=", 1), ("b", "=", 2)), ("c", "=", 3))),
        ("a + b * c - d > -e", ((("a", "+", ("b", "*", "c")), "-", "d"), ">", ("-", "e"))),
        ("((a)) = ((1 + 2))", ("a", "=", (1, "+", 2))),
        ("a-1=-1", (("a", "-", 1), "=", -1)),
        ("a != 'x'", ("a", "<>", "x")),
        ("NOT NOT a = 1", ("a", "=", 1)),
        ("NOT a IN (1) AND b = 1", ("And", ("NOT", ("IN", "a", [1])), ("b", "=", 1))),
        ("a NOT IN (1, b, 'c')", ("NOT IN", "a", [1, "b", "c"])),
        ("a NOT LIKE 'x!_%' ESCAPE '!'", ("NOT LIKE", "a", "x!_%", "!")),
        ("SYS.messageid = User.[a.b]", ("sys.MessageId", "=", "a.b")),
        ('[sys]."Label" = "user".x', ("sys.Label", "=", "x")),
        ("EXISTS ( sys.To )", ("EXISTS", "sys.To")),
        ("p = property", ("p", "=", "property")),
        ("a = -9223372036854775808", ("a", "=", -(2**63))),
        ("a = TRUE AND b = null", ("And", ("a", "=", True), ("b", "=", None))),
    ],
)
def test_filters_are_read_with_the_usual_precedence(text: str, tree: object) -> None:
    assert shape(parse_filter(text)) == tree


@pytest.mark.parametrize(
    ("text", "line", "column", "reason"),
    [
        ("", 1, 1, "expected a value or a property, found the end"),
        ("  \n ", 2, 2, "found the end"),
        ("a", 1, 2, "expected a comparison"),
        ("a = ", 1, 5, "expected a value or a property, found the end"),
        ("a = 1 b", 1, 7, "expected AND, OR or the end, found 'b'"),
        ("a = 1 AND", 1, 10, "expected a value or a property"),
        ("a AND b = 1", 1, 3, "expected a comparison"),
        ("b = 1 AND (a)", 1, 14, "expected a comparison"),
        ("NOT a", 1, 6, "expected a comparison"),
        ("TRUE", 1, 5, "expected a comparison"),
        ("(a = 1", 1, 7, "expected ')' or an operator, found the end"),
        ("a = 1)", 1, 6, "expected AND, OR or the end, found ')'"),
        ("a = 1 = 2", 1, 7, "expected AND, OR or the end, found '='"),
        ("a = (b = 1)", 1, 6, "expected a value, found a condition"),
        ("(a = 1) + 2 = 3", 1, 2, "expected a value, found a condition"),
        ("a IN ()", 1, 7, "expected a value"),
        ("a IN (1, 2", 1, 11, "expected ')' or ',' in the list of IN"),
        ("a IN 1", 1, 6, "expected '(' after IN"),
        ("a NOT = 1", 1, 7, "expected IN or LIKE after NOT"),
        ("a IS 1", 1, 6, "expected NULL or NOT NULL after IS"),
        ("1 IS NULL", 1, 1, "IS [NOT] NULL asks about a property"),
        ("a LIKE 1", 1, 8, "must be a string"),
        ("a LIKE 'x' ESCAPE 'ab'", 1, 19, "a string of length 1"),
        ("a LIKE 'x!' ESCAPE '!'", 1, 8, "ends with its escape character"),
        ("EXISTS(1)", 1, 8, "expected a property"),
        ("EXISTS a", 1, 8, "expected '(' after EXISTS"),
        ("in = 1", 1, 1, "expected a value or a property, found 'IN'"),
        ("user.in = 1", 1, 6, "written [IN]"),
        ("sys.Nope = 1", 1, 5, "there is no system property 'Nope': known are ContentType, "),
        ("a.b = 1", 1, 1, "there is no scope 'a': known are sys and user"),
        ("rand() = 1", 1, 1, "there is no function rand()"),
        ("newid(1) = 1", 1, 7, "expected ')' after newid("),
        ("property(1) = 1", 1, 10, "must be a string"),
        ("a = @p", 1, 5, "the parameter @p has no value"),
        ("a = 9223372036854775808", 1, 5, "out of the range"),
        ("a = 1 AND\n  (b = 2 AND\n   c > )", 3, 8, "expected a value or a property, found ')'"),
        ("SET a = 1", 1, 1, "expected a value or a property, found 'SET'"),
    ],
)
def test_what_is_no_filter_is_refused_with_place_and_reason(text: str, line: int, column: int, reason: str) -> None:
    with pytest.raises(SqlSyntaxError) as caught:
        parse_filter(text)
    assert (caught.value.line, caught.value.column) == (line, column), caught.value.description
    assert reason in caught.value.reason


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("SET a = 1", 1),
        ("SET quantity = quantity / 2; REMOVE priority;SET sys.CorrelationId = 'low';", 3),
        ("SET a = 1 SET b = 2\nREMOVE c", 3),
        ("SET a = 1, SET b = 2", 2),
        ("REMOVE [a b];;", 1),
    ],
)
def test_statements_stand_one_after_another_with_or_without_semicolons(text: str, count: int) -> None:
    assert len(parse_action(text)) == count


@pytest.mark.parametrize(
    ("text", "column", "reason"),
    [
        ("", 1, "expected SET or REMOVE, found the end"),
        ("SET", 4, "expected a property"),
        ("SET a", 6, "expected '=' after the property to set"),
        ("SET a = ", 9, "expected a value"),
        ("SET a = 1 b = 2", 11, "expected SET or REMOVE, found 'b'"),
        ("SET a = 1,", 11, "expected SET or REMOVE, found the end"),
        ("SET a = b = 1", 11, "expected SET or REMOVE, found '='"),
        ("SET a = (b = 1)", 10, "expected a value, found a condition"),
        ("REMOVE a = 1", 10, "expected SET or REMOVE"),
        ("SET sys.SequenceNumber = 1", 5, "SET cannot change sys.SequenceNumber: it is read-only"),
        ("REMOVE sys.EnqueuedTimeUtc", 8, "REMOVE cannot change sys.EnqueuedTimeUtc: it is read-only"),
        ("a = 1", 1, "expected SET or REMOVE, found 'a'"),
    ],
)
def test_what_is_no_action_is_refused_with_place_and_reason(text: str, column: int, reason: str) -> None:
    with pytest.raises(SqlSyntaxError) as caught:
        parse_action(text)
    assert (caught.value.line, caught.value.column) == (1, column), caught.value.description
    assert reason in caught.value.reason


def test_parameters_are_found_with_or_without_the_sign_and_in_any_case() -> None:
    node = parse_filter("a = @Low AND b = @high", [("@low", 1), ("HIGH", "x")])
    assert shape(node) == ("And", ("a", "=", 1), ("b", "=", "x"))


def test_a_date_and_time_without_zone_is_taken_as_utc() -> None:
    statement = parse_action("SET a = @at", [("@at", datetime(2020, 7, 5, 11, 12, 13))])[0]
    assert isinstance(statement, SetProperty)
    assert shape(statement.value) == datetime(2020, 7, 5, 11, 12, 13, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "reason"), [([1], "list"), (b"x", "bytes"), (2**63, "64-bit integer"), ("x" * 32_769, "32768 are allowed")]
)
def test_a_parameter_of_a_strange_type_is_refused(value: object, reason: str) -> None:
    with pytest.raises(ArgumentRefused, match=reason):
        parse_filter("a = @p", [("@p", value)])


# Bounds.


def test_length_is_checked_before_anything_else() -> None:
    with pytest.raises(SqlSyntaxError, match="the expression has 1048576 characters, 1024 are allowed"):
        parse_filter("(" * 1_048_576)
    assert parse_filter("a = '" + "x" * 1_018 + "'")
    with pytest.raises(SqlSyntaxError, match="1025 characters"):
        parse_filter("a = '" + "x" * 1_019 + "'")


@pytest.mark.parametrize(
    ("opening", "closing"),
    [("(", ")"), ("-", ""), ("-(", ")"), ("(a+", ")"), ("p(", ")"), ("+", ""), ("1+", ""), ("1*", ""), ("1-(2*", ")")],
)
def test_nesting_bombs_are_refused(opening: str, closing: str) -> None:
    limits = Limits(sql_expression_chars_max=10_000_000, sql_expression_terms_max=1_000_000)
    bomb = f"{opening * 10_000}a{closing * 10_000} = 1"
    with pytest.raises(SqlSyntaxError, match="nested more than 32 deep"):
        parse_filter(bomb, (), limits)
    with pytest.raises(SqlSyntaxError, match="nested more than 32 deep"):
        parse_action(f"SET x = {bomb[:-4]}", (), limits)


def test_deep_conditions_are_refused_and_long_ones_are_not_deep() -> None:
    with pytest.raises(SqlSyntaxError, match="nested more than 32 deep"):
        parse_filter("NOT(" * 33 + "a=1" + ")" * 33)
    assert parse_filter("NOT(" * 32 + "a=1" + ")" * 32)
    assert parse_filter("NOT " * 200 + "a=1")
    assert parse_filter(" AND ".join(["a=1"] * 120))


def test_as_deep_as_can_ever_be_allowed_still_compiles_and_runs() -> None:
    limits = Limits(sql_expression_chars_max=10_000, sql_expression_nesting_max=1_000_000)
    deep = "".join([f"(a=1 {'OR' if level % 2 else 'AND'} " for level in range(NESTING_CEILING - 1)])
    inner = f"{deep}b=(2){')' * (NESTING_CEILING - 1)}"
    assert compile_filter(SqlFilter(expression=inner), limits).truth(view_of({}, {"a": 1, "b": 2})) is True
    arithmetic = "a" + "+(a" * NESTING_CEILING + ")" * NESTING_CEILING
    with pytest.raises(SqlSyntaxError, match=f"nested more than {NESTING_CEILING} deep"):
        parse_filter(f"{arithmetic} = 1", (), limits)
    arithmetic = "a" + "+(a" * (NESTING_CEILING // 2) + ")" * (NESTING_CEILING // 2)
    assert compile_filter(SqlFilter(expression=f"{arithmetic} = {NESTING_CEILING // 2 + 1}"), limits).truth(view_of({}, {"a": 1})) is True


def test_the_number_of_terms_is_bounded_when_the_length_hardly_is() -> None:
    limits = Limits(sql_expression_chars_max=10_000_000)
    with pytest.raises(SqlSyntaxError, match="more than 512 terms"):
        parse_filter("a IN (" + "1," * 513 + "1)", (), limits)
    with pytest.raises(SqlSyntaxError, match="more than 2048 words and signs"):
        parse_filter("a = 1 OR " * 500_000, (), limits)


def test_the_number_of_statements_is_bounded() -> None:
    assert len(parse_action("SET a=1;" * 32)) == 32
    with pytest.raises(SqlSyntaxError, match="more than 32 statements"):
        parse_action("SET a=1;" * 33)


WORDS = st.sampled_from(
    [
        *("a", "b", "sys.Label", "user.x", "[c d]", '"e"', "sys", "user", ".", "1", "2.5", "1e3", "0x1F", "'a'", "'it''s'", "'%_'", "@p"),
        *(
            "AND",
            "OR",
            "NOT",
            "IN",
            "LIKE",
            "ESCAPE",
            "IS",
            "NULL",
            "EXISTS",
            "TRUE",
            "FALSE",
            "SET",
            "REMOVE",
            "newid()",
            "property(",
            "p(",
        ),
        *("(", ")", ",", ";", "=", "<>", "!=", "<", "<=", ">", ">=", "+", "-", "*", "/", "%", "'", '"', "[", "]", "_", "$", "é", "\n"),
    ]
)


@pytest.mark.slow
@settings(max_examples=1_500, deadline=None)
@given(st.one_of(st.text(max_size=60), st.lists(WORDS, max_size=25).map(" ".join), st.lists(WORDS, max_size=25).map("".join)))
def test_any_text_either_parses_or_is_refused_with_a_place_inside_it(text: str) -> None:
    for parse in (parse_filter, parse_action):
        try:
            parse(text, [("@p", 1)])
        except SqlSyntaxError as error:
            lines = text.split("\n")
            assert 1 <= error.line <= len(lines)
            assert 1 <= error.column <= len(lines[error.line - 1]) + 1
