"""Compiled expressions against a plain evaluator, and the semantics that are documented, one by one."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tandem.broker.rules.message_view import MessageView, view_of
from tandem.broker.rules.rules import compile_filter
from tandem.broker.rules.sql_compile import compile_predicate, compile_value
from tandem.broker.rules.sql_parser import parse_action, parse_filter
from tandem.broker.rules.sql_values import RuleEvaluationError
from tandem.model.entity import SqlFilter
from tandem.model.limits import Limits
from tests.broker.rules.sql_reference import Reference, Tree, write

ID = UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")
NOON = datetime(2024, 5, 6, 12, tzinfo=UTC)
WIDE = Limits(sql_expression_chars_max=100_000, sql_expression_nesting_max=60, sql_expression_terms_max=2_000)


class Int32(int):
    """As the wire's 32-bit integers come."""


class Symbol(str):
    """As the wire's symbols come."""


# Random expressions against random messages.

TEXTS = st.text(alphabet="aAb%_\\'", max_size=5)
INTEGERS = st.one_of(st.integers(-4, 4), st.sampled_from([2**53, 2**53 + 1, 2**62, 2**63 - 1, -(2**63)]))
FLOATS = st.one_of(st.sampled_from([0.0, 0.5, -1.5, 2.0, 1e300, float(2**53), float(2**63)]), st.floats(-10, 10))
NAMES = st.sampled_from(["a", "B", "c d", "e"])
SYSTEM_NAMES = st.sampled_from(["Label", "To"])
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    INTEGERS,
    FLOATS,
    TEXTS,
    st.sampled_from([math.nan, math.inf, Int32(2), Symbol("ab"), ID, NOON, NOON + timedelta(hours=1), timedelta(hours=1), b"a", ["a"]]),
)
USERS = st.dictionaries(st.sampled_from(["a", "b", "C D", "E"]), VALUES, max_size=4)
SYSTEMS = st.dictionaries(SYSTEM_NAMES, TEXTS, max_size=2)

PROPERTIES: st.SearchStrategy[Tree] = st.one_of(
    st.tuples(st.just("user"), NAMES), st.tuples(st.just("sys"), SYSTEM_NAMES), st.tuples(st.just("user"), st.sampled_from(["A", "b"]))
)
LITERALS: st.SearchStrategy[Tree] = st.tuples(st.just("literal"), st.one_of(st.none(), st.booleans(), INTEGERS, FLOATS, TEXTS))
OPERANDS: st.SearchStrategy[Tree] = st.recursive(
    st.one_of(PROPERTIES, PROPERTIES, LITERALS),
    lambda inner: st.one_of(
        st.tuples(st.just("binary"), st.sampled_from("+-*/%"), inner, inner),
        st.tuples(st.just("negate"), inner),
    ),
    max_leaves=3,
)


def well_formed(tree: Tree) -> bool:
    """What the parser refuses outright is checked in test_sql_parser."""
    pattern, escape = tree[3], tree[4]
    if pattern[0] != "literal":
        return escape is None
    if pattern[1] is not None and not isinstance(pattern[1], str):
        return False
    return escape is None or pattern[1] is None or escape not in pattern[1].replace(escape * 2, "")[-1:]


COMPARISONS: st.SearchStrategy[Tree] = st.tuples(st.just("compare"), st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), OPERANDS, OPERANDS)
MEMBERSHIPS: st.SearchStrategy[Tree] = st.tuples(st.just("in"), st.booleans(), OPERANDS, st.lists(OPERANDS, min_size=1, max_size=8))
CONSTANT_MEMBERSHIPS: st.SearchStrategy[Tree] = st.tuples(
    st.just("in"), st.booleans(), PROPERTIES, st.lists(LITERALS, min_size=1, max_size=10)
)
PATTERNS: st.SearchStrategy[Tree] = st.tuples(
    st.just("like"), st.booleans(), OPERANDS, st.one_of(st.tuples(st.just("literal"), TEXTS), OPERANDS), st.sampled_from([None, "\\", "a"])
).filter(well_formed)
LEAVES = st.one_of(
    COMPARISONS,
    COMPARISONS,
    MEMBERSHIPS,
    CONSTANT_MEMBERSHIPS,
    PATTERNS,
    st.tuples(st.just("null"), st.booleans(), PROPERTIES),
    st.tuples(st.just("exists"), PROPERTIES),
)
CONDITIONS: st.SearchStrategy[Tree] = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.tuples(st.just("not"), inner),
        st.tuples(st.sampled_from(["and", "or"]), st.lists(inner, min_size=2, max_size=4)),
    ),
    max_leaves=8,
)


