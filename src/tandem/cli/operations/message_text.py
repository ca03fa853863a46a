"""Messages as lines of JSON and back: what `peek` and `receive` print, `send --lines` takes."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from tandem.cli.operations.output import plain
from tandem.model.errors import ConfigurationError
from tandem.model.message_line import BROKERED, CONTENT, SENT

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage


def body_bytes(message: ServiceBusMessage) -> bytes:
    """A body of data sections, joined; another kind of body as JSON."""
    body = message.body
    if isinstance(body, bytes):
        return body
    if isinstance(body, str):
        return body.encode()
    parts = list(body) if isinstance(body, Iterable) else [body]
    if all(isinstance(part, bytes) for part in parts):
        return b"".join(parts)
    return json.dumps(plain(parts if len(parts) != 1 else parts[0])).encode()


def as_line(message: ServiceBusReceivedMessage) -> dict[str, Any]:
    """All that is known of a message; a body that is not text is in `body_base64`."""
    found: dict[str, Any] = {}
    for name in (*BROKERED[:3], *SENT, *BROKERED[3:]):
        value = getattr(message, name, None)
        if value is not None:
            found[name] = plain(value)
    if message.time_to_live is not None:
        found["time_to_live_ms"] = round(message.time_to_live / timedelta(milliseconds=1))
    if message.application_properties:
        found["properties"] = plain(dict(message.application_properties))
    body = body_bytes(message)
    try:
        found["body"] = body.decode()
    except UnicodeDecodeError:
        found["body_base64"] = base64.b64encode(body).decode()
    return found


def from_line(text: str, number: int) -> ServiceBusMessage:
    """One line of JSON; what the broker decided is left out."""
    from azure.servicebus import ServiceBusMessage

    try:
        found = json.loads(text)
        if not isinstance(found, dict):
            raise ValueError("a JSON object is expected")
        body = base64.b64decode(found["body_base64"], validate=True) if "body_base64" in found else found.get("body", "")
        if not isinstance(body, str | bytes):
            body = json.dumps(body)
        unknown = set(found) - {*SENT, *BROKERED, *CONTENT}
        if unknown:
            raise ValueError(f"unknown: {', '.join(sorted(unknown))}")
        fields = {name: found[name] for name in SENT if found.get(name) is not None}
        if found.get("time_to_live_ms") is not None:
            fields["time_to_live"] = timedelta(milliseconds=int(found["time_to_live_ms"]))
        return ServiceBusMessage(body, application_properties=found.get("properties") or None, **fields)
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"line {number}: {error}") from error


def instant(text: str, now: datetime) -> datetime:
    """A moment: ISO 8601, or a span from now like 30s or 2h."""
    from tandem.cli.configuration.setting_types import Duration, InvalidSetting
    from tandem.model.entity import MAX_DURATION_MS

    try:
        return now + timedelta(milliseconds=int(Duration(0, MAX_DURATION_MS).read_text(text)))
    except (InvalidSetting, OverflowError):
        pass
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(f"'{text}' is neither a span like 30s or 2h nor a moment like 2030-01-31T12:00:00Z") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=now.tzinfo)
