from __future__ import annotations

import pytest
from hypothesis import given, settings

from tandem.broker.rules.explanation import explain, explain_all
from tandem.broker.rules.message_view import view_of
from tandem.broker.rules.rules import CompiledRule, RuleSet, compile_rule
from tandem.model.entity import CorrelationFilter, RuleDescription, SqlAction, SqlFilter
from tests.broker.rules.sql_reference import Reference, Tree, write
from tests.broker.rules.test_sql_compile import CONDITIONS, SYSTEMS, USERS, WIDE


def sql(text: str, action: str | None = None) -> CompiledRule:
    done = None if action is None else SqlAction(expression=action)
    return compile_rule(RuleDescription(name="r", filter=SqlFilter(expression=text), action=done), WIDE)


def test_what_stands_in_the_way_is_shown_with_the_values_found() -> None:
    rule = sql("sys.Label = 'a' AND price > 10 AND region IN ('eu','us') AND size IS NULL AND weight < 3")
    view = view_of({"Label": "a"}, {"price": 5, "Region": None, "size": 2, "weight": "2"})
    assert str(explain(rule, view)).split("\n") == [
        "rule 'r' does not match",
        "  price > 10 is false: price = 5",
        "  region IN ('eu','us') is unknown: region is null",
        "  size IS NULL is false: size = 2",
        "  weight < 3 is unknown: weight = '2' (a string)",
    ]


def test_every_alternative_that_failed_is_shown() -> None:
    explanation = explain(sql("(a = 1 OR b = 2) AND c = 3"), view_of({}, {"a": 5, "c": 3}))
    assert [str(reason) for reason in explanation.reasons] == ["a = 1 is false: a = 5", "b = 2 is unknown: b is not set"]


def test_what_is_true_under_not_is_an_obstacle() -> None:
    explanation = explain(sql("NOT (a LIKE 'x%' AND b = 1)"), view_of({}, {"a": "xy", "b": 1}))
    assert [str(reason) for reason in explanation.reasons] == [
        "a LIKE 'x%' is true but must be false: a = 'xy'",
        "b = 1 is true but must be false: b = 1",
    ]


def test_a_match_shows_what_made_it_and_what_the_action_does() -> None:
    rule = sql("NOT a = 1 AND (b = 2 OR c = 3)", "SET sys.Label = 'x'; REMOVE a")
    explanation = explain(rule, view_of({}, {"a": 2, "b": 0, "c": 3}))
    assert explanation.matches
    assert str(explanation).split("\n") == [
        "rule 'r' matches",
        "  a = 1 is false: a = 2",
        "  c = 3 is true: c = 3",
        "  SET sys.Label = 'x'",
        "  REMOVE a",
        "  SET RuleName = 'r'",
    ]


def test_a_failure_is_shown_where_it_happened() -> None:
    explanation = explain(sql("a = 1 AND b / c > 1"), view_of({}, {"a": 1, "b": 1, "c": 0}))
    assert not explanation.matches
    assert explanation.failure == "division by zero"
    assert [str(reason) for reason in explanation.reasons] == ["b / c > 1 failed: division by zero: b = 1, c = 0"]
    action = explain(sql("a = 1", "SET b = b / c"), view_of({}, {"a": 1, "b": 1, "c": 0}))
    assert (action.matches, action.failure, action.changes) == (True, "division by zero", ())


def test_computed_properties_and_correlation_filters_are_explained_too() -> None:
    explanation = explain(sql("property(which) = newid()"), view_of({}, {"which": "a b", "a b": 5}))
    assert explanation.reasons[0].found == ("which = 'a b' (a string)", "[a b] = 5 (a number)")
    rule = compile_rule(RuleDescription(name="c", filter=CorrelationFilter(label="x", properties=(("a b", 5),))))
    assert [str(reason) for reason in explain(rule, view_of({"Label": "y"}, {"a b": 5})).reasons] == [
        "sys.Label = 'x' is false: sys.Label = 'y'"
    ]


def test_long_values_are_cut() -> None:
    (reason,) = explain(sql("a = 'b'"), view_of({}, {"a": "x" * 10_000})).reasons
    assert len(str(reason)) < 200


def test_every_rule_of_a_set_is_explained() -> None:
    rules = RuleSet([sql("a = 1"), sql("1=1"), sql("1=0")])
    assert [explanation.matches for explanation in explain_all(rules, view_of({}, {}))] == [False, True, False]


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(CONDITIONS, SYSTEMS, USERS)
def test_the_verdict_is_that_of_the_filter_and_always_has_a_reason(tree: Tree, system: dict[str, object], user: dict[str, object]) -> None:
    reference = Reference(system, user)
    expected = reference.truth(tree)
    explanation = explain(sql(write(tree)), view_of(dict(system), dict(user)))
    if explanation.failure is None:
        assert explanation.matches is (expected is True)
    else:
        assert reference.failed
    assert explanation.reasons
    for reason in explanation.reasons:
        assert reason.outcome != reason.needed or explanation.matches
