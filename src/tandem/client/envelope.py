"""The only place that rewrites a message for its stay in a backlog queue, and back: destination, session, time-to-live, schedule.

Four application properties carry what the backlog queue must not act upon (aliases); the originals are cleared meanwhile:
`x-ms-path`, `x-ms-sessionid`, `x-ms-timetolive`, `x-ms-scheduledenqueuetimeutc`. When it was diverted stands in an annotation.
Two forms share the rules below: the SDK's message objects, and a decoded message (`amqp.DecodedMessage`, or its bytes).
"""

from __future__ import annotations

import calendar
import copy
import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tandem.amqp import DecodedMessage, DecodeError, Described, Symbol, Timestamp, UInt, decode_message
from tandem.client.raw_envelope import EnvelopeNames, take_off
from tandem.model.duration import parse_microseconds

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusMessage
    from azure.servicebus.amqp import AmqpAnnotatedMessage

PATH = "x-ms-path"
SESSION_ID = "x-ms-sessionid"
TIME_TO_LIVE = "x-ms-timetolive"
SCHEDULED = "x-ms-scheduledenqueuetimeutc"
ALIASES = (PATH, SESSION_ID, TIME_TO_LIVE, SCHEDULED)
DIVERTED_AT = "x-opt-paired-diverted-utc"
AFTER = "x-opt-paired-after"
"""On messages whose session is kept in order: which other backlog queues may hold earlier ones of it (see `places.Place`)."""
FENCE = "x-opt-paired-fence"
"""On a message that only marks a place: everything before it for the same path has gone home once it is gone."""
FENCE_ID = f"{FENCE}/"
"""What the message id of a fence begins with, for those who see nothing but ids."""

HEADROOM_BYTES = 1_024
"""What an envelope may add to a message at most (about 510 bytes measured), kept free in every paired send."""

NO_QUEUE_PATH = "no queue path"
PROPERTY_EXTRACTION = "property extraction"
NOT_RETRYABLE = "not retryable"
TTL_EXPIRED = "TTLExpiredException"

_SCHEDULE = "x-opt-scheduled-enqueue-time"
_TIMESPAN = "com.microsoft:timespan"
_DATETIME_OFFSET = "com.microsoft:datetime-offset"
_TICKS_PER_MS = 10_000
_EPOCH_TICKS = 621_355_968_000_000_000
_TTL_MS_MAX = 0xFFFF_FFFF
_INFINITE_MS = 922_337_203_685_477
_BROKER_ANNOTATIONS = frozenset(
    {
        DIVERTED_AT,
        AFTER,
        FENCE,
        "x-opt-enqueued-time",
        "x-opt-sequence-number",
        "x-opt-locked-until",
        "x-opt-message-state",
        "x-opt-enqueue-sequence-number",
        "x-opt-deadletter-source",
        "x-opt-partition-id",
    }
)
_LOCK_TOKEN = "x-opt-lock-token"
_DEAD_LETTER_PROPERTIES = ("DeadLetterReason", "DeadLetterErrorDescription")
_NAMES = EnvelopeNames(PATH, SESSION_ID, (TIME_TO_LIVE, SCHEDULED), _BROKER_ANNOTATIONS, DIVERTED_AT, AFTER, FENCE)


class EnvelopeError(Exception):
    """A backlog message cannot be translated back. `reason` and `description` are what it is dead-lettered with."""

    def __init__(self, reason: str, description: str) -> None:
        super().__init__(f"{reason}: {description}")
        self.reason = reason
        self.description = description


@dataclass(frozen=True, slots=True)
class Destination:
    """What the aliases say. Durations and instants in milliseconds; None where the sender had set nothing."""

    path: str
    session_id: str | None
    ttl_ms: int | None
    scheduled_ms: int | None
    diverted_ms: int | None
    after: str | None = None
    """Its session is kept in order; the other backlog queues that may hold earlier messages of it. None: order does not matter."""
    fence: bool = False


@dataclass(frozen=True, slots=True)
class Unwrapped:
    """A message as it was before its diversion, ready to be sent to `destination.path`."""

    destination: Destination
    payload: bytes


def text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, (bytes, bytearray)) else str(value)


def alias_in(application_properties: Mapping[Any, object] | None) -> str | None:
    """The first alias a user's message already carries, or None. Such a message cannot be diverted, so it is refused always."""
    if not application_properties:
        return None
    for alias in ALIASES:
        if alias in application_properties or alias.encode() in application_properties:
            return alias
    return None


# -- reading and writing the values ------------------------------------------------------------------------------------


def _wrong_type(name: str, expected: str, found: object) -> EnvelopeError:
    return EnvelopeError(PROPERTY_EXTRACTION, f"property {name}: expected {expected}, found {type(found).__name__} ({found!r})"[:1024])


