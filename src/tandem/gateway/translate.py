"""Sections on the wire to a model.Message and back: the last place where a message is AMQP."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final

from mypy_extensions import i64

from tandem.amqp.codec import COMPILED, decode_value, elements_of, part, skip_value, uint32
from tandem.amqp.encoder import compound, encode_value
from tandem.amqp.errors import DecodeError
from tandem.amqp.message import scan
from tandem.amqp.types import Symbol, Timestamp, ULong
from tandem.broker.ports import Rewriter
from tandem.broker.rules.message_view import MessageView
from tandem.gateway.amqp.jms import milliseconds
from tandem.gateway.common_form import read_common_form, remember_header
from tandem.gateway.decimals import DECIMAL128, in_service_layout
from tandem.gateway.views import application_properties_of, as_text, changed_message, forwarded_message, view_of_message
from tandem.model.entity import MAX_DURATION_MS
from tandem.model.errors import ArgumentRefused, BusError, DecodeFailed, InvalidField, MessageSizeExceeded, NotAllowed
from tandem.model.message import NO_TTL, Message

_PING: Final = b"application/vnd.ms-servicebus-ping"
_ID_CHARS_MAX: Final = 128
_TRAVELLING_BYTES_MAX: Final = 16
"""Header fields that travel with a message; their legal forms are shorter."""
_UINT_MAX: Final = 0xFFFFFFFF

_SET_BY_BROKER: Final = frozenset(
    {
        b"x-opt-enqueued-time",
        b"x-opt-sequence-number",
        b"x-opt-locked-until",
        b"x-opt-message-state",
        b"x-opt-enqueue-sequence-number",
        b"x-opt-deadletter-source",
        b"x-opt-lock-token",
        b"x-opt-enqueue-time",
    }
)
_SCHEDULED: Final = b"x-opt-scheduled-enqueue-time"
_DELIVERY_TIME: Final = b"x-opt-delivery-time"
_DELIVERY_DELAY: Final = b"x-opt-delivery-delay"
"""How JMS clients schedule: an instant, or milliseconds from now."""
_PARTITION_KEY: Final = b"x-opt-partition-key"
_KEYS: Final = frozenset({_PARTITION_KEY, b"x-opt-via-partition-key"})
_STRINGS: Final = b"\xa1\xb1"


def _symbol(name: bytes, code: int) -> bytes:
    return bytes((0xA3, len(name))) + name + bytes((code,))


_K_ENQUEUED: Final = _symbol(b"x-opt-enqueued-time", 0x83)
_K_SEQUENCE: Final = _symbol(b"x-opt-sequence-number", 0x81)
_K_UNTIL: Final = _symbol(b"x-opt-locked-until", 0x83)
_K_STATE: Final = _symbol(b"x-opt-message-state", 0x54)
_K_TOKEN: Final = _symbol(b"x-opt-lock-token", 0x98)

_STAMPED: Final = Struct(f">{len(_K_ENQUEUED)}sq{len(_K_SEQUENCE)}sq")
_STAMPED_LOCKED: Final = Struct(f">{len(_K_ENQUEUED)}sq{len(_K_SEQUENCE)}sq{len(_K_UNTIL)}sq")
_MAP32: Final = Struct(">BII")
_U32: Final = Struct(">I")

_DURABLE: Final = b"\x41\x40"
_HEADER_OF_NOTHING: Final = b"\x00\x53\x70\xc0\x06\x05\x40\x40\x40\x40\x43"
_HEADER_OF_DURABLE: Final = b"\x00\x53\x70\xc0\x06\x05\x41\x40\x40\x40\x43"
"""Headers of first deliveries without time to live, by what travels (`durable`, `priority`): nearly all there are."""
_NO_ANNOTATIONS: Final = b"\x00\x53\x71\xc1\x01\x00"
_TOKEN_ALONE: Final = b"\x00\x53\x71\xc1" + bytes((len(_K_TOKEN) + 17, 2)) + _K_TOKEN
_STAMPS_ALONE: Final = b"\x00\x53\x72\xc1" + bytes((_STAMPED_LOCKED.size + 1, 6)) + _K_ENQUEUED
_unpack_token: Final = Struct("<IHH8s").unpack
_pack_usual: Final = Struct(f">{len(_TOKEN_ALONE)}sIHH8s{len(_STAMPS_ALONE)}sq{len(_K_SEQUENCE)}sq{len(_K_UNTIL)}sq").pack
"""Both annotation sections of a locked message whose sender set none."""


def token_to_uuid(tag: bytes) -> bytes:
    """A lock token as the 16 bytes of an AMQP uuid; the delivery tag holds it in .NET's byte order. Its own inverse."""
    return tag[3::-1] + tag[5:3:-1] + tag[7:5:-1] + tag[8:]


