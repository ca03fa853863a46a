"""The only reader of messages: one strict scan that says where each section lies, and one form of a whole message as dictionaries."""

from __future__ import annotations

from typing import Final, cast

from mypy_extensions import i64

from tandem.amqp.codec import Decoder, part, skip_value, uint32
from tandem.amqp.encoder import (
    NULL,
    compound,
    described_list,
    encode_binary,
    encode_symbol,
    encode_uint,
    encode_value,
)
from tandem.amqp.errors import DecodeError
from tandem.amqp.fields import Fields, read_descriptor
from tandem.amqp.types import EncodeError, Timestamp, UByte, type_name

HEADER: Final = 0x70
DELIVERY_ANNOTATIONS: Final = 0x71
MESSAGE_ANNOTATIONS: Final = 0x72
PROPERTIES: Final = 0x73
APPLICATION_PROPERTIES: Final = 0x74
DATA: Final = 0x75
SEQUENCE: Final = 0x76
VALUE: Final = 0x77
FOOTER: Final = 0x78
NO_BODY: Final = 0

_NAMES: Final = {
    0x70: "header",
    0x71: "delivery-annotations",
    0x72: "message-annotations",
    0x73: "properties",
    0x74: "application-properties",
    0x75: "data",
    0x76: "amqp-sequence",
    0x77: "amqp-value",
    0x78: "footer",
}


class Sections:
    """Where each section lies. `x_at` is its descriptor, `x_value` the value behind it, `x_end` its end; -1 = absent."""

    header_at: i64 = -1
    header_value: i64 = -1
    header_end: i64 = -1
    da_at: i64 = -1
    da_value: i64 = -1
    da_end: i64 = -1
    ma_at: i64 = -1
    ma_value: i64 = -1
    ma_end: i64 = -1
    properties_at: i64 = -1
    properties_value: i64 = -1
    properties_end: i64 = -1
    app_properties_at: i64 = -1
    app_properties_value: i64 = -1
    app_properties_end: i64 = -1
    body_at: i64 = -1
    """The first body section; several data or sequence sections follow one another up to `body_end`."""
    body_value: i64 = -1
    body_end: i64 = -1
    body_kind: i64 = NO_BODY
    body_count: i64 = 0
    footer_at: i64 = -1
    footer_value: i64 = -1
    footer_end: i64 = -1
    in_order: bool = True
    """They came in the order of the specification."""

    _last: i64 = 0

    def add(self, code: i64, start: i64, value: i64, end: i64) -> None:
        """The next section of the message."""
        if code < self._last:
            self.in_order = False
        self._last = code
        twice = False
        if code == PROPERTIES:
            twice = self.properties_at >= 0
            self.properties_at = start
            self.properties_value = value
            self.properties_end = end
        elif code in (DATA, SEQUENCE, VALUE):
            self._add_body(code, start, value, end)
        elif code == APPLICATION_PROPERTIES:
            twice = self.app_properties_at >= 0
            self.app_properties_at = start
            self.app_properties_value = value
            self.app_properties_end = end
        elif code == HEADER:
            twice = self.header_at >= 0
            self.header_at = start
            self.header_value = value
            self.header_end = end
        elif code == MESSAGE_ANNOTATIONS:
            twice = self.ma_at >= 0
            self.ma_at = start
            self.ma_value = value
            self.ma_end = end
        elif code == DELIVERY_ANNOTATIONS:
            twice = self.da_at >= 0
            self.da_at = start
            self.da_value = value
            self.da_end = end
        else:
            twice = self.footer_at >= 0
            self.footer_at = start
            self.footer_value = value
            self.footer_end = end
        if twice:
            raise DecodeError(f"message has two {_NAMES[code]} sections")

    def _add_body(self, code: i64, start: i64, value: i64, end: i64) -> None:
        if self.body_count == 0:
            self.body_at = start
            self.body_value = value
            self.body_kind = code
        elif self.body_kind != code or code == VALUE:
            raise DecodeError(f"message body has {_NAMES[self.body_kind]} and {_NAMES[code]} sections")
        elif self.body_end != start:
            raise DecodeError("message body is interrupted by another section")
        self.body_end = end
        self.body_count += 1

    def bare(self, payload: bytes) -> bytes:
        """Properties, application properties, body and footer in the order of the specification: one slice when they came that way."""
        if not self.in_order:
            properties = payload[self.properties_at : self.properties_end]
            app_properties = payload[self.app_properties_at : self.app_properties_end]
            body = payload[self.body_at : self.body_end]
            return properties + app_properties + body + payload[self.footer_at : self.footer_end]
        start: i64 = self.properties_at
        if start < 0:
            start = self.app_properties_at
        if start < 0:
            start = self.body_at
        if start < 0:
            start = self.footer_at
        return b"" if start < 0 else payload[start:]


