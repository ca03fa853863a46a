"""The seam under every defence: open, send, receive, settle. Health, pairing, replication and outbox know nothing beyond it.

Whoever implements it keeps three promises. A call ends within its `timeout` (seconds), with the SDK's exceptions and no others.
Senders and receivers open themselves on first use, and again after they lost their connection. Concurrent sends are allowed.
"""

from __future__ import annotations

import datetime
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch, ServiceBusReceivedMessage
    from azure.servicebus.amqp import AmqpAnnotatedMessage

    from tandem.client.places import Place

    Single: TypeAlias = ServiceBusMessage | AmqpAnnotatedMessage
    Outgoing: TypeAlias = Single | list[Single] | ServiceBusMessageBatch


@dataclass(slots=True, eq=False)
class ReceivedDelivery:
    """One received message under lock. `payload` is the encoded message as it came, every wire type intact."""

    message: ServiceBusReceivedMessage
    payload: bytes
    message_id: str | None
    sequence_number: int
    enqueued_ms: int
    locked_until_ms: int
    handle: Any = None


class Sender(Protocol):
    """Sends to one path. The byte limits are 0 until the link was open once."""

    path: str
    message_bytes_max: int
    batch_bytes_max: int

    async def open(self, timeout: float) -> None: ...
    def send(self, message: Outgoing, timeout: float) -> Coroutine[Any, Any, None]: ...
    async def send_payloads(self, payloads: Sequence[bytes], timeout: float) -> None:
        """Encoded messages, accepted or refused as one batch."""
        ...

    async def schedule(self, messages: Sequence[Single], at: datetime.datetime, timeout: float) -> list[int]: ...
    async def cancel_scheduled(self, sequence_numbers: Sequence[int], timeout: float) -> None: ...
    def interrupt(self) -> None:
        """End the calls under way with a timeout: whoever waits for them has something better to do."""
        ...

    async def close(self) -> None: ...


class Receiver(Protocol):
    """Receives from one path under peek-lock. An empty list means that the wait was over."""

    path: str

    async def open(self, timeout: float) -> None: ...
    async def receive(self, count_max: int, wait: float) -> list[ReceivedDelivery]: ...
    async def peek(self, count_max: int, timeout: float) -> list[ServiceBusReceivedMessage]: ...
    async def browse(self, start: int, count_max: int, timeout: float) -> list[Place]:
        """Who stands in the queue, from this sequence number on, in order, locked or not. Nothing is taken; empty means the end."""
        ...

    async def complete(self, delivery: ReceivedDelivery) -> None: ...
    async def abandon(self, delivery: ReceivedDelivery) -> None: ...
    async def dead_letter(self, delivery: ReceivedDelivery, reason: str, description: str) -> None: ...
    async def defer(self, delivery: ReceivedDelivery) -> None: ...
    async def renew(self, delivery: ReceivedDelivery) -> None:
        """Extend the lock; `delivery.locked_until_ms` says until when."""
        ...

    async def close(self) -> None: ...


class NamespaceTransport(Protocol):
    """One namespace: what the original called a messaging factory."""

    host: str

    def sender(self, path: str, **sdk_options: Any) -> Sender: ...
    def receiver(self, path: str, *, session_id: str | None = None) -> Receiver: ...
    async def close(self) -> None: ...


def namespace_label(host: str) -> str:
    """The namespace's name as the backlog queues spell it: the first DNS label, or the whole host if it is a number or local."""
    bare = host.rsplit("@", 1)[-1]
    if bare.startswith("["):
        return bare[1:].partition("]")[0].replace(":", "-")
    bare = bare.partition(":")[0]
    first = bare.partition(".")[0]
    return bare if first.isdigit() else first
