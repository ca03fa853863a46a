"""Properties of entities as operators write them (`lock-duration=30s`) and as the administration API holds them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Annotated, Any, Final

import typer

from tandem.cli.configuration.setting_types import Duration, Flag, Integer, InvalidSetting, SettingType
from tandem.cli.operations.output import plain
from tandem.model.entity import MAX_DURATION_MS
from tandem.model.errors import ConfigurationError

Properties = Annotated[
    list[str] | None,
    typer.Option("--property", "-p", help="name=value, for instance lock-duration=30s or requires-session=true; an unknown one lists all."),
]

_DURATION: Final = Duration(0, MAX_DURATION_MS)
_QUEUE: Final[dict[str, SettingType | None]] = {
    "auto_delete_on_idle": _DURATION,
    "dead_lettering_on_message_expiration": Flag(),
    "default_message_time_to_live": _DURATION,
    "duplicate_detection_history_time_window": _DURATION,
    "enable_batched_operations": Flag(),
    "enable_express": Flag(),
    "enable_partitioning": Flag(),
    "forward_dead_lettered_messages_to": None,
    "forward_to": None,
    "lock_duration": _DURATION,
    "max_delivery_count": Integer(1),
    "max_message_size_in_kilobytes": Integer(1),
    "max_size_in_megabytes": Integer(1),
    "requires_duplicate_detection": Flag(),
    "requires_session": Flag(),
    "status": None,
    "user_metadata": None,
}
_TOPIC_ONLY: Final[dict[str, SettingType | None]] = {"filtering_messages_before_publishing": Flag(), "support_ordering": Flag()}
_NOT_OF_TOPICS: Final = frozenset(
    {
        "dead_lettering_on_message_expiration",
        "forward_dead_lettered_messages_to",
        "forward_to",
        "lock_duration",
        "max_delivery_count",
        "requires_session",
    }
)
_NOT_OF_SUBSCRIPTIONS: Final = frozenset(
    {
        "duplicate_detection_history_time_window",
        "enable_express",
        "enable_partitioning",
        "max_message_size_in_kilobytes",
        "max_size_in_megabytes",
        "requires_duplicate_detection",
    }
)
PROPERTIES: Final[Mapping[str, Mapping[str, SettingType | None]]] = {
    "queue": _QUEUE,
    "topic": {name: kind for name, kind in _QUEUE.items() if name not in _NOT_OF_TOPICS} | _TOPIC_ONLY,
    "subscription": {name: kind for name, kind in _QUEUE.items() if name not in _NOT_OF_SUBSCRIPTIONS}
    | {"dead_lettering_on_filter_evaluation_exceptions": Flag()},
}
"""Of each kind of entity; None: text as it is."""


def read_properties(entity_kind: str, pairs: Iterable[str]) -> dict[str, Any]:
    """As the SDK's methods take them."""
    known = PROPERTIES[entity_kind]
    found: dict[str, Any] = {}
    for pair in pairs:
        name, sign, text = pair.partition("=")
        key = name.strip().replace("-", "_").casefold()
        if not sign or key not in known:
            names = ", ".join(one.replace("_", "-") for one in sorted(known))
            raise ConfigurationError(f"--property {pair}: a {entity_kind} has no such property; write name=value, with one of: {names}")
        found[key] = _value(pair, known[key], text)
    return found


def _value(pair: str, kind: SettingType | None, text: str) -> object:
    if kind is None:
        return text or None
    try:
        value = kind.read_text(text)
    except InvalidSetting:
        raise ConfigurationError(f"--property {pair}: takes {kind.allowed}") from None
    if isinstance(kind, Duration):
        assert isinstance(value, int)
        return timedelta.max if value >= MAX_DURATION_MS else timedelta(milliseconds=value)
    return value


def described(entity_kind: str, properties: Any) -> dict[str, Any]:
    """What the administration API says of an entity's settings."""
    found = {"name": properties.name}
    for name in PROPERTIES[entity_kind]:
        value = getattr(properties, name, None)
        if value is not None:
            found[name] = plain(value)
    return found


def counted(runtime: Any) -> dict[str, Any]:
    """What it says of what is in it."""
    names = (one for one in dir(runtime) if not one.startswith("_") and one != "name" and hasattr(type(runtime), one))
    found = {name: plain(value) for name in sorted(names) if not callable(value := getattr(runtime, name))}
    return {name: value for name, value in found.items() if value is not None}