def scan(payload: bytes) -> Sections:
    """Sections in any order, each at most once except data and amqp-sequence, which must be together."""
    s = Sections()
    n: i64 = len(payload)
    at: i64 = 0
    while at < n:
        start: i64 = at
        code: i64 = 0
        value: i64 = at + 3
        if n - at > 3 and payload[at] == 0 and payload[at + 1] == 0x53:
            code = payload[at + 2]
        else:
            code, value = read_descriptor(payload, at, n)
        at = _section_end(payload, code, value, n)
        s.add(code, start, value, at)
    return s


def _section_end(payload: bytes, code: i64, value: i64, n: i64) -> i64:
    """Where the section's value ends, which must be of the section's type."""
    if value >= n:
        raise DecodeError(f"section 0x{int(code):02x} cut short at byte {n}")
    found: i64 = payload[value]
    kind: i64 = found >> 4
    if code < HEADER or code > FOOTER:
        raise DecodeError(f"0x{int(code):02x} at byte {value} is no message section")
    if code == VALUE:
        return skip_value(payload, value)
    if code == DATA:
        fits = found == 0xA0 or found == 0xB0
    elif code in (HEADER, PROPERTIES, SEQUENCE):
        fits = found == 0xC0 or found == 0xD0 or found == 0x45
    else:
        fits = found == 0xC1 or found == 0xD1
    if not fits:
        raise _wrong_type(code, found)
    if (n - value < 5 and (kind == 0xB or kind == 0xD)) or (n - value < 2 and found != 0x45):
        raise DecodeError(f"{_NAMES[code]} cut short at byte {n}")
    end: i64 = value + 1
    if found != 0x45:
        end = value + 5 + uint32(payload, value + 1) if kind & 1 else value + 2 + payload[value + 1]
    if end > n:
        raise DecodeError(f"{_NAMES[code]} runs to byte {end} of {n}")
    return end


def _wrong_type(code: i64, found: i64) -> DecodeError:
    expected = "binary" if code == DATA else "list" if code in (HEADER, PROPERTIES, SEQUENCE) else "map"
    return DecodeError(f"{_NAMES[code]}: expected {expected}, found {type_name(found)}")


# -- whole messages ----------------------------------------------------------------------------------------------------

HEADER_FIELDS: Final = ("durable", "priority", "ttl", "first-acquirer", "delivery-count")
PROPERTY_FIELDS: Final = (
    "message-id",
    "user-id",
    "to",
    "subject",
    "reply-to",
    "correlation-id",
    "content-type",
    "content-encoding",
    "absolute-expiry-time",
    "creation-time",
    "group-id",
    "group-sequence",
    "reply-to-group-id",
)


