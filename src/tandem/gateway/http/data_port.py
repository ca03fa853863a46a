"""What the REST data plane needs of a namespace: send, receive, settle and renew by lock token."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tandem.gateway.verbs import SettlementArguments
from tandem.model.address import Address
from tandem.model.entity import Right

PropertyValue = str | int | float | bool | None
"""What a custom property may be, in HTTP headers and in JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpMessage:
    """A message as HTTP carries it: a body of bytes, broker properties, custom properties. Instants in ms UTC."""

    body: bytes
    content_type: str | None = None
    message_id: str | None = None
    correlation_id: str | None = None
    session_id: str | None = None
    reply_to_session_id: str | None = None
    label: str | None = None
    to: str | None = None
    reply_to: str | None = None
    partition_key: str | None = None
    via_partition_key: str | None = None
    time_to_live_ms: int | None = None
    scheduled_at_ms: int | None = None
    properties: tuple[tuple[str, PropertyValue], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedMessage:
    """A message with what the broker knows about it."""

    message: HttpMessage
    sequence_number: int
    delivery_count: int
    """1 on the first delivery, as this API counts."""
    enqueued_at_ms: int
    enqueued_sequence_number: int | None = None
    expires_at_ms: int | None = None
    dead_letter_source: str | None = None
    state: str = "Active"
    lock_token: uuid.UUID | None = None
    """None: received and deleted."""
    locked_until_ms: int | None = None


class DataPort(Protocol):
    """One namespace. `address` names a queue, topic, subscription or sub-queue; a missing one raises EntityNotFound."""

    async def authorize(self, token: str | None, path: str, right: Right, rest: str = "") -> None:
        """As `AdminPort.authorize`."""

    async def send(self, address: Address, messages: Sequence[HttpMessage]) -> None:
        """All of them or none; durable when it returns."""

    def count_refused_send(self, address: Address) -> None:
        """It is an operation like any other; of an entity that does not exist nothing is counted."""

    async def receive(self, address: Address, *, lock: bool, wait_ms: int) -> ReceivedMessage | None:
        """The next message, locked or deleted; None when none came in time. Cancelled: nothing stays locked, nothing is lost."""

    async def settle(self, address: Address, message: str, lock_token: uuid.UUID, how: SettlementArguments) -> None:
        """`message` is a message id or a sequence number, as the client chose. Raises MessageLockLost, MessageNotFound."""

    async def renew(self, address: Address, message: str, lock_token: uuid.UUID) -> int:
        """The new `locked_until_ms`. Raises MessageLockLost, MessageNotFound."""
