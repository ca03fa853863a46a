"""Descriptions survive JSON unchanged, and nothing else is taken for one."""

from __future__ import annotations

import datetime
import decimal
import json
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.model.entity import (
    AuthorizationRule,
    CorrelationFilter,
    EntityStatus,
    FalseFilter,
    Filter,
    QueueDescription,
    Right,
    RuleDescription,
    SqlAction,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
    TrueFilter,
)
from tandem.model.entity_json import (
    EntityKind,
    NotADescription,
    dump_authorization_rule,
    dump_entity,
    dump_rule,
    kind_of,
    load_authorization_rule,
    load_entity,
    load_rule,
)

AUTHORIZATION = AuthorizationRule(
    key_name="sender",
    primary_key="a+/=",
    secondary_key="b",
    rights=frozenset({Right.SEND, Right.LISTEN}),
    created_at_ms=1,
    modified_at_ms=2,
)
QUEUE = QueueDescription(
    name="orders/é",
    lock_duration_ms=5_000,
    requires_session=True,
    status=EntityStatus.SEND_DISABLED,
    forward_to="other",
    user_metadata='"quoted"\n',
    max_message_bytes=1_048_576,
    authorization_rules=(AUTHORIZATION,),
    created_at_ms=17,
)


def test_queue_and_topic_come_back_as_they_were() -> None:
    assert load_entity(EntityKind.QUEUE, dump_entity(QUEUE)) == QUEUE
    topic = TopicDescription(name="t", support_ordering=False, authorization_rules=(AUTHORIZATION,))
    assert load_entity(EntityKind.TOPIC, dump_entity(topic)) == topic
    assert (kind_of(QUEUE), kind_of(topic)) == (EntityKind.QUEUE, EntityKind.TOPIC)
    assert load_authorization_rule(dump_authorization_rule(AUTHORIZATION)) == AUTHORIZATION


def test_rules_of_a_subscription_travel_beside_it() -> None:
    rules = (RuleDescription(name="$Default"),)
    subscription = SubscriptionDescription(topic="t", name="s", rules=rules)
    text = dump_entity(subscription)
    assert "rules" not in json.loads(text)
    assert load_entity(EntityKind.SUBSCRIPTION, text, rules) == subscription


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
    st.uuids(),
    st.decimals(allow_nan=False),
    st.timedeltas(),
    st.datetimes().map(lambda instant: instant.replace(fold=0)),
    st.datetimes(timezones=st.just(datetime.UTC)).map(lambda instant: instant.replace(fold=0)),
)
PAIRS = st.lists(st.tuples(st.text(), VALUES)).map(tuple)
FILTERS: st.SearchStrategy[Filter] = st.one_of(
    st.just(TrueFilter()),
    st.just(FalseFilter()),
    st.builds(SqlFilter, expression=st.text(), parameters=PAIRS),
    st.builds(CorrelationFilter, correlation_id=st.none() | st.text(), label=st.none() | st.text(), properties=PAIRS),
)


@given(FILTERS, st.none() | st.builds(SqlAction, expression=st.text(), parameters=PAIRS))
def test_every_rule_comes_back_with_the_types_of_its_values(filter_: Filter, action: SqlAction | None) -> None:
    rule = RuleDescription(name="r", filter=filter_, action=action, created_at_ms=3)
    back = load_rule(dump_rule(rule))
    assert back == rule
    assert repr(back) == repr(rule)  # 1, 1.0 and True are equal and yet not the same


def test_value_of_a_type_nobody_knows_is_refused_when_written() -> None:
    rule = RuleDescription(name="r", filter=CorrelationFilter(properties=(("x", object()),)))
    with pytest.raises(NotADescription, match="x: a value of type object"):
        dump_rule(rule)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"lock_duration_ms": "5000"}, "lock_duration_ms: int is needed, found '5000'"),
        ({"requires_session": 1}, "requires_session: bool is needed"),
        ({"forward_to": 7}, "forward_to: str"),
        ({"status": "Sleeping"}, "status:"),
        ({"authorization_rules": [{"key_name": "x"}]}, "authorization_rules:"),
        ({"authorization_rules": 5}, "authorization_rules:"),
        ({"colour": "red"}, "colour"),
        ({"rules": []}, "rules"),
    ],
)
def test_wrong_key_or_type_is_named(change: dict[str, Any], reason: str) -> None:
    text = json.dumps(json.loads(dump_entity(QUEUE)) | change)
    with pytest.raises(NotADescription, match=reason):
        load_entity(EntityKind.QUEUE, text)


@pytest.mark.parametrize("text", ["", "[]", "null", '{"name": ', "{}"])
def test_text_that_is_no_description_is_refused(text: str) -> None:
    with pytest.raises(NotADescription):
        load_entity(EntityKind.QUEUE, text)


@pytest.mark.parametrize(
    "pairs", [[["k", "colour", "red"]], [["k", "uuid", "x"]], [["k", "decimal", "x"]], [["k"]], 5, [["k", "duration", ["x"]]]]
)
def test_rule_with_damaged_values_is_refused(pairs: object) -> None:
    text = json.dumps({"name": "r", "filter": {"kind": "sql", "expression": "1=1", "parameters": pairs}})
    with pytest.raises(NotADescription):
        load_rule(text)


def test_absent_keys_take_their_defaults() -> None:
    """A description written before a property existed reads as one that did not set it."""
    assert load_entity(EntityKind.QUEUE, '{"name":"q"}') == QueueDescription(name="q")


def test_exact_values_of_awkward_types() -> None:
    pairs: tuple[tuple[str, object], ...] = (
        ("big", 2**63),
        ("inf", float("inf")),
        ("d", decimal.Decimal("1.10")),
        ("u", uuid.UUID(int=5)),
        ("naive", datetime.datetime(2020, 1, 1, 0, 0, 0, 1)),
    )
    rule = RuleDescription(name="r", filter=SqlFilter(expression="x", parameters=pairs))
    assert load_rule(dump_rule(rule)) == rule