def _with_symbols(buf: bytes, at: i64, count: i64, end: i64, section: str = "message-annotations") -> bytes:
    """The map of annotations whose elements begin at `at`, its keys in the shortest form of a symbol. A client written in C (uamqp)
    sends the annotations of a received message again under strings; Java's client writes footers so, and cannot read them."""
    parts: list[bytes] = []
    left: i64 = count
    while left > 0:
        key_at: i64 = at
        at = skip_value(buf, at)
        value_at: i64 = at
        at = skip_value(buf, at)
        left -= 2
        code: i64 = buf[key_at]
        if code == 0xA1 or code == 0xB1 or code == 0xB3:
            name_at: i64 = key_at + (2 if code == 0xA1 else 5)
            name = buf[name_at:value_at]
            if not name.isascii():
                raise DecodeError(f"{section}: the key {name[:40]!r} is no symbol, whose characters are ASCII")
            parts.append(encode_value(Symbol(name.decode("ascii"))) + buf[value_at:at])
        else:
            parts.append(buf[key_at:at])
    if at != end:
        raise DecodeError(f"{section}: elements end at byte {at}, the section at byte {end}")
    return compound(0xC1, b"".join(parts), count)


def _has_string_key(buf: bytes, at: i64, end: i64) -> bool:
    while at < end:
        if buf[at] == 0xA1 or buf[at] == 0xB1:
            return True
        at = skip_value(buf, skip_value(buf, at))
    return False


