"""The message nearly every client sends, recognised with a few comparisons: for the interpreter, which pays for every call.

Compiled, the walk over the sections is as fast. What is not recognised here is walked; both give the same message.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from tandem.gateway.decimals import DECIMAL128
from tandem.model.message import Message

_HEADER: Final = b"\x00\x53\x70\xc0"
_PROPERTIES: Final = b"\x00\x53\x73"
_APPLICATION_PROPERTIES: Final = b"\x00\x53\x74"
_DATA_8: Final = b"\x00\x53\x75\xa0"
_DATA_32: Final = b"\x00\x53\x75\xb0"
_SIZE_AND_COUNT: Final = Struct(">II")
_NULLS: Final = tuple(b"\x40" * count for count in range(13))
_ID_BYTES_MAX: Final = 130
_HEADERS_MAX: Final = 256
_BYTES_MIN: Final = 20
"""Shorter ones are walked."""

_headers: dict[bytes, tuple[bytes, int]] = {}
"""Header lists that were walked before: what travels of them, and the time to live."""


def remember_header(header: bytes, travels: bytes, ttl_ms: int) -> None:
    if len(_headers) < _HEADERS_MAX:
        _headers[header] = (travels, ttl_ms)


def usual_message(payload: bytes) -> Message | None:
    """Header, properties with a text as id and nothing that concerns the broker, perhaps application properties, one data section."""
    end = len(payload)
    if end < _BYTES_MIN:
        return None
    if not payload.startswith(_HEADER):
        start = 0
        travels, ttl_ms = b"", -1
    else:
        start = 5 + payload[4]
        known = _headers.get(payload[3:start])
        if known is None:
            return None
        travels, ttl_ms = known
    if payload[start : start + 3] != _PROPERTIES or start + _BYTES_MIN > end:
        return None
    if payload[start + 3] == 0xC0:
        after = start + 5 + payload[start + 4]
        count = payload[start + 5]
        id_at = start + 6
    elif payload[start + 3] == 0xD0:
        size, count = _SIZE_AND_COUNT.unpack_from(payload, start + 4)
        after = start + 8 + size
        id_at = start + 12
    else:
        return None
    id_end = id_at + 2 + payload[id_at + 1]
    if payload[id_at] != 0xA1 or id_end - id_at > _ID_BYTES_MAX or not 1 <= count <= len(_NULLS) or after + 5 > end:
        return None
    if id_end + count - 1 != after or payload[id_end:after] != _NULLS[count - 1]:
        return None
    at = after
    if payload[at : at + 3] == _APPLICATION_PROPERTIES:
        if payload[at + 3] == 0xC1:
            at += 5 + payload[at + 4]
        elif payload[at + 3] == 0xD1:
            at += 8 + int.from_bytes(payload[at + 4 : at + 8])
        else:
            return None
        if payload.find(DECIMAL128, after, at) >= 0:
            return None
    data = payload[at : at + 4]
    if data == _DATA_32:
        if at + 8 + int.from_bytes(payload[at + 4 : at + 8]) != end:
            return None
    elif data != _DATA_8 or at + 5 > end or at + 5 + payload[at + 4] != end:
        return None
    bare = payload[start:] if start else payload
    return Message(bare, payload[id_at:id_end], None, ttl_ms, 0, travels, 0, b"", 0, b"", None, False)
