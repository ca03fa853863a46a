"""What may be asked of a namespace, and what the refusals say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tandem.broker.entities.administration import (
    Entity,
    validate_name,
    validate_queue,
    validate_rule,
    validate_short_name,
    validate_subscription,
    validate_topic,
)
from tandem.model.entity import (
    MAX_DURATION_MS,
    AuthorizationRule,
    CorrelationFilter,
    QueueDescription,
    Right,
    RuleDescription,
    SqlAction,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
    TrueFilter,
)
from tandem.model.errors import ArgumentOutOfRange, ArgumentRefused, BusError, EntityNotFound, NotAllowed, QuotaExceeded
from tandem.model.limits import Limits

LIMITS = Limits()
QUEUE = QueueDescription(name="q")
TOPIC = TopicDescription(name="t")
SUBSCRIPTION = SubscriptionDescription(topic="t", name="s")


def queue(existing: QueueDescription | None = None, **changes: Any) -> QueueDescription:
    return validate_queue(replace(QUEUE, **changes), existing, LIMITS, now=5)


def finder(*entities: Entity) -> Any:
    known = {e.name.casefold(): e for e in entities}
    return lambda name: known.get(name.casefold())


def test_defaults_pass_and_are_stamped() -> None:
    assert queue() == replace(QUEUE, created_at_ms=5, updated_at_ms=5)
    assert validate_topic(TOPIC, None, LIMITS, now=5) == replace(TOPIC, created_at_ms=5, updated_at_ms=5)


def test_update_keeps_name_and_birth() -> None:
    existing = replace(QUEUE, name="Q", created_at_ms=1, updated_at_ms=1)
    assert queue(existing, max_delivery_count=3) == replace(existing, max_delivery_count=3, updated_at_ms=5)


def test_settings_of_a_backlog_queue_are_accepted() -> None:
    wish = QueueDescription(
        name="contoso/x-servicebus-transfer/0",
        max_size_megabytes=5120,
        max_delivery_count=2_147_483_647,
        default_message_time_to_live_ms=MAX_DURATION_MS,
        auto_delete_on_idle_ms=MAX_DURATION_MS,
        lock_duration_ms=60_000,
        dead_lettering_on_message_expiration=True,
    )
    assert validate_queue(wish, None, LIMITS, now=5).name == "contoso/x-servicebus-transfer/0"


@pytest.mark.parametrize(
    "name", ["a", "A.b-c_d", "txt/.-_123", "a/b/c", "x" * 260, "subscriptions", "a/subscriptions", "9", "shop~orders/v~2"]
)
def test_good_names_pass(name: str) -> None:
    validate_name(name, "queue", LIMITS)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "no name; 1 to 260"),
        ("x" * 261, "261 characters; 1 to 260"),
        ("$cbs", "starts with '\\$'"),
        ("/a", "empty segment"),
        ("a/", "empty segment"),
        ("a//b", "empty segment"),
        ("a/../b", "segment '..'"),
        ("./a", "segment '.'"),
        ("a b", "contains ' '"),
        ("caf\u00e9", r"contains '\\xe9'"),
        ("q\u0661", r"contains '\\u0661'"),
        ("a\\b", "contains"),
        ("a%2Fb", "contains '%'"),
        ("a?b", "contains"),
        ("a#b", "contains"),
        ("a\nb", r"contains '\\n'"),
        ("a\n", r"contains '\\n'"),
        ("a/$management", "contains '\\$'"),
        ("t/Subscriptions/s", "address of a subscription"),
    ],
)
def test_bad_names_are_refused_with_the_reason(name: str, says: str) -> None:
    with pytest.raises((ArgumentRefused, ArgumentOutOfRange), match=says):
        validate_name(name, "queue", LIMITS)


@pytest.mark.parametrize("name", ["", "x" * 51, "a/b", "..", "$Other", "a b", "a~b"])
def test_subscriptions_and_rules_have_one_short_segment(name: str) -> None:
    with pytest.raises(BusError):
        validate_short_name(name, "subscription")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"lock_duration_ms": 4_999}, "LockDuration is 4999 ms; 5 seconds to 5 minutes are allowed"),
        ({"lock_duration_ms": 25 * 86_400_000}, "LockDuration is 25 days; 5 seconds to 5 minutes are allowed"),
        ({"duplicate_detection_history_ms": 19_999}, "DuplicateDetectionHistoryTimeWindow is 19999 ms; 20 seconds to 7 days"),
        ({"duplicate_detection_history_ms": 25 * 86_400_000}, "is 25 days; 20 seconds to 7 days"),
        ({"default_message_time_to_live_ms": 99_999_999_999 * 86_400_000}, "is 99999999999 days; 1 second to for ever [(]P10675199DT"),
        ({"default_message_time_to_live_ms": 0}, "DefaultMessageTimeToLive is 0 ms; 1 second to for ever"),
        ({"default_message_time_to_live_ms": MAX_DURATION_MS + 1}, "DefaultMessageTimeToLive"),
        ({"auto_delete_on_idle_ms": 299_999}, "AutoDeleteOnIdle is 299999 ms; 5 minutes to for ever"),
        ({"max_delivery_count": 0}, "MaxDeliveryCount is 0; 1 to 2147483647"),
        ({"max_delivery_count": 2**31}, "MaxDeliveryCount is 2147483648"),
        ({"max_size_megabytes": 0}, "MaxSizeInMegabytes is 0"),
        ({"max_message_bytes": 1023}, "MaxMessageSizeInKilobytes is 0.999023; whole numbers from 1 to 102400"),
        ({"max_message_bytes": 2000}, "MaxMessageSizeInKilobytes is 1.95312; whole numbers from 1 to 102400"),
        ({"max_message_bytes": 102_401 * 1024}, "MaxMessageSizeInKilobytes is 102401; whole numbers from 1 to 102400"),
        ({"user_metadata": "x" * 1025}, "UserMetadata has 1025 characters; at most 1024"),
    ],
)
def test_values_out_of_range_are_refused_with_what_was_given_and_what_is_allowed(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ArgumentOutOfRange, match=says):
        queue(**change)


@pytest.mark.parametrize(
    "change",
    [
        {"lock_duration_ms": 5_000},
        {"lock_duration_ms": 300_000},
        {"duplicate_detection_history_ms": 20_000},
        {"duplicate_detection_history_ms": 7 * 86_400_000},
        {"auto_delete_on_idle_ms": 300_000},
        {"default_message_time_to_live_ms": 1_000},
        {"max_message_bytes": 1024 * 1024},
        {"max_message_bytes": 262_144},
        {"user_metadata": "x" * 1024},
        # all of these together are created by the official SDK's own tests
        {"requires_session": True, "enable_partitioning": True, "enable_express": True, "forward_to": "other"},
    ],
)
def test_bounds_and_known_combinations_pass(change: dict[str, Any]) -> None:
    assert queue(**change) == replace(QUEUE, **change, created_at_ms=5, updated_at_ms=5)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"requires_session": True, "forward_to": "x"}, "RequiresSession and ForwardTo exclude each other"),
        ({"enable_express": True, "requires_duplicate_detection": True}, "EnableExpress and RequiresDuplicateDetection"),
    ],
)
def test_properties_that_exclude_each_other_are_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ArgumentRefused, match=says):
        queue(**change)
    if "forward_to" in change:
        with pytest.raises(ArgumentRefused, match=says):
            validate_subscription(replace(SUBSCRIPTION, **change), None, LIMITS, now=5)


WORDS = {
    "requires_session": "The value for the RequiresSession property of an existing {} cannot be changed",
    "requires_duplicate_detection": "The value for the RequiresDuplicateDetection property of an existing {} cannot be changed",
    "enable_partitioning": "Partitioning cannot be changed for {}. ",
}
"""The service's own: programs look for them."""


