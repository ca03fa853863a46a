"""What an AMQP condition means to whoever sent something: is the namespace out of reach, is it busy, or is the request refused."""

from __future__ import annotations

import enum
from typing import Final


class Verdict(enum.Enum):
    """What the caller of a failed operation should believe."""

    UNREACHABLE = "unreachable"
    """The namespace, or the store behind the entity, does not answer: counts towards failover."""
    BUSY = "busy"
    """It answers and asks for patience: retry later, never fail over."""
    UNAUTHORIZED = "unauthorized"
    """Wrong key or missing claim: a configuration error, never failed over, never dead-lettered."""
    QUOTA = "quota"
    """The entity is full: waits for its receivers, never failed over."""
    REFUSED = "refused"
    """The same request will be refused again: not found, disabled, too large, malformed."""


REFUSED_CONDITIONS: Final = frozenset(
    {
        "amqp:not-found",
        "amqp:not-allowed",
        "amqp:not-implemented",
        "amqp:invalid-field",
        "amqp:decode-error",
        "amqp:precondition-failed",
        "amqp:resource-deleted",
        "amqp:link:message-size-exceeded",
        "amqp:frame-size-too-small",
        "com.microsoft:argument-error",
        "com.microsoft:argument-out-of-range",
        "com.microsoft:entity-disabled",
        "com.microsoft:entity-already-exists",
    }
)
UNAUTHORIZED_CONDITIONS: Final = frozenset({"amqp:unauthorized-access", "com.microsoft:auth-failed"})


def classify_condition(condition: str) -> Verdict:
    """The same for an error of our own transport, which names an AMQP condition, or a step of ours that the socket did not survive."""
    if condition in UNAUTHORIZED_CONDITIONS:
        return Verdict.UNAUTHORIZED
    if condition == "com.microsoft:server-busy":
        return Verdict.BUSY
    if condition == "amqp:resource-limit-exceeded":
        return Verdict.QUOTA
    return Verdict.REFUSED if condition in REFUSED_CONDITIONS else Verdict.UNREACHABLE
