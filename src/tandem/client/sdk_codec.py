"""SDK message objects to encoded messages and back, every AMQP type kept."""

from __future__ import annotations

import os
import uuid
from typing import Any

from azure.servicebus import ServiceBusMessage
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageProperties

from tandem.amqp import Byte, Char, Described, Float, Int, Short, Symbol, Timestamp, UByte, UInt, ULong, UShort, decode_message
from tandem.amqp.message import DATA, SEQUENCE

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


def payload_from_message(message: ServiceBusMessage | AmqpAnnotatedMessage) -> bytes:
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
    """A message to send again, from what `payload_from_message` or a receiver gave. Sending it writes the same types."""
    message = decode_message(payload)
    sections: dict[str, Any] = {
        "annotations": _typed(message.message_annotations) or None,
        "delivery_annotations": _typed(message.delivery_annotations) or None,
        "application_properties": _typed(message.application_properties) or None,
        "footer": _typed(message.footer) or None,
    }
    header = _sdk_fields(message.header)
    if "ttl" in header:
        header["time_to_live"] = header.pop("ttl")
    if header:
        sections["header"] = header
    if message.properties:
        sections["properties"] = _sdk_fields(message.properties)
    body: Any = message.body
    if message.body_kind == DATA:
        sections["data_body"] = body
    elif message.body_kind == SEQUENCE:
        sections["sequence_body"] = [_typed(sequence) for sequence in body]
    else:
        sections["value_body"] = _typed(body)
    return AmqpAnnotatedMessage(**sections)


def _sdk_fields(fields: dict[str, object]) -> dict[str, Any]:
    """Names as the SDK's keyword arguments have them."""
    return {name.replace("-", "_"): _plain(value) for name, value in fields.items()}


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
