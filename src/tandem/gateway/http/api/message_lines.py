"""Messages as JSON: one line as commands print it, the whole of it for a reader, and the way back to a message that can be sent."""

from __future__ import annotations

import base64
import binascii
import datetime
import decimal
import json
import math
import uuid
from typing import TYPE_CHECKING, Any, Final

from tandem.amqp.errors import DecodeError
from tandem.amqp.message import DATA, NO_BODY, SEQUENCE, VALUE, DecodedMessage, data_section
from tandem.amqp.types import Described, Symbol, Timestamp
from tandem.broker.queue.index import DEFERRED, DEFERRED_LOCKED, DELAYED, LEASED, LOCKED, MOVING, READY, SCHEDULED
from tandem.gateway.http.data import encode_http, write_lifetime
from tandem.gateway.http.data_port import HttpMessage
from tandem.gateway.http.properties import check_scalar
from tandem.gateway.views import annotations_of, as_text, body_as_far_as_possible, decoded_as_far_as_possible, for_rules
from tandem.model.entity import MAX_DURATION_MS
from tandem.model.errors import ArgumentRefused
from tandem.model.message import NO_TTL, Message
from tandem.model.message_line import BROKERED, CONTENT, OF_DEAD_LETTERS, SENT

if TYPE_CHECKING:
    from tandem.broker.queue.entity import Entity
    from tandem.server.context import NamespaceContext

BODY_BYTES_SHOWN: Final = 262_144
"""Of a body in an answer; more is had by downloading it."""
PREVIEW_CHARS: Final = 160
STATE_NAMES: Final = {
    READY: "active",
    LOCKED: "locked",
    DEFERRED: "deferred",
    DEFERRED_LOCKED: "deferred",
    SCHEDULED: "scheduled",
    DELAYED: "delayed",
    LEASED: "leased",
    MOVING: "moving",
}
_BODY_KINDS: Final = {DATA: "data", SEQUENCE: "sequence", VALUE: "value", NO_BODY: "none"}
_WIRE_NAMES: Final = {
    "message_id": "message-id",
    "subject": "subject",
    "session_id": "group-id",
    "correlation_id": "correlation-id",
    "content_type": "content-type",
    "to": "to",
    "reply_to": "reply-to",
    "reply_to_session_id": "reply-to-group-id",
}
_PARTITION_KEY: Final = Symbol("x-opt-partition-key")
_SCHEDULED: Final = Symbol("x-opt-scheduled-enqueue-time")
_SOURCE: Final = Symbol("x-opt-deadletter-source")
_FIRST_NUMBER: Final = Symbol("x-opt-enqueue-sequence-number")


def instant(ms: int) -> str:
    return datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def plain(value: object) -> Any:
    """As JSON has it; what JSON does not know, as its text."""
    value = for_rules(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < 2**53):
        return value
    if isinstance(value, str | int | uuid.UUID | decimal.Decimal | datetime.timedelta):
        return str(value)
    if isinstance(value, datetime.datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, bytes):
        text = as_text(value)
        return text if isinstance(text, str) else base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {str(plain(key)): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Described):
        return plain(value.value)
    return str(value)


def body_of(decoded: DecodedMessage) -> tuple[bytes, str]:
    """A body of data sections, joined, or another kind of body as JSON; and which kind it is."""
    kind, value = body_as_far_as_possible(decoded)
    if kind == DATA:
        parts = value if isinstance(value, list) else []
        return b"".join(part for part in parts if isinstance(part, bytes)), "data"
    if kind == NO_BODY:
        return b"", "none"
    text = value if isinstance(value, str) else json.dumps(plain(value))
    return str(text).encode(), _BODY_KINDS[kind]