class DecodedMessage:
    """A whole message as dictionaries, by field name without the absent ones; every value keeps its wire type.

    Body and footer stay as they were encoded: decoded when they are asked for, and put back byte for byte.
    """

    def __init__(
        self,
        header: dict[str, object] | None = None,
        delivery_annotations: dict[object, object] | None = None,
        message_annotations: dict[object, object] | None = None,
        properties: dict[str, object] | None = None,
        application_properties: dict[object, object] | None = None,
        body_sections: bytes = b"",
        footer_section: bytes = b"",
    ) -> None:
        self.header: dict[str, object] = {} if header is None else header
        self.delivery_annotations: dict[object, object] = {} if delivery_annotations is None else delivery_annotations
        self.message_annotations: dict[object, object] = {} if message_annotations is None else message_annotations
        self.properties: dict[str, object] = {} if properties is None else properties
        self.application_properties: dict[object, object] = {} if application_properties is None else application_properties
        self.body_sections = body_sections
        self.footer_section = footer_section

    @property
    def body_kind(self) -> int:
        """DATA, SEQUENCE, VALUE or NO_BODY."""
        return scan(self.body_sections).body_kind

    @property
    def body(self) -> object:
        """The list of data sections, the list of sequences, the value, or None."""
        raw = self.body_sections
        s = scan(raw)
        if s.body_kind == NO_BODY:
            return None
        if s.body_kind == VALUE:
            return Decoder(raw, s.body_value, s.body_end).value()
        return data_of(raw, s) if s.body_kind == DATA else _sequences(raw, s)

    @property
    def footer(self) -> dict[object, object]:
        s = scan(self.footer_section)
        return _map("footer", self.footer_section, s.footer_value, s.footer_end)

    def encode(self) -> bytes:
        """Empty sections are left out. Field values get their field's type; annotation keys become symbols."""
        parts: list[bytes] = []
        _add_fields(parts, HEADER, HEADER_FIELDS, self.header)
        if self.delivery_annotations:
            parts.append(b"\x00\x53\x71" + _annotations(self.delivery_annotations))
        if self.message_annotations:
            parts.append(b"\x00\x53\x72" + _annotations(self.message_annotations))
        _add_fields(parts, PROPERTIES, PROPERTY_FIELDS, self.properties)
        if self.application_properties:
            parts.append(b"\x00\x53\x74" + encode_value(self.application_properties))
        parts.append(self.body_sections)
        parts.append(self.footer_section)
        return b"".join(parts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DecodedMessage) and self._all() == other._all()

    def __hash__(self) -> int:
        return hash(self.body_sections)

    def __repr__(self) -> str:
        return f"DecodedMessage{self._all()!r}"

    def _all(self) -> tuple[object, ...]:
        annotations = (self.delivery_annotations, self.message_annotations)
        return (self.header, *annotations, self.properties, self.application_properties, self.body_sections, self.footer_section)


def decode_message(payload: bytes) -> DecodedMessage:
    s = scan(payload)
    return DecodedMessage(
        _named("header", HEADER_FIELDS, payload, s.header_value, s.header_end),
        _map("delivery-annotations", payload, s.da_value, s.da_end),
        _map("message-annotations", payload, s.ma_value, s.ma_end),
        _named("properties", PROPERTY_FIELDS, payload, s.properties_value, s.properties_end),
        _map("application-properties", payload, s.app_properties_value, s.app_properties_end),
        part(payload, s.body_at, s.body_end),
        part(payload, s.footer_at, s.footer_end),
    )


def data_of(payload: bytes, s: Sections) -> list[bytes]:
    """What the data sections hold, one by one; nothing if the body is of another kind."""
    found: list[bytes] = []
    if s.body_kind != DATA:
        return found
    at: i64 = s.body_at
    while at < s.body_end:
        _, at = read_descriptor(payload, at, s.body_end)
        if payload[at] == 0xA0:
            start: i64 = at + 2
            at = start + payload[at + 1]
        else:
            start = at + 5
            at = start + uint32(payload, at + 1)
        found.append(part(payload, start, at))
    return found


def _sequences(payload: bytes, s: Sections) -> list[object]:
    found: list[object] = []
    at: i64 = s.body_at
    while at < s.body_end:
        _, value = read_descriptor(payload, at, s.body_end)
        decoder = Decoder(payload, value, s.body_end)
        found.append(decoder.value())
        at = decoder.at
    return found