@pytest.mark.slow
@pytest.mark.timeout(600)
@settings(max_examples=1_500, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(CONDITIONS, SYSTEMS, USERS)
def test_a_compiled_condition_says_what_the_plain_evaluator_says(tree: Tree, system: dict[str, object], user: dict[str, object]) -> None:
    reference = Reference(system, user)
    expected = reference.truth(tree)
    text = write(tree)
    compiled = compile_filter(SqlFilter(expression=text), WIDE)
    try:
        outcome = compiled.truth(view_of(dict(system), dict(user)))
    except RuleEvaluationError:
        assert reference.failed, text
        return
    assert outcome is expected, text


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(OPERANDS, SYSTEMS, USERS)
def test_a_compiled_value_is_what_the_plain_evaluator_computes(tree: Tree, system: dict[str, object], user: dict[str, object]) -> None:
    reference = Reference(system, user)
    expected = reference.guarded(tree)
    node = parse_action(f"SET x = {write(tree)}", (), WIDE)[0].value  # type: ignore[union-attr]
    try:
        outcome = compile_value(node, lambda: ID)(view_of(dict(system), dict(user)))
    except RuleEvaluationError:
        assert reference.failed
        return
    assert not reference.failed
    assert outcome == expected or (isinstance(expected, float) and math.isnan(expected) and math.isnan(outcome))  # type: ignore[arg-type]


# What the documentation says, one by one.


def truth(text: str, user: dict[str, object] | None = None, parameters: dict[str, object] | None = None, **system: object) -> bool | None:
    filter = SqlFilter(expression=text, parameters=tuple((parameters or {}).items()))
    return compile_filter(filter).truth(view_of(dict(system), dict(user or {})))


def one_of_each() -> MessageView:
    return view_of({}, {"t": True, "f": False, "n": None})


@pytest.mark.parametrize(
    ("left", "right", "conjunction", "disjunction"),
    [
        ("T", "T", True, True),
        ("T", "F", False, True),
        ("T", "U", None, True),
        ("F", "T", False, True),
        ("F", "F", False, False),
        ("F", "U", False, None),
        ("U", "T", None, True),
        ("U", "F", False, None),
        ("U", "U", None, None),
    ],
)
def test_and_and_or_follow_the_truth_tables(left: str, right: str, conjunction: bool | None, disjunction: bool | None) -> None:
    parts = {"T": "1=1", "F": "1=0", "U": "missing=1"}
    assert truth(f"{parts[left]} AND {parts[right]}") is conjunction
    assert truth(f"{parts[left]} OR {parts[right]}") is disjunction


def test_not_turns_true_and_false_around_and_leaves_unknown() -> None:
    assert truth("NOT 1=1") is False
    assert truth("NOT 1=0") is True
    assert truth("NOT missing=1") is None
    assert truth("NOT NOT missing=1") is None
    assert truth("NOT NOT NOT 1=0") is True


def test_an_unknown_filter_does_not_match() -> None:
    assert compile_filter(SqlFilter(expression="missing <> 'x'")).matches(view_of({}, {})) is False


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sys.label LIKE '%bus%'", True),
        ("sys.MESSAGEID = 'id-1'", True),
        ("sys.correlationid like 'abc-%'", True),
        ("sys.Subject = 'my bus stop'", True),
        ("MessageProperty = 'A'", True),
        ("user.SuperHero like 'SuperMan%'", True),
        ("\"http://schemas.microsoft.com/xrm/2011/Claims/EntityLogicalName\" = 'account'", True),
        ("[Property With Space] = 1", True),
        ("Quantity = 1 AND Price = 3", False),
        ("Quantity = 1 OR Price > 2.08", True),
        ("StoreId IN('Store1', 'Store2', 'Store3')", True),
        ("sys.To IN ('Store5','Store6','Store7') OR StoreId = 'Store8'", False),
        ("sys.To NOT IN ('Store1','Store2') OR StoreId NOT IN ('Store1')", True),
        ("(DateTimeMp2-DateTimeMp1) <= @timespan", True),
        ("DateTimeMp2-DateTimeMp1 < @timespan", False),
        ("DateTimeMp1 < @dtParam", True),
        ("property('Mess' + 'ageProperty') = 'A' AND p('StoreId') = 'Store2'", True),
        ("property(pointer) = 'A'", True),
        ("EXISTS(StoreId) AND EXISTS(user.nothing) AND NOT EXISTS(Store)", True),
        ("nothing IS NULL AND Store IS NULL AND StoreId IS NOT NULL AND sys.ReplyTo IS NULL", True),
        ("Discount = 0.5E-2 AND Huge = 101.5E5 AND hex = 0x1F", True),
        ("flag = TRUE AND flag != false AND flag <> FALSE", True),
        ("Note = 'it''s'", True),
        ("Note LIKE 'it''_'", True),
        ("Percent LIKE '100\\%' ESCAPE '\\'", True),
        ("Note LIKE '100\\%' ESCAPE '\\'", False),
        ("sys.EnqueuedTimeUtc >= @dtParam", True),
        ("sys.TimeToLive = @timespan", True),
        ("[brackets ]] inside] = 1", True),
    ],
)
def test_documented_examples_hold(text: str, expected: bool) -> None:
    user: dict[str, object] = {
        "messageproperty": "A",
        "SuperHero": "SuperMan 2",
        "http://schemas.microsoft.com/xrm/2011/Claims/EntityLogicalName": "account",
        "property with space": 1,
        "Quantity": 5,
        "Price": 2.5,
        "StoreId": "Store2",
        "DateTimeMp1": NOON,
        "DateTimeMp2": NOON + timedelta(hours=1),
        "pointer": "MessageProperty",
        "nothing": None,
        "Discount": 0.005,
        "Huge": 10_150_000.0,
        "hex": 31,
        "flag": True,
        "Note": "it's",
        "Percent": "100%",
        "brackets ] inside": 1,
    }
    parameters = {"@timespan": timedelta(hours=1), "@dtParam": datetime(2024, 5, 6, 13)}
    system: dict[str, object] = {"Label": "my bus stop", "MessageId": "id-1", "CorrelationId": "abc-9", "To": "Store9"}
    system["EnqueuedTimeUtc"] = int((NOON + timedelta(hours=2)).timestamp() * 1000)
    system["TimeToLive"] = 3_600_000
    assert truth(text, user, parameters, **system) is expected


