"""A message as rules see it: system and user properties as Python values, decoded only when a rule asks."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Final
from uuid import UUID


class PropertyKind(enum.Enum):
    TEXT = "text"
    INTEGER = "integer"
    BOOLEAN = "boolean"
    INSTANT = "instant"
    """Held as milliseconds UTC, seen by expressions as a date and time."""
    DURATION = "duration"
    """Held as milliseconds, seen by expressions as a time span."""
    GUID = "guid"


class SystemProperty:
    """A property the broker knows by name: what it holds and whether an action may set it."""

    __slots__ = ("kind", "name", "settable")

    def __init__(self, name: str, kind: PropertyKind, settable: bool) -> None:
        self.name: str = name
        self.kind: PropertyKind = kind
        self.settable: bool = settable


_TEXT: Final = PropertyKind.TEXT
_INTEGER: Final = PropertyKind.INTEGER
_INSTANT: Final = PropertyKind.INSTANT

SYSTEM_PROPERTIES: Final[tuple[SystemProperty, ...]] = (
    SystemProperty("ContentType", _TEXT, True),
    SystemProperty("CorrelationId", _TEXT, True),
    SystemProperty("DeadLetterSource", _TEXT, False),
    SystemProperty("DeliveryCount", _INTEGER, False),
    SystemProperty("EnqueuedSequenceNumber", _INTEGER, False),
    SystemProperty("EnqueuedTimeUtc", _INSTANT, False),
    SystemProperty("ExpiresAtUtc", _INSTANT, False),
    SystemProperty("ForcePersistence", PropertyKind.BOOLEAN, True),
    SystemProperty("Label", _TEXT, True),
    SystemProperty("LockedUntilUtc", _INSTANT, False),
    SystemProperty("LockToken", PropertyKind.GUID, False),
    SystemProperty("MessageId", _TEXT, True),
    SystemProperty("PartitionKey", _TEXT, True),
    SystemProperty("ReplyTo", _TEXT, True),
    SystemProperty("ReplyToSessionId", _TEXT, True),
    SystemProperty("ScheduledEnqueueTimeUtc", _INSTANT, True),
    SystemProperty("SequenceNumber", _INTEGER, False),
    SystemProperty("SessionId", _TEXT, True),
    SystemProperty("Size", _INTEGER, False),
    SystemProperty("State", _TEXT, False),
    SystemProperty("TimeToLive", PropertyKind.DURATION, True),
    SystemProperty("To", _TEXT, True),
    SystemProperty("ViaPartitionKey", _TEXT, True),
)

_LATER_NAMES: Final = {
    "Subject": "Label",
    "EnqueuedTime": "EnqueuedTimeUtc",
    "ExpiresAt": "ExpiresAtUtc",
    "LockedUntil": "LockedUntilUtc",
    "ScheduledEnqueueTime": "ScheduledEnqueueTimeUtc",
    "TransactionPartitionKey": "ViaPartitionKey",
}
"""What the current SDKs call the same properties."""


def fold(name: str) -> str:
    """Property names are equal when they differ in case only, character by character."""
    if name.isascii():
        return name.lower()
    return "".join([c.lower() if len(c.lower()) == 1 else c for c in name])


SYSTEM_BY_NAME: Final[dict[str, SystemProperty]] = {fold(p.name): p for p in SYSTEM_PROPERTIES}
for _later, _name in _LATER_NAMES.items():
    SYSTEM_BY_NAME[fold(_later)] = SYSTEM_BY_NAME[fold(_name)]


def id_text(value: object) -> object:
    """Message ids may come as text, number, GUID or bytes; rules compare them as text."""
    if isinstance(value, UUID | int):
        return str(value)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value.hex()
    return value


class MessageView:
    """Both loaders are called at most once, and only when a rule needs that scope.

    System properties are keyed by canonical name (SYSTEM_PROPERTIES); instants and durations are integers in milliseconds;
    what the message does not have is absent or None. User properties are keyed as the sender wrote them; values are
    None, bool, int, float, str, UUID, datetime (aware) or timedelta, or anything else, which no operator can use.
    """

    __slots__ = ("_folded", "_load_system", "_load_user", "system", "user")

    def __init__(
        self, load_system: Callable[[], dict[str, object]], load_user: Callable[[], dict[str, object]], exact: bool = False
    ) -> None:
        self._load_system: Callable[[], dict[str, object]] = load_system
        self._load_user: Callable[[], dict[str, object]] = load_user
        self._folded: dict[str, str] | None = {} if exact else None
        """Names by how they are looked for; none, if their case matters."""
        self.system: dict[str, object] | None = None
        """None until somebody asked: call `system_properties`."""
        self.user: dict[str, object] | None = None
        """None until somebody asked: call `user_properties`."""

    def system_properties(self) -> dict[str, object]:
        system = self.system
        if system is None:
            system = self._load_system()
            for name in ("MessageId", "CorrelationId"):
                value = system.get(name)
                if value is not None and not isinstance(value, str):
                    system[name] = id_text(value)
            self.system = system
        return system

    def user_properties(self) -> dict[str, object]:
        user = self.user
        if user is None:
            user = self._load_user()
            self.user = user
        return user

    def key_of(self, folded_name: str) -> str | None:
        """The name as the sender wrote it, found without regard to case; the first, where several differ in case only."""
        folded = self._folded
        if folded is None:
            folded = {}
            for key in self.user_properties():
                folded.setdefault(fold(key), key)
            self._folded = folded
        return folded.get(folded_name)

    def keys_of(self, folded_name: str) -> list[str]:
        """All names as the sender wrote them: more than one if some differ in case only."""
        key = self.key_of(folded_name)
        if key is None:
            return []
        folded = self._folded
        user = self.user_properties()
        if folded is not None and len(folded) == len(user):
            return [key]
        return [other for other in user if fold(other) == folded_name]

    def find_user(self, name: str, folded_name: str) -> object:
        """The slow way, when there is no value under the very name the rule wrote. None when absent."""
        user = self.user_properties()
        key: str | None = name if name in user else self.key_of(folded_name)
        return None if key is None else user[key]

    def user_value(self, name: str) -> object:
        value = self.user_properties().get(name)
        if value is None:
            return self.find_user(name, fold(name))
        return value

    def has_user(self, name: str) -> bool:
        return name in self.user_properties() or self.key_of(fold(name)) is not None

    def scratch(self) -> MessageView:
        """A copy to change, for an action: this view keeps what it has."""
        return view_of(dict(self.system_properties()), dict(self.user_properties()))

    def set_system(self, name: str, value: object) -> None:
        self.system_properties()[name] = value

    def set_user(self, name: str, value: object) -> str:
        """Sets the property under the name it already has, or else under this one; says which."""
        user = self.user_properties()
        key: str | None = name if name in user else self.key_of(fold(name))
        if key is None:
            key = name
            self._folded = None
        user[key] = value
        return key

    def remove_user(self, name: str) -> str | None:
        """Says under which name the property was, None when it was not there."""
        user = self.user_properties()
        key: str | None = name if name in user else self.key_of(fold(name))
        if key is not None:
            del user[key]
            self._folded = None
        return key


def exact_view(load_user: Callable[[], dict[str, object]]) -> MessageView:
    """For selectors: there is one scope, and names differ if their case does."""
    return MessageView(dict, load_user, exact=True)


def view_of(system: dict[str, object], user: dict[str, object]) -> MessageView:
    """A view of properties that are already at hand."""
    return MessageView(lambda: system, lambda: user)
