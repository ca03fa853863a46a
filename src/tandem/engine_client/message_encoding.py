"""Plain values to encoded messages, and encoded messages to batches: the fast way out for rows of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tandem.amqp import EncodeError, Symbol, Timestamp, encode_message, encode_value
from tandem.amqp.encoder import NULL, compound, described_list, encode_string, encode_symbol, encode_uint
from tandem.amqp.message import HEADER, PROPERTIES, data_section
from tandem.model.entity import LATEST_MS

TTL_MS_MAX: Final = 0xFFFF_FFFF
_SCHEDULE: Final = b"\xa3\x1cx-opt-scheduled-enqueue-time"
_PARTITION: Final = b"\xa3\x13x-opt-partition-key"

ONCE: Final = "com.tandem:once"
"""A broker that can answers a link with this property with the same."""


def encode_row(
    body: bytes,
    message_id: str,
    *,
    session_id: str | None = None,
    partition_key: str | None = None,
    correlation_id: str | None = None,
    subject: str | None = None,
    to: str | None = None,
    reply_to: str | None = None,
    reply_to_session_id: str | None = None,
    content_type: str | None = None,
    time_to_live_ms: int | None = None,
    scheduled_at_ms: int | None = None,
    application_properties: Mapping[str, object] | None = None,
    created_at_ms: int | None = None,
) -> bytes:
    """One message with a data body. ValueError where a value has no AMQP form.

    A time to live beyond what the header can say needs `created_at_ms`: it is the time from creation to expiry then.
    """
    parts: list[bytes] = []
    if time_to_live_ms is not None:
        if time_to_live_ms < 1:
            raise ValueError(f"a time-to-live of {time_to_live_ms} ms: at least 1 is needed")
        parts.append(described_list(HEADER, [NULL, NULL, encode_uint(min(time_to_live_ms, TTL_MS_MAX))]))
    annotations: list[bytes] = []
    if partition_key is not None:
        annotations += (_PARTITION, encode_string(partition_key))
    if scheduled_at_ms is not None:
        annotations += (_SCHEDULE, encode_value(Timestamp(scheduled_at_ms)))
    if annotations:
        parts.append(b"\x00\x53\x72" + compound(0xC1, b"".join(annotations), len(annotations)))
    try:
        fields = [encode_string(message_id), NULL, _text(to), _text(subject), _text(reply_to), _text(correlation_id)]
        fields += [NULL if content_type is None else encode_symbol(content_type), NULL]
        fields += [*_lifetime(created_at_ms, time_to_live_ms), _text(session_id), NULL]
        fields.append(_text(reply_to_session_id))
        parts.append(described_list(PROPERTIES, fields))
        if application_properties:
            parts.append(b"\x00\x53\x74" + encode_value(dict(application_properties)))
    except EncodeError as error:
        raise ValueError(str(error)) from error
    parts.append(data_section(body))
    return b"".join(parts)


def _lifetime(created_at_ms: int | None, time_to_live_ms: int | None) -> tuple[bytes, bytes]:
    """(expiry, creation) as properties have them."""
    if created_at_ms is None:
        return NULL, NULL
    expires = NULL if time_to_live_ms is None else encode_value(Timestamp(min(created_at_ms + time_to_live_ms, LATEST_MS)))
    return expires, encode_value(Timestamp(created_at_ms))


def _text(value: str | None) -> bytes:
    return NULL if value is None else encode_string(value)


def encode_batch(payloads: Sequence[bytes]) -> bytes:
    """Many messages as one transfer of the batch format: each is one data section."""
    return b"".join([data_section(payload) for payload in payloads])


def encode_numbered_batch(scope: str, numbers: Sequence[int], payloads: Sequence[bytes]) -> bytes:
    """The same, for a link that sends once: the broker stores each number of a scope once."""
    once: list[object] = [scope, b"".join([number.to_bytes(8, "little") for number in numbers])]
    return encode_message(delivery_annotations={Symbol(ONCE): once}, body=list(payloads))