def test_property_reads_user_properties_only() -> None:
    assert truth("property('sys.Label') = 'a'", Label="a") is None
    assert truth("property('Label') = 'a'", Label="a") is None
    assert truth("property('sys.Label') = 'a'", {"sys.Label": "a"}) is True


def test_text_is_compared_with_its_case_and_names_are_not() -> None:
    assert truth("color = 'Red'", {"COLOR": "Red"}) is True
    assert truth("color = 'red'", {"color": "Red"}) is False
    assert truth("color LIKE 're%'", {"color": "Red"}) is False
    assert truth("FARBE = 'x'", {"farbe": "x"}) is True
    assert truth("GRÖSSE = 1", {"größe": 1}) is None
    assert truth("ÄPFEL = 1", {"äpfel": 1}) is True


def test_the_exact_name_wins_over_one_that_differs_in_case() -> None:
    assert truth("color = 'b'", {"Color": "a", "color": "b"}) is True
    assert truth("color = 'b'", {"Color": "b", "color": None}) is None


@pytest.mark.parametrize("value", ["5", True, b"5", ID, NOON, timedelta(5), ["5"], {"5": 5}])
def test_values_of_other_sorts_are_neither_equal_nor_different_nor_ordered(value: object) -> None:
    for sign in ("=", "<>", "<", "<=", ">", ">="):
        assert truth(f"x {sign} 5", {"x": value}) is None
        assert truth(f"5 {sign} x", {"x": value}) is None
        assert truth(f"x {sign} 9007199254740993", {"x": value}) is None


def test_a_boolean_is_not_a_number() -> None:
    assert truth("x = 1", {"x": True}) is None
    assert truth("x = TRUE", {"x": 1}) is None
    assert truth("x IN (1, 2)", {"x": True}) is False
    assert truth("x < TRUE", {"x": False}) is None


def test_numbers_are_compared_as_doubles_as_soon_as_one_is() -> None:
    assert truth("x = 5", {"x": 5.0}) is True
    assert truth("x = 9007199254740993", {"x": float(2**53)}) is True
    assert truth("x = 9007199254740993", {"x": 2**53}) is False
    assert truth("x > 9007199254740992.0", {"x": 2**53 + 1}) is False
    assert truth("x > 2", {"x": Int32(3)}) is True


def test_not_a_number_is_different_from_everything() -> None:
    assert truth("x <> x", {"x": math.nan}) is True
    assert truth("x = 1", {"x": math.nan}) is False
    assert truth("NOT x > 1", {"x": math.nan}) is True


def test_in_is_unknown_only_when_its_left_side_is() -> None:
    assert truth("x NOT IN ('a', missing, 1)", {"x": "b"}) is True
    assert truth("x IN ('a', missing, 1)", {"x": "b"}) is False
    assert truth("missing NOT IN ('a')") is None
    assert truth("x NOT IN ('a', 'b')", {"x": 5}) is True
    assert truth("x IN (1, 2, 'b')", {"x": "b"}) is True
    assert truth("x IN (a + 1, 7)", {"x": 3, "a": 2}) is True


