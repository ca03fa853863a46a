"""Message properties as HTTP carries them: the BrokerProperties header, one header per custom property, and JSON batches."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime
from typing import Any, Final

from tandem.gateway.http.data_port import HttpMessage, PropertyValue, ReceivedMessage
from tandem.model.entity import MAX_DURATION_MS
from tandem.model.errors import ArgumentOutOfRange, ArgumentRefused

PROPERTIES_MAX: Final = 256
OVERFLOW_HEADER: Final = "Tandem-Properties"
"""Custom properties whose names cannot be header names, together as JSON."""

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# fmt: off
_STANDARD: Final = frozenset([
    "authorization", "brokerproperties", "cache-control", "connection", "cookie", "date", "dnt", "etag", "expect", "forwarded",
    "from", "host", "keep-alive", "location", "max-forwards", "origin", "pragma", "range", "referer", "server", "tandem-properties",
    "te", "traceparent", "tracestate", "trailer", "transfer-encoding", "upgrade", "upgrade-insecure-requests", "user-agent", "via",
    "warning",
])
# fmt: on
_ACTIVE_PREFIXES: Final = (
    *("access-control-", "alt-svc", "clear-site-data", "cross-origin-", "link", "nel", "permissions-policy", "referrer-policy", "refresh"),
    *("report", "set-cookie", "sourcemap", "strict-transport-", "www-authenticate", "x-content-", "x-dns-", "x-frame-", "x-xss-"),
)
_STANDARD_PREFIXES: Final = ("accept", "content-", "if-", "proxy-", "sec-", "servicebus", "x-forwarded-", "x-ms-")

_TEXTS: Final = (
    ("MessageId", "message_id"),
    ("CorrelationId", "correlation_id"),
    ("SessionId", "session_id"),
    ("ReplyToSessionId", "reply_to_session_id"),
    ("Label", "label"),
    ("To", "to"),
    ("ReplyTo", "reply_to"),
    ("PartitionKey", "partition_key"),
    ("ViaPartitionKey", "via_partition_key"),
)


# --- reading


def read_single(body: bytes, content_type: str | None, broker_properties: str | None, headers: Iterable[tuple[str, str]]) -> HttpMessage:
    """A message sent with one request."""
    fields = _broker_fields(_json_object("BrokerProperties", broker_properties)) if broker_properties else {}
    properties: dict[str, PropertyValue] = {}
    for name, value in headers:
        if is_custom(name):
            _add(properties, name, _header_value(name, value))
        elif name.casefold() == OVERFLOW_HEADER.casefold():
            for key, item in _json_object(OVERFLOW_HEADER, value).items():
                _add(properties, key, check_scalar(key, item))
    fields.setdefault("content_type", content_type)
    return HttpMessage(body=body, properties=tuple(properties.items()), **fields)


def read_batch(body: bytes) -> list[HttpMessage]:
    """`[{"Body": "…", "BrokerProperties": {…}, "UserProperties": {…}}, …]`, in order."""
    items = _json("the batch", body)
    if not isinstance(items, list):
        raise ArgumentRefused(f"the batch must be a JSON array of messages, found {_kind(items)}")
    return [_batched(position, item) for position, item in enumerate(items)]


def _batched(position: int, item: Any) -> HttpMessage:
    where = f"message {position} of the batch"
    if not isinstance(item, dict):
        raise ArgumentRefused(f"{where} must be an object with a Body, found {_kind(item)}")
    body = item.get("Body")
    if not isinstance(body, str):
        raise ArgumentRefused(f"{where} needs a Body that is a string, found {_kind(body)}")
    broker, user = item.get("BrokerProperties") or {}, item.get("UserProperties") or {}
    if not isinstance(broker, dict) or not isinstance(user, dict):
        raise ArgumentRefused(f"BrokerProperties and UserProperties of {where} must be objects")
    properties: dict[str, PropertyValue] = {}
    for name, value in user.items():
        _add(properties, name, check_scalar(name, value))
    return HttpMessage(body=_utf8(where, body), properties=tuple(properties.items()), **_broker_fields(broker))


def _utf8(where: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ArgumentRefused(f"the Body of {where} has half of a surrogate pair, which is no text") from None


def _broker_fields(given: dict[str, Any]) -> dict[str, Any]:
    """What a sender may set; what only the broker sets is ignored, so that a received message can be sent on."""
    fields: dict[str, Any] = {}
    for name, field in (*_TEXTS, ("ContentType", "content_type")):
        value = given.get(name)
        if value is None:
            continue
        if not isinstance(value, str):
            raise ArgumentRefused(f"{name} in BrokerProperties must be a string, found {_kind(value)}")
        fields[field] = value
    if given.get("TimeToLive") is not None:
        fields["time_to_live_ms"] = _time_to_live(given["TimeToLive"])
    if given.get("ScheduledEnqueueTimeUtc") is not None:
        fields["scheduled_at_ms"] = _instant("ScheduledEnqueueTimeUtc", given["ScheduledEnqueueTimeUtc"])
    return fields


def _time_to_live(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ArgumentRefused(f"TimeToLive in BrokerProperties must be a number of seconds, found {_kind(value)}")
    if value <= 0:
        raise ArgumentOutOfRange(f"TimeToLive is {value:g} seconds; more than 0 is needed")
    if value >= MAX_DURATION_MS / 1000 - 1:  # as a double, the maximum is not exact
        return None
    return max(1, int(value * 1000))


def _instant(name: str, value: Any) -> int:
    if isinstance(value, str):
        for read in (parsedate_to_datetime, datetime.fromisoformat):
            try:
                instant = read(value.strip())
            except (ValueError, TypeError, IndexError, OverflowError):
                continue
            if instant.tzinfo is None:
                instant = instant.replace(tzinfo=UTC)
            return int(instant.timestamp() * 1000)
    raise ArgumentRefused(f"{name} in BrokerProperties must be an instant like 'Wed, 02 Jul 2014 01:32:27 GMT', found {str(value)[:60]!r}")


def _means_something_to_browsers(name: str) -> bool:
    """A sender must not speak for us: such a property travels with those that are no header names."""
    return name.casefold().startswith(_ACTIVE_PREFIXES)


def is_custom(name: str) -> bool:
    """Whether a request header is a property of the message rather than of the request."""
    folded = name.casefold()
    return folded not in _STANDARD and not folded.startswith(_STANDARD_PREFIXES)


def _header_value(name: str, text: str) -> PropertyValue:
    """Quoted is a string, unquoted a number, true, false or null; anything else is taken as the string it is."""
    text = text.strip()
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return text
    return text if isinstance(value, list | dict) else check_scalar(name, value)


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def check_scalar(name: str, value: Any) -> PropertyValue:
    """What JSON has and a property can be; anything else is refused."""
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**63:
        raise ArgumentOutOfRange(f"property '{name[:60]}' is a number beyond 64 bits")
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise ArgumentRefused(f"property '{name[:60]}' must be a string, a number, true, false or null, found {_kind(value)}")


def _add(properties: dict[str, PropertyValue], name: str, value: PropertyValue) -> None:
    if name in properties:
        raise ArgumentRefused(f"property '{name[:60]}' is given twice")
    if len(properties) >= PROPERTIES_MAX:
        raise ArgumentOutOfRange(f"the message has more than {PROPERTIES_MAX} custom properties")
    properties[name] = value


def _json(what: str, text: str | bytes) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise ArgumentRefused(f"{what} is not JSON: {error}") from None
    except (ValueError, RecursionError) as error:
        raise ArgumentRefused(f"{what} is not JSON that can be read: {str(error)[:100]}") from None


def _json_object(what: str, text: str) -> dict[str, Any]:
    value = _json(what, text)
    if not isinstance(value, dict):
        raise ArgumentRefused(f"{what} must be a JSON object, found {_kind(value)}")
    return value


def _kind(value: object) -> str:
    if value is None:
        return "nothing"
    names = {bool: "true or false", int: "a number", float: "a number", str: "a string", list: "an array", dict: "an object"}
    return names.get(type(value), type(value).__name__)


# --- writing


def write_headers(received: ReceivedMessage) -> dict[str, str]:
    """BrokerProperties and one header per custom property."""
    headers = {"BrokerProperties": _ascii_json(_broker_properties(received))}
    overflow: dict[str, PropertyValue] = {}
    for name, value in received.message.properties:
        if (
            _TOKEN.fullmatch(name)
            and is_custom(name)
            and not _means_something_to_browsers(name)
            and name.casefold() not in map(str.casefold, headers)
        ):
            headers[name] = _ascii_json(value)
        else:
            overflow[name] = value
    if overflow:
        headers[OVERFLOW_HEADER] = _ascii_json(overflow)
    return headers


def _broker_properties(received: ReceivedMessage) -> dict[str, object]:
    message = received.message
    fields: dict[str, object] = {
        "DeliveryCount": received.delivery_count,
        "EnqueuedSequenceNumber": received.enqueued_sequence_number or 0,
        "EnqueuedTimeUtc": _http_date(received.enqueued_at_ms),
        "SequenceNumber": received.sequence_number,
        "State": received.state,
        "TimeToLive": (MAX_DURATION_MS if message.time_to_live_ms is None else message.time_to_live_ms) / 1000,
    }
    for name, field in _TEXTS:
        fields[name] = getattr(message, field)
    if received.lock_token is not None:
        fields["LockToken"] = str(received.lock_token)
    if received.locked_until_ms is not None:
        fields["LockedUntilUtc"] = _http_date(received.locked_until_ms)
    if message.scheduled_at_ms is not None:
        fields["ScheduledEnqueueTimeUtc"] = _http_date(message.scheduled_at_ms)
    fields["DeadLetterSource"] = received.dead_letter_source
    return {name: value for name, value in sorted(fields.items()) if value is not None}


def _http_date(ms: int) -> str:
    return format_datetime(datetime.fromtimestamp(ms // 1000, UTC), usegmt=True)


def _ascii_json(value: object) -> str:
    """Header values are ASCII; JSON escapes carry the rest, line breaks included."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True)