def described(queue: Entity, seq: int, message: Message) -> dict[str, Any]:
    """All fields of a line but properties and body."""
    rows = queue.part_of(seq).rows
    index = rows.index
    decoded = decoded_as_far_as_possible(message.bare)
    annotations = annotations_of(message)
    properties = decoded.application_properties
    found: dict[str, Any] = {
        "sequence_number": str(seq),
        "enqueued_sequence_number": plain(annotations.get(_FIRST_NUMBER)),
        "enqueued_time_utc": instant(index.enqueued_at(seq)),
        "state": STATE_NAMES.get(index.state(seq), "gone"),
        "delivery_count": rows.failed_deliveries(seq),
        "size_bytes": message.size_bytes,
        "partition_key": plain(annotations.get(_PARTITION_KEY)),
        "dead_letter_reason": plain(properties.get("DeadLetterReason")),
        "dead_letter_error_description": plain(properties.get("DeadLetterErrorDescription")),
        "dead_letter_source": plain(annotations.get(_SOURCE)),
    }
    if index.expires_at(seq):
        found["expires_at_utc"] = instant(index.expires_at(seq))
    due = annotations.get(_SCHEDULED)  # a message that was read back from disk has the instant nowhere else
    if index.state(seq) == SCHEDULED and (isinstance(due, int) or message.scheduled_at):
        found["scheduled_enqueue_time_utc"] = instant(int(due) if isinstance(due, int) else message.scheduled_at)
    if message.ttl_ms != NO_TTL:
        found["time_to_live_ms"] = message.ttl_ms
    for name, field in _WIRE_NAMES.items():
        found[name] = plain(as_text(decoded.properties.get(field)))
    return {name: value for name, value in found.items() if value is not None}


def line_of(queue: Entity, seq: int, message: Message) -> dict[str, Any]:
    """As `tandem peek --json` prints it."""
    found = described(queue, seq, message)
    decoded = decoded_as_far_as_possible(message.bare)
    found.pop("size_bytes")
    found["sequence_number"] = seq
    if decoded.application_properties:
        found["properties"] = {str(name): plain(value) for name, value in decoded.application_properties.items()}
    body = body_of(decoded)[0]
    return found | _body_field(body)


def _body_field(body: bytes) -> dict[str, str]:
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


def summary_of(queue: Entity, seq: int, message: Message) -> dict[str, Any]:
    """A row of a listing: with the beginning of the body."""
    body, kind = body_of(decoded_as_far_as_possible(message.bare))
    preview = body[: PREVIEW_CHARS * 4].decode("utf-8", "replace")[:PREVIEW_CHARS]
    return described(queue, seq, message) | {"preview": preview, "body_kind": kind, "body_bytes": len(body)}


def whole_of(queue: Entity, seq: int, message: Message) -> dict[str, Any]:
    """With every property and annotation and its type; of the body as much as a page can hold."""
    decoded = decoded_as_far_as_possible(message.bare)
    body, kind = body_of(decoded)
    return described(queue, seq, message) | {
        "body_kind": kind,
        "body_bytes": len(body),
        "body_base64": base64.b64encode(body[:BODY_BYTES_SHOWN]).decode(),
        "properties": _typed(decoded.application_properties),
        "system": _typed(dict(decoded.properties)),
        "annotations": _typed(annotations_of(message)),
        "footer": _typed(_footer_of(decoded)),
    }


def _footer_of(decoded: DecodedMessage) -> dict[object, object]:
    try:
        return decoded.footer
    except DecodeError:
        return {}  # values are not read on the way in


def _typed(values: dict[Any, object]) -> list[dict[str, Any]]:
    return [{"name": str(name), "type": _type_name(value), "value": plain(value)} for name, value in values.items()]


def _type_name(value: object) -> str:
    if isinstance(value, Timestamp):
        return "timestamp"
    if isinstance(value, Described):
        return str(value.descriptor)
    return {"NoneType": "null", "str": "string", "bytes": "binary"}.get(type(value).__name__, type(value).__name__.casefold())


# --- back


