"""The envelope taken off as bytes: what stays is copied, not decoded. For the common case; everything else is left to `envelope`."""

from __future__ import annotations

from struct import Struct
from typing import Final

from tandem.amqp import DecodeError, skip_value

_MAP32: Final = Struct(">BII")
_NULL: Final = b"\x40"
_SESSION_FIELD: Final = 10
_HEADER_FIELDS_KEPT: Final = 4
"""The fifth is the delivery count, which does not travel."""


class RawEnvelope:
    """What one walk over a payload finds."""

    __slots__ = ("after", "diverted_ms", "path", "payload", "session_id")

    def __init__(self, path: str, session_id: str | None, diverted_ms: int | None, after: str | None, payload: bytes) -> None:
        self.path = path
        self.session_id = session_id
        self.diverted_ms = diverted_ms
        self.after = after
        self.payload = payload


class Names:
    """Which properties the envelope consists of, encoded as they stand in a payload."""

    def __init__(
        self,
        path: str,
        session_id: str,
        others: tuple[str, ...],
        dropped: tuple[str, ...],
        annotations: frozenset[str],
        diverted: str,
        after: str,
        fence: str,
    ) -> None:
        self.path = path.encode()
        self.session_id = session_id.encode()
        self.others = frozenset(name.encode() for name in others)
        """Their values have to be understood: not the common case."""
        self.dropped = frozenset(name.encode() for name in dropped)
        self.annotations = frozenset(name.encode() for name in annotations)
        self.diverted = diverted.encode()
        self.after = after.encode()
        self.fence = fence.encode()


def take_off(payload: bytes, names: Names) -> RawEnvelope | None:
    """None when the message has anything that must be decoded to be put right."""
    try:
        return _take_off(payload, names)
    except (IndexError, DecodeError, UnicodeDecodeError):
        return None


def _take_off(payload: bytes, names: Names) -> RawEnvelope | None:
    out: list[bytes] = []
    properties_at = -1
    diverted: int | None = None
    kept_after: str | None = None
    found: tuple[bytes, str, str | None] | None = None
    at, end = 0, len(payload)
    while at < end:
        if payload[at] or payload[at + 1] != 0x53:
            return None
        code = payload[at + 2]
        after = skip_value(payload, at + 3)
        if code == 0x74:
            found = _application_properties(payload, at + 3, names)
            if found is None:
                return None
            out.append(found[0])
        elif code == 0x72:
            annotations = _annotations(payload, at + 3, names)
            if annotations is None:
                return None
            section, diverted, kept_after = annotations
            out.append(section)
        elif code == 0x73:
            properties_at = len(out)
            out.append(payload[at:after])
        elif code == 0x70:
            if payload[at + 3] != 0xC0 or payload[at + 5] > _HEADER_FIELDS_KEPT:
                return None
            out.append(payload[at:after])
        elif 0x75 <= code <= 0x78:
            out.append(payload[at:after])
        else:
            return None
        at = after
    if found is None:
        return None
    _, path, session = found
    if session is not None:
        if properties_at < 0:
            return None
        with_session = _with_session(out[properties_at], session)
        if with_session is None:
            return None
        out[properties_at] = with_session
    return RawEnvelope(path, session, diverted, kept_after, b"".join(out))


def _content(payload: bytes, at: int) -> tuple[int, int]:
    """(elements, where they start) of a map or list."""
    code = payload[at]
    if code in (0xC1, 0xC0):
        return payload[at + 2], at + 3
    if code in (0xD1, 0xD0):
        return int.from_bytes(payload[at + 5 : at + 9], "big"), at + 9
    raise DecodeError("neither map nor list")


def _application_properties(payload: bytes, at: int, names: Names) -> tuple[bytes, str, str | None] | None:
    """(section without the envelope, path, session id)."""
    count, at = _content(payload, at)
    kept: list[bytes] = []
    path = session = None
    for _ in range(count >> 1):
        if payload[at] != 0xA1:
            return None
        value_at = at + 2 + payload[at + 1]
        name = payload[at + 2 : value_at]
        after = skip_value(payload, value_at)
        if name == names.path or name == names.session_id:
            if payload[value_at] == 0xA1:
                text = payload[value_at + 2 : after].decode()
            elif payload[value_at] == 0xB1:
                text = payload[value_at + 5 : after].decode()
            else:
                return None
            if name == names.path:
                path = text
            else:
                session = text
        elif name in names.others:
            return None
        elif name not in names.dropped:
            kept.append(payload[at:after])
        at = after
    if not path:
        return None
    return _map_section(b"\x00\x53\x74", kept), path, session


def _annotations(payload: bytes, at: int, names: Names) -> tuple[bytes, int | None, str | None] | None:
    """(section without what the backlog's broker and the diverting client put there, when it was diverted, after what it must come)."""
    count, at = _content(payload, at)
    kept: list[bytes] = []
    diverted: int | None = None
    kept_after: str | None = None
    for _ in range(count >> 1):
        if payload[at] != 0xA3:
            return None
        value_at = at + 2 + payload[at + 1]
        name = payload[at + 2 : value_at]
        after = skip_value(payload, value_at)
        if name == names.diverted:
            if payload[value_at] != 0x83:
                return None
            diverted = int.from_bytes(payload[value_at + 1 : after], "big", signed=True)
        elif name == names.after:
            if payload[value_at] != 0xA1:
                return None
            kept_after = payload[value_at + 2 : after].decode()
        elif name == names.fence:
            return None
        elif name not in names.annotations:
            kept.append(payload[at:after])
        at = after
    return _map_section(b"\x00\x53\x72", kept), diverted, kept_after


def _map_section(descriptor: bytes, kept: list[bytes]) -> bytes:
    """A map with nothing in it leaves no section behind."""
    if not kept:
        return b""
    content = b"".join(kept)
    count = 2 * len(kept)
    if len(content) < 255 and count < 256:
        return descriptor + bytes((0xC1, len(content) + 1, count)) + content
    return descriptor + _MAP32.pack(0xD1, len(content) + 4, count) + content


def _with_session(section: bytes, session: str) -> bytes | None:
    """The properties section with this group-id; None when it already has one that must not be lost sight of."""
    if section[3] == 0x45:
        count, at = 0, 4
    else:
        count, at = _content(section, 3)
    fields: list[bytes] = []
    for _ in range(count):
        after = skip_value(section, at)
        fields.append(section[at:after])
        at = after
    fields += [_NULL] * (_SESSION_FIELD + 1 - len(fields))
    raw = session.encode()
    if len(raw) > 255:
        return None
    fields[_SESSION_FIELD] = bytes((0xA1, len(raw))) + raw
    content = b"".join(fields)
    if len(content) < 255:
        return b"\x00\x53\x73" + bytes((0xC0, len(content) + 1, len(fields))) + content
    return b"\x00\x53\x73" + _MAP32.pack(0xD0, len(content) + 4, len(fields)) + content
