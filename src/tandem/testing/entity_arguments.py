"""Properties of entities as a test writes them: the official administration client's names, seconds or timedeltas for durations."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any, Final, TypeVar

from tandem.gateway.http.xml_values import parse_duration
from tandem.model.entity import EntityStatus, QueueDescription, SubscriptionDescription, TopicDescription

_D = TypeVar("_D", QueueDescription, TopicDescription, SubscriptionDescription)

_RENAMED: Final = {
    "duplicate_detection_history_time_window": "duplicate_detection_history",
    "max_size_in_megabytes": "max_size_megabytes",
    "enable_filtering_messages_before_publishing": "filtering_messages_before_publishing",
}
_KILOBYTES: Final = "max_message_size_in_kilobytes"
_NOT_WISHED: Final = frozenset({"name", "topic", "created_at_ms", "updated_at_ms"})


def duration_ms(name: str, value: object) -> int:
    """Milliseconds of a timedelta, a number of seconds, or an ISO 8601 text such as PT30S."""
    if isinstance(value, datetime.timedelta):
        return value // datetime.timedelta(milliseconds=1)
    if isinstance(value, str):
        return parse_duration(name, value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return round(value * 1000)
    raise TypeError(f"{name}: a timedelta, a number of seconds or a text like PT30S is needed, not {value!r}")


def describe(cls: type[_D], names: dict[str, str], properties: dict[str, Any]) -> _D:
    """A description with these properties; an unknown one is an error that lists what there is."""
    fields = {field.name for field in dataclasses.fields(cls)} - _NOT_WISHED
    values: dict[str, Any] = {}
    for name, value in properties.items():
        plain = _RENAMED.get(name, name)
        if plain == _KILOBYTES and "max_message_bytes" in fields:
            values["max_message_bytes"] = value * 1024
        elif f"{plain}_ms" in fields:
            values[f"{plain}_ms"] = duration_ms(name, value)
        elif plain == "status":
            values["status"] = value if isinstance(value, EntityStatus) else EntityStatus(str(value))
        elif plain in fields:
            values[plain] = value
        else:
            known = ", ".join(sorted(field.removesuffix("_ms") for field in fields))
            raise TypeError(f"{name!r} is not a property of a {cls.__name__.removesuffix('Description').lower()}; there are {known}")
    values.update(names)
    return cls(**values)