def test_null_is_unknown_in_comparisons() -> None:
    assert truth("x = NULL", {"x": None}) is None
    assert truth("x <> NULL", {"x": 1}) is None
    assert truth("NULL = NULL") is None
    assert truth("x LIKE NULL", {"x": "a"}) is None
    assert truth("x LIKE 'a' ESCAPE NULL", {"x": "a"}) is None


def test_integers_divide_towards_zero_as_in_c_sharp() -> None:
    assert truth("x / 2 = -3", {"x": -7}) is True
    assert truth("x % 2 = -1", {"x": -7}) is True
    assert truth("x % -2 = 1", {"x": 7}) is True
    assert truth("x / 2.0 = -3.5", {"x": -7}) is True
    assert truth("x / 0.0 > 1000", {"x": 1}) is True


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("x / 0 = 1", "division by zero"),
        ("x % 0 = 1", "division by zero"),
        ("1 / 0 = 1", "division by zero"),
        ("x + 9223372036854775807 > 0", "out of the range"),
        ("-y > 0", "out of the range"),
        ("t - 1 = 0", "cannot be applied to a string and a number"),
        ("-t = 0", "cannot be applied to a string"),
        ("+t = 0", "cannot be applied to a string"),
        ("b + 1 = 0", "cannot be applied to a boolean and a number"),
        ("x * t = 0", "cannot be applied to a number and a string"),
        ("d + 1 = 0", "cannot be applied to a date and time and a number"),
        ("d + s > d", "out of the range of dates"),
        ("t LIKE x", "not a string"),
        ("t LIKE t ESCAPE t", "length 1"),
        ("t LIKE 'a' + '!' ESCAPE '!'", "ends with its escape"),
        ("t LIKE p", "longer than 1024"),
        ("property(x) = 1", "argument of property()"),
    ],
)
def test_what_cannot_be_computed_is_an_error(expression: str, reason: str) -> None:
    user: dict[str, object] = {"x": 5, "y": -(2**63), "t": "ab", "b": True, "d": NOON, "s": timedelta(days=999_999_999), "p": "%" * 1025}
    with pytest.raises(RuleEvaluationError) as caught:
        truth(expression, user)
    assert reason in caught.value.description


def test_an_operand_that_cannot_change_the_outcome_does_not_fail() -> None:
    assert truth("kind = 'x' OR 1 / n = 1", {"kind": "x", "n": 0}) is True
    assert compile_filter(SqlFilter(expression="kind = 'x' AND 1 / n = 1")).matches(view_of({}, {"kind": "y", "n": 0})) is False
    assert truth("missing + t - 1 > 0", {"t": "ab"}) is None


def test_strings_join_with_strings_numbers_and_booleans() -> None:
    assert truth("'a' + x = 'a5'", {"x": 5}) is True
    assert truth("x + '-' + y + z = 'a-1.5True'", {"x": "a", "y": 1.5, "z": True}) is True


def test_newid_comes_from_the_given_source() -> None:
    node = parse_action("SET x = newid()")[0].value  # type: ignore[union-attr]
    assert compile_value(node, lambda: ID)(view_of({}, {})) == ID


def test_properties_are_decoded_only_when_needed_and_once() -> None:
    asked: list[str] = []

    def load(scope: str, properties: dict[str, object]) -> Any:
        def loader() -> dict[str, object]:
            asked.append(scope)
            return properties

        return loader

    predicate = compile_predicate(parse_filter("sys.Label = 'a' AND x = 1 AND x < 2"), True, lambda: ID)
    assert predicate(MessageView(load("sys", {"Label": "b"}), load("user", {"x": 1}))) is False
    assert asked == ["sys"]
    asked.clear()
    view = MessageView(load("sys", {"Label": "a"}), load("user", {"x": 1}))
    assert predicate(view) is True
    assert predicate(view) is True
    assert asked == ["sys", "user"]


def test_no_text_of_an_expression_becomes_code() -> None:
    trap = "'); import os #\\n{}"
    user: dict[str, object] = {trap: trap}
    name = trap.replace("]", "]]")
    constant = trap.replace("'", "''")
    assert truth(f"[{name}] = '{constant}' AND [{name}] LIKE '%{constant}%' AND [{name}] IN ('{constant}')", user) is True


def test_the_widest_expressions_within_the_limits_compile() -> None:
    assert truth(" OR ".join(["1=2"] * 127 + ["x=1"]), {"x": 1}) is True
    assert truth("x IN (" + ",".join(["1"] * 500) + ")", {"x": 1}) is True
    assert truth("(" * 32 + "x=1" + ")" * 32, {"x": 1}) is True
    assert truth("x" + "+x" * 32 + " = 33", {"x": 1}) is True
