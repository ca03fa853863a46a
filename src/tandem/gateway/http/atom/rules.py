"""Rules between XML and the model: filters, actions, and values that carry their type."""

from __future__ import annotations

import decimal
import math
import uuid
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from tandem.gateway.http.xml import Element, XmlRefused
from tandem.gateway.http.xml_values import (
    element,
    escaped,
    format_datetime,
    format_instant,
    parse_datetime,
    parse_timespan,
)
from tandem.model.duration import format_microseconds
from tandem.model.entity import (
    CorrelationFilter,
    FalseFilter,
    Filter,
    RuleDescription,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from tandem.model.errors import ArgumentRefused

_INT32_MIN: Final = -(2**31)
_INT32_MAX: Final = 2**31 - 1
_PAIR: Final = "KeyValueOfstringanyType"

_CORRELATION: Final = (
    ("CorrelationId", "correlation_id"),
    ("MessageId", "message_id"),
    ("To", "to"),
    ("ReplyTo", "reply_to"),
    ("Label", "label"),
    ("SessionId", "session_id"),
    ("ReplyToSessionId", "reply_to_session_id"),
    ("ContentType", "content_type"),
)

# --- reading


def read_rule(root: Element, name: str) -> RuleDescription:
    """`name` counts when the element does not say its own; when both do, they must agree."""
    own = root.child("Name")
    if own is not None and own.text and name and own.text.casefold() != name.casefold():
        raise ArgumentRefused(f"the address names the rule '{name}' and its description '{own.text}'; they must agree")
    if not name and own is not None:
        name = own.text
    filter_element, action_element = root.child("Filter"), root.child("Action")
    return RuleDescription(
        name=name,
        filter=TrueFilter() if filter_element is None or filter_element.is_nil else _read_filter(filter_element),
        action=None if action_element is None or action_element.is_nil else _read_action(action_element),
    )


def _read_filter(root: Element) -> Filter:
    kind = root.xsi_type
    if kind == "TrueFilter":
        return TrueFilter()
    if kind == "FalseFilter":
        return FalseFilter()
    if kind == "SqlFilter":
        return SqlFilter(expression=_expression(root), parameters=_read_pairs(root.child("Parameters")))
    if kind == "CorrelationFilter":
        texts = {field: _text_or_none(root.child(tag)) for tag, field in _CORRELATION}
        return CorrelationFilter(**texts, properties=_read_pairs(root.child("Properties")))
    raise ArgumentRefused(f"Filter has the type '{kind}'; allowed are SqlFilter, TrueFilter, FalseFilter and CorrelationFilter")


def _read_action(root: Element) -> SqlAction | None:
    kind = root.xsi_type
    if kind in ("EmptyRuleAction", ""):
        return None
    if kind == "SqlRuleAction":
        return SqlAction(expression=_expression(root), parameters=_read_pairs(root.child("Parameters")))
    raise ArgumentRefused(f"Action has the type '{kind}'; allowed are EmptyRuleAction and SqlRuleAction")


def _expression(root: Element) -> str:
    found = root.child("SqlExpression")
    if found is None or found.is_nil:
        raise ArgumentRefused(f"{root.name} of the type {root.xsi_type} needs an SqlExpression")
    return found.text


def _text_or_none(found: Element | None) -> str | None:
    return None if found is None or found.is_nil else found.text


def _read_pairs(root: Element | None) -> tuple[tuple[str, object], ...]:
    if root is None or root.is_nil:
        return ()
    pairs: dict[str, object] = {}
    for pair in root:
        key, value = pair.child("Key"), pair.child("Value")
        if pair.name != _PAIR or key is None or value is None:
            raise XmlRefused(f"<{root.name}> may contain only <{_PAIR}> with <Key> and <Value>, found <{pair.name[:60]}>")
        if key.text in pairs:
            raise XmlRefused(f"<{root.name}> has the key '{key.text[:60]}' twice")
        pairs[key.text] = None if value.is_nil else _read_value(key.text, value)
    return tuple(pairs.items())


def _read_boolean(key: str, text: str) -> bool:
    folded = text.strip().casefold()
    if folded not in ("true", "false", "1", "0"):
        raise ValueError
    return folded in ("true", "1")


def _read_integer(key: str, text: str) -> int:
    if len(text) > 24:
        raise ValueError
    return int(text)


_READERS: Final[dict[str, Callable[[str, str], object]]] = {
    "string": lambda key, text: text,
    "boolean": _read_boolean,
    **dict.fromkeys(
        ("int", "long", "short", "byte", "integer", "unsignedInt", "unsignedLong", "unsignedShort", "unsignedByte"), _read_integer
    ),
    "double": lambda key, text: float(text),
    "float": lambda key, text: float(text),
    "decimal": lambda key, text: decimal.Decimal(text.strip()),
    "dateTime": parse_datetime,
    "duration": lambda key, text: timedelta(microseconds=parse_timespan(key, text)),
    "guid": lambda key, text: uuid.UUID(text.strip()),
}


def _read_value(key: str, value: Element) -> object:
    kind = value.xsi_type or "string"
    reader = _READERS.get(kind)
    if reader is None:
        raise ArgumentRefused(f"the value of '{key[:60]}' has the type '{kind[:60]}'; allowed are {', '.join(sorted(_READERS))}")
    try:
        return reader(key, value.text)
    except (ValueError, ArithmeticError):
        raise ArgumentRefused(f"the value of '{key[:60]}' is '{value.text[:60]}', which is no {kind}") from None


# --- writing: clients look for the prefixes `i` and `d6p1` by name


def write_rule(rule: RuleDescription) -> str:
    """The content of a RuleDescription; the root declares the prefix `i`."""
    name, created = element("Name", rule.name), element("CreatedAt", format_instant(rule.created_at_ms))
    return _write_filter(rule.filter) + _write_action(rule.action) + created + name


def _write_filter(value: Filter) -> str:
    if isinstance(value, CorrelationFilter):
        fields = "".join(element(tag, getattr(value, field)) for tag, field in _CORRELATION)
        return f'<Filter i:type="CorrelationFilter">{fields}{_write_pairs("Properties", value.properties)}</Filter>'
    if isinstance(value, SqlFilter):
        return f'<Filter i:type="SqlFilter">{_write_sql(value.expression, value.parameters)}</Filter>'
    if isinstance(value, TrueFilter):
        return f'<Filter i:type="TrueFilter">{_write_sql("1=1", ())}</Filter>'
    return f'<Filter i:type="FalseFilter">{_write_sql("1=0", ())}</Filter>'


def _write_action(value: SqlAction | None) -> str:
    if value is None:
        return '<Action i:type="EmptyRuleAction"/>'
    return f'<Action i:type="SqlRuleAction">{_write_sql(value.expression, value.parameters)}</Action>'


def _write_sql(expression: str, parameters: tuple[tuple[str, object], ...]) -> str:
    compatibility = element("CompatibilityLevel", 20)
    return element("SqlExpression", expression) + compatibility + _write_pairs("Parameters", parameters)


def _write_pairs(name: str, pairs: tuple[tuple[str, object], ...]) -> str:
    if not pairs:
        return ""
    items = "".join(f"<{_PAIR}>{element('Key', key)}{_write_value(value)}</{_PAIR}>" for key, value in pairs)
    return f"<{name}>{items}</{name}>"


def _write_value(value: object) -> str:
    if value is None:
        return '<Value i:nil="true"/>'
    kind, text = _typed(value)
    return f'<Value i:type="d6p1:{kind}" xmlns:d6p1="http://www.w3.org/2001/XMLSchema">{escaped(text)}</Value>'


def _typed(value: object) -> tuple[str, str]:
    if isinstance(value, bool):
        return "boolean", "true" if value else "false"
    if isinstance(value, int):
        return "int" if _INT32_MIN <= value <= _INT32_MAX else "long", str(int(value))
    if isinstance(value, float):
        return "double", _double(float(value))
    if isinstance(value, datetime):
        return "dateTime", format_datetime(value)
    if isinstance(value, timedelta):
        return "duration", format_microseconds(value // timedelta(microseconds=1))
    if isinstance(value, decimal.Decimal):
        return "decimal", str(value)
    if isinstance(value, uuid.UUID):
        return "guid", str(value)
    return "string", str(value)


def _double(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "INF" if value > 0 else "-INF"
    return repr(value)
