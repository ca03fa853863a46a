"""Entities as a tandem.toml that says the same: the reverse of reading one, with defaults left out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, fields
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from tandem.cli.configuration.entities import PROPERTIES
from tandem.cli.configuration.setting_types import Duration, show_duration
from tandem.model.entity import (
    DEFAULT_RULE_NAME,
    AuthorizationRule,
    CorrelationFilter,
    EntityStatus,
    FalseFilter,
    QueueDescription,
    RuleDescription,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
    TrueFilter,
)
from tandem.server.settings import NamespaceSettings

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_CORRELATED: Final = ("correlation_id", "message_id", "to", "reply_to", "label", "session_id", "reply_to_session_id", "content_type")

_Entity = QueueDescription | TopicDescription | SubscriptionDescription


def write_topology(namespace: NamespaceSettings, keys: bool) -> str:
    """The text of the file. `keys` tells whether the keys of authorization rules stand in it."""
    lines: list[str] = []
    for rule in namespace.authorization_rules:
        lines += _authorization_rule("authorization_rule", rule, keys)
    for queue in namespace.queues:
        lines += _entity("queue", queue)
        for rule in queue.authorization_rules:
            lines += _authorization_rule("queue.authorization_rule", rule, keys)
    for topic in namespace.topics:
        lines += _entity("topic", topic)
        for rule in topic.authorization_rules:
            lines += _authorization_rule("topic.authorization_rule", rule, keys)
        for subscription in namespace.subscriptions:
            if subscription.topic.casefold() == topic.name.casefold():
                lines += _subscription(subscription)
    for relay in namespace.relays:
        lines += ["", "[[relay]]", f"name = {_text(relay.name)}"]
        lines += [] if relay.requires_client_authorization else ["requires_client_authorization = false"]
        lines += [f"user_metadata = {_text(relay.user_metadata)}"] if relay.user_metadata else []
        for rule in relay.authorization_rules:
            lines += _authorization_rule("relay.authorization_rule", rule, keys)
    return "\n".join(lines) + "\n"


def _entity(table: str, entity: _Entity) -> list[str]:
    lines = ["", f"[[{table}]]", f"name = {_text(entity.name)}"]
    defaults = {field.name: field.default for field in fields(entity) if field.default is not MISSING}
    for item in PROPERTIES:
        if item.field not in defaults:
            continue
        value = getattr(entity, item.field)
        if value is None or value == defaults[item.field]:
            continue
        shown = _text(show_duration(value)) if isinstance(item.kind, Duration) else _value(value)
        lines.append(f"{item.key} = {shown}")
    return lines


def _subscription(subscription: SubscriptionDescription) -> list[str]:
    lines = _entity("topic.subscription", subscription)
    rules: Sequence[RuleDescription] = subscription.rules
    if not rules:
        # Without any rule a file means "everything", and the subscription means "nothing".
        rules = (RuleDescription(name=DEFAULT_RULE_NAME, filter=FalseFilter()),)
    if len(rules) == 1 and rules[0].name == DEFAULT_RULE_NAME and isinstance(rules[0].filter, TrueFilter) and rules[0].action is None:
        return lines
    for rule in rules:
        lines += _rule(rule)
    return lines


def _rule(rule: RuleDescription) -> list[str]:
    lines = ["", "[[topic.subscription.rule]]", f"name = {_text(rule.name)}"]
    if rule.action is not None:
        lines.append(f"action = {_text(rule.action.expression)}")
    filter = rule.filter
    if isinstance(filter, SqlFilter):
        lines.append(f"sql = {_text(filter.expression)}")
        if filter.parameters:
            lines.append(f"sql_parameters = {_inline(filter.parameters)}")
    elif isinstance(filter, FalseFilter):
        lines.append('sql = "1=0"')
    elif isinstance(filter, CorrelationFilter):
        pairs = [(name, getattr(filter, name)) for name in _CORRELATED if getattr(filter, name) is not None]
        parts = [f"{name} = {_text(value)}" for name, value in pairs]
        if filter.properties:
            parts.append(f"properties = {_inline(filter.properties)}")
        lines.append(f"correlation = {{ {', '.join(parts)} }}")
    return lines


def _authorization_rule(table: str, rule: AuthorizationRule, keys: bool) -> list[str]:
    rights = ", ".join(_text(right) for right in sorted(right.value for right in rule.rights))
    lines = ["", f"[[{table}]]", f"name = {_text(rule.key_name)}", f"rights = [{rights}]"]
    if keys:
        lines += [f"primary_key = {_text(rule.primary_key)}", f"secondary_key = {_text(rule.secondary_key)}"]
    return lines


def _inline(pairs: Iterable[tuple[str, object]]) -> str:
    return "{ " + ", ".join(f"{_key(name)} = {_value(value)}" for name, value in pairs) + " }"


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _text(name)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, EntityStatus):
        return _text(value.value)
    if isinstance(value, int | float):
        return repr(value)
    return _text(plain(value))


def plain(value: object) -> str:
    """A value that files have no form for, as the text that SQL would compare it with."""
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, timedelta | Decimal):
        return str(value)
    return str(value)


def _text(text: str) -> str:
    """A basic string of TOML; JSON's escapes are among its own, except that DEL must be escaped too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")