def _map(name: str, payload: bytes, at: i64, end: i64) -> dict[object, object]:
    if at < 0:
        return {}
    try:
        return cast("dict[object, object]", Decoder(payload, at, end).value())
    except DecodeError as error:
        raise DecodeError(f"{name}: {error.description}") from None


def _named(name: str, names: tuple[str, ...], payload: bytes, at: i64, end: i64) -> dict[str, object]:
    found: dict[str, object] = {}
    if at < 0:
        return found
    fields = Fields(name, payload, at, end)
    try:
        for field in names:
            value = fields.value(field)
            if value is not None:
                found[field] = value
        fields.finish()
    except DecodeError as error:
        raise fields.explain(error) from None
    return found


def encode_message(
    header: dict[str, object] | None = None,
    delivery_annotations: dict[object, object] | None = None,
    message_annotations: dict[object, object] | None = None,
    properties: dict[str, object] | None = None,
    application_properties: dict[object, object] | None = None,
    body: object = None,
    body_kind: int = DATA,
    footer: dict[object, object] | None = None,
) -> bytes:
    """One go from values to bytes; `body` and `footer` as `DecodedMessage` shows them."""
    made = DecodedMessage(header, delivery_annotations, message_annotations, properties, application_properties)
    made.body_sections = _encode_body(body, body_kind)
    if footer:
        made.footer_section = b"\x00\x53\x78" + _annotations(footer)
    return made.encode()


def data_section(data: bytes) -> bytes:
    return b"\x00\x53\x75" + encode_binary(data)


def _encode_body(body: object, body_kind: int) -> bytes:
    if body_kind == VALUE:
        return b"\x00\x53\x77" + encode_value(body)
    if body_kind == DATA:
        if isinstance(body, bytes):
            return data_section(body)
        if isinstance(body, (list, tuple)):
            return b"".join([data_section(data) for data in body])
        if body is not None:
            raise EncodeError(f"data body of {type(body).__name__}")
    elif body_kind == SEQUENCE and isinstance(body, (list, tuple)):
        return b"".join([b"\x00\x53\x76" + encode_value(sequence) for sequence in body])
    elif body_kind != NO_BODY:
        raise EncodeError(f"no body of kind 0x{body_kind:02x}")
    return b""


def _add_fields(parts: list[bytes], code: int, names: tuple[str, ...], fields: dict[str, object]) -> None:
    for value in fields.values():
        if value is not None:
            parts.append(described_list(code, _by_position(names, fields)))
            return


def _by_position(names: tuple[str, ...], fields: dict[str, object]) -> list[bytes]:
    unknown = set(fields) - set(names)
    if unknown:
        raise EncodeError(f"no such field: {', '.join(sorted(unknown))}")
    return [_field(name, fields.get(name)) for name in names]


def _field(name: str, value: object) -> bytes:
    if value is None:
        return NULL
    if name in _SYMBOL_FIELDS and isinstance(value, str):
        return encode_symbol(value)
    if name in _UINT_FIELDS and isinstance(value, int):
        return encode_uint(value)
    if name == "priority" and isinstance(value, int):
        return encode_value(UByte(value))
    if name in _TIMESTAMP_FIELDS and isinstance(value, int):
        return encode_value(Timestamp(value))
    return encode_value(value)


_SYMBOL_FIELDS: Final = frozenset(("content-type", "content-encoding"))
_UINT_FIELDS: Final = frozenset(("ttl", "delivery-count", "group-sequence"))
_TIMESTAMP_FIELDS: Final = frozenset(("absolute-expiry-time", "creation-time"))


def _annotations(annotations: dict[object, object]) -> bytes:
    parts: list[bytes] = []
    for key, value in annotations.items():
        parts.append(encode_symbol(key) if type(key) is str else encode_value(key))
        parts.append(encode_value(value))
    return compound(0xC1, b"".join(parts), 2 * len(annotations))
