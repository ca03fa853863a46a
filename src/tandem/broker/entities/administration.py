"""What an operator may ask for: names, ranges, properties that exclude each other, and what may change later.

Pure functions from a wanted and what exists to the description that will be kept, stamped with `now`. Each refusal
says what was given and what is allowed. The service is the measure: what it is known to accept is accepted here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeVar

from tandem.model.duration import format_microseconds
from tandem.model.entity import (
    DEFAULT_RULE_NAME,
    MAX_DURATION_MS,
    MINUTE_MS,
    AuthorizationRule,
    CorrelationFilter,
    QueueDescription,
    Right,
    RuleDescription,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
)
from tandem.model.errors import ArgumentOutOfRange, ArgumentRefused, EntityNotFound, NotAllowed, QuotaExceeded
from tandem.model.limits import Limits

SECOND_MS: Final = 1_000
DAY_MS: Final = 24 * 60 * MINUTE_MS
INT32_MAX: Final = 2_147_483_647
KILOBYTE: Final = 1024

LOCK_MS: Final = (5 * SECOND_MS, 5 * MINUTE_MS)
DUPLICATE_WINDOW_MS: Final = (20 * SECOND_MS, 7 * DAY_MS)
TIME_TO_LIVE_MS: Final = (SECOND_MS, MAX_DURATION_MS)
AUTO_DELETE_MS: Final = (5 * MINUTE_MS, MAX_DURATION_MS)
DELIVERY_COUNT: Final = (1, INT32_MAX)
SIZE_MEGABYTES: Final = (1, 1_048_576)
USER_METADATA_CHARS_MAX: Final = 1_024
AUTHORIZATION_RULES_MAX: Final = 12
KEY_CHARS_MAX: Final = 256
SHORT_NAME_CHARS_MAX: Final = 50
"""Of subscriptions and rules."""

_PATH_SEGMENT: Final = re.compile(r"[A-Za-z0-9._~-]+")
_SHORT_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")

Entity = QueueDescription | TopicDescription
Find = Callable[[str], Entity | None]
"""Looks up a queue or topic by name."""


def _accept(rule: RuleDescription) -> None:
    """Stands in where nobody compiles filters."""


# --- entities


def validate_queue(
    wanted: QueueDescription, existing: QueueDescription | None, limits: Limits, *, now: int, find: Find | None = None
) -> QueueDescription:
    """The queue as it will be kept. `find` looks up forward targets; without it they are taken on trust."""
    if existing is None:
        validate_name(wanted.name, "queue", limits)
    _between("LockDuration", wanted.lock_duration_ms, LOCK_MS)
    _between("MaxDeliveryCount", wanted.max_delivery_count, DELIVERY_COUNT, duration=False)
    _check_carrier(wanted, limits)
    _check_forwarding_source(wanted, wanted.enable_partitioning)
    if existing is not None:
        for prop in ("requires_session", "requires_duplicate_detection", "enable_partitioning"):
            _unchanged(prop, "Queue", getattr(wanted, prop), getattr(existing, prop))
    if find is not None:
        _check_targets(wanted.name, wanted.forward_to, wanted.forward_dead_lettered_messages_to, find)
    return _stamped(wanted, existing, now)


def validate_topic(wanted: TopicDescription, existing: TopicDescription | None, limits: Limits, *, now: int) -> TopicDescription:
    if existing is None:
        validate_name(wanted.name, "topic", limits)
    _check_carrier(wanted, limits)
    if existing is not None:
        for prop in ("requires_duplicate_detection", "enable_partitioning"):
            _unchanged(prop, "Topic", getattr(wanted, prop), getattr(existing, prop))
    return _stamped(wanted, existing, now)


def validate_subscription(
    wanted: SubscriptionDescription,
    existing: SubscriptionDescription | None,
    limits: Limits,
    *,
    now: int,
    find: Find | None = None,
    check_rule: Callable[[RuleDescription], None] = _accept,
) -> SubscriptionDescription:
    """A new one without rules gets `$Default`; the rules of an existing one stay as they are."""
    if existing is None:
        validate_short_name(wanted.name, "subscription")
    _between("LockDuration", wanted.lock_duration_ms, LOCK_MS)
    _between("MaxDeliveryCount", wanted.max_delivery_count, DELIVERY_COUNT, duration=False)
    _between("DefaultMessageTimeToLive", wanted.default_message_time_to_live_ms, TIME_TO_LIVE_MS)
    _between("AutoDeleteOnIdle", wanted.auto_delete_on_idle_ms, AUTO_DELETE_MS)
    check_metadata(wanted.user_metadata)
    partitioned = False
    if find is not None:
        topic = find(wanted.topic)
        if not isinstance(topic, TopicDescription):
            raise EntityNotFound(f"topic '{wanted.topic}' does not exist, so it cannot have a subscription '{wanted.name}'")
        wanted = replace(wanted, topic=topic.name)
        partitioned = topic.enable_partitioning
        source = f"{wanted.topic}/Subscriptions/{wanted.name}"
        _check_targets(source, wanted.forward_to, wanted.forward_dead_lettered_messages_to, find)
    _check_forwarding_source(wanted, partitioned)
    if existing is not None:
        _unchanged("requires_session", "Subscription", wanted.requires_session, existing.requires_session)
        return replace(_stamped(wanted, existing, now), topic=existing.topic, rules=existing.rules)
    rules = wanted.rules or (RuleDescription(name=DEFAULT_RULE_NAME),)
    kept: list[RuleDescription] = []
    for rule in rules:
        if find_rule(kept, rule.name) is not None:
            raise ArgumentRefused(f"rule '{rule.name}' is given twice; names of rules differ by more than case")
        kept.append(validate_rule(rule, None, len(kept), limits, now=now, check=check_rule))
    return replace(_stamped(wanted, None, now), rules=tuple(kept))


def validate_rule(
    wanted: RuleDescription,
    existing: RuleDescription | None,
    others: int,
    limits: Limits,
    *,
    now: int,
    check: Callable[[RuleDescription], None] = _accept,
) -> RuleDescription:
    """`others` counts the rules the subscription has besides; `check` compiles filter and action and raises if they are wrong."""
    if existing is None:
        if wanted.name.casefold() != DEFAULT_RULE_NAME.casefold():
            validate_short_name(wanted.name, "rule")
        if others >= limits.rules_per_subscription_max:
            raise QuotaExceeded(f"the subscription has {others} rules already; at most {limits.rules_per_subscription_max} are allowed")
    if isinstance(wanted.filter, SqlFilter):
        _check_expression("SqlExpression of the filter", wanted.filter.expression, limits)
    elif isinstance(wanted.filter, CorrelationFilter):
        _check_correlation(wanted.filter, limits)
    if wanted.action is not None:
        _check_expression("SqlExpression of the action", wanted.action.expression, limits)
    check(wanted)
    if existing is not None:
        return replace(wanted, name=existing.name, created_at_ms=existing.created_at_ms)
    return replace(wanted, created_at_ms=now)


def find_rule(rules: list[RuleDescription] | tuple[RuleDescription, ...], name: str) -> RuleDescription | None:
    """By name, without regard to case."""
    key = name.casefold()
    return next((rule for rule in rules if rule.name.casefold() == key), None)


# --- names


def validate_name(name: str, what: str, limits: Limits) -> None:
    """Of a queue or topic: segments of letters, digits, '.', '-', '_', '~', separated by single slashes."""
    _check_length(name, what, limits.entity_name_chars_max)
    if name.startswith("$"):
        raise ArgumentRefused(f"{what} name '{_shown(name)}' starts with '$', which is reserved")
    segments = name.split("/")
    for segment in segments:
        if not segment:
            raise ArgumentRefused(f"{what} name '{_shown(name)}' has an empty segment; separate segments by single slashes")
        _check_segment(segment, name, what, _PATH_SEGMENT, "letters, digits, '.', '-', '_' and '~', in segments separated by '/'")
    if "subscriptions" in (segment.casefold() for segment in segments[1:-1]):
        raise ArgumentRefused(f"{what} name '{_shown(name)}' would read as the address of a subscription")


def validate_short_name(name: str, what: str) -> None:
    """Of a subscription or a rule: one segment."""
    _check_length(name, what, SHORT_NAME_CHARS_MAX)
    _check_segment(name, name, what, _SHORT_NAME, "letters, digits, '.', '-' and '_'")


def _check_length(name: str, what: str, chars_max: int) -> None:
    if not name:
        raise ArgumentRefused(f"the {what} has no name; 1 to {chars_max} characters are allowed")
    if len(name) > chars_max:
        raise ArgumentOutOfRange(f"{what} name '{_shown(name)}' has {len(name)} characters; 1 to {chars_max} are allowed")


def _check_segment(segment: str, name: str, what: str, pattern: re.Pattern[str], allowed: str) -> None:
    if pattern.fullmatch(segment) is None:
        wrong = next(c for c in segment if pattern.fullmatch(c) is None)
        raise ArgumentRefused(f"{what} name '{_shown(name)}' contains {wrong!a}; allowed are {allowed}")
    if segment in (".", ".."):
        raise ArgumentRefused(f"{what} name '{_shown(name)}' has the segment '{segment}'; '.' and '..' lead elsewhere")


def _shown(name: str) -> str:
    return name if len(name) <= 80 else name[:80] + "…"


# --- properties

_D = TypeVar("_D", QueueDescription, TopicDescription, SubscriptionDescription)


def _stamped(wanted: _D, existing: _D | None, now: int) -> _D:
    if existing is None:
        return replace(wanted, created_at_ms=now, updated_at_ms=now)
    return replace(wanted, name=existing.name, created_at_ms=existing.created_at_ms, updated_at_ms=now)


def _check_carrier(wanted: Entity, limits: Limits) -> None:
    """What queues and topics have in common."""
    _between("DefaultMessageTimeToLive", wanted.default_message_time_to_live_ms, TIME_TO_LIVE_MS)
    _between("AutoDeleteOnIdle", wanted.auto_delete_on_idle_ms, AUTO_DELETE_MS)
    _between("DuplicateDetectionHistoryTimeWindow", wanted.duplicate_detection_history_ms, DUPLICATE_WINDOW_MS)
    _between("MaxSizeInMegabytes", wanted.max_size_megabytes, SIZE_MEGABYTES, duration=False)
    check_metadata(wanted.user_metadata)
    if wanted.max_message_bytes is not None and wanted.max_message_bytes != limits.message_bytes_max:
        # The service has tiers, of which one takes 1024 to 102400; here there are none.
        kilobytes, rest = divmod(wanted.max_message_bytes, KILOBYTE)
        high = limits.message_bytes_ceiling // KILOBYTE
        if rest or not 1 <= kilobytes <= high:
            given = wanted.max_message_bytes / KILOBYTE
            raise ArgumentOutOfRange(f"MaxMessageSizeInKilobytes is {given:g}; whole numbers from 1 to {high} are allowed")
    if wanted.enable_express and wanted.requires_duplicate_detection:
        raise ArgumentRefused("EnableExpress and RequiresDuplicateDetection exclude each other; choose one")
    check_authorization_rules(wanted.authorization_rules)


def _check_forwarding_source(wanted: QueueDescription | SubscriptionDescription, partitioned: bool) -> None:
    # The service refuses forwarding out of sessions, except that it takes it from partitioned entities.
    if wanted.requires_session and wanted.forward_to is not None and not partitioned:
        raise ArgumentRefused("RequiresSession and ForwardTo exclude each other: messages are not forwarded out of sessions")


def _check_targets(source: str, forward_to: str | None, forward_dead_letters_to: str | None, find: Find) -> None:
    for prop, target in (("ForwardTo", forward_to), ("ForwardDeadLetteredMessagesTo", forward_dead_letters_to)):
        if target is not None and find(target) is None:
            raise ArgumentRefused(f"{prop} names '{_shown(target)}', which is no queue or topic of this namespace; create it first")
    # A queue may forward to itself, as the service lets it; messages end in its transfer dead-letter queue. A ring
    # of queues never delivers anything. Through a topic, filters may break the ring, so that is the operator's business.
    start = source.casefold()
    path = [source]
    step = forward_to
    while step is not None and step.casefold() != start:
        path.append(step)
        entity = find(step)
        if not isinstance(entity, QueueDescription) or step.casefold() in (name.casefold() for name in path[:-1]):
            return
        step = entity.forward_to
    if step is not None and len(path) > 1:
        raise ArgumentRefused(f"ForwardTo would close a ring: {' -> '.join([*path, source])}")


def check_metadata(text: str | None) -> None:
    if text is not None and len(text) > USER_METADATA_CHARS_MAX:
        raise ArgumentOutOfRange(f"UserMetadata has {len(text)} characters; at most {USER_METADATA_CHARS_MAX} are allowed")


def check_authorization_rules(rules: tuple[AuthorizationRule, ...]) -> None:
    if len(rules) > AUTHORIZATION_RULES_MAX:
        raise QuotaExceeded(f"{len(rules)} authorization rules are given; at most {AUTHORIZATION_RULES_MAX} are allowed")
    seen: set[str] = set()
    for rule in rules:
        validate_authorization_rule(rule)
        if rule.key_name in seen:
            raise ArgumentRefused(f"authorization rule '{rule.key_name}' is given twice")
        seen.add(rule.key_name)


def validate_authorization_rule(rule: AuthorizationRule) -> None:
    """Of an entity or of the namespace."""
    name = rule.key_name
    if not 1 <= len(name) <= KEY_CHARS_MAX:
        raise ArgumentOutOfRange(f"KeyName has {len(name)} characters; 1 to {KEY_CHARS_MAX} are allowed")
    for prop, key in (("PrimaryKey", rule.primary_key), ("SecondaryKey", rule.secondary_key)):
        if not 1 <= len(key) <= KEY_CHARS_MAX:
            raise ArgumentOutOfRange(f"{prop} of authorization rule '{name}' has {len(key)} characters; 1 to {KEY_CHARS_MAX} are allowed")
    if not rule.rights:
        raise ArgumentRefused(f"authorization rule '{name}' grants nothing; name Send, Listen or Manage")
    if Right.MANAGE in rule.rights and len(rule.rights) < 3:
        raise ArgumentRefused(f"authorization rule '{name}' grants Manage, which needs Send and Listen beside it")


def _check_expression(what: str, expression: str, limits: Limits) -> None:
    if not expression.strip():
        raise ArgumentRefused(f"{what} is empty")
    if len(expression) > limits.sql_expression_chars_max:
        raise ArgumentOutOfRange(f"{what} has {len(expression)} characters; at most {limits.sql_expression_chars_max} are allowed")


_CORRELATED: Final = ("correlation_id", "message_id", "to", "reply_to", "label", "session_id", "reply_to_session_id", "content_type")


def _check_correlation(wanted: CorrelationFilter, limits: Limits) -> None:
    if not wanted.properties and all(getattr(wanted, name) is None for name in _CORRELATED):
        raise ArgumentRefused("the correlation filter compares nothing; set at least one property")
    chars_max = limits.sql_expression_chars_max
    for name, value in (*((n, getattr(wanted, n)) for n in _CORRELATED), *wanted.properties):
        if isinstance(value, str) and len(value) > chars_max:
            given = f"'{_shown(name)}' of the correlation filter has {len(value)} characters"
            raise ArgumentOutOfRange(f"{given}; at most {chars_max} are allowed")


def _between(prop: str, value: int, bounds: tuple[int, int], *, duration: bool = True) -> None:
    low, high = bounds
    if not low <= value <= high:
        given, least, most = (_spoken(n) if duration else str(n) for n in (value, low, high))
        raise ArgumentOutOfRange(f"{prop} is {given}; {least} to {most} are allowed")


def _spoken(ms: int) -> str:
    """A duration for people."""
    if ms == MAX_DURATION_MS:
        return f"for ever ({format_microseconds(ms * 1_000)})"
    for unit, name in ((DAY_MS, "day"), (60 * MINUTE_MS, "hour"), (MINUTE_MS, "minute"), (SECOND_MS, "second")):
        if ms and ms % unit == 0:
            count = ms // unit
            return f"{count} {name}{'' if count == 1 else 's'}"
    return f"{ms} ms"


_ELEMENT: Final = {"requires_session": "RequiresSession", "requires_duplicate_detection": "RequiresDuplicateDetection"}


def _unchanged(prop: str, what: str, wanted: object, existing: object) -> None:
    """In the service's words, which programs look for."""
    if wanted == existing:
        return
    if prop == "enable_partitioning":
        raise NotAllowed(f"Partitioning cannot be changed for {what}. Delete it and create it again.")
    raise NotAllowed(
        f"The value for the {_ELEMENT[prop]} property of an existing {what} cannot be changed. "
        f"It is {str(existing).lower()}; delete the {what.lower()} and create it again."
    )