def _undescribe(value: object) -> tuple[str, object]:
    """(descriptor, value) of a described value of either codec; no descriptor is an empty string."""
    descriptor = getattr(value, "descriptor", None)
    if descriptor is None:
        return "", value
    return text(descriptor), value.value if isinstance(value, Described) else value


def read_timespan(name: str, value: object) -> int:
    """Milliseconds of a time span: the described type in 100 ns ticks, whole milliseconds, or an ISO 8601 duration."""
    descriptor, inner = _undescribe(value)
    if descriptor == _TIMESPAN and isinstance(inner, int) and not isinstance(inner, bool):
        return int(inner) // _TICKS_PER_MS
    if descriptor:
        raise _wrong_type(name, _TIMESPAN, value)
    if isinstance(value, datetime.timedelta):
        return int(value / datetime.timedelta(milliseconds=1))
    if isinstance(value, int) and not isinstance(value, (bool, Timestamp)):
        return int(value)
    if isinstance(value, (str, bytes)):
        microseconds = parse_microseconds(text(value))
        if microseconds is not None and microseconds >= 0:
            return microseconds // 1000
    raise _wrong_type(name, "time span", value)


def read_instant(name: str, value: object) -> int:
    """UTC milliseconds of an instant: an AMQP timestamp, whole milliseconds, or an ISO 8601 date and time."""
    descriptor, inner = _undescribe(value)
    if descriptor == _DATETIME_OFFSET and isinstance(inner, int) and not isinstance(inner, bool):
        return (int(inner) - _EPOCH_TICKS) // _TICKS_PER_MS
    if descriptor:
        raise _wrong_type(name, "timestamp", value)
    if isinstance(value, datetime.datetime):
        return milliseconds(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, (str, bytes)):
        try:
            return milliseconds(datetime.datetime.fromisoformat(text(value)))
        except ValueError:
            pass
    raise _wrong_type(name, "timestamp", value)


def milliseconds(instant: datetime.datetime) -> int:
    """UTC milliseconds; a naive instant is taken as UTC, as the SDK takes it."""
    return calendar.timegm(instant.utctimetuple()) * 1000 + instant.microsecond // 1000


def read_aliases(application_properties: Mapping[Any, object], annotations: Mapping[Any, object]) -> Destination:
    """What the aliases say; raises EnvelopeError with the reason to dead-letter the message for."""
    found: dict[str, object] = {}
    for key, value in application_properties.items():
        name = text(key)
        if name in ALIASES:
            found[name] = value
    path = found.get(PATH)
    if not isinstance(path, (str, bytes)) or not path:
        what = "is missing" if path is None else f"is a {type(path).__name__}, not a string" if path else "is empty"
        raise EnvelopeError(NO_QUEUE_PATH, f"property {PATH} {what}")
    session = found.get(SESSION_ID)
    if session is not None and not isinstance(session, (str, bytes)):
        raise _wrong_type(SESSION_ID, "string", session)
    ttl, scheduled = found.get(TIME_TO_LIVE), found.get(SCHEDULED)
    diverted_at, after = annotations.get(DIVERTED_AT), annotations.get(AFTER)
    return Destination(
        path=text(path),
        session_id=None if session is None else text(session),
        ttl_ms=None if ttl is None else read_timespan(TIME_TO_LIVE, ttl),
        scheduled_ms=None if scheduled is None else read_instant(SCHEDULED, scheduled),
        diverted_ms=int(diverted_at) if isinstance(diverted_at, int) else None,
        after=text(after) if isinstance(after, (str, bytes)) else None,
        fence=FENCE in annotations,
    )


def time_left(destination: Destination, now_ms: int) -> int | None:
    """The time-to-live less the time spent in the backlog; zero or less means it expired there."""
    if destination.ttl_ms is None or destination.diverted_ms is None:
        return destination.ttl_ms
    return destination.ttl_ms - max(0, now_ms - destination.diverted_ms)


# -- the form over decoded messages -----------------------------------------------------------------------------------


