"""A stored message as rules see it, and what a rule's action makes of it."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any, Final

from tandem.amqp.codec import decode_value, skip_value
from tandem.amqp.encoder import encode_value
from tandem.amqp.errors import DecodeError
from tandem.amqp.message import DATA, DecodedMessage, data_section, decode_message, scan
from tandem.amqp.types import Described, Symbol, Timestamp
from tandem.broker.rules.message_view import MessageView
from tandem.broker.rules.rules import REMOVED
from tandem.model.message import NO_TTL, Message

_PROPERTY_NAMES: Final = {
    "MessageId": "message-id",
    "To": "to",
    "Label": "subject",
    "ReplyTo": "reply-to",
    "CorrelationId": "correlation-id",
    "ContentType": "content-type",
    "SessionId": "group-id",
    "ReplyToSessionId": "reply-to-group-id",
}
_SCHEDULED: Final = Symbol("x-opt-scheduled-enqueue-time")
_ANNOTATION_NAMES: Final = {"PartitionKey": Symbol("x-opt-partition-key"), "ViaPartitionKey": Symbol("x-opt-via-partition-key")}
_FIRST_NUMBER: Final = Symbol("x-opt-enqueue-sequence-number")
_DEAD_LETTER_SOURCE: Final = Symbol("x-opt-deadletter-source")
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_TIMESPAN: Final = "com.microsoft:timespan"
_UNSET: Final = object()


def view_of_message(message: Message, now: int) -> MessageView:
    """Decoded when the first rule asks, at most once."""
    return MessageView(_System(message, now).load, _User(message).load)


def as_text(value: object) -> object:
    """An id that is binary as the text it stands for, if it is one: the Python SDK writes so when it sends again what it received."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    return value


class _System:
    def __init__(self, message: Message, now: int) -> None:
        self._message = message
        self._now = now

    def load(self) -> dict[str, object]:
        message = self._message
        decoded = decoded_as_far_as_possible(message.bare)
        system: dict[str, object] = {}
        for name, field in _PROPERTY_NAMES.items():
            value = decoded.properties.get(field)
            if value is not None:
                system[name] = str(value) if isinstance(value, Symbol) else as_text(value)
        annotations = annotations_of(message)
        for name, annotation in _ANNOTATION_NAMES.items():
            if annotation in annotations:
                system[name] = annotations[annotation]
        if message.scheduled_at:
            system["ScheduledEnqueueTimeUtc"] = message.scheduled_at
        if message.ttl_ms != NO_TTL:
            system["TimeToLive"] = message.ttl_ms
        system["EnqueuedTimeUtc"] = self._now
        system["Size"] = message.size_bytes
        system["DeliveryCount"] = 0
        return system


class _User:
    def __init__(self, message: Message) -> None:
        self._message = message

    def load(self) -> dict[str, object]:
        return {str(key): for_rules(value) for key, value in application_properties_of(self._message.bare).items()}


def decoded_as_far_as_possible(bare: bytes) -> DecodedMessage:
    """Sections are checked on the way in, the values in them are not: a message with one that is no AMQP is one body of bytes to us."""
    try:
        return decode_message(bare)
    except DecodeError:
        return DecodedMessage(body_sections=data_section(bare))


def is_decodable(bare: bytes) -> bool:
    """But for its body and footer, which are passed on as they are."""
    try:
        decode_message(bare)
    except DecodeError:
        return False
    return True


def body_as_far_as_possible(decoded: DecodedMessage) -> tuple[int, object]:
    """Its kind and what it is; values that are no AMQP are the bytes that came."""
    try:
        return decoded.body_kind, decoded.body
    except DecodeError:
        return DATA, [decoded.body_sections]


