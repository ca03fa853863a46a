"""Encoded messages to columns: every property in a list of its own, in the order the messages came.

A broker keeps what it need not understand, so that senders may have put anything there: no value keeps a message from being a row.
"""

from __future__ import annotations

import base64
import contextlib
import uuid
from typing import Any, Final

from tandem.amqp import DecodeError, Timestamp, decode_value, scan
from tandem.amqp.codec import elements_of, skip_value
from tandem.amqp.message import DATA, NO_BODY, VALUE, data_of
from tandem.engine_client.property_text import ENCODED, render

_PROPERTY_COLUMNS: Final = (
    "message_id",
    "user_id",
    "to",
    "subject",
    "reply_to",
    "correlation_id",
    "content_type",
    "content_encoding",
    "expiry",
    "creation_time",
    "session_id",
    "",
    "reply_to_session_id",
)
"""By position in the properties section; group-sequence is not used."""
_TTL_MS_MAX: Final = 0xFFFF_FFFF
"""A header cannot say more: then it is the time from creation to expiry."""
_STATES: Final = {0: "active", 1: "deferred", 2: "scheduled"}
MARK: Final = "x-tandem-reader"
"""The application property that marks a message deferred by a reader; it is no property of the sender's."""
_FIRST_MS: Final = -62_135_596_800_000
_LAST_MS: Final = 253_402_300_799_999
"""The years 1 to 9999: what a table can show."""
_PRIORITY_MAX: Final = 255


class _Unreadable(bytes):
    """The encoding of a value that cannot be decoded."""


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
        row = _row(payload)
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
        self.payload_bytes += len(payload)


def _row(payload: bytes) -> dict[str, Any]:
    """The values that stand in the message itself, by column."""
    row: dict[str, Any] = {}
    s = scan(payload)
    try:
        if s.header_at >= 0:
            with contextlib.suppress(DecodeError):
                _header(decode_value(payload, s.header_value)[0], row)
        if s.ma_at >= 0:
            _annotations(_map(payload, s.ma_value), row)
        if s.properties_at >= 0:
            _properties(payload, s.properties_value, row)
        if s.app_properties_at >= 0:
            _application_properties(payload, s.app_properties_value, row)
    except IndexError:
        raise DecodeError("message cut short inside a section") from None
    if s.body_kind == DATA:
        data = data_of(payload, s)
        row["body"] = data[0] if len(data) == 1 else b"".join(data)
        row["body_type"] = "data"
    elif s.body_kind != NO_BODY:
        row["body"] = payload[s.body_at : s.body_end]
        row["body_type"] = "value" if s.body_kind == VALUE else "sequence"
    return row


def _properties(payload: bytes, at: int, row: dict[str, Any]) -> None:
    """The list of properties, read in place: most are absent or short strings."""
    count, at = elements_of(payload, at)
    expiry = 0
    for name in _PROPERTY_COLUMNS[:count]:
        code = payload[at]
        if code == 0x40:
            at += 1
            continue
        value: object
        if code == 0xA1 or code == 0xA3:
            value, at = _text(payload, at)
        else:
            value, at = _value(payload, at)
        if name == "creation_time":
            if isinstance(value, Timestamp) and _FIRST_MS <= value <= _LAST_MS:
                row[name] = int(value)
        elif name == "expiry":
            expiry = int(value) if isinstance(value, Timestamp) and _FIRST_MS <= value <= _LAST_MS else 0
        elif name:
            row[name] = value if type(value) is str else _property(name, value)
    if expiry and row.get("time_to_live_ms") == _TTL_MS_MAX and "creation_time" in row:
        row["time_to_live_ms"] = max(_TTL_MS_MAX, expiry - row["creation_time"])


def _property(name: str, value: object) -> object:
    if name == "user_id":
        return value if isinstance(value, bytes) else str(value).encode()
    if isinstance(value, (str, uuid.UUID)):
        return str(value)
    return render(value)[0]


def _application_properties(payload: bytes, at: int, row: dict[str, Any]) -> None:
    """Short keys and strings, which most are, are read in place."""
    count, at = elements_of(payload, at)
    texts: list[tuple[str, str | None]] = []
    types: list[tuple[str, str]] = []
    for _ in range(count >> 1):
        key, at = _text(payload, at) if payload[at] == 0xA1 else _value(payload, at)
        name = key if type(key) is str else str(key)
        text: str | None
        if payload[at] == 0xA1:
            text, at = _text(payload, at)
            kind = "string"
        else:
            item, at = _value(payload, at)
            text, kind = (base64.b64encode(item).decode("ascii"), ENCODED) if isinstance(item, _Unreadable) else render(item)
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


def _text(payload: bytes, at: int) -> tuple[str, int]:
    stop = at + 2 + payload[at + 1]
    return payload[at + 2 : stop].decode(errors="replace"), stop


def _value(payload: bytes, at: int) -> tuple[Any, int]:
    """Text that is not UTF-8 with replacement characters, anything else that cannot be decoded as it is encoded."""
    try:
        return decode_value(payload, at)
    except DecodeError:
        end = skip_value(payload, at)
        code = payload[at]
        if code in (0xA1, 0xA3, 0xB1, 0xB3):
            return payload[at + (2 if code < 0xB0 else 5) : end].decode(errors="replace"), end
        return _Unreadable(payload[at:end]), end


def _map(payload: bytes, at: int) -> dict[Any, Any]:
    """As far as it can be read."""
    with contextlib.suppress(DecodeError):
        whole: Any = decode_value(payload, at)[0]
        return dict(whole)
    found: dict[Any, Any] = {}
    with contextlib.suppress(DecodeError, IndexError, TypeError):  # the last one: a key that cannot be one
        count, at = elements_of(payload, at)
        for _ in range(count >> 1):
            key, at = _value(payload, at)
            found[key], at = _value(payload, at)
    return found


def _annotations(value: dict[Any, Any], row: dict[str, Any]) -> None:
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


def _header(value: Any, row: dict[str, Any]) -> None:
    for name, item in zip(("durable", "priority", "time_to_live_ms", "", "delivery_count"), value, strict=False):
        if name and isinstance(item, int) and (name != "priority" or item <= _PRIORITY_MAX):
            row[name] = bool(item) if name == "durable" else int(item)


def sequence_number_of(payload: bytes) -> int:
    """Of a delivered or peeked message, without taking the rest apart."""
    number = _annotation(payload, "x-opt-sequence-number")
    if not isinstance(number, int):
        raise DecodeError("the message has no sequence number")
    return int(number)


def state_of(payload: bytes) -> int:
    """0 active, 1 deferred, 2 scheduled."""
    state = _annotation(payload, "x-opt-message-state")
    return int(state) if isinstance(state, int) else 0


def mark_of(payload: bytes) -> str | None:
    """Which reader deferred it, if one did."""
    mark = _value_in_map(payload, scan(payload).app_properties_value, MARK)
    return mark if isinstance(mark, str) else None


def _annotation(payload: bytes, name: str) -> object:
    return _value_in_map(payload, scan(payload).ma_value, name)


def _value_in_map(payload: bytes, at: int, name: str) -> object:
    """None if there is no such section, or nothing of that name in it."""
    return _map(payload, at).get(name) if at >= 0 else None