def wrap_decoded(message: DecodedMessage, path: str, diverted_ms: int, after: str | None = None) -> DecodedMessage:
    """The message as it goes into a backlog queue. Bodies and all other properties stay as they are."""
    alias = alias_in(message.application_properties)
    if alias is not None:
        raise EnvelopeError(PROPERTY_EXTRACTION, f"the message already carries {alias}")
    header, properties = dict(message.header), dict(message.properties)
    annotations, application = dict(message.message_annotations), dict(message.application_properties)
    application[PATH] = path
    session = properties.pop("group-id", None)
    if session is not None:
        application[SESSION_ID] = text(session)
    ttl_ms = _take_ttl(header, properties)
    if ttl_ms is not None:
        application[TIME_TO_LIVE] = Described(Symbol(_TIMESPAN), ttl_ms * _TICKS_PER_MS)
    scheduled = annotations.pop(_SCHEDULE, None)
    if scheduled is not None:
        application[SCHEDULED] = Timestamp(read_instant(_SCHEDULE, scheduled))
    annotations[Symbol(DIVERTED_AT)] = Timestamp(diverted_ms)
    if after is not None:
        annotations[Symbol(AFTER)] = after
    return DecodedMessage(
        header, dict(message.delivery_annotations), annotations, properties, application, message.body_sections, message.footer_section
    )


def _take_ttl(header: dict[str, Any], properties: dict[str, Any]) -> int | None:
    """Remove every trace of a time-to-live; a service may derive one from the expiry time alone."""
    ttl = header.pop("ttl", None)
    expiry, created = properties.pop("absolute-expiry-time", None), properties.get("creation-time")
    if ttl is None or ttl == 0:
        return None
    if int(ttl) >= _TTL_MS_MAX and expiry is not None and created is not None:
        ttl = int(expiry) - int(created)
    return None if int(ttl) >= _INFINITE_MS else int(ttl)


def unwrap_decoded(message: DecodedMessage, ttl_ms: int | None = None, dead_lettered: bool = False) -> tuple[Destination, DecodedMessage]:
    """The message as it was, without aliases and without what the backlog's broker added. `ttl_ms` overrides the carried one."""
    destination = read_aliases(message.application_properties, message.message_annotations)
    added = (*ALIASES, *_DEAD_LETTER_PROPERTIES) if dead_lettered else ALIASES
    application = {k: v for k, v in message.application_properties.items() if k not in added}
    annotations = {k: v for k, v in message.message_annotations.items() if k not in _BROKER_ANNOTATIONS}
    delivery = {k: v for k, v in message.delivery_annotations.items() if k != _LOCK_TOKEN}
    header, properties = dict(message.header), dict(message.properties)
    header.pop("delivery-count", None)
    if destination.session_id is not None:
        properties["group-id"] = destination.session_id
    ttl = destination.ttl_ms if ttl_ms is None else ttl_ms
    if ttl is not None:
        header["ttl"] = UInt(min(ttl, _TTL_MS_MAX))
        created = properties.get("creation-time")
        if isinstance(created, int):
            properties["absolute-expiry-time"] = Timestamp(created + ttl)
    if destination.scheduled_ms is not None:
        annotations[Symbol(_SCHEDULE)] = Timestamp(destination.scheduled_ms)
    return destination, DecodedMessage(
        header, delivery, annotations, properties, application, message.body_sections, message.footer_section
    )


def wrap_payload(payload: bytes, path: str, diverted_ms: int, after: str | None = None) -> bytes:
    return wrap_decoded(decode_message(payload), path, diverted_ms, after).encode()


def unwrap_payload(payload: bytes, now_ms: int | None = None, dead_lettered: bool = False) -> Unwrapped:
    """Undo `wrap_payload`, from the bytes a receiver got. With `now_ms`, time spent in the backlog counts against the time-to-live.

    `dead_lettered`: it comes from the backlog's dead letters, and says why; else such words are the application's own.
    """
    raw = None if dead_lettered else take_off(payload, _NAMES)
    if raw is not None:
        return Unwrapped(Destination(raw.path, raw.session_id, None, None, raw.diverted_ms, raw.after), raw.payload)
    try:
        message = decode_message(payload)
    except DecodeError as error:
        raise EnvelopeError(PROPERTY_EXTRACTION, f"the message cannot be decoded: {error}") from error
    left: int | None = None
    if now_ms is not None:
        carried = read_aliases(message.application_properties, message.message_annotations)
        left = time_left(carried, now_ms)
        if left is not None and left <= 0:
            raise EnvelopeError(TTL_EXPIRED, f"time-to-live of {carried.ttl_ms} ms ran out in the backlog, destination {carried.path}")
    destination, original = unwrap_decoded(message, left, dead_lettered)
    return Unwrapped(destination, original.encode())


# -- the form over the SDK's message objects ---------------------------------------------------------------------------


def annotated(message: ServiceBusMessage | AmqpAnnotatedMessage) -> AmqpAnnotatedMessage:
    from azure.servicebus import ServiceBusMessage  # here, so that Spark's workers, which have only bytes, need not load the SDK

    return message.raw_amqp_message if isinstance(message, ServiceBusMessage) else message