def application_properties_of(bare: bytes) -> dict[object, object]:
    """That section alone: rules mostly look at nothing else, and the body may be large. Empty if it cannot be decoded."""
    try:
        s = scan(bare)
        value = decode_value(bare, s.app_properties_value)[0] if s.app_properties_at >= 0 else None
    except DecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def for_rules(value: object) -> object:
    if isinstance(value, Timestamp):
        try:
            return _EPOCH + datetime.timedelta(milliseconds=int(value))
        except OverflowError:
            return int(value)  # before the year 1 or after 9999: a number of milliseconds, which is no instant to compare with
    if isinstance(value, Described) and str(value.descriptor) == _TIMESPAN and isinstance(value.value, int):
        return datetime.timedelta(microseconds=value.value // 10)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return str(value)
    return value


def for_wire(value: object) -> object:
    """Back to AMQP: what a rule computed, in the type clients expect."""
    if isinstance(value, datetime.datetime):
        return Timestamp((value - _EPOCH) // datetime.timedelta(milliseconds=1))
    if isinstance(value, datetime.timedelta):
        return Described(Symbol(_TIMESPAN), value // datetime.timedelta(microseconds=1) * 10)
    return value


def annotations_of(message: Message) -> dict[object, object]:
    """The sender's message annotations, decoded; without those that cannot be."""
    found: dict[object, object] = {}
    at = 0
    raw = message.message_annotations
    while at < len(raw):
        value_at = skip_value(raw, at)
        try:
            found[decode_value(raw, at)[0]] = decode_value(raw, value_at)[0]
        except DecodeError:
            pass  # values are not read on the way in
        at = skip_value(raw, value_at)
    return found


def changed_message(message: Message, changes: Sequence[tuple[str, str, object]]) -> Message:
    """A copy with the changes of a rule's action: (scope, name, value or REMOVED)."""
    decoded = decoded_as_far_as_possible(message.bare)
    annotations = annotations_of(message)
    ttl_ms = message.ttl_ms
    scheduled_at = message.scheduled_at
    for scope, name, value in changes:
        if scope == "user":
            if value is REMOVED:
                decoded.application_properties.pop(name, None)
            else:
                decoded.application_properties[name] = for_wire(value)
        elif name in _PROPERTY_NAMES:
            _set(decoded.properties, _PROPERTY_NAMES[name], value)
        elif name in _ANNOTATION_NAMES:
            _set(annotations, _ANNOTATION_NAMES[name], value)
        elif name == "TimeToLive":
            ttl_ms = value if isinstance(value, int) else NO_TTL
        elif name == "ScheduledEnqueueTimeUtc":
            scheduled_at = value if isinstance(value, int) else 0
            _set(annotations, _SCHEDULED, Timestamp(scheduled_at) if scheduled_at else REMOVED)
    return _rebuilt(message, decoded, annotations, ttl_ms, scheduled_at)


def _set(target: dict[Any, object], key: object, value: object) -> None:
    if value is REMOVED:
        target.pop(key, None)
    else:
        target[key] = value


def forwarded_message(message: Message, seq: int, dead_letter_source: str) -> Message:
    """A copy as it leaves for another entity: with its first sequence number, and where it was dead-lettered, if it was."""
    copy = message.with_bare(message.bare)
    if not message.hops:
        first = encode_value(_FIRST_NUMBER) + encode_value(seq)
        copy.annotate(copy.message_annotation_count + 2, copy.message_annotations + first)
    if dead_letter_source:
        annotations = annotations_of(copy)
        annotations[_DEAD_LETTER_SOURCE] = dead_letter_source
        copy.annotate(2 * len(annotations), _encode_annotations(annotations))
    return copy


def _encode_annotations(annotations: dict[object, object]) -> bytes:
    return b"".join([encode_value(key) + encode_value(value) for key, value in annotations.items()])


def _rebuilt(message: Message, decoded: DecodedMessage, annotations: dict[object, object], ttl_ms: int, scheduled_at: int) -> Message:
    session = decoded.properties.get("group-id")
    message_id = decoded.properties.get("message-id", _UNSET)
    changed = Message(
        decoded.encode(),
        message.message_id if message_id is _UNSET else encode_value(message_id),
        session if isinstance(session, str) else None,
        ttl_ms,
        scheduled_at,
        message.header,
        message.delivery_annotation_count,
        message.delivery_annotations,
        2 * len(annotations),
        _encode_annotations(annotations),
        message.partition_key,
        message.is_ping,
    )
    changed.hop(message.hops)
    return changed
