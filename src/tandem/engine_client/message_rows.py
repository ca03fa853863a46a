"""Encoded messages to columns: one walk over the sections, every property in a list of its own, in the order the messages came."""

from __future__ import annotations

import uuid
from typing import Any, Final

from tandem.amqp import DecodeError, Timestamp, decode_value, skip_value
from tandem.engine_client.property_text import render

_PROPERTY_COLUMNS: Final = (
    "message_id",
    "user_id",
    "to",
    "subject",
    "reply_to",
    "correlation_id",
    "content_type",
    "content_encoding",
    "",
    "creation_time",
    "session_id",
    "",
    "reply_to_session_id",
)
"""By position in the properties section; the expiry time there is the sender's arithmetic, and group-sequence is not used."""
_BODY_TYPES: Final = {0x75: "data", 0x76: "sequence", 0x77: "value"}
_STATES: Final = {0: "active", 1: "deferred", 2: "scheduled"}
MARK: Final = "x-tandem-reader"
"""The application property that marks a message deferred by a reader; it is no property of the sender's."""


class MessageRows:
    """Columns under construction. `add` appends one message to all of them or, raising DecodeError, to none."""

    COLUMNS: Final = (
        "sequence_number",
        "message_id",
        "session_id",
        "partition_key",
        "correlation_id",
        "subject",
        "to",
        "reply_to",
        "reply_to_session_id",
        "content_type",
        "content_encoding",
        "user_id",
        "creation_time",
        "enqueued_time",
        "scheduled_enqueue_time",
        "expires_time",
        "time_to_live_ms",
        "delivery_count",
        "priority",
        "durable",
        "state",
        "dead_letter_reason",
        "dead_letter_description",
        "dead_letter_source",
        "application_properties",
        "application_property_types",
        "annotations",
        "body_type",
        "body",
    )

    def __init__(self) -> None:
        self._columns: dict[str, list[Any]] = {}
        """Made when a first value comes, padded when the next one does: most properties are absent from most messages."""
        self._count = 0
        self.payload_bytes = 0

    def __len__(self) -> int:
        return self._count

    def column(self, name: str) -> list[Any] | None:
        """As long as there are rows; None when no row has a value."""
        values = self._columns.get(name)
        if values is not None and len(values) < self._count:
            values.extend([None] * (self._count - len(values)))
        return values

    def add(self, payload: bytes, stamp: tuple[int, int, int, int] | None = None) -> None:
        """`stamp` is (sequence number, enqueued at, expires at or 0, delivery count) when they are not in the payload itself."""
        row: dict[str, Any] = {}
        at, end = 0, len(payload)
        try:
            while at < end:
                at = _section(payload, at, row)
        except IndexError:
            raise DecodeError(f"message cut short at byte {end}") from None
        if stamp is not None:
            row["sequence_number"], row["enqueued_time"], expires, row["delivery_count"] = stamp
            if expires:
                row["expires_time"] = expires
                row["time_to_live_ms"] = expires - row["enqueued_time"]
        elif "time_to_live_ms" in row and "enqueued_time" in row:
            row["expires_time"] = row["enqueued_time"] + row["time_to_live_ms"]
        count = self._count
        columns = self._columns
        for name, value in row.items():
            values = columns.get(name)
            if values is None:
                values = columns[name] = [None] * count
            elif len(values) < count:
                values.extend([None] * (count - len(values)))
            values.append(value)
        self._count = count + 1
        self.payload_bytes += end


def _section(payload: bytes, at: int, row: dict[str, Any]) -> int:
    """Take one section into the row; returns where it ends."""
    if payload[at] or payload[at + 1] != 0x53:
        code, value_at = _long_descriptor(payload, at)
    else:
        code, value_at = payload[at + 2], at + 3
    if code == 0x73:
        return _properties(payload, value_at, row)
    if 0x75 <= code <= 0x77:
        return _body(payload, at, value_at, code, row)
    if code == 0x74:
        return _application_properties(payload, value_at, row)
    if code == 0x72:
        value, end = decode_value(payload, value_at)
        _annotations(value, row)
        return end
    if code == 0x70:
        value, end = decode_value(payload, value_at)
        _header(value, row)
        return end
    if code not in (0x71, 0x78):
        raise DecodeError(f"unknown section 0x{code:x} at byte {at}")
    return skip_value(payload, value_at)


def _long_descriptor(payload: bytes, at: int) -> tuple[int, int]:
    if payload[at] != 0:
        raise DecodeError(f"section at byte {at} has no descriptor")
    code, value_at = decode_value(payload, at + 1)
    if not isinstance(code, int):
        raise DecodeError(f"unknown section {code!r} at byte {at}")
    return int(code), value_at


def _body(payload: bytes, at: int, value_at: int, code: int, row: dict[str, Any]) -> int:
    """Data sections are joined; of values and sequences the encoded sections are kept."""
    if code == 0x75 and payload[value_at] == 0xB0:
        start = value_at + 5
        end = start + int.from_bytes(payload[value_at + 1 : start], "big")
        found = payload[start:end]
    elif code == 0x75 and payload[value_at] == 0xA0:
        start = value_at + 2
        end = start + payload[value_at + 1]
        found = payload[start:end]
    else:
        end = skip_value(payload, value_at)
        found = payload[at:end]
    if end > len(payload):
        raise DecodeError(f"body runs to byte {end} of {len(payload)}")
    row["body"] = row["body"] + found if "body" in row else found
    row["body_type"] = _BODY_TYPES[code]
    return end


