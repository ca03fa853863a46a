"""A message as the broker holds it: the few fields that decide, and the rest as the bytes that arrived."""

from __future__ import annotations

from struct import Struct
from typing import Final

NO_TTL: Final = -1
DAMAGED_TTL: Final = -(1 << 62)
"""In place of a time to live: the message's body was lost to damage, and `bare` says in words where."""

_FIXED: Final = Struct("<qHHHIIHH")
_pack_fixed: Final = _FIXED.pack
"""ttl, header bytes (hops above them), annotation counts (delivery, message), annotation bytes (the same), id bytes, session id bytes."""

_NO_SESSION: Final = 0xFFFF
_HEADER_BITS: Final = 12
HEADER_BYTES_MAX: Final = (1 << _HEADER_BITS) - 1
OVERHEAD_BYTES: Final = 32
"""What a message counts for beyond its bare bytes and annotations. Quotas include it; the largest message may be as large on the wire."""
HOPS_MAX: Final = 15
"""As many as fit above the header's length; the broker stops long before."""


class Message:
    """Sections are kept encoded. `bare` is properties to footer, never touched between socket and disk."""

    __slots__ = (
        "bare",
        "delivery_annotation_count",
        "delivery_annotations",
        "header",
        "hops",
        "is_ping",
        "message_annotation_count",
        "message_annotations",
        "message_id",
        "partition_key",
        "scheduled_at",
        "session_id",
        "size_bytes",
        "ttl_ms",
    )

    def __init__(
        self,
        bare: bytes,
        message_id: bytes,
        session_id: str | None,
        ttl_ms: int,
        scheduled_at: int,
        header: bytes,
        delivery_annotation_count: int,
        delivery_annotations: bytes,
        message_annotation_count: int,
        message_annotations: bytes,
        partition_key: str | None,
        is_ping: bool,
    ) -> None:
        self.bare: bytes = bare
        self.message_id: bytes = message_id
        """The AMQP encoding of the id, type included: ids of different types differ."""
        self.session_id: str | None = session_id
        self.ttl_ms: int = ttl_ms
        """As the sender asked; NO_TTL when it did not."""
        self.scheduled_at: int = scheduled_at
        """0 when not scheduled."""
        self.header: bytes = header
        """Encoded `durable` and `priority`, the two header fields that travel; empty when both were absent."""
        self.delivery_annotation_count: int = delivery_annotation_count
        """Map items (keys and values) in `delivery_annotations`, which is the map's content without its frame."""
        self.delivery_annotations: bytes = delivery_annotations
        self.message_annotation_count: int = message_annotation_count
        self.message_annotations: bytes = message_annotations
        """The sender's own; those the broker sets are taken out on arrival and put in on delivery."""
        self.partition_key: str | None = partition_key
        self.is_ping: bool = is_ping
        self.size_bytes: int = len(bare) + len(message_annotations) + len(delivery_annotations) + OVERHEAD_BYTES
        """Bytes that count against quotas."""
        self.hops: int = 0
        """How often it was forwarded from one entity to another."""

    def live_for(self, ttl_ms: int) -> None:
        self.ttl_ms = ttl_ms

    def schedule(self, at: int) -> None:
        self.scheduled_at = at

    def hop(self, hops: int) -> None:
        """It was forwarded so often by now."""
        self.hops = hops

    def annotate(self, count: int, annotations: bytes) -> None:
        """With these and no others."""
        self.message_annotation_count = count
        self.message_annotations = annotations

    def with_bare(self, bare: bytes) -> Message:
        """The same message with other properties, application properties or body."""
        copy = Message(
            bare,
            self.message_id,
            self.session_id,
            self.ttl_ms,
            self.scheduled_at,
            self.header,
            self.delivery_annotation_count,
            self.delivery_annotations,
            self.message_annotation_count,
            self.message_annotations,
            self.partition_key,
            self.is_ping,
        )
        copy.hop(self.hops)
        return copy


def encode_body(m: Message) -> bytes:
    """Everything a delivery needs: a body can be read back alone, without the record's key."""
    message_id = m.message_id
    if m.session_id is None:
        tail = message_id
        session_len = _NO_SESSION
    else:
        session = m.session_id.encode()
        session_len = len(session)
        tail = message_id + session
    da = m.delivery_annotations
    ma = m.message_annotations
    header = m.header
    header_len = len(header)
    da_len = len(da)
    ma_len = len(ma)
    fixed = _pack_fixed(
        m.ttl_ms,
        header_len | m.hops << _HEADER_BITS,
        m.delivery_annotation_count,
        m.message_annotation_count,
        da_len,
        ma_len,
        len(message_id),
        session_len,
    )
    if header_len + da_len + ma_len == 0:
        return b"".join((fixed, tail, m.bare))
    return b"".join((fixed, tail, header, da, ma, m.bare))


def damaged_body(message_id: bytes, session_id: str | None, why: str) -> bytes:
    """What stands for a body that fails its checksum: whoever loads it sets the message aside."""
    return encode_body(Message(why.encode(), message_id, session_id, DAMAGED_TTL, 0, b"", 0, b"", 0, b"", None, False))


def decode_body(body: bytes) -> Message:
    ttl, header_len, da_count, ma_count, da_len, ma_len, id_len, session_len = _FIXED.unpack_from(body)
    hops = header_len >> _HEADER_BITS
    header_len &= HEADER_BYTES_MAX
    at: int = _FIXED.size
    message_id = body[at : at + id_len]
    at += id_len
    session_id: str | None = None
    if session_len != _NO_SESSION:
        session_id = body[at : at + session_len].decode()
        at += session_len
    header = body[at : at + header_len]
    at += header_len
    da = body[at : at + da_len]
    at += da_len
    ma = body[at : at + ma_len]
    at += ma_len
    message = Message(body[at:], message_id, session_id, ttl, 0, header, da_count, da, ma_count, ma, None, False)
    if hops:
        message.hop(hops)
    return message
