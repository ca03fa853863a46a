"""What can go wrong, grouped by what the caller does next; each refusal knows its AMQP condition."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import ClassVar


class BusError(Exception):
    """Base of every refusal a client may see.

    `condition` is the AMQP error condition, `status` the code used on `$management`, `$cbs` and HTTP.
    The gateway adds tracking id, tracker and timestamp to the text, once, where it leaves the house.
    """

    condition: ClassVar[str] = "amqp:internal-error"
    status: ClassVar[int] = 500

    def __init__(self, description: str) -> None:
        super().__init__(description)
        self.description = description

    def reword(self, description: str) -> None:
        """As it leaves the house: with a tracking id, or with where it was found."""
        self.description = description


class Refused(BusError):
    """The request is wrong or not permitted; the same request will be refused again."""

    condition = "amqp:not-allowed"
    status = 400


class Retry(BusError):
    """It did not work now and may work later; says nothing about the health of the namespace."""

    condition = "com.microsoft:server-busy"
    status = 503


class Unavailable(BusError):
    """The entity or its store cannot be reached; counts towards failover."""

    condition = "amqp:internal-error"
    status = 500


class LockLost(BusError):
    """The lock is gone; the message will come again."""

    condition = "com.microsoft:message-lock-lost"
    status = 410


class Corrupt(BusError):
    """Stored data is damaged. Stop and look; never skipped silently."""

    condition = "amqp:internal-error"
    status = 500


class EntityNotFound(Refused):
    condition = "amqp:not-found"
    status = 404


class EntityAlreadyExists(Refused):
    condition = "com.microsoft:entity-already-exists"
    status = 409


class EntityDisabled(Refused):
    condition = "com.microsoft:entity-disabled"
    status = 403


class Unauthorized(Refused):
    """Authenticated, but without the claim (Send, Listen, Manage) that is needed."""

    condition = "amqp:unauthorized-access"
    status = 401


class AuthenticationFailed(Refused):
    """The token is malformed, expired, signed with another key, or for another audience."""

    condition = "com.microsoft:auth-failed"
    status = 401


def expired_token(expires_at_ms: int, now_ms: int) -> AuthenticationFailed:
    """In the service's words, which programs look for, and how long ago."""
    at = datetime.fromtimestamp(expires_at_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return AuthenticationFailed(
        f"ExpiredToken: The token is expired. Expiration time: '{at}', {(now_ms - expires_at_ms) // 1000} seconds ago."
    )


class NotAllowed(Refused):
    condition = "amqp:not-allowed"
    status = 400


class NotImplementedByBroker(Refused):
    condition = "amqp:not-implemented"
    status = 501


class InvalidField(Refused):
    condition = "amqp:invalid-field"
    status = 400


class DecodeFailed(Refused):
    condition = "amqp:decode-error"
    status = 400


class ArgumentRefused(Refused):
    condition = "com.microsoft:argument-error"
    status = 400


class ArgumentOutOfRange(Refused):
    condition = "com.microsoft:argument-out-of-range"
    status = 400


class MessageSizeExceeded(Refused):
    condition = "amqp:link:message-size-exceeded"
    status = 413


class QuotaExceeded(Refused):
    condition = "amqp:resource-limit-exceeded"
    status = 403


class MessageNotFound(Refused):
    condition = "com.microsoft:message-not-found"
    status = 404


class SessionNotFound(Refused):
    condition = "com.microsoft:session-not-found"
    status = 404


class PreconditionFailed(Refused):
    condition = "amqp:precondition-failed"
    status = 412


class MessageLockLost(LockLost):
    condition = "com.microsoft:message-lock-lost"
    status = 410


class SessionLockLost(LockLost):
    condition = "com.microsoft:session-lock-lost"
    status = 410


class LeaseLost(LockLost):
    """The batch lease is gone; its messages are back in the queue, or settled."""

    condition = "com.tandem:lease-lost"
    status = 410


class SessionCannotBeLocked(Retry):
    condition = "com.microsoft:session-cannot-be-locked"
    status = 409


class OperationTimeout(Retry):
    condition = "com.microsoft:timeout"
    status = 408


class ServerBusy(Retry):
    condition = "com.microsoft:server-busy"
    status = 503


def shutting_down() -> ServerBusy:
    """What clients of a broker on its way out hear: it makes them try again."""
    return ServerBusy("The broker is shutting down. Connect again in a moment.")


class CatalogBehind(ServerBusy):
    """Another node has changed the namespace meanwhile; what it is now has to be seen before it can be changed again."""


class StoreUnavailable(Unavailable):
    """The messaging store that holds the entity is down; retryable, and confined to its entities."""

    condition = "amqp:internal-error"
    status = 500


class StoreMissing(StoreUnavailable):
    """The files of the store are not there, as when its disk is not mounted. Nothing is wrong with it: it is waited for."""


class StoresCountChanged(StoreUnavailable):
    """The namespace had another number of stores: what entities have in them would not be found. Nothing is served like this."""


class EngineAway(StoreUnavailable):
    """The engine of a cluster could not be asked. Nothing was changed, or nothing that matters."""


class StoreFull(StoreUnavailable):
    """The store has no room for new messages; those it has can be received and settled, which makes room."""


class TransactionUnknown(Refused):
    """No transaction of this id is open on this connection: it was never declared, is over, or took too long."""

    condition = "amqp:transaction:unknown-id"
    status = 400


class TransactionRolledBack(Refused):
    """Nothing of the transaction has happened. Declare another and do it again."""

    condition = "amqp:transaction:rollback"
    status = 409


class TransactionTimeout(Refused):
    """The transaction took too long and was rolled back."""

    condition = "amqp:transaction:timeout"
    status = 408


class ConfigurationError(Exception):
    """A setting is wrong. The text names where it stands, what was found and what is allowed."""