class _Scan:
    """What one walk over the sections finds."""

    def __init__(self) -> None:
        self.ttl_ms: int = NO_TTL
        self.header: bytes = b""
        self.da_count: int = 0
        self.da: bytes = b""
        self.ma_count: int = 0
        self.ma: bytes = b""
        self.scheduled_at: int = 0
        self.delay_ms: int = 0
        self.partition_key: str | None = None
        self.message_id: bytes = b""
        self.session_id: str | None = None
        self.is_ping: bool = False
        self.body_bytes: int = 0
        self.expires_at: int = 0
        self.created_at: int = 0

    def walk(self, payload: bytes) -> bytes:
        """Returns the bare message: all sections but header and annotations."""
        s = scan(payload)
        if s.header_at >= 0:
            self.header_fields(payload, s.header_value, s.header_end)
            if not COMPILED and s.header_at == 0:
                remember_header(payload[s.header_value : s.header_end], self.header, self.ttl_ms)
        if s.da_at >= 0:
            self.delivery_annotations(payload, s.da_value, s.da_end)
        if s.ma_at >= 0:
            self.message_annotations(payload, s.ma_value, s.ma_end)
        if s.properties_at >= 0:
            self.properties(payload, s.properties_value, s.properties_end)
        self.body_bytes = s.body_end - s.body_at
        value, end = s.app_properties_value, s.app_properties_end
        if value >= 0 and payload.find(DECIMAL128, value, end) >= 0:
            payload = payload[:value] + in_service_layout(payload[value:end], 0) + payload[end:]
        bare = s.bare(payload)
        if s.footer_at >= 0:
            count, at = elements_of(payload, s.footer_value)
            if _has_string_key(payload, at, s.footer_end):
                bare = bare[: s.footer_at - s.footer_end] + b"\x00\x53\x78" + _with_symbols(payload, at, count, s.footer_end, "footer")
        return bare

    def header_fields(self, buf: bytes, at: i64, after: i64) -> None:
        count, at = elements_of(buf, at)
        if count == 0:
            return
        end: i64 = at
        if count >= 1:
            end = skip_value(buf, end)
        if count >= 2:
            end = skip_value(buf, end)
        if end > after:
            raise DecodeError("header: the fields run past the end of their list")
        travelling = buf[at:end]
        if count == 1:
            travelling += b"\x40"
        if travelling != b"\x40\x40":
            if len(travelling) > _TRAVELLING_BYTES_MAX:
                raise DecodeError("header: durable must be a boolean and priority a ubyte")
            self.header = travelling
        if count >= 3:
            code: i64 = buf[end]
            if code == 0x70:
                self.ttl_ms = uint32(buf, end + 1)
            elif code == 0x52:
                self.ttl_ms = buf[end + 1]
            elif code == 0x43:
                self.ttl_ms = 0
            elif code != 0x40:
                raise DecodeError(f"header.ttl: expected uint, found type 0x{code:02x}")

    def delivery_annotations(self, buf: bytes, at: i64, end: i64) -> None:
        count, at = elements_of(buf, at)
        kept: list[bytes] = []
        left: i64 = count
        while left > 0:
            key_at: i64 = at
            at = skip_value(buf, at)
            value_at: i64 = at
            at = skip_value(buf, at)
            left -= 2
            if (buf[key_at] == 0xA3 or buf[key_at] == 0xA1) and buf[key_at + 2 : value_at] == b"x-opt-lock-token":
                continue
            kept.append(buf[key_at:at])
        if at != end:
            raise DecodeError(f"delivery-annotations: elements end at byte {at}, the section at byte {end}")
        self.da = b"".join(kept)
        self.da_count = 2 * len(kept)

    def message_annotations(self, buf: bytes, at: i64, end: i64) -> None:
        count, at = elements_of(buf, at)
        if count & 1:
            raise DecodeError("message-annotations: odd number of elements")
        start: i64 = at
        changed = False
        kept: list[bytes] = []
        left: i64 = count
        while left > 0:
            key_at: i64 = at
            at = skip_value(buf, at)
            value_at: i64 = at
            at = skip_value(buf, at)
            left -= 2
            code: i64 = buf[key_at]
            if code != 0xA3:
                if code == 0xA1 or code == 0xB1 or (code == 0xB3 and value_at - key_at <= 5 + 0xFF):
                    plain = _with_symbols(buf, start, count, end)
                    self.message_annotations(plain, 0, len(plain))
                    return
                if code != 0xB3 and code != 0x80 and code != 0x53 and code != 0x44:
                    raise DecodeError(f"message-annotations: expected symbol as key, found type 0x{code:02x}")
                kept.append(buf[key_at:at])
                continue
            name = buf[key_at + 2 : value_at]
            if name in _SET_BY_BROKER:
                changed = True
                continue
            if name == _SCHEDULED:
                self.scheduled_at = milliseconds(buf, value_at, "x-opt-scheduled-enqueue-time")
                if buf[value_at] != 0x83 and self.scheduled_at:
                    # The JavaScript SDK writes the timestamp of a received message, which it has as a number, as a ulong.
                    kept.append(buf[key_at:value_at] + encode_value(Timestamp(self.scheduled_at)))
                    changed = True
                    continue
            elif name == _DELIVERY_TIME:
                self.scheduled_at = max(self.scheduled_at, milliseconds(buf, value_at, "x-opt-delivery-time"))
            elif name == _DELIVERY_DELAY:
                self.delay_ms = milliseconds(buf, value_at, "x-opt-delivery-delay")
            elif name in _KEYS and buf[value_at] != 0x40:
                text = _text(buf, value_at, f"annotation {name.decode()}")
                if name == _PARTITION_KEY:
                    self.partition_key = text
                if buf[value_at] not in _STRINGS:
                    kept.append(buf[key_at:value_at] + encode_value(text))
                    changed = True
                    continue
            kept.append(buf[key_at:at])
        if at != end:
            raise DecodeError(f"message-annotations: elements end at byte {at}, the section at byte {end}")
        if changed:
            self.ma = b"".join(kept)
            self.ma_count = 2 * len(kept)
        else:
            self.ma = buf[start:at]
            self.ma_count = count

    def properties(self, buf: bytes, at: i64, section_end: i64) -> None:
        count, at = elements_of(buf, at)
        if count == 0:
            return
        end: i64 = skip_value(buf, at)
        if buf[at] != 0x40:
            self.message_id = buf[at:end]
            if buf[at] != 0xA1 or end - at > _ID_CHARS_MAX + 2:
                self.message_id = _comparable_id(self.message_id)
        field: i64 = 1
        at = end
        while field < count:
            end = skip_value(buf, at)
            if buf[at] != 0x40:
                if field == 6:
                    raw = part(buf, at + 2, end)
                    if len(raw) == len(_PING) and raw.lower() == _PING:
                        self.is_ping = True
                elif field == 10:
                    value, _ = decode_value(buf, at)
                    if not isinstance(value, str) or isinstance(value, Symbol):
                        raise InvalidField(f"The property group-id (SessionId) must be a string, found {type(value).__name__}.")
                    self.session_id = value
                elif field == 8 and buf[at] == 0x83:
                    self.expires_at = int.from_bytes(part(buf, at + 1, end), "big", signed=True)
                elif field == 9 and buf[at] == 0x83:
                    self.created_at = int.from_bytes(part(buf, at + 1, end), "big", signed=True)
            at = end
            field += 1
        if at != section_end:
            raise DecodeError(f"properties: {count} fields end at byte {at}, the section at byte {section_end}")
        if self.ttl_ms == _UINT_MAX and self.expires_at and self.created_at:
            # More than a header can say (49 days): clients then write its most there, and the whole of it as the difference of these.
            self.ttl_ms = min(max(self.expires_at - self.created_at, _UINT_MAX), MAX_DURATION_MS)