def _text_field(line: dict[str, Any], name: str) -> str | None:
    value = line.get(name)
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise ArgumentRefused(f"'{name}' must be a text, found {str(value)[:60]!r}")
    return value


def _body_bytes(line: dict[str, Any]) -> bytes:
    if "body_base64" in line:
        try:
            return base64.b64decode(line["body_base64"], validate=True)
        except (TypeError, ValueError, binascii.Error):
            raise ArgumentRefused("'body_base64' is not base64") from None
    body = line.get("body", "")
    return body.encode() if isinstance(body, str) else json.dumps(body).encode()


def _properties(line: dict[str, Any]) -> dict[str, Any]:
    found = line.get("properties") or {}
    if not isinstance(found, dict) or not all(value is None or isinstance(value, bool | int | float | str) for value in found.values()):
        raise ArgumentRefused("'properties' must be an object of texts, numbers and booleans")
    return {name: check_scalar(name, value) for name, value in found.items()}


def _ttl(line: dict[str, Any]) -> int | None:
    value = line.get("time_to_live_ms")
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not value > 0):
        raise ArgumentRefused(f"'time_to_live_ms' must be a positive number, found {str(value)[:40]!r}")
    return None if value is None else min(value, MAX_DURATION_MS)


def message_of_line(context: NamespaceContext, line: dict[str, Any], scheduled_at_ms: int | None = None) -> Message:
    """What its sender decides; what the broker had decided is left out."""
    unknown = sorted(set(line) - {*SENT, *BROKERED, *CONTENT})
    if unknown:
        raise ArgumentRefused(f"unknown in a message: {', '.join(unknown)[:200]}; known are {', '.join((*SENT, *CONTENT))}")
    texts = {name: _text_field(line, name) for name in SENT}
    http = HttpMessage(
        body=_body_bytes(line),
        label=texts.pop("subject"),
        time_to_live_ms=_ttl(line),
        scheduled_at_ms=scheduled_at_ms,
        properties=tuple(_properties(line).items()),
        **texts,
    )
    return context.translator.message(encode_http(http, context.turn.now))


def copy_of(context: NamespaceContext, message: Message, changes: dict[str, Any]) -> Message:
    """The same message without what made it a dead letter. Its id, session and body stay to the byte unless `changes`, a line, has others;
    properties that are set to null are removed."""
    unknown = sorted(set(changes) - {*SENT, *CONTENT})
    if unknown:
        raise ArgumentRefused(f"cannot be changed: {', '.join(unknown)[:200]}; allowed are {', '.join((*SENT, *CONTENT))}")
    old = decoded_as_far_as_possible(message.bare)
    properties = {name: value for name, value in old.application_properties.items() if str(name) not in OF_DEAD_LETTERS}
    for name, value in _properties(changes).items():
        if value is None:
            properties.pop(name, None)
        else:
            properties[name] = value
    fields = dict(old.properties)
    for name in [name for name in changes if name in _WIRE_NAMES]:
        text = _text_field(changes, name)
        if text is None:
            fields.pop(_WIRE_NAMES[name], None)
        else:
            fields[_WIRE_NAMES[name]] = text
    ttl_ms = _ttl(changes) if "time_to_live_ms" in changes else None if message.ttl_ms == NO_TTL else message.ttl_ms
    partition_key = _text_field(changes, "partition_key") if "partition_key" in changes else message.partition_key
    header: dict[str, Any] = {"durable": True}
    if ttl_ms is not None:
        write_lifetime(ttl_ms, context.turn.now, header, fields)
    new = DecodedMessage(
        header=header,
        message_annotations={} if partition_key is None or fields.get("group-id") is not None else {_PARTITION_KEY: partition_key},
        properties=fields,
        application_properties=properties,
        body_sections=data_section(_body_bytes(changes)) if "body" in changes or "body_base64" in changes else old.body_sections,
        footer_section=old.footer_section,
    )
    return context.translator.message(new.encode())
