"""What a receiver says with an outcome beyond its kind: reasons, descriptions, properties to change, a time to come back."""

from __future__ import annotations

from typing import Final

from tandem.amqp.errors import AmqpError
from tandem.amqp.outcomes import Outcome
from tandem.amqp.terminus import Terminus
from tandem.amqp.types import Described

_DELIVERY_TIME: Final = "x-opt-delivery-time"
_MODIFIED: Final = (0x27, "amqp:modified:list")


def dead_letter_words(error: AmqpError | None) -> tuple[str, str, dict[str, object]]:
    """(reason, description, further properties) from a `rejected` outcome."""
    if error is None:
        return "", "", {}
    properties: dict[str, object] = {}
    reason = ""
    description = ""
    for key, value in (error.info or {}).items():
        name = str(key)
        if name == "DeadLetterReason":
            reason = "" if value is None else str(value)
        elif name == "DeadLetterErrorDescription":
            description = "" if value is None else str(value)
        else:
            properties[name] = value
    if not reason and error.condition != "com.microsoft:dead-letter":
        reason = str(error.condition)
    if not description and error.description:
        description = error.description
    return reason, description, properties


def counts_by_default(source: Terminus | None) -> bool:
    """Does a delivery count that its receiver settled without an outcome, or in a transaction that was rolled back? It said so when
    it attached: its default outcome is `modified` with `delivery-failed`."""
    default = source.default_outcome if source is not None else None
    if not isinstance(default, Described) or default.descriptor not in _MODIFIED or not isinstance(default.value, list):
        return False
    return bool(default.value) and default.value[0] is True


def properties_to_modify(outcome: Outcome) -> tuple[dict[str, object], int]:
    """(application properties to set, instant before which not to deliver again) from a `modified` outcome."""
    properties: dict[str, object] = {}
    deliver_at = 0
    for key, value in (outcome.message_annotations or {}).items():
        if str(key) == _DELIVERY_TIME and isinstance(value, int):
            deliver_at = int(value)
        else:
            properties[str(key)] = value
    return properties, deliver_at