def _text(buf: bytes, at: i64, what: str) -> str:
    """A text that the Python SDK, which reads all texts as bytes, writes as binary when it sends again what it received."""
    value, _ = decode_value(buf, at)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise InvalidField(f"The {what} must be a string, found binary that is not UTF-8.") from None
    if not isinstance(value, str) or isinstance(value, Symbol):
        raise InvalidField(f"The {what} must be a string, found {type(value).__name__}.")
    return value


class Translator(Rewriter):
    """Turns payloads into messages and messages into deliveries. `new_id` gives ids to messages sent without one."""

    __slots__ = ("_header_bytes_max", "_new_id", "_now")

    def __init__(self, new_id: Callable[[], uuid.UUID], header_bytes_max: int = 65_536, now: Callable[[], int] = lambda: 0) -> None:
        self._new_id = new_id
        self._now = now
        self._header_bytes_max: i64 = header_bytes_max

    # -- in ----------------------------------------------------------------------------------

    def message(self, payload: bytes) -> Message:
        """One walk over the sections of a transfer. Raises BusError with the condition the sender should see."""
        if not COMPILED and len(payload) <= self._header_bytes_max:
            common = read_common_form(payload)
            if common is not None:
                return common
        found = _Scan()
        try:
            bare = found.walk(payload)
        except (DecodeError, IndexError) as error:
            raise DecodeFailed(f"The message could not be decoded: {str(error) or 'cut short'}.") from error
        header_bytes = len(payload) - found.body_bytes
        if header_bytes > self._header_bytes_max:
            limit = int(self._header_bytes_max)
            raise MessageSizeExceeded(f"Header, annotations and properties have {header_bytes} bytes; at most {limit} are allowed.")
        message_id = found.message_id
        if not message_id:
            message_id = encode_value(str(self._new_id()))
            bare = _with_message_id(bare, message_id)
        scheduled_at = max(found.scheduled_at, self._now() + found.delay_ms) if found.delay_ms else found.scheduled_at
        session_id = found.session_id
        if session_id is not None:
            if len(session_id) > _ID_CHARS_MAX:
                raise ArgumentRefused(f"The SessionId has {len(session_id)} characters; at most {_ID_CHARS_MAX} are allowed.")
            if found.partition_key is not None and found.partition_key != session_id:
                raise NotAllowed("PartitionKey and SessionId must be equal when both are set.")
        return Message(
            bare,
            message_id,
            session_id,
            found.ttl_ms,
            scheduled_at,
            found.header,
            found.da_count,
            found.da,
            found.ma_count,
            found.ma,
            found.partition_key,
            found.is_ping,
        )

    # -- out ---------------------------------------------------------------------------------

    def delivery(
        self,
        message: Message,
        seq: int,
        enqueued_at: int,
        count: int,
        expires_at: int,
        token: bytes | None,
        locked_until: int,
        state: int = 0,
    ) -> bytes:
        """The payload of a transfer. `token` is the delivery tag of a peek-lock; `state` 1 deferred, 2 scheduled."""
        travelling = message.header
        first_and_lasting = count == 0 and expires_at == 0 and message.ttl_ms < 0
        if first_and_lasting and not travelling:
            header = _HEADER_OF_NOTHING
        elif first_and_lasting and travelling == _DURABLE:
            header = _HEADER_OF_DURABLE
        else:
            # Where nothing expires (dead-letter queue) or not yet (scheduled), the time to live is shown as it was sent.
            header = _encode_header(travelling, expires_at - enqueued_at if expires_at else message.ttl_ms, count)
        if token is not None and not (message.message_annotation_count or message.delivery_annotation_count or state):
            a, b, c, d = _unpack_token(token)
            stamped = _pack_usual(_TOKEN_ALONE, a, b, c, d, _STAMPS_ALONE, enqueued_at, _K_SEQUENCE, seq, _K_UNTIL, locked_until)
            return b"".join((header, stamped, message.bare))
        if token is None:
            own_da = b""
            annotations = _NO_ANNOTATIONS
            stamps = _STAMPED.pack(_K_ENQUEUED, enqueued_at, _K_SEQUENCE, seq)
            stamp_count = 4
        else:
            own_da = token_to_uuid(token)
            annotations = _TOKEN_ALONE + own_da
            stamps = _STAMPED_LOCKED.pack(_K_ENQUEUED, enqueued_at, _K_SEQUENCE, seq, _K_UNTIL, locked_until)
            stamp_count = 6
        if message.delivery_annotation_count:
            mine = _K_TOKEN + own_da if own_da else b""
            annotations = b"\x00\x53\x71" + compound(
                0xC1, mine + message.delivery_annotations, message.delivery_annotation_count + (2 if own_da else 0)
            )
        if state:
            stamps += _K_STATE + bytes((state,))
            stamp_count += 2
        count_all = stamp_count + message.message_annotation_count
        content = stamps + message.message_annotations if message.message_annotation_count else stamps
        size = len(content)
        if size < 255:
            return b"".join((header, annotations, b"\x00\x53\x72\xc1", bytes((size + 1, count_all)), content, message.bare))
        return b"".join((header, annotations, b"\x00\x53\x72", _MAP32.pack(0xD1, size + 4, count_all), content, message.bare))

    def undressed(self, message: Message) -> bytes:
        """As the sender sent it, without anything a delivery adds; its time-to-live is not in it."""
        if not message.header and not message.message_annotation_count and not message.delivery_annotation_count:
            return message.bare
        parts = [b"\x00\x53\x70\xc0" + bytes((len(message.header) + 1, 2)) + message.header] if message.header else []
        if message.delivery_annotation_count:
            parts.append(b"\x00\x53\x71" + compound(0xC1, message.delivery_annotations, message.delivery_annotation_count))
        if message.message_annotation_count:
            parts.append(b"\x00\x53\x72" + compound(0xC1, message.message_annotations, message.message_annotation_count))
        parts.append(message.bare)
        return b"".join(parts)

    # -- changes -----------------------------------------------------------------------------

    def view(self, message: Message, now: int) -> MessageView:
        return view_of_message(message, now)

    def forwarded(self, message: Message, seq: int, dead_letter_source: str) -> Message:
        return forwarded_message(message, seq, dead_letter_source)

    def with_changes(self, message: Message, changes: Sequence[tuple[str, str, object]]) -> Message:
        return changed_message(message, changes)

    def damaged(self, message: Message) -> Message:
        """Properties with what is known, and an empty body, so that every client can read it."""
        fields = message.message_id or b"\x40"
        session = b"\x40" * 9 + encode_value(message.session_id) if message.session_id is not None else b""
        counted = (11 if session else 1).to_bytes(4, "big") + fields + session
        bare = b"\x00\x53\x73\xd0" + len(counted).to_bytes(4, "big") + counted + b"\x00\x53\x75\xa0\x00"
        return Message(bare, message.message_id, message.session_id, NO_TTL, 0, b"", 0, b"", 0, b"", None, False)

    def with_properties(self, message: Message, properties: dict[str, object]) -> Message:
        """The same message with application properties added or replaced."""
        bare = message.bare
        try:
            s = scan(bare)
        except DecodeError:
            return message  # kept by a version that read less strictly
        current = application_properties_of(bare)
        current.update(properties)
        section = b"\x00\x53\x74" + encode_value(current)
        # Stored as they came, sections may stand in any order.
        start, end = s.app_properties_at, s.app_properties_end
        if start < 0:
            start = end = max(s.properties_end, 0)
        return message.with_bare(bare[:start] + section + bare[end:])


