"""What can go wrong on the wire: the error composite, and the two exceptions that end in one."""

from __future__ import annotations

from typing import Final

from tandem.amqp.encoder import NULL, compound, encode_string, encode_symbol, encode_value

INTERNAL_ERROR: Final = "amqp:internal-error"
NOT_FOUND: Final = "amqp:not-found"
UNAUTHORIZED_ACCESS: Final = "amqp:unauthorized-access"
DECODE_ERROR: Final = "amqp:decode-error"
RESOURCE_LIMIT_EXCEEDED: Final = "amqp:resource-limit-exceeded"
NOT_ALLOWED: Final = "amqp:not-allowed"
INVALID_FIELD: Final = "amqp:invalid-field"
NOT_IMPLEMENTED: Final = "amqp:not-implemented"
ILLEGAL_STATE: Final = "amqp:illegal-state"
CONNECTION_FORCED: Final = "amqp:connection:forced"
FRAMING_ERROR: Final = "amqp:connection:framing-error"
WINDOW_VIOLATION: Final = "amqp:session:window-violation"
ERRANT_LINK: Final = "amqp:session:errant-link"
HANDLE_IN_USE: Final = "amqp:session:handle-in-use"
UNATTACHED_HANDLE: Final = "amqp:session:unattached-handle"
DETACH_FORCED: Final = "amqp:link:detach-forced"
TRANSFER_LIMIT_EXCEEDED: Final = "amqp:link:transfer-limit-exceeded"
MESSAGE_SIZE_EXCEEDED: Final = "amqp:link:message-size-exceeded"
STOLEN: Final = "amqp:link:stolen"


class AmqpError:
    """The `error` composite (2.8.14). `description` and `info` may be None; the wire form has all three fields anyway."""

    def __init__(self, condition: str, description: str | None = None, info: dict[object, object] | None = None) -> None:
        self.condition = condition
        self.description = description
        self.info = info

    def encode(self) -> bytes:
        parts = (
            encode_symbol(self.condition),
            NULL if self.description is None else encode_string(self.description),
            NULL if self.info is None else encode_value(self.info),
        )
        return b"\x00\x53\x1d" + compound(0xC0, b"".join(parts), 3)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, AmqpError)
            and self.condition == other.condition
            and self.description == other.description
            and self.info == other.info
        )

    def __hash__(self) -> int:
        return hash((self.condition, self.description))

    def __repr__(self) -> str:
        return f"AmqpError({self.condition!r}, {self.description!r}, {self.info!r})"


class DecodeError(Exception):
    """Bytes that are not what the specification says; `description` tells which and where."""

    def __init__(self, description: str) -> None:
        super().__init__(description)
        self.description = description


class ProtocolError(Exception):
    """The peer broke a rule that costs it the connection."""

    def __init__(self, error: AmqpError) -> None:
        super().__init__(f"{error.condition}: {error.description}")
        self.error = error
