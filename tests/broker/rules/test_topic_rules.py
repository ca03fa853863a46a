from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.broker.rules.message_view import view_of
from tandem.broker.rules.rules import CompiledRule, RuleSet, compile_rule
from tandem.broker.rules.sql_parser import parse_filter
from tandem.broker.rules.topic_rules import TopicRules, demand_of
from tandem.model.entity import CorrelationFilter, FalseFilter, Filter, RuleDescription, SqlFilter, TrueFilter


def rule(filter: Filter | str) -> CompiledRule:
    return compile_rule(RuleDescription(name="r", filter=SqlFilter(expression=filter) if isinstance(filter, str) else filter))


def test_a_demand_is_a_text_that_a_property_must_have() -> None:
    assert demand_of(parse_filter("Color = 'red'")) == (False, "color", ("red",))
    assert demand_of(parse_filter("'red' = sys.subject")) == (True, "Label", ("red",))
    assert demand_of(parse_filter("a > 1 AND b IN ('x', 'y') AND c = 'z'")) == (False, "c", ("z",))
    for text in ("a = 1", "a <> 'x'", "a NOT IN ('x')", "a IN ('x', b)", "a = 'x' OR b = 'y'", "NOT a = 'x'", "a + 'x' = 'y'", "a = b"):
        assert demand_of(parse_filter(text)) is None


def test_only_subscriptions_that_can_match_are_asked() -> None:
    topic = TopicRules(
        [
            ("all", RuleSet([rule(TrueFilter())])),
            ("eu", RuleSet([rule(CorrelationFilter(label="eu")), rule("sys.Label = 'uk' AND n > 1")])),
            ("us", RuleSet([rule("region IN ('us', 'ca')")])),
            ("none", RuleSet([rule(FalseFilter())])),
            ("empty", RuleSet([])),
        ]
    )
    assert topic.candidates(view_of({"Label": "uk"}, {"region": "us"})) == [0, 1, 2]
    assert topic.candidates(view_of({"Label": "x"}, {"REGION": "ca"})) == [0, 2]
    assert topic.candidates(view_of({}, {})) == [0]
    assert [key for key, _ in topic.select(view_of({"Label": "uk"}, {"region": "us"}))] == ["all", "us"]


def test_a_subscription_that_fails_is_among_the_selected() -> None:
    topic = TopicRules([("bad", RuleSet([rule("a = 'x' AND 1 / zero = 1")]))])
    ((key, selection),) = topic.select(view_of({}, {"a": "x", "zero": 0}))
    assert (key, selection.copies) == ("bad", ())
    assert selection.failure is not None


FILTERS = st.sampled_from(
    [
        TrueFilter(),
        FalseFilter(),
        CorrelationFilter(label="a"),
        CorrelationFilter(label="b", properties=(("x", "a"),)),
        CorrelationFilter(properties=(("X", "a"), ("y", 1))),
        SqlFilter(expression="x = 'a' OR y = 1"),
        SqlFilter(expression="X IN ('a', 'b') AND sys.Label = 'a'"),
        SqlFilter(expression="sys.Label IN ('a', 'b') AND y > 0"),
        SqlFilter(expression="NOT x = 'a'"),
        SqlFilter(expression="[x] = 'b'"),
    ]
)
VALUES = st.sampled_from(["a", "b", "c", 1, True, None, ["a"]])


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.lists(FILTERS, max_size=3), max_size=5),
    st.dictionaries(st.just("Label"), st.sampled_from(["a", "b", "c"])),
    st.dictionaries(st.sampled_from(["x", "X", "y"]), VALUES),
)
def test_looking_up_selects_what_asking_everybody_selects(
    filters: list[list[Filter]], system: dict[str, object], user: dict[str, object]
) -> None:
    sets = [RuleSet([rule(filter) for filter in of_one]) for of_one in filters]
    selected = TopicRules(list(enumerate(sets))).select(view_of(dict(system), dict(user)))
    expected = [position for position, rules in enumerate(sets) if rules.evaluate(view_of(dict(system), dict(user)))]
    assert [position for position, _ in selected] == expected
