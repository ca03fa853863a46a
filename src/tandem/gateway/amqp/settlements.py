"""Outcomes as AMQP carries them, read as settlements: their kind, reasons, properties to change, a time to come back."""

from __future__ import annotations

from typing import Final

from tandem.amqp.errors import AmqpError, DecodeError
from tandem.amqp.outcomes import ACCEPTED_CODE, MODIFIED_CODE, REJECTED_CODE, RELEASED_CODE, TRANSACTIONAL, Outcome, decode_outcome
from tandem.amqp.terminus import Terminus
from tandem.amqp.types import Described
from tandem.gateway import verbs
from tandem.gateway.verbs import SettlementArguments
from tandem.model.errors import DecodeFailed

_DELIVERY_TIME: Final = "x-opt-delivery-time"
_MODIFIED: Final = (0x27, "amqp:modified:list")


def settlement_of(outcome: Outcome) -> SettlementArguments | None:
    """None: it says nothing about the message."""
    code = outcome.code
    if code == ACCEPTED_CODE:
        return verbs.COMPLETED
    if code == REJECTED_CODE:
        return _dead_lettering(outcome.error)
    if code == RELEASED_CODE:
        return SettlementArguments(verbs.RELEASE)
    if code != MODIFIED_CODE:
        return None
    properties: dict[str, object] = {}
    deliver_at = 0
    for key, value in (outcome.message_annotations or {}).items():
        if str(key) == _DELIVERY_TIME and isinstance(value, int):
            deliver_at = int(value)
        else:
            properties[str(key)] = value
    return SettlementArguments(verbs.DEFER if outcome.undeliverable_here else verbs.ABANDON, properties, deliver_at=deliver_at)


def _dead_lettering(error: AmqpError | None) -> SettlementArguments:
    if error is None:
        return SettlementArguments(verbs.DEAD_LETTER)
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
    return SettlementArguments(verbs.DEAD_LETTER, properties, reason, description)


def counts_by_default(source: Terminus | None) -> bool:
    """Does a delivery count that its receiver settled without an outcome, or in a transaction that was rolled back? It said so when
    it attached: its default outcome is `modified` with `delivery-failed`."""
    default = source.default_outcome if source is not None else None
    if not isinstance(default, Described) or default.descriptor not in _MODIFIED or not isinstance(default.value, list):
        return False
    return bool(default.value) and default.value[0] is True


def transaction_of(state: bytes) -> Outcome | None:
    """The transactional state of a transfer; None when it has another."""
    try:
        outcome = decode_outcome(state)
    except DecodeError as error:
        raise DecodeFailed(f"The state of the transfer could not be decoded: {error.description}.") from error
    return outcome if outcome.code == TRANSACTIONAL else None