def wrap(message: ServiceBusMessage | AmqpAnnotatedMessage, path: str, diverted_ms: int, after: str | None = None) -> AmqpAnnotatedMessage:
    """A copy of the message for a backlog queue; the caller's own object is left alone."""
    raw = annotated(message)
    alias = alias_in(raw.application_properties)
    if alias is not None:
        raise EnvelopeError(PROPERTY_EXTRACTION, f"the message already carries {alias}")
    if _only_needs_a_path(raw):
        twin = copy.copy(raw)
        twin.application_properties = {**(raw.application_properties or {}), PATH: path}
        twin.annotations = {**(raw.annotations or {}), DIVERTED_AT: {"TYPE": "TIMESTAMP", "VALUE": diverted_ms}}
        return twin
    header, properties = _fields_of(raw.header), _fields_of(raw.properties)
    annotations, application = dict(raw.annotations or {}), dict(raw.application_properties or {})
    application[PATH] = path
    session = properties.pop("group-id", None)
    if session is not None:
        application[SESSION_ID] = text(session)
    header["ttl"] = header.pop("time-to-live", None)
    ttl_ms = _take_ttl(header, properties)
    if ttl_ms is not None:
        # What the SDK's encoder takes for a described long: a pair of typed values.
        application[TIME_TO_LIVE] = ({"TYPE": "SYMBOL", "VALUE": _TIMESPAN}, {"TYPE": "LONG", "VALUE": ttl_ms * _TICKS_PER_MS})
    scheduled = _pop(annotations, _SCHEDULE)
    if scheduled is not None:
        application[SCHEDULED] = {"TYPE": "TIMESTAMP", "VALUE": read_instant(_SCHEDULE, _untyped(scheduled))}
    annotations[DIVERTED_AT] = {"TYPE": "TIMESTAMP", "VALUE": diverted_ms}
    if after is not None:
        annotations[AFTER] = after
    return _copy(raw, header, properties, annotations, application)


def _only_needs_a_path(raw: AmqpAnnotatedMessage) -> bool:
    """As most: no session, no time to live, no schedule, a body that can be sent again. Its sections can then be shared with its twin."""
    header, properties, body, annotations = raw.header, raw.properties, raw._data_body, raw.annotations
    return (
        (header is None or header.time_to_live is None)
        and (properties is None or (properties.group_id is None and properties.absolute_expiry_time is None))
        and not raw.delivery_annotations
        and (not annotations or (_SCHEDULE not in annotations and _SCHEDULE.encode() not in annotations))
        and type(body) is list
        and all(type(section) is bytes for section in body)
    )


def _fields_of(section: Any) -> dict[str, Any]:
    """By the specification's names, as a decoded message has them."""
    return {} if section is None else {k.replace("_", "-"): v for k, v in section.items() if v is not None}


def _pop(items: dict[Any, Any], name: str) -> object:
    value = items.pop(name, None)
    return items.pop(name.encode(), None) if value is None else value


def _untyped(value: Any) -> Any:
    """The plain value of one the SDK's encoder was told the type of."""
    if isinstance(value, dict) and value.keys() == {"TYPE", "VALUE"}:
        return value["VALUE"]
    if isinstance(value, tuple) and len(value) == 2:
        return Described(Symbol(text(_untyped(value[0]))), _untyped(value[1]))
    return value


def _copy(
    raw: AmqpAnnotatedMessage, header: dict[str, Any], properties: dict[str, Any], annotations: dict[Any, Any], application: dict[Any, Any]
) -> AmqpAnnotatedMessage:
    from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType

    sections: dict[str, Any] = {
        "footer": raw.footer,
        "annotations": annotations or None,
        "application_properties": application or None,
        "delivery_annotations": {k: v for k, v in (raw.delivery_annotations or {}).items() if text(k) != _LOCK_TOKEN} or None,
    }
    if header:
        sections["header"] = {k.replace("-", "_"): v for k, v in header.items()}
    if properties:
        sections["properties"] = {k.replace("-", "_"): v for k, v in properties.items()}
    if raw.body_type is AmqpMessageBodyType.VALUE:
        sections["value_body"] = raw.body
    elif raw.body_type is AmqpMessageBodyType.SEQUENCE:
        sections["sequence_body"] = _again(raw.body)
    else:
        sections["data_body"] = _again(raw.body)
    return AmqpAnnotatedMessage(**sections)


def _again(body: Iterable[Any]) -> list[Any]:
    """The sections of a body as a list. One that can be read only once would be sent empty the second time: refuse it instead."""
    sections = list(body)
    if not all(isinstance(section, (bytes, bytearray, str, list, tuple)) for section in sections):
        raise TypeError("the message body can be read only once, so it cannot be sent again to a backlog queue; pass bytes")
    return sections
