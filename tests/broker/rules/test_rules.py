"""What a subscription gets of a message: which copies, and what each changes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from tandem.broker.rules.message_view import MessageView, view_of
from tandem.broker.rules.rules import REMOVED, Change, CompiledRule, RuleFailure, RuleSet, compile_filter, compile_rule
from tandem.broker.rules.sql_lexer import SqlSyntaxError
from tandem.broker.rules.sql_values import RuleEvaluationError
from tandem.model.entity import CorrelationFilter, FalseFilter, Filter, RuleDescription, SqlAction, SqlFilter, TrueFilter
from tandem.model.errors import ArgumentRefused
from tandem.model.limits import Limits

ID = UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")


def rule(name: str, filter: Filter | str = "1=1", action: str | None = None) -> CompiledRule:
    if isinstance(filter, str):
        filter = SqlFilter(expression=filter)
    description = RuleDescription(name=name, filter=filter, action=None if action is None else SqlAction(expression=action))
    return compile_rule(description, new_id=lambda: ID)


def red() -> MessageView:
    return view_of({"Label": "order", "MessageId": "m-1"}, {"color": "red", "quantity": 10, "price": 2.5, "zero": 0})


def names(rules: list[CompiledRule]) -> list[str]:
    return [matched.name for matched in rules]


# Which copies.


def test_five_matching_rules_two_with_actions_give_three_copies() -> None:
    rules = RuleSet(
        [
            rule("a", "color = 'red'"),
            rule("b", "color = 'red'", "SET x = 1"),
            rule("c", "quantity = 10"),
            rule("d", "price > 2", "SET x = 2"),
            rule("e", TrueFilter()),
        ]
    )
    matched = rules.evaluate(red())
    assert len(matched) == 3
    assert [entry.action is None for entry in matched] == [True, False, False]
    assert names(matched)[1:] == ["b", "d"]


def test_rules_that_do_not_match_give_nothing() -> None:
    rules = RuleSet(
        [rule("a", "color = 'blue'"), rule("b", FalseFilter()), rule("c", "color = 'blue'", "SET x = 1"), rule("d", "missing > 1")]
    )
    assert rules.evaluate(red()) == []
    assert RuleSet([]).evaluate(red()) == []


def test_true_and_false_filters_never_look_at_the_message() -> None:
    def refuse() -> dict[str, object]:
        raise AssertionError("no rule needs a property")

    rules = RuleSet([rule("never", FalseFilter()), rule("always", TrueFilter()), rule("one", "1=1"), rule("none", "1=0", "SET a = 1")])
    assert names(rules.evaluate(MessageView(refuse, refuse))) == ["always"]


# Failures.


def test_a_failing_rule_is_named_and_what_matched_is_kept() -> None:
    rules = RuleSet([rule("plain", "color = 'red'"), rule("broken", "1 / zero = 1", "SET x = 1"), rule("late", "1=1", "SET y = 1")])
    with pytest.raises(RuleFailure) as caught:
        rules.evaluate(red())
    assert caught.value.description == "rule 'broken': division by zero"
    assert caught.value.rule.name == "broken"
    assert names(caught.value.matched) == ["plain", "late"]


def test_a_failing_rule_does_not_matter_when_another_without_action_matches() -> None:
    assert names(RuleSet([rule("broken", "1 / zero = 1"), rule("plain", "color = 'red'")]).evaluate(red())) == ["plain"]
    with pytest.raises(RuleFailure):
        RuleSet([rule("broken", "1 / zero = 1"), rule("plain", "color = 'blue'")]).evaluate(red())


def test_a_selection_has_copies_with_their_changes_and_the_failure() -> None:
    rules = RuleSet(
        [
            rule("plain"),
            rule("twice", "1=1", "SET quantity = quantity * 2"),
            rule("bad action", "1=1", "SET x = quantity / zero"),
            rule("fine", "1=1", "REMOVE color"),
        ]
    )
    selection = rules.select(red())
    assert [(entry.name, changes) for entry, changes in selection.copies] == [
        ("plain", ()),
        ("twice", (("user", "quantity", 20), ("user", "RuleName", "twice"))),
        ("fine", (("user", "color", REMOVED), ("user", "RuleName", "fine"))),
    ]
    assert selection.failure is not None
    assert selection.failure.description == "rule 'bad action': division by zero"
    assert RuleSet([rule("plain")]).select(red()).failure is None


# Actions.


def changes(action: str, view: MessageView | None = None) -> list[Change]:
    found = list(rule("r", "1=1", action).apply_action(view or red()))
    assert found[-1] == ("user", "RuleName", "r")
    return found[:-1]


def test_the_documented_action_changes_what_it_says() -> None:
    view = view_of({"CorrelationId": "high"}, {"quantity": 10, "priority": "high"})
    assert changes("SET quantity = quantity / 2; REMOVE priority;SET sys.CorrelationId = 'low';", view) == [
        ("user", "quantity", 5),
        ("user", "priority", REMOVED),
        ("sys", "CorrelationId", "low"),
    ]


def test_each_statement_sees_the_ones_before_it_and_the_message_stays() -> None:
    view = red()
    assert changes("SET a = 1; SET b = a + 1; SET a = b + 1; REMOVE b; SET c = b", view) == [
        ("user", "a", 3),
        ("user", "b", REMOVED),
        ("user", "c", None),
    ]
    assert view.user_properties() == red().user_properties()
    assert changes("SET sys.Label = sys.Label + '.x'; SET l = sys.Subject", view)[1] == ("user", "l", "order.x")
    assert view.system_properties()["Label"] == "order"


def test_a_property_is_set_under_the_name_it_has_and_in_the_sort_it_holds() -> None:
    assert changes("SET COLOR = 5") == [("user", "color", "5")]
    assert changes("SET quantity = '7'") == [("user", "quantity", 7)]
    assert changes("SET quantity = 7.5") == [("user", "quantity", 7.5)]
    assert changes("SET Other = newid()") == [("user", "Other", ID)]


def test_removing_what_is_not_there_changes_nothing() -> None:
    assert changes("REMOVE nothing") == []


def test_a_rule_name_the_action_sets_or_removes_is_left_alone() -> None:
    assert rule("r", "1=1", "SET rulename = 'mine'").apply_action(red()) == (("user", "rulename", "mine"),)
    view = view_of({}, {"RuleName": "sender's"})
    assert rule("r", "1=1", "REMOVE RuleName").apply_action(view) == (("user", "RuleName", REMOVED),)
    assert rule("r", "1=1", "SET x = 1").apply_action(view) == (("user", "x", 1), ("user", "RuleName", "r"))


def test_a_rule_without_action_changes_nothing() -> None:
    assert rule("r").apply_action(red()) == ()


@pytest.mark.parametrize(
    ("action", "name", "value"),
    [
        ("SET sys.TimeToLive = '00:01:00'", "TimeToLive", 60_000),
        ("SET sys.TimeToLive = 'PT1M'", "TimeToLive", 60_000),
        ("SET sys.ScheduledEnqueueTimeUtc = '2024-05-06T12:00:00Z'", "ScheduledEnqueueTimeUtc", 1_714_996_800_000),
        (
            "SET sys.ScheduledEnqueueTimeUtc = sys.EnqueuedTimeUtc + (sys.EnqueuedTimeUtc - sys.EnqueuedTimeUtc)",
            "ScheduledEnqueueTimeUtc",
            5,
        ),
        ("SET sys.MessageId = newid()", "MessageId", str(ID)),
        ("SET sys.Subject = 12", "Label", "12"),
        ("SET sys.To = NULL", "To", REMOVED),
        ("SET sys.To = missing", "To", REMOVED),
        ("REMOVE sys.Label", "Label", REMOVED),
        ("SET sys.ForcePersistence = 'true'", "ForcePersistence", True),
    ],
)
def test_system_properties_take_values_of_their_kind(action: str, name: str, value: object) -> None:
    assert changes(action, view_of({"EnqueuedTimeUtc": 5, "Label": "x"}, {})) == [("sys", name, value)]


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        ("SET sys.TimeToLive = 5", "sys.TimeToLive cannot be set to a number: its type is duration"),
        ("SET sys.TimeToLive = '-00:01:00'", "zero or less"),
        ("SET sys.ScheduledEnqueueTimeUtc = 'soon'", "sys.ScheduledEnqueueTimeUtc cannot be set to a string: its type is instant"),
        ("SET sys.SessionId = long", "sys.SessionId cannot be set to a text of 129 characters: 128 are allowed"),
        ("SET sys.MessageId = long", "128 are allowed"),
        ("SET sys.Label = raw", "sys.Label cannot be set to binary data"),
    ],
)
def test_system_properties_refuse_other_values(action: str, reason: str) -> None:
    with pytest.raises(RuleEvaluationError) as caught:
        changes(action, view_of({}, {"long": "x" * 129, "raw": b"x"}))
    assert reason in caught.value.description


def test_a_text_that_doubles_in_every_statement_is_stopped() -> None:
    with pytest.raises(RuleEvaluationError, match="longer than 32768 characters"):
        changes("SET a = 'xxxxxxxx';" + "SET a = a + a;" * 30)


# Correlation filters.


def matches(filter: CorrelationFilter, system: dict[str, object], user: dict[str, object] | None = None) -> bool:
    return compile_filter(filter).matches(view_of(system, user or {}))


def test_every_field_of_a_correlation_filter_must_be_equal() -> None:
    every = CorrelationFilter(
        correlation_id="1", message_id="2", to="3", reply_to="4", label="5", session_id="6", reply_to_session_id="7", content_type="8"
    )
    fields = ("CorrelationId", "MessageId", "To", "ReplyTo", "Label", "SessionId", "ReplyToSessionId", "ContentType")
    system: dict[str, object] = {name: str(number) for number, name in enumerate(fields, 1)}
    assert matches(every, dict(system))
    for name in fields:
        assert not matches(every, {**system, name: "other"})
        assert not matches(every, {key: value for key, value in system.items() if key != name})


def test_ids_in_a_correlation_filter_are_compared_as_text() -> None:
    assert matches(CorrelationFilter(message_id=str(ID)), {"MessageId": ID})
    assert matches(CorrelationFilter(correlation_id="7"), {"CorrelationId": 7})
    assert not matches(CorrelationFilter(correlation_id="a"), {"CorrelationId": "A"})


def test_custom_properties_of_a_correlation_filter_are_compared_by_value_and_sort() -> None:
    at = datetime(2024, 1, 1, tzinfo=UTC)
    user: dict[str, object] = {"s": "5", "i": 5, "d": 5.5, "b": True, "at": at, "span": timedelta(1), "id": ID, "none": None}
    for name, value in user.items():
        assert matches(CorrelationFilter(properties=((name.upper(), value),)), {}, user) is (value is not None)
    assert not matches(CorrelationFilter(properties=(("s", 5),)), {}, user)
    assert not matches(CorrelationFilter(properties=(("i", "5"),)), {}, user)
    assert not matches(CorrelationFilter(properties=(("b", 1),)), {}, user)
    assert matches(CorrelationFilter(label="x", properties=(("i", 5.0), ("at", datetime(2024, 1, 1)))), {"Label": "x"}, user)
    assert not matches(CorrelationFilter(label="x", properties=(("i", 5), ("d", 5))), {"Label": "x"}, user)


def test_a_correlation_filter_says_which_sql_means_the_same() -> None:
    filter = CorrelationFilter(label="it's", properties=(("a b", 5), ("c", True), ("d]", "x")))
    assert compile_filter(filter).text == "sys.Label = 'it''s' AND [a b] = 5 AND c = TRUE AND [d]]] = 'x'"


def test_an_empty_or_strange_correlation_filter_is_refused() -> None:
    with pytest.raises(ArgumentRefused, match="at least one property"):
        compile_filter(CorrelationFilter())
    with pytest.raises(ArgumentRefused, match="property 'a' of the correlation filter is of a type rules do not know"):
        compile_filter(CorrelationFilter(properties=(("a", b"x"),)))
    with pytest.raises(ArgumentRefused, match="at most 2 properties, found 3"):
        compile_filter(CorrelationFilter(label="a", to="b", message_id="c"), Limits(sql_expression_terms_max=2))


# Compiling.


def test_a_wrong_filter_or_action_is_refused_when_the_rule_is_made() -> None:
    with pytest.raises(SqlSyntaxError, match="line 1, column 4"):
        rule("r", "a =")
    with pytest.raises(SqlSyntaxError, match="line 1, column 6"):
        rule("r", "a = 1", "SET a")


def test_limits_are_those_given() -> None:
    description = RuleDescription(name="r", filter=SqlFilter(expression="a = 'xxxxxxxx'"))
    with pytest.raises(SqlSyntaxError, match="14 characters, 10 are allowed"):
        compile_rule(description, Limits(sql_expression_chars_max=10))


def test_parameters_reach_filter_and_action() -> None:
    compiled = compile_rule(
        RuleDescription(
            name="r",
            filter=SqlFilter(expression="Priority = @param", parameters=(("@param", 3),)),
            action=SqlAction(expression="SET At = @at", parameters=(("@at", datetime(2020, 7, 5, 11, 12, 13)),)),
        )
    )
    view = view_of({}, {"priority": 3})
    assert compiled.matches(view)
    assert compiled.apply_action(view)[0] == ("user", "At", datetime(2020, 7, 5, 11, 12, 13, tzinfo=UTC))


def test_a_rule_set_can_be_used_again_and_again() -> None:
    rules = RuleSet([rule("a", "quantity > 5"), rule("b", "quantity > 5", "SET quantity = quantity + 1")])
    for quantity in (10, 1, 20):
        view = view_of({}, {"quantity": quantity})
        expected = [(), (("user", "quantity", quantity + 1), ("user", "RuleName", "b"))] if quantity > 5 else []
        assert [found for _, found in rules.select(view).copies] == expected
