"""What a client asks for in an ATOM entry: which kind of entity, and which properties it set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from tandem.gateway.http.atom.rules import read_rule
from tandem.gateway.http.xml import Element, XmlRefused, parse
from tandem.gateway.http.xml_values import parse_duration
from tandem.model.entity import AuthorizationRule, EntityStatus, Right, RuleDescription
from tandem.model.errors import ArgumentRefused


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedEntity:
    """Only what the request set: on create the rest takes its default, on update it stays as it is."""

    kind: str
    """The name of the element: QueueDescription, TopicDescription, SubscriptionDescription or RuleDescription."""
    fields: dict[str, Any] = field(default_factory=dict)
    """By the names of the model's fields."""
    max_message_kilobytes: int | None = None
    default_rule: RuleDescription | None = None
    rule: RuleDescription | None = None


def read_entry(body: bytes, name: str) -> WantedEntity:
    """Take an `<entry>` apart. `name` is the rule's, from the address."""
    root = parse(body)
    if root.name != "entry":
        raise XmlRefused(f"the body must be an ATOM <entry>, found <{root.name[:60]}>")
    content = root.child("content")
    if content is None or len(content.children) != 1:
        raise XmlRefused("the entry must have one <content> with one description in it")
    description = content.children[0]
    if description.name == "RuleDescription":
        return WantedEntity(kind=description.name, rule=read_rule(description, name))
    readers = _READERS.get(description.name)
    if readers is None:
        allowed = ", ".join([*_READERS, "RuleDescription"])
        raise ArgumentRefused(f"the entry describes a <{description.name[:60]}>; allowed are {allowed}")
    return _read_description(description, readers)


def _read_description(description: Element, readers: dict[str, tuple[str, Callable[[str, Element], object]]]) -> WantedEntity:
    seen: set[str] = set()
    fields: dict[str, Any] = {}
    kilobytes: int | None = None
    default_rule: RuleDescription | None = None
    for item in description:
        if item.name in seen:
            raise XmlRefused(f"<{description.name}> contains <{item.name[:60]}> twice")
        seen.add(item.name)
        if item.is_nil:
            continue
        if item.name == "MaxMessageSizeInKilobytes":
            kilobytes = _integer(item.name, item)
        elif item.name == "DefaultRuleDescription" and description.name == "SubscriptionDescription":
            default_rule = read_rule(item, "")
        elif item.name in readers:
            field_name, read = readers[item.name]
            fields[field_name] = read(item.name, item)
        # Anything else is a count or an instant that only we write, or a property of a version still to come.
    return WantedEntity(kind=description.name, fields=fields, max_message_kilobytes=kilobytes, default_rule=default_rule)


# --- values


def _boolean(prop: str, item: Element) -> bool:
    text = item.text.strip().casefold()
    if text not in ("true", "false", "1", "0"):
        raise ArgumentRefused(f"{prop} is '{_shown(item)}'; true or false is needed")
    return text in ("true", "1")


def _integer(prop: str, item: Element) -> int:
    text = item.text.strip()
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
        raise ArgumentRefused(f"{prop} is '{_shown(item)}'; a whole number is needed")
    return int(text)


def _duration(prop: str, item: Element) -> int:
    return parse_duration(prop, item.text)


def _text(prop: str, item: Element) -> str | None:
    return item.text or None


def _status(prop: str, item: Element) -> EntityStatus:
    for status in EntityStatus:
        if status.value.casefold() == item.text.strip().casefold():
            return status
    raise ArgumentRefused(f"{prop} is '{_shown(item)}'; allowed are {', '.join(s.value for s in EntityStatus)}")


def _authorization_rules(prop: str, item: Element) -> tuple[AuthorizationRule, ...]:
    for child in item:
        if child.name != "AuthorizationRule":
            raise XmlRefused(f"<{prop}> may contain only <AuthorizationRule>, found <{child.name[:60]}>")
    return tuple(_authorization_rule(child) for child in item)


def _authorization_rule(item: Element) -> AuthorizationRule:
    if item.xsi_type not in ("", "SharedAccessAuthorizationRule"):
        raise ArgumentRefused(f"an authorization rule has the type '{item.xsi_type[:60]}'; only SharedAccessAuthorizationRule is allowed")
    rights = item.child("Rights")
    texts = {tag: (found.text if (found := item.child(tag)) is not None else "") for tag in ("KeyName", "PrimaryKey", "SecondaryKey")}
    return AuthorizationRule(
        key_name=texts["KeyName"],
        primary_key=texts["PrimaryKey"],
        secondary_key=texts["SecondaryKey"],
        rights=frozenset(_right(right) for right in rights) if rights is not None else frozenset(),
    )


def _right(item: Element) -> Right:
    for right in Right:
        if right.value.casefold() == item.text.strip().casefold():
            return right
    raise ArgumentRefused(f"AccessRights is '{_shown(item)}'; allowed are {', '.join(r.value for r in Right)}")


def _shown(item: Element) -> str:
    return item.text.strip()[:60]


_COMMON: Final[dict[str, tuple[str, Callable[[str, Element], object]]]] = {
    "DefaultMessageTimeToLive": ("default_message_time_to_live_ms", _duration),
    "EnableBatchedOperations": ("enable_batched_operations", _boolean),
    "Status": ("status", _status),
    "AutoDeleteOnIdle": ("auto_delete_on_idle_ms", _duration),
    "UserMetadata": ("user_metadata", _text),
}
_CARRIER: Final[dict[str, tuple[str, Callable[[str, Element], object]]]] = {
    **_COMMON,
    "MaxSizeInMegabytes": ("max_size_megabytes", _integer),
    "RequiresDuplicateDetection": ("requires_duplicate_detection", _boolean),
    "DuplicateDetectionHistoryTimeWindow": ("duplicate_detection_history_ms", _duration),
    "AuthorizationRules": ("authorization_rules", _authorization_rules),
    "EnablePartitioning": ("enable_partitioning", _boolean),
    "EnableExpress": ("enable_express", _boolean),
}
_RECEIVABLE: Final[dict[str, tuple[str, Callable[[str, Element], object]]]] = {
    "LockDuration": ("lock_duration_ms", _duration),
    "RequiresSession": ("requires_session", _boolean),
    "DeadLetteringOnMessageExpiration": ("dead_lettering_on_message_expiration", _boolean),
    "MaxDeliveryCount": ("max_delivery_count", _integer),
    "ForwardTo": ("forward_to", _text),
    "ForwardDeadLetteredMessagesTo": ("forward_dead_lettered_messages_to", _text),
}
_READERS: Final[dict[str, dict[str, tuple[str, Callable[[str, Element], object]]]]] = {
    "QueueDescription": {**_CARRIER, **_RECEIVABLE},
    "TopicDescription": {
        **_CARRIER,
        "FilteringMessagesBeforePublishing": ("filtering_messages_before_publishing", _boolean),
        "SupportOrdering": ("support_ordering", _boolean),
    },
    "HybridConnectionDescription": {
        "RequiresClientAuthorization": ("requires_client_authorization", _boolean),
        "UserMetadata": ("user_metadata", _text),
        "AuthorizationRules": ("authorization_rules", _authorization_rules),
    },
    "SubscriptionDescription": {
        **_COMMON,
        **_RECEIVABLE,
        "DeadLetteringOnFilterEvaluationExceptions": ("dead_lettering_on_filter_evaluation_exceptions", _boolean),
    },
}
