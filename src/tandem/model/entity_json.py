"""Entity descriptions as JSON and back, without loss; what does not read back exactly is refused."""

from __future__ import annotations

import base64
import dataclasses
import datetime
import decimal
import enum
import json
import uuid
from collections.abc import Callable
from typing import Any, Final, TypeVar

from tandem.model.entity import (
    AuthorizationRule,
    CorrelationFilter,
    EntityStatus,
    FalseFilter,
    Filter,
    HybridConnectionDescription,
    QueueDescription,
    Right,
    RuleDescription,
    SqlAction,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
    TrueFilter,
)

EntityDescription = QueueDescription | TopicDescription | SubscriptionDescription


class EntityKind(enum.Enum):
    QUEUE = "queue"
    TOPIC = "topic"
    SUBSCRIPTION = "subscription"


_CLASSES: Final[dict[EntityKind, type[EntityDescription]]] = {
    EntityKind.QUEUE: QueueDescription,
    EntityKind.TOPIC: TopicDescription,
    EntityKind.SUBSCRIPTION: SubscriptionDescription,
}


class NotADescription(ValueError):
    """The text is not a description of that kind. Says which key is wrong."""


def kind_of(description: EntityDescription) -> EntityKind:
    for kind, cls in _CLASSES.items():
        if isinstance(description, cls):
            return kind
    raise TypeError(f"not an entity description: {type(description).__name__}")


def dump_entity(description: EntityDescription) -> str:
    """JSON without the rules of a subscription: those are kept one by one."""
    fields = {f.name: getattr(description, f.name) for f in dataclasses.fields(description) if f.name != "rules"}
    fields["status"] = description.status.value
    if not isinstance(description, SubscriptionDescription):
        fields["authorization_rules"] = [_dump_authorization(rule) for rule in description.authorization_rules]
    return _to_text(fields)


def load_entity(kind: EntityKind, text: str, rules: tuple[RuleDescription, ...] = ()) -> EntityDescription:
    """The inverse. `rules` are put into a subscription."""
    cls = _CLASSES[kind]
    fields = _from_text(text)
    if "rules" in fields:
        raise NotADescription("rules are not part of an entity's JSON")
    _convert(fields, "status", EntityStatus)
    if kind is not EntityKind.SUBSCRIPTION:
        _convert(fields, "authorization_rules", lambda items: tuple(_load_authorization(item) for item in items))
    description = _build(cls, fields)
    if isinstance(description, SubscriptionDescription):
        return dataclasses.replace(description, rules=rules)
    return description


def path_of(description: EntityDescription) -> str:
    """As clients name it."""
    return f"{description.topic}/Subscriptions/{description.name}" if isinstance(description, SubscriptionDescription) else description.name


def dump_without_keys(description: EntityDescription) -> str:
    """All of an entity that is no secret: of its authorization rules the names alone. Rules of a subscription are kept one by one."""
    names: list[str] = []
    if not isinstance(description, SubscriptionDescription):
        names = [rule.key_name for rule in description.authorization_rules]
        description = dataclasses.replace(description, authorization_rules=())
    return _to_text({"kind": kind_of(description).value, "keys_of": names, "description": dump_entity(description)})


def load_without_keys(text: str) -> tuple[EntityDescription, tuple[str, ...]]:
    """(the entity without authorization rules, the names of those)."""
    fields = _from_text(text)
    try:
        return load_entity(EntityKind(fields["kind"]), fields["description"]), tuple(map(str, fields["keys_of"]))
    except (KeyError, TypeError) as error:
        raise NotADescription(f"not an entity without keys: {error!r}") from error


def kind_and_path_in(text: str) -> tuple[str, str]:
    """Of what `dump_without_keys` wrote, also in a later version that describes entities in more words."""
    try:
        fields = _from_text(text)
        described = _from_text(fields["description"])
        name = str(described["name"])
        return str(fields["kind"]), f"{described['topic']}/Subscriptions/{name}" if "topic" in described else name
    except (KeyError, TypeError) as error:
        raise NotADescription(f"not an entity without keys: {error!r}") from error


def dump_relay(description: HybridConnectionDescription) -> str:
    fields = {f.name: getattr(description, f.name) for f in dataclasses.fields(description)}
    fields["authorization_rules"] = [_dump_authorization(rule) for rule in description.authorization_rules]
    return _to_text(fields)


def load_relay(text: str) -> HybridConnectionDescription:
    fields = _from_text(text)
    _convert(fields, "authorization_rules", lambda items: tuple(_load_authorization(item) for item in items))
    return _build(HybridConnectionDescription, fields)


def dump_rule(rule: RuleDescription) -> str:
    action = None
    if rule.action is not None:
        action = {"expression": rule.action.expression, "parameters": _dump_pairs(rule.action.parameters)}
    return _to_text({"name": rule.name, "filter": _dump_filter(rule.filter), "action": action, "created_at_ms": rule.created_at_ms})


def load_rule(text: str) -> RuleDescription:
    fields = _from_text(text)
    _convert(fields, "filter", _load_filter)
    if fields.get("action") is not None:
        _convert(fields, "action", _load_action)
    return _build(RuleDescription, fields)


