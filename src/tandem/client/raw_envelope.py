"""The envelope taken off as bytes: what stays is copied, not decoded. For the common case; everything else is left to `envelope`."""

from __future__ import annotations

from typing import Final

from tandem.amqp import DecodeError, scan, skip_value
from tandem.amqp.codec import elements_of, part
from tandem.amqp.encoder import NULL, compound

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


class EnvelopeNames:
    """Which properties the envelope consists of, encoded as they stand in a payload."""

    def __init__(
        self,
        path: str,
        session_id: str,
        others: tuple[str, ...],
        annotations: frozenset[str],
        diverted: str,
        after: str,
        fence: str,
    ) -> None:
        self.path = path.encode()
        self.session_id = session_id.encode()
        self.others = frozenset(name.encode() for name in others)
        """Their values have to be understood: not the common case."""
        self.annotations = frozenset(name.encode() for name in annotations)
        self.diverted = diverted.encode()
        self.after = after.encode()
        self.fence = fence.encode()


def take_off(payload: bytes, names: EnvelopeNames) -> RawEnvelope | None:
    """None when the message has anything that must be decoded to be put right."""
    try:
        return _take_off(payload, names)
    except (IndexError, DecodeError, UnicodeDecodeError):
        return None


def _take_off(payload: bytes, names: EnvelopeNames) -> RawEnvelope | None:
    s = scan(payload)
    header = s.header_value
    unusual_header = header >= 0 and (payload[header] != 0xC0 or payload[header + 2] > _HEADER_FIELDS_KEPT)
    if s.da_at >= 0 or s.app_properties_at < 0 or unusual_header:
        return None
    found = _application_properties(payload, s.app_properties_value, names)
    annotations = _annotations(payload, s.ma_value, names) if s.ma_at >= 0 else (b"", None, None)
    if found is None or annotations is None:
        return None
    application_section, path, session = found
    annotation_section, diverted, after = annotations
    properties = part(payload, s.properties_at, s.properties_end)
    if session is not None:
        with_session = _with_session(payload, s.properties_value, session) if properties else None
        if with_session is None:
            return None
        properties = with_session
    kept = part(payload, s.header_at, s.header_end), part(payload, s.body_at, s.body_end), part(payload, s.footer_at, s.footer_end)
    out = (kept[0], annotation_section, properties, application_section, kept[1], kept[2])
    return RawEnvelope(path, session, diverted, after, b"".join(out))


def _application_properties(payload: bytes, at: int, names: EnvelopeNames) -> tuple[bytes, str, str | None] | None:
    """(section without the envelope, path, session id)."""
    count, at = elements_of(payload, at)
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
        else:
            kept.append(payload[at:after])
        at = after
    if not path:
        return None
    return _map_section(b"\x00\x53\x74", kept), path, session


def _annotations(payload: bytes, at: int, names: EnvelopeNames) -> tuple[bytes, int | None, str | None] | None:
    """(section without what the backlog's broker and the diverting client put there, when it was diverted, after what it must come)."""
    count, at = elements_of(payload, at)
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
    return descriptor + compound(0xC1, b"".join(kept), 2 * len(kept)) if kept else b""


def _with_session(payload: bytes, at: int, session: str) -> bytes | None:
    """The properties section with this group-id; None when it is too long for the common form."""
    count, at = elements_of(payload, at)
    fields: list[bytes] = []
    for _ in range(count):
        after = skip_value(payload, at)
        fields.append(payload[at:after])
        at = after
    fields += [NULL] * (_SESSION_FIELD + 1 - len(fields))
    raw = session.encode()
    if len(raw) > 255:
        return None
    fields[_SESSION_FIELD] = bytes((0xA1, len(raw))) + raw
    return b"\x00\x53\x73" + compound(0xC0, b"".join(fields), len(fields))
