"""A message as one line of JSON: the names of its fields, for commands and console alike. A body that is not text is in `body_base64`."""

from __future__ import annotations

from typing import Final

SENT: Final = (
    "message_id",
    "subject",
    "session_id",
    "correlation_id",
    "content_type",
    "to",
    "reply_to",
    "reply_to_session_id",
    "partition_key",
)
"""Fields of a message that its sender decides; the line has them under the names the SDK uses."""
BROKERED: Final = (
    "sequence_number",
    "enqueued_sequence_number",
    "enqueued_time_utc",
    "expires_at_utc",
    "delivery_count",
    "state",
    "dead_letter_reason",
    "dead_letter_error_description",
    "dead_letter_source",
    "scheduled_enqueue_time_utc",
)
"""Decided by the broker: printed, and ignored when the line is sent again."""
CONTENT: Final = ("time_to_live_ms", "properties", "body", "body_base64")
OF_DEAD_LETTERS: Final = ("DeadLetterReason", "DeadLetterErrorDescription")
"""Application properties that make a message a dead letter: taken off when it is sent again."""