def dump_authorization_rule(rule: AuthorizationRule) -> str:
    return _to_text(_dump_authorization(rule))


def load_authorization_rule(text: str) -> AuthorizationRule:
    return _load_authorization(_from_text(text))


# --- parts


def _dump_authorization(rule: AuthorizationRule) -> dict[str, object]:
    fields: dict[str, object] = {f.name: getattr(rule, f.name) for f in dataclasses.fields(rule)}
    fields["rights"] = sorted(right.value for right in rule.rights)
    return fields


def _load_authorization(item: Any) -> AuthorizationRule:
    fields = dict(_a_dict(item))
    _convert(fields, "rights", lambda names: frozenset(Right(name) for name in names))
    return _build(AuthorizationRule, fields)


_FILTERS: Final[dict[str, type[Filter]]] = {
    "sql": SqlFilter,
    "true": TrueFilter,
    "false": FalseFilter,
    "correlation": CorrelationFilter,
}


def _dump_filter(value: Filter) -> dict[str, object]:
    kind = next(name for name, cls in _FILTERS.items() if isinstance(value, cls))
    fields: dict[str, object] = {"kind": kind}
    for f in dataclasses.fields(value):
        item = getattr(value, f.name)
        fields[f.name] = _dump_pairs(item) if f.name in ("parameters", "properties") else item
    return fields


def _load_filter(item: Any) -> Filter:
    fields = dict(_a_dict(item))
    cls = _FILTERS[fields.pop("kind", "")]
    for name in ("parameters", "properties"):
        _convert(fields, name, _load_pairs)
    return _build(cls, fields)


def _load_action(item: Any) -> SqlAction:
    fields = dict(_a_dict(item))
    _convert(fields, "parameters", _load_pairs)
    return _build(SqlAction, fields)


# --- values of rule parameters and correlation properties: AMQP knows more types than JSON

_DUMPERS: Final[tuple[tuple[type, str, Callable[[Any], object]], ...]] = (
    (bool, "boolean", bool),
    (int, "int", str),
    (float, "double", float.hex),
    (str, "string", str),
    (datetime.datetime, "dateTime", datetime.datetime.isoformat),
    (datetime.timedelta, "duration", lambda d: [d.days, d.seconds, d.microseconds]),
    (uuid.UUID, "uuid", str),
    (decimal.Decimal, "decimal", str),
    (bytes, "binary", lambda b: base64.b64encode(b).decode()),
)
_LOADERS: Final[dict[str, Callable[[Any], object]]] = {
    "boolean": bool,
    "int": int,
    "double": float.fromhex,
    "string": str,
    "dateTime": datetime.datetime.fromisoformat,
    "duration": lambda parts: datetime.timedelta(*parts),
    "uuid": uuid.UUID,
    "decimal": decimal.Decimal,
    "binary": lambda text: base64.b64decode(text, validate=True),
}


def _dump_pairs(pairs: tuple[tuple[str, object], ...]) -> list[list[object]]:
    return [[key, *_dump_value(key, value)] for key, value in pairs]


def _dump_value(key: str, value: object) -> tuple[str, object]:
    if value is None:
        return "null", None
    for cls, tag, dump in _DUMPERS:
        if isinstance(value, cls):
            return tag, dump(value)
    raise NotADescription(f"{key}: a value of type {type(value).__name__} cannot be kept")


def _load_pairs(items: Any) -> tuple[tuple[str, object], ...]:
    return tuple((str(key), None if tag == "null" else _LOADERS[tag](value)) for key, tag, value in items)


# --- JSON


def _to_text(fields: dict[str, object]) -> str:
    return json.dumps(fields, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _from_text(text: str) -> dict[str, Any]:
    try:
        return _a_dict(json.loads(text))
    except ValueError as error:
        raise NotADescription(f"not JSON: {error}") from error


def _a_dict(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise NotADescription(f"an object is needed, not {type(value).__name__}")
    return value


def _convert(fields: dict[str, Any], name: str, convert: Callable[[Any], object]) -> None:
    if name in fields:
        try:
            fields[name] = convert(fields[name])
        except (ValueError, TypeError, KeyError, ArithmeticError) as error:
            raise NotADescription(f"{name}: {error}") from error


_C = TypeVar("_C")


def _build(cls: type[_C], fields: dict[str, Any]) -> _C:
    try:
        built = cls(**fields)
    except TypeError as error:  # a missing or an unknown key
        raise NotADescription(str(error)) from error
    for f in dataclasses.fields(built):  # type: ignore[arg-type]
        _check(f.name, str(f.type), getattr(built, f.name))
    return built


_SCALARS: Final[dict[str, type]] = {"int": int, "bool": bool, "str": str}


def _check(name: str, declared: str, value: object) -> None:
    """JSON does not know our types: a text where a number belongs must not wait until it is used."""
    scalar = declared.removesuffix(" | None")
    expected = _SCALARS.get(scalar)
    if expected is None or (value is None and declared.endswith(" | None")):
        return
    if type(value) is not expected:
        raise NotADescription(f"{name}: {declared} is needed, found {value!r}")
