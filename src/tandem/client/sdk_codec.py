"""SDK message objects to encoded messages and back, every AMQP type kept."""

from __future__ import annotations

import os
import uuid
from typing import Any

from azure.servicebus import ServiceBusMessage
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageProperties

from tandem.amqp import Byte, Char, Described, Float, Int, Short, Symbol, Timestamp, UByte, UInt, ULong, UShort, decode_value
from tandem.client.payload import split

_TYPES: tuple[tuple[type, str], ...] = (
    (Timestamp, "TIMESTAMP"),
    (UInt, "UINT"),
    (ULong, "ULONG"),
    (UShort, "USHORT"),
    (UByte, "UBYTE"),
    (Int, "INT"),
    (Short, "SHORT"),
    (Byte, "BYTE"),
    (Float, "FLOAT"),
    (Symbol, "SYMBOL"),
)

_IDS_AT_ONCE = 64
_ids: list[str] = []
"""Taken by whoever sends, in any thread; a process that was forked must not give out its parent's."""
os.register_at_fork(after_in_child=_ids.clear)


def encode_message(message: ServiceBusMessage | AmqpAnnotatedMessage) -> bytes:
    """The message exactly as the SDK would put it on the wire."""
    raw = message.raw_amqp_message if isinstance(message, ServiceBusMessage) else message
    out = bytearray()
    encode_payload(out, PyamqpTransport.to_outgoing_amqp_message(raw))
    return bytes(out)


def new_message_id() -> str:
    """128 random bits in hexadecimal. Asking the system for a few dozen at a time is cheaper than for one at a time."""
    try:
        return _ids.pop()
    except IndexError:
        chance = os.urandom(16 * _IDS_AT_ONCE).hex()
        _ids.extend(chance[at : at + 32] for at in range(32, len(chance), 32))
        return chance[:32]


def ensure_message_id(message: ServiceBusMessage | AmqpAnnotatedMessage) -> None:
    """Copies of one message are recognised by its id, so it has one before the first copy leaves."""
    raw = message.raw_amqp_message if isinstance(message, ServiceBusMessage) else message
    if raw.properties is None:
        raw.properties = AmqpMessageProperties()
    if raw.properties.message_id is None:
        raw.properties.message_id = new_message_id()


def message_from_payload(payload: bytes) -> AmqpAnnotatedMessage:
    """A message to send again, from what `encode_message` or a receiver gave. Sending it writes the same types."""
    parts = split(payload)
    sections: dict[str, Any] = {
        "annotations": {k: _typed(v) for k, v in parts.annotations.items()} or None,
        "delivery_annotations": {k: _typed(v) for k, v in parts.delivery_annotations.items()} or None,
        "application_properties": {k: _typed(v) for k, v in parts.application_properties.items()} or None,
    }
    header: dict[str, Any] = {k: _plain(v) for k, v in parts.header.items()}
    if "ttl" in header:
        header["time_to_live"] = header.pop("ttl")
    if header:
        sections["header"] = header
    if parts.properties:
        sections["properties"] = {k: _plain(v) for k, v in parts.properties.items()}
    if parts.footer:
        described, _ = decode_value(parts.footer, 0)
        if isinstance(described, Described) and isinstance(described.value, dict):
            sections["footer"] = {k: _typed(v) for k, v in described.value.items()}
    sections.update(_body(parts.body))
    return AmqpAnnotatedMessage(**sections)


def _body(body: bytes) -> dict[str, Any]:
    data: list[bytes] = []
    sequences: list[Any] = []
    at = 0
    while at < len(body):
        section, at = decode_value(body, at)
        if not isinstance(section, Described):
            break
        if section.descriptor == 0x77:
            return {"value_body": _typed(section.value)}
        if section.descriptor == 0x76 and isinstance(section.value, list):
            sequences.append([_typed(item) for item in section.value])
        elif isinstance(section.value, bytes):
            data.append(section.value)
    if sequences:
        return {"sequence_body": sequences}
    return {"data_body": data} if data else {"value_body": None}


def _plain(value: object) -> object:
    """Header and property fields have their types from the specification; only their Python kind matters."""
    if isinstance(value, Symbol):
        return str(value)
    if isinstance(value, (bool, uuid.UUID)) or not isinstance(value, int):
        return value
    return int(value)


def _typed(value: object) -> object:
    for kind, name in _TYPES:
        if isinstance(value, kind):
            plain: object = str(value) if name == "SYMBOL" else float(value) if name == "FLOAT" else int(value)  # type: ignore[arg-type, call-overload]
            return {"TYPE": name, "VALUE": plain}
    if isinstance(value, Described):
        return (_typed(value.descriptor), _typed(value.value))
    if isinstance(value, Char):
        return str(value)
    if isinstance(value, bytes):
        return {"TYPE": "BINARY", "VALUE": value}
    if isinstance(value, int) and not isinstance(value, bool):
        return {"TYPE": "LONG", "VALUE": int(value)}
    if isinstance(value, list):
        return [_typed(item) for item in value]
    if isinstance(value, dict):
        return {_key(k): _typed(v) for k, v in value.items()}
    return value


def _key(key: object) -> object:
    return str(key) if isinstance(key, str) else key
