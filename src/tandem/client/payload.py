"""An encoded AMQP message taken into named parts and put together again: what is not touched comes back byte for byte."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tandem.amqp import DecodeError, Described, Symbol, Timestamp, UByte, UInt, ULong, decode_value, encode_value, skip_value

HEADER_FIELDS = ("durable", "priority", "ttl", "first_acquirer", "delivery_count")
PROPERTY_FIELDS = (
    "message_id",
    "user_id",
    "to",
    "subject",
    "reply_to",
    "correlation_id",
    "content_type",
    "content_encoding",
    "absolute_expiry_time",
    "creation_time",
    "group_id",
    "group_sequence",
    "reply_to_group_id",
)
_HEADER, _DELIVERY_ANNOTATIONS, _ANNOTATIONS, _PROPERTIES, _APPLICATION_PROPERTIES = 0x70, 0x71, 0x72, 0x73, 0x74
_FOOTER = 0x78
_WIRE_TYPES: dict[str, type[int] | type[str]] = {
    "ttl": UInt,
    "delivery_count": UInt,
    "group_sequence": UInt,
    "priority": UByte,
    "content_type": Symbol,
    "content_encoding": Symbol,
    "absolute_expiry_time": Timestamp,
    "creation_time": Timestamp,
}

Fields = dict[str, object]
Map = dict[object, object]


@dataclass(slots=True)
class Parts:
    """One message. `body` is every body section, verbatim; absent fields are missing keys; values keep their wire type."""

    header: Fields = field(default_factory=dict)
    delivery_annotations: Map = field(default_factory=dict)
    annotations: Map = field(default_factory=dict)
    properties: Fields = field(default_factory=dict)
    application_properties: Map = field(default_factory=dict)
    body: bytes = b""
    footer: bytes = b""


def split(payload: bytes) -> Parts:
    """Take an encoded message apart; raises DecodeError on anything that is not one."""
    parts = Parts()
    body = bytearray()
    at, end = 0, len(payload)
    while at < end:
        section_at = at
        if payload[at] != 0:
            raise DecodeError(f"section at byte {at} has no descriptor")
        code, at = decode_value(payload, at + 1)
        if not isinstance(code, int) or not _HEADER <= code <= _FOOTER:
            raise DecodeError(f"unknown section {code!r} at byte {section_at}")
        if code >= 0x75:
            at = skip_value(payload, at)
            if code == _FOOTER:
                parts.footer = payload[section_at:at]
            else:
                body += payload[section_at:at]
            continue
        value, at = decode_value(payload, at)
        _take(parts, code, value)
    parts.body = bytes(body)
    return parts


def _take(parts: Parts, code: int, value: object) -> None:
    if code in (_HEADER, _PROPERTIES):
        if not isinstance(value, list):
            raise DecodeError(f"section 0x{code:x} is not a list")
        names: Sequence[str] = HEADER_FIELDS if code == _HEADER else PROPERTY_FIELDS
        fields = {name: item for name, item in zip(names, value, strict=False) if item is not None}
        if code == _HEADER:
            parts.header = fields
        else:
            parts.properties = fields
        return
    if value is None:
        value = {}
    if not isinstance(value, dict):
        raise DecodeError(f"section 0x{code:x} is not a map")
    if code == _DELIVERY_ANNOTATIONS:
        parts.delivery_annotations = value
    elif code == _ANNOTATIONS:
        parts.annotations = value
    else:
        parts.application_properties = value


def join(parts: Parts) -> bytes:
    """The encoded message; a part with nothing in it leaves no section behind."""
    out = [
        _fields(_HEADER, HEADER_FIELDS, parts.header),
        _map(_DELIVERY_ANNOTATIONS, parts.delivery_annotations),
        _map(_ANNOTATIONS, parts.annotations),
        _fields(_PROPERTIES, PROPERTY_FIELDS, parts.properties),
        _map(_APPLICATION_PROPERTIES, parts.application_properties),
        parts.body,
        parts.footer,
    ]
    return b"".join(out)


def _fields(code: int, names: Sequence[str], fields: Fields) -> bytes:
    if not fields:
        return b""
    values: list[object] = [_typed(name, fields.get(name)) for name in names]
    while values and values[-1] is None:
        values.pop()
    return encode_value(Described(ULong(code), values)) if values else b""


def _typed(name: str, value: object) -> object:
    wire = _WIRE_TYPES.get(name)
    if wire is None or value is None or isinstance(value, wire):
        return value
    return wire(value)  # type: ignore[call-overload]


def _map(code: int, items: Map) -> bytes:
    return encode_value(Described(ULong(code), items)) if items else b""