def _encode_header(travelling: bytes, ttl_ms: int, count: int) -> bytes:
    parts = [travelling or b"\x40\x40"]
    parts.append(b"\x40" if ttl_ms < 0 else b"\x70" + _U32.pack(min(ttl_ms, _UINT_MAX)))
    parts.append(b"\x40")
    parts.append(b"\x43" if count == 0 else b"\x52" + bytes((count,)) if count < 256 else b"\x70" + _U32.pack(min(count, _UINT_MAX)))
    content = b"".join(parts)
    return b"\x00\x53\x70\xc0" + bytes((len(content) + 1, 5)) + content


def _with_message_id(bare: bytes, message_id: bytes) -> bytes:
    """Put an id into the properties section, making one when there is none."""
    s = scan(bare)
    if s.properties_at < 0:
        return b"\x00\x53\x73" + compound(0xC0, message_id, 1) + bare
    count, first = elements_of(bare, s.properties_value)
    rest = part(bare, skip_value(bare, first), s.properties_end) if count else b""
    return bare[: s.properties_at] + b"\x00\x53\x73" + compound(0xC0, message_id + rest, max(count, 1)) + bare[s.properties_end :]


def _comparable_id(encoded: bytes) -> bytes:
    """One form for each id, for detecting duplicates: a text that came back as binary is the same id. Readers get it as it was sent."""
    value, _ = decode_value(encoded, 0)
    if not isinstance(value, (str, bytes)):
        return encode_value(value) if isinstance(value, ULong) else encoded
    if len(value) > _ID_CHARS_MAX:
        raise ArgumentRefused(f"The MessageId has {len(value)} characters; at most {_ID_CHARS_MAX} are allowed.")
    return encode_value(as_text(value))


def refusal(error: BaseException) -> BusError:
    """Whatever went wrong, as something a client can be told."""
    return error if isinstance(error, BusError) else BusError(f"The operation failed inside the broker: {error}")
