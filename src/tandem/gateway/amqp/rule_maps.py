"""Rules as the management node speaks them: maps in requests, described lists in answers."""

from __future__ import annotations

from typing import Final

from tandem.amqp.types import Described, Int, Timestamp, ULong
from tandem.gateway.views import for_rules, for_wire
from tandem.model.entity import CorrelationFilter, FalseFilter, Filter, RuleDescription, SqlAction, SqlFilter, TrueFilter
from tandem.model.errors import ArgumentRefused

_RULE: Final = ULong(0x13700000004)
_EMPTY_ACTION: Final = ULong(0x13700000005)
_SQL_ACTION: Final = ULong(0x13700000006)
# Filters have a zero less than the rest: so it is in the service, and clients insist on it.
_SQL_FILTER: Final = ULong(0x1370000006)
_TRUE: Final = ULong(0x1370000007)
_FALSE: Final = ULong(0x1370000008)
_CORRELATION: Final = ULong(0x1370000009)
_COMPATIBILITY_LEVEL: Final = Int(20)

_CORRELATION_FIELDS: Final = (
    ("correlation-id", "correlation_id"),
    ("message-id", "message_id"),
    ("to", "to"),
    ("reply-to", "reply_to"),
    ("label", "label"),
    ("session-id", "session_id"),
    ("reply-to-session-id", "reply_to_session_id"),
    ("content-type", "content_type"),
)
"""In the order of the described list."""


# --- reading


def read_rule(name: str, body_said: object) -> RuleDescription:
    """`body_said` is the map `rule-description` of add-rule."""
    fields = _map(body_said, "rule-description")
    sql, correlation = fields.get("sql-filter"), fields.get("correlation-filter")
    if sql is not None and correlation is not None:
        raise ArgumentRefused("rule-description has both sql-filter and correlation-filter; a rule has one filter")
    filter: Filter = TrueFilter()
    if sql is not None:
        filter = _read_sql_filter(_map(sql, "sql-filter"))
    elif correlation is not None:
        filter = _read_correlation(_map(correlation, "correlation-filter"))
    elif "false-filter" in fields:
        filter = FalseFilter()
    action = fields.get("sql-rule-action")
    return RuleDescription(name=name, filter=filter, action=None if action is None else _read_action(_map(action, "sql-rule-action")))


def _map(value: object, what: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ArgumentRefused(f"The request needs '{what}' as a map, found {type(value).__name__}.")
    return {str(key): item for key, item in value.items()}


def _text(fields: dict[str, object], name: str, what: str) -> str | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise ArgumentRefused(f"'{name}' of {what} must be a string, found {type(value).__name__}.")
    return None if value is None else str(value)


def _expression(fields: dict[str, object], what: str) -> str:
    text = _text(fields, "expression", what)
    if text is None:
        raise ArgumentRefused(f"{what} needs 'expression'.")
    return text


def _pairs(value: object, what: str) -> tuple[tuple[str, object], ...]:
    if value is None:
        return ()
    return tuple((key, for_rules(item)) for key, item in _map(value, what).items())


def _read_sql_filter(fields: dict[str, object]) -> Filter:
    expression = _expression(fields, "sql-filter")
    parameters = _pairs(fields.get("parameters"), "parameters")
    plain = "".join(expression.split())
    if not parameters and plain in ("1=1", "1=0"):
        # Clients write the two constant filters so; kept as what they are, they come back under their own descriptors.
        return TrueFilter() if plain == "1=1" else FalseFilter()
    return SqlFilter(expression=expression, parameters=parameters)


def _read_action(fields: dict[str, object]) -> SqlAction | None:
    expression = _text(fields, "expression", "sql-rule-action")
    if not expression:
        return None
    return SqlAction(expression=expression, parameters=_pairs(fields.get("parameters"), "parameters"))


def _read_correlation(fields: dict[str, object]) -> CorrelationFilter:
    texts = {field: _text(fields, name, "correlation-filter") for name, field in _CORRELATION_FIELDS}
    return CorrelationFilter(**texts, properties=_pairs(fields.get("properties"), "properties"))


# --- writing


def write_rule(rule: RuleDescription) -> Described:
    """The value of `rule-description` in the answer of enumerate-rules."""
    return Described(_RULE, [_write_filter(rule.filter), _write_action(rule.action), rule.name, Timestamp(rule.created_at_ms)])


def _write_filter(filter: Filter) -> Described:
    if isinstance(filter, TrueFilter):
        return Described(_TRUE, [])
    if isinstance(filter, FalseFilter):
        return Described(_FALSE, [])
    if isinstance(filter, SqlFilter):
        return Described(_SQL_FILTER, [filter.expression, _COMPATIBILITY_LEVEL])
    properties = {key: for_wire(value) for key, value in filter.properties}
    return Described(_CORRELATION, [*(getattr(filter, field) for _, field in _CORRELATION_FIELDS), properties])


def _write_action(action: SqlAction | None) -> Described:
    if action is None:
        return Described(_EMPTY_ACTION, [])
    return Described(_SQL_ACTION, [action.expression, _COMPATIBILITY_LEVEL])