@pytest.mark.parametrize("prop", WORDS)
def test_what_a_queue_is_cannot_be_changed(prop: str) -> None:
    with pytest.raises(NotAllowed, match=WORDS[prop].format("Queue")):
        queue(QUEUE, **{prop: True})


def test_what_topics_and_subscriptions_are_cannot_be_changed() -> None:
    for prop in ("requires_duplicate_detection", "enable_partitioning"):
        with pytest.raises(NotAllowed, match=WORDS[prop].format("Topic")):
            validate_topic(replace(TOPIC, **{prop: True}), TOPIC, LIMITS, now=5)
    with pytest.raises(NotAllowed, match=WORDS["requires_session"].format("Subscription")):
        validate_subscription(replace(SUBSCRIPTION, requires_session=True), SUBSCRIPTION, LIMITS, now=5)


@pytest.mark.parametrize("prop", ["forward_to", "forward_dead_lettered_messages_to"])
def test_forward_target_must_exist(prop: str) -> None:
    with pytest.raises(ArgumentRefused, match="'nowhere', which is no queue or topic"):
        validate_queue(replace(QUEUE, **{prop: "nowhere"}), None, LIMITS, now=5, find=finder(TOPIC))
    assert validate_queue(replace(QUEUE, **{prop: "T"}), None, LIMITS, now=5, find=finder(TOPIC))
    with pytest.raises(ArgumentRefused, match="no queue or topic"):
        validate_subscription(replace(SUBSCRIPTION, **{prop: "nowhere"}), None, LIMITS, now=5, find=finder(TOPIC))


def test_ring_of_queues_is_refused_and_shown() -> None:
    a, b, c = (QueueDescription(name=n, forward_to=f) for n, f in (("a", "b"), ("b", "c"), ("c", None)))
    with pytest.raises(ArgumentRefused, match="ring: c -> A -> b -> c"):
        validate_queue(replace(c, forward_to="A"), c, LIMITS, now=5, find=finder(a, b, c))