def _properties(payload: bytes, at: int, row: dict[str, Any]) -> int:
    """The list of properties, read in place: most are absent or short strings."""
    code = payload[at]
    if code == 0xC0:
        end, count, at = at + 2 + payload[at + 1], payload[at + 2], at + 3
    elif code == 0xD0:
        end = at + 5 + int.from_bytes(payload[at + 1 : at + 5], "big")
        count, at = int.from_bytes(payload[at + 5 : at + 9], "big"), at + 9
    elif code == 0x45:
        return at + 1
    else:
        raise DecodeError(f"properties of type 0x{code:02x}")
    if end > len(payload):
        raise DecodeError(f"properties run to byte {end} of {len(payload)}")
    for name in _PROPERTY_COLUMNS[:count]:
        code = payload[at]
        if code == 0x40:
            at += 1
            continue
        value: object
        if code == 0xA1 or code == 0xA3:
            value, at = _text(payload, at)
        else:
            value, at = decode_value(payload, at)
        if name:
            row[name] = value if type(value) is str else _property(name, value)
    return end


def _property(name: str, value: object) -> object:
    if isinstance(value, Timestamp):
        return int(value)
    if name == "user_id":
        return value if isinstance(value, bytes) else str(value).encode()
    if isinstance(value, (str, uuid.UUID)):
        return str(value)
    return render(value)[0]


def _application_properties(payload: bytes, at: int, row: dict[str, Any]) -> int:
    """Short keys and strings, which most are, are read in place."""
    code = payload[at]
    if code == 0xC1:
        end, count, at = at + 2 + payload[at + 1], payload[at + 2], at + 3
    elif code == 0xD1:
        end = at + 5 + int.from_bytes(payload[at + 1 : at + 5], "big")
        count, at = int.from_bytes(payload[at + 5 : at + 9], "big"), at + 9
    else:
        raise DecodeError(f"application-properties of type 0x{code:02x}")
    if end > len(payload):
        raise DecodeError(f"application-properties run to byte {end} of {len(payload)}")
    texts: list[tuple[str, str | None]] = []
    types: list[tuple[str, str]] = []
    for _ in range(count >> 1):
        key, at = _text(payload, at) if payload[at] == 0xA1 else decode_value(payload, at)
        name = key if type(key) is str else str(key)
        text: str | None
        if payload[at] == 0xA1:
            text, at = _text(payload, at)
            kind = "string"
        else:
            item, at = decode_value(payload, at)
            text, kind = render(item)
        if name == "DeadLetterReason":
            row["dead_letter_reason"] = text
        elif name == "DeadLetterErrorDescription":
            row["dead_letter_description"] = text
        elif name == MARK:
            continue
        texts.append((name, text))
        types.append((name, kind))
    if texts:
        row["application_properties"] = texts
        row["application_property_types"] = types
    return end


def _text(payload: bytes, at: int) -> tuple[str, int]:
    stop = at + 2 + payload[at + 1]
    try:
        return payload[at + 2 : stop].decode(), stop
    except UnicodeDecodeError:
        raise DecodeError(f"string at byte {at} is not UTF-8") from None


def _annotations(value: object, row: dict[str, Any]) -> None:
    if value is None:
        return
    if not isinstance(value, dict):
        raise DecodeError("message-annotations are not a map")
    others: list[tuple[str, str | None]] = []
    for key, item in value.items():
        name = str(key)
        column = _ANNOTATION_COLUMNS.get(name)
        if column == "state":
            row[column] = _STATES.get(int(str(item)), "active")
        elif column is not None:
            row[column] = int(item) if isinstance(item, int) else item if item is None else str(item)
        elif name != "x-opt-locked-until":
            others.append((name, render(item)[0]))
    if others:
        row["annotations"] = others


_ANNOTATION_COLUMNS: Final = {
    "x-opt-sequence-number": "sequence_number",
    "x-opt-enqueued-time": "enqueued_time",
    "x-opt-scheduled-enqueue-time": "scheduled_enqueue_time",
    "x-opt-partition-key": "partition_key",
    "x-opt-deadletter-source": "dead_letter_source",
    "x-opt-message-state": "state",
}


def _header(value: object, row: dict[str, Any]) -> None:
    if not isinstance(value, list):
        raise DecodeError("header is not a list")
    for name, item in zip(("durable", "priority", "time_to_live_ms", "", "delivery_count"), value, strict=False):
        if name and item is not None:
            row[name] = bool(item) if name == "durable" else int(item)


def sequence_number_of(payload: bytes) -> int:
    """Of a delivered or peeked message, without taking the rest apart."""
    number = _one_of_map(payload, 0x72, "x-opt-sequence-number")
    if not isinstance(number, int):
        raise DecodeError("the message has no sequence number")
    return int(number)


def state_of(payload: bytes) -> int:
    """0 active, 1 deferred, 2 scheduled."""
    state = _one_of_map(payload, 0x72, "x-opt-message-state")
    return int(state) if isinstance(state, int) else 0


def mark_of(payload: bytes) -> str | None:
    """Which reader deferred it, if one did."""
    mark = _one_of_map(payload, 0x74, MARK)
    return mark if isinstance(mark, str) else None


def _one_of_map(payload: bytes, section: int, name: str) -> object:
    at = 0
    while at < len(payload):
        code, value_at = _long_descriptor(payload, at)
        if code == section:
            value, _ = decode_value(payload, value_at)
            return value.get(name) if isinstance(value, dict) else None
        at = skip_value(payload, value_at)
    return None
