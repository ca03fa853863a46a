"""What an error means to an outage defence: is the namespace out of reach, is it busy, or is the request refused."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

from azure.core.exceptions import ClientAuthenticationError, HttpResponseError, ServiceRequestError, ServiceResponseError
from azure.servicebus.exceptions import (
    MessageAlreadySettled,
    MessageLockLostError,
    MessageNotFoundError,
    MessageSizeExceededError,
    MessagingEntityAlreadyExistsError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusCommunicationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
    SessionLockLostError,
)

from tandem.client.destinations import Trouble, trouble_of
from tandem.client.verdicts import REFUSED_CONDITIONS, UNAUTHORIZED_CONDITIONS, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence


_REFUSED: tuple[type[BaseException], ...] = (
    MessagingEntityNotFoundError,
    MessagingEntityDisabledError,
    MessagingEntityAlreadyExistsError,
    MessageSizeExceededError,
    MessageLockLostError,
    MessageNotFoundError,
    SessionLockLostError,
    MessageAlreadySettled,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
)
_UNREACHABLE: tuple[type[BaseException], ...] = (
    ServiceBusConnectionError,
    ServiceBusCommunicationError,
    OperationTimeoutError,
    ServiceRequestError,
    ServiceResponseError,
    OSError,
    TimeoutError,
)

_SDK_AMQP = "azure.servicebus._pyamqp."
_READING = frozenset(
    ("_decode", *(f"_{part}_async" for part in ("transport", "sasl", "connection", "session", "link", "sender", "receiver")))
)
"""Modules of the SDK that read what a peer sends."""


def condition_of(error: BaseException) -> str:
    """The AMQP error condition the peer named, or an empty string."""
    condition: Any = getattr(error, "_condition", None)
    if condition is None:
        return ""
    condition = getattr(condition, "value", condition)
    return condition.decode("utf-8", "replace") if isinstance(condition, bytes) else str(condition)


def classify(error: BaseException) -> Verdict:
    """Read an SDK, HTTP or socket error. Reachability is the only thing that ever counts towards failover."""
    if isinstance(error, (BothNamespacesUnavailableError, NamespaceClosedError, PairedNamespaceFaultedError)):
        return Verdict.UNREACHABLE
    condition = condition_of(error)
    if isinstance(error, (ServiceBusAuthenticationError, ServiceBusAuthorizationError, ClientAuthenticationError)):
        # A token is asked for before anything else, so its refusal can mean more than a wrong key: 404 no such entity, 5xx not now.
        status = getattr(getattr(error, "inner_exception", None), "status_code", None)
        return _classify_status(status) if isinstance(status, int) else Verdict.UNAUTHORIZED
    if condition in UNAUTHORIZED_CONDITIONS:
        return Verdict.UNAUTHORIZED
    if isinstance(error, ServiceBusServerBusyError) or condition == "com.microsoft:server-busy":
        return Verdict.BUSY
    if isinstance(error, ServiceBusQuotaExceededError) or condition == "amqp:resource-limit-exceeded":
        return Verdict.QUOTA
    # A closed connection becomes a connection error whatever its reason was, so the condition has the last word.
    if condition in REFUSED_CONDITIONS and not isinstance(error, ServiceBusCommunicationError):
        return Verdict.REFUSED
    if isinstance(error, HttpResponseError):
        return _classify_status(error.status_code or 0)
    if isinstance(error, _UNREACHABLE):
        return Verdict.UNREACHABLE
    if isinstance(error, _REFUSED):
        return Verdict.REFUSED
    if isinstance(error, ServiceBusError):
        return _classify_unnamed(error, condition)
    return Verdict.REFUSED


def _classify_status(status: int) -> Verdict:
    if status in (401, 403):
        return Verdict.UNAUTHORIZED
    if status == 429:
        return Verdict.BUSY
    if status == 408 or status >= 500:
        return Verdict.UNREACHABLE
    return Verdict.REFUSED


def _classify_unnamed(error: ServiceBusError, condition: str) -> Verdict:
    """A bare ServiceBusError: the peer's condition decides (`amqp:internal-error` is a store that is down), else what it wraps."""
    if condition:
        return Verdict.UNREACHABLE
    inner = getattr(error, "inner_exception", None)
    if inner is not None and inner is not error:
        # The SDK wraps whatever broke inside a handler whose socket went away, attribute errors included.
        if isinstance(inner, (OSError, TimeoutError, AttributeError)) or _is_no_amqp(inner):
            return Verdict.UNREACHABLE
        return classify(inner)
    return Verdict.REFUSED


def _is_no_amqp(error: BaseException) -> bool:
    """The SDK stumbled over what came from the other side: it is no AMQP, as from a proxy that answers in place of the namespace.

    It has the same exceptions for a message that cannot be encoded; where one was raised is all that tells them apart.
    """
    modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    inside = [name.removeprefix(_SDK_AMQP) for name in modules if name.startswith(_SDK_AMQP)]
    return bool(inside) and inside[-1].rpartition(".")[2] in _READING and "_encode" not in inside


_ENTITY_CONDITIONS: tuple[tuple[type[BaseException], str], ...] = (
    (MessagingEntityNotFoundError, "amqp:not-found"),
    (MessagingEntityDisabledError, "com.microsoft:entity-disabled"),
)


def trouble_with(error: BaseException) -> Trouble:
    """Whether it is the destination of a message that is in the way, the message itself, or everything."""
    condition = next((name for kind, name in _ENTITY_CONDITIONS if isinstance(error, kind)), condition_of(error))
    return trouble_of(classify(error), condition)


def is_unreachable(error: BaseException) -> bool:
    """The default failover predicate: true for loss of reachability and for nothing else."""
    return classify(error) is Verdict.UNREACHABLE


def describe(error: BaseException) -> str:
    """One line for a person: the type and the first line of the text, bounded."""
    text = str(error).strip().split("\n", 1)[0]
    return f"{type(error).__name__}: {text}"[:512]


class SendAvailabilityBacklogError(ServiceBusError):  # type: ignore[misc]
    """Pairing produced no usable backlog queue, so nothing could be diverted during an outage.

    Create the queues beforehand, or give a credential with the Manage claim on the secondary, then pair again.
    """


class SendAvailabilityMessagingError(ServiceBusError):  # type: ignore[misc]
    """The path is poisoned: it failed over, and a ping since then was refused for good (`ping_error`).

    Mend what the ping error names (typically: the entity was deleted or disabled). The next ping that succeeds heals the path.
    """

    def __init__(self, message: str, ping_error: BaseException) -> None:
        super().__init__(message)
        self.ping_error = ping_error


class PairedNamespaceFaultedError(ServiceBusError):  # type: ignore[misc]
    """This namespace was faulted because its partner closed or faulted. Make a new pair."""


class NamespaceClosedError(ServiceBusError):  # type: ignore[misc]
    """The namespace (or the pair, sender or receiver made from it) was closed by the application."""


class BothNamespacesUnavailableError(ServiceBusError):  # type: ignore[misc]
    """Neither namespace took the message: nothing is stored anywhere, so send it again or keep it in an outbox.

    `causes` holds one error for each place that was tried, in that order; the last one is also the `__cause__`.
    """

    def __init__(self, message: str, causes: Sequence[BaseException]) -> None:
        super().__init__(message)
        self.causes = tuple(causes)


class AliasInUseError(ServiceBusError, ValueError):  # type: ignore[misc]
    """The message already carries a property the pairing needs for itself. Rename it; it would be refused in an outage as well."""