def test_forwarding_into_somebody_elses_ring_or_to_oneself_ends() -> None:
    a, b = QueueDescription(name="a", forward_to="b"), QueueDescription(name="b", forward_to="a")
    assert validate_queue(replace(QUEUE, forward_to="a"), None, LIMITS, now=5, find=finder(a, b))
    assert validate_queue(replace(QUEUE, forward_to="q"), QUEUE, LIMITS, now=5, find=finder(QUEUE))


def test_subscription_may_forward_to_its_own_topic() -> None:
    assert validate_subscription(replace(SUBSCRIPTION, forward_to="t"), None, LIMITS, now=5, find=finder(TOPIC)).forward_to == "t"


def test_subscription_needs_its_topic() -> None:
    for known in ((), (QueueDescription(name="t"),)):
        with pytest.raises(EntityNotFound, match="topic 't' does not exist"):
            validate_subscription(SUBSCRIPTION, None, LIMITS, now=5, find=finder(*known))


def test_session_subscription_of_a_partitioned_topic_may_forward() -> None:
    find = finder(replace(TOPIC, enable_partitioning=True), QUEUE)
    assert validate_subscription(replace(SUBSCRIPTION, requires_session=True, forward_to="q"), None, LIMITS, now=5, find=find)


def test_new_subscription_gets_the_default_rule_and_an_old_one_keeps_its_own() -> None:
    new = validate_subscription(SUBSCRIPTION, None, LIMITS, now=5)
    assert new.rules == (RuleDescription(name="$Default", filter=TrueFilter(), created_at_ms=5),)
    own = (RuleDescription(name="mine"),)
    assert validate_subscription(SUBSCRIPTION, replace(SUBSCRIPTION, rules=own), LIMITS, now=5).rules == own
    given = validate_subscription(replace(SUBSCRIPTION, rules=own), None, LIMITS, now=5)
    assert [rule.name for rule in given.rules] == ["mine"]


def test_rules_of_one_name_are_refused() -> None:
    twice = (RuleDescription(name="a"), RuleDescription(name="A"))
    with pytest.raises(ArgumentRefused, match="given twice"):
        validate_subscription(replace(SUBSCRIPTION, rules=twice), None, LIMITS, now=5)


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        (RuleDescription(name="$Other"), "contains"),
        (RuleDescription(name="r", filter=SqlFilter(expression=" ")), "filter is empty"),
        (RuleDescription(name="r", filter=SqlFilter(expression="x" * 1025)), "1025 characters; at most 1024"),
        (RuleDescription(name="r", action=SqlAction(expression="")), "action is empty"),
        (RuleDescription(name="r", filter=CorrelationFilter()), "compares nothing"),
        (RuleDescription(name="r", filter=CorrelationFilter(label="x" * 2000)), "'label' of the correlation filter has 2000"),
        (RuleDescription(name="r", filter=CorrelationFilter(properties=(("p", "x" * 2000),))), "'p' of the correlation filter"),
    ],
)
def test_bad_rules_are_refused(rule: RuleDescription, says: str) -> None:
    with pytest.raises((ArgumentRefused, ArgumentOutOfRange), match=says):
        validate_rule(rule, None, 0, LIMITS, now=5)


def test_rule_beyond_the_limit_is_refused_but_an_update_is_not() -> None:
    rule = RuleDescription(name="r")
    with pytest.raises(QuotaExceeded, match="has 2000 rules already"):
        validate_rule(rule, None, 2000, LIMITS, now=5)
    existing = replace(rule, name="R", created_at_ms=1)
    assert validate_rule(rule, existing, 2000, LIMITS, now=5) == existing


def test_compiler_of_filters_has_the_last_word() -> None:
    def refuse(rule: RuleDescription) -> None:
        raise ArgumentRefused(f"line 1: {rule.name}")

    with pytest.raises(ArgumentRefused, match="line 1: r"):
        validate_rule(RuleDescription(name="r"), None, 0, LIMITS, now=5, check=refuse)


def key(name: str = "k", *rights: Right, primary: str = "p") -> AuthorizationRule:
    return AuthorizationRule(key_name=name, primary_key=primary, secondary_key="s", rights=frozenset(rights or (Right.SEND,)))


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        ((key(""),), "KeyName has 0 characters"),
        ((key(primary=""),), "PrimaryKey of authorization rule 'k' has 0"),
        ((key("k", Right.MANAGE),), "needs Send and Listen"),
        ((replace(key(), rights=frozenset()),), "grants nothing"),
        ((key(), key()), "given twice"),
        (tuple(key(f"k{i}") for i in range(13)), "13 authorization rules"),
    ],
)
def test_bad_authorization_rules_are_refused(rules: tuple[AuthorizationRule, ...], says: str) -> None:
    with pytest.raises(BusError, match=says):
        queue(authorization_rules=rules)


def test_good_authorization_rules_pass() -> None:
    rules = (key("a"), key("b", Right.LISTEN), key("c", *Right))
    assert queue(authorization_rules=rules).authorization_rules == rules
