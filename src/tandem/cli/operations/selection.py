"""Which messages are meant: by reason, by time, by an SQL expression like those of subscription rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tandem.cli.operations.message_text import instant
from tandem.model.errors import BusError, ConfigurationError

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusReceivedMessage

Reason = Annotated[str | None, typer.Option(help="Only those with this dead-letter reason.")]
Since = Annotated[str | None, typer.Option(help="Only those enqueued since: 2h (ago), or 2030-01-31T12:00:00Z.")]
Until = Annotated[str | None, typer.Option(help="Only those enqueued before: 10m (ago), or 2030-01-31T12:00:00Z.")]
Where = Annotated[str | None, typer.Option(help="Only those an SQL expression holds for: \"region = 'eu' AND sys.Label = 'created'\".")]

_SYSTEM: Final = {
    "MessageId": "message_id",
    "Label": "subject",
    "SessionId": "session_id",
    "CorrelationId": "correlation_id",
    "ContentType": "content_type",
    "To": "to",
    "ReplyTo": "reply_to",
    "ReplyToSessionId": "reply_to_session_id",
    "PartitionKey": "partition_key",
    "DeadLetterSource": "dead_letter_source",
    "DeliveryCount": "delivery_count",
    "SequenceNumber": "sequence_number",
    "EnqueuedSequenceNumber": "enqueued_sequence_number",
}


@dataclass(frozen=True, slots=True)
class MessageSelection:
    reason: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    condition: Callable[[Any], bool] | None = None

    @classmethod
    def of(cls, reason: str | None, since: str | None, until: str | None, where: str | None) -> MessageSelection:
        now = datetime.now(UTC)
        return cls(reason, _ago(since, now), _ago(until, now), _compiled(where) if where is not None else None)

    def holds(self, message: ServiceBusReceivedMessage) -> bool:
        if self.reason is not None and message.dead_letter_reason != self.reason:
            return False
        enqueued = message.enqueued_time_utc
        if enqueued is not None and ((self.since and enqueued < self.since) or (self.until and enqueued >= self.until)):
            return False
        return self.condition is None or self.condition(message)


def _ago(text: str | None, now: datetime) -> datetime | None:
    if text is None:
        return None
    found = instant(text, now)
    return found if text[:1].isdigit() and "-" in text else now - (found - now)


def _compiled(where: str) -> Callable[[Any], bool]:
    from tandem.broker.rules.message_view import view_of
    from tandem.broker.rules.rules import compile_filter
    from tandem.model.entity import SqlFilter

    try:
        compiled = compile_filter(SqlFilter(expression=where))
    except BusError as error:
        raise ConfigurationError(f"--where: {error}") from error

    def condition(message: ServiceBusReceivedMessage) -> bool:
        found = {name: getattr(message, field, None) for name, field in _SYSTEM.items()}
        system = {name: value for name, value in found.items() if value is not None}
        properties = (message.application_properties or {}).items()
        user = {_text(name): _text(value) for name, value in properties}
        try:
            return compiled.matches(view_of(system, user))
        except BusError as error:
            raise ConfigurationError(f"--where cannot be decided for message {message.message_id}: {error}") from error

    return condition


def _text(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
