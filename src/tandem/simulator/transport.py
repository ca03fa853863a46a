"""The client layer's transport seam on our own engine: paired namespaces and their syphon run on it in virtual time."""

from __future__ import annotations

import asyncio
import datetime
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from azure.servicebus import ServiceBusMessageBatch, ServiceBusReceivedMessage
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusServerBusyError,
)

from tandem import amqp
from tandem.client.call_guard import CallGuard
from tandem.client.places import Place, place_of
from tandem.client.sdk_codec import payload_from_message
from tandem.client.transport import ReceivedDelivery
from tandem.simulator import amqp_client
from tandem.simulator.amqp_client import AmqpClient, Gone, Incoming, PeerRefused
from tandem.simulator.world import KEY, PORT

if TYPE_CHECKING:
    from tandem.client.transport import Outgoing, Single

_T = TypeVar("_T")
_NUMBER = amqp.Symbol("x-opt-sequence-number")
_ENQUEUED = amqp.Symbol("x-opt-enqueued-time")
_LOCKED = amqp.Symbol("x-opt-locked-until")
_ERRORS: dict[str, type[ServiceBusError]] = {
    "com.microsoft:server-busy": ServiceBusServerBusyError,
    "com.microsoft:timeout": OperationTimeoutError,
    "com.microsoft:message-lock-lost": MessageLockLostError,
    "amqp:not-found": MessagingEntityNotFoundError,
}


async def as_the_sdk(work: Awaitable[_T], seconds: float) -> _T:
    """Within so many seconds, and with the SDK's exceptions."""
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError as error:
        raise OperationTimeoutError(message=f"no answer within {seconds} s") from error
    except (Gone, OSError) as error:
        raise ServiceBusConnectionError(message=str(error)) from error
    except PeerRefused as refused:
        kind = _ERRORS.get(refused.condition, ServiceBusError)
        raise kind(message=str(refused), condition=refused.condition.encode()) from refused


class _Connected:
    """A link with a connection of its own, opened on first use and again after it was lost."""

    def __init__(self, host: str, path: str) -> None:
        self.host = host
        self.path = path
        self._client: AmqpClient | None = None

    async def _connect(self) -> AmqpClient:
        if self._client is None or self._client.ended.done():
            self._drop()
            self._client = await AmqpClient.connect(PORT, host=self.host, password=KEY, idle_timeout_ms=30_000)
        return self._client

    def _drop(self) -> None:
        if self._client is not None:
            self._client.abort()
            self._client = None

    async def close(self) -> None:
        self._drop()


class SimSender(_Connected):
    def __init__(self, host: str, path: str, now_ms: Callable[[], int]) -> None:
        super().__init__(host, path)
        self._now_ms = now_ms
        self.message_bytes_max = 0
        self.batch_bytes_max = 0
        self._link: amqp_client.AmqpSender | None = None
        self._calls: dict[CallGuard, None] = {}

    async def _ready(self) -> amqp_client.AmqpSender:
        if self._link is None or not self._link.link.attached:
            client = await self._connect()
            self._link = await client.sender(self.path)
            self.message_bytes_max = self.batch_bytes_max = self._link.link.remote_max_message_size
        return self._link

    async def open(self, timeout: float) -> None:
        await as_the_sdk(self._ready(), timeout)

    async def send(self, message: Outgoing, timeout: float) -> None:
        if isinstance(message, ServiceBusMessageBatch):
            payloads = [bytes(encoded) for encoded in message._message[5]]
        else:
            payloads = [
                self._in_virtual_time(payload_from_message(single)) for single in (message if isinstance(message, list) else [message])
            ]
        await self.send_payloads(payloads, timeout)

    def _in_virtual_time(self, payload: bytes) -> bytes:
        """The SDK stamps messages that have a time-to-live with the machine's own clock."""
        parts = amqp.decode_message(payload)
        if parts.properties.get("creation-time") is None:
            return payload
        now = self._now_ms()
        parts.properties["creation-time"] = amqp.Timestamp(now)
        parts.properties["absolute-expiry-time"] = amqp.Timestamp(now + int(str(parts.header["ttl"])))
        return parts.encode()

    async def send_payloads(self, payloads: Sequence[bytes], timeout: float) -> None:
        try:
            with CallGuard(self._calls):
                await as_the_sdk(self._send(list(payloads)), timeout)
        except (TimeoutError, OperationTimeoutError, ServiceBusConnectionError):
            self._drop()
            raise

    async def _send(self, payloads: list[bytes]) -> None:
        link = await self._ready()
        await (link.send(payloads[0]) if len(payloads) == 1 else link.send_batch(payloads))

    async def schedule(self, messages: Sequence[Single], at: datetime.datetime, timeout: float) -> list[int]:
        due = amqp.Timestamp(int(at.timestamp() * 1000))
        wanted: list[Any] = []
        for message in messages:
            parts = amqp.decode_message(payload_from_message(message))
            parts.message_annotations[amqp.Symbol("x-opt-scheduled-enqueue-time")] = due
            wanted.append({"message-id": str(parts.properties["message-id"]), "message": parts.encode()})
        body = await self._manage("com.microsoft:schedule-message", {"messages": wanted}, timeout)
        return [int(number) for number in body["sequence-numbers"].values]

    async def cancel_scheduled(self, sequence_numbers: Sequence[int], timeout: float) -> None:
        numbers = amqp.Array(0x81, list(sequence_numbers))
        await self._manage("com.microsoft:cancel-scheduled-message", {"sequence-numbers": numbers}, timeout)

    async def _manage(self, operation: str, body: dict[str, Any], timeout: float) -> Any:
        client = await as_the_sdk(self._connect(), timeout)
        _, answer = await as_the_sdk(client.request(self.path, operation, body), timeout)
        return answer

    def interrupt(self) -> None:
        for call in tuple(self._calls):
            call.interrupt()


class SimReceiver(_Connected):
    """Peek-lock; prefetches nothing that nobody asked for."""

    def __init__(self, host: str, path: str) -> None:
        super().__init__(host, path)
        self._link: amqp_client.AmqpReceiver | None = None

    async def _ready(self) -> amqp_client.AmqpReceiver:
        if self._link is None or not self._link.link.attached:
            client = await self._connect()
            self._link = await client.receiver(self.path)
        return self._link

    async def open(self, timeout: float) -> None:
        await as_the_sdk(self._ready(), timeout)

    async def receive(self, count_max: int, wait: float) -> list[ReceivedDelivery]:
        link = await as_the_sdk(self._ready(), 30.0)
        link.grant(count_max)
        found: list[ReceivedDelivery] = []
        try:
            async with asyncio.timeout(wait):
                found.append(_delivery(await link.get()))
        except TimeoutError:
            link.grant(0)
        except (Gone, PeerRefused) as error:
            raise ServiceBusConnectionError(message=str(error)) from error
        while len(found) < count_max:
            try:
                async with asyncio.timeout(0.05):
                    found.append(_delivery(await link.get()))
            except (TimeoutError, Gone, PeerRefused):
                break
        link.grant(0)
        return found

    async def peek(self, count_max: int, timeout: float) -> list[ServiceBusReceivedMessage]:
        raise ServiceBusError(message="not part of this story")

    async def browse(self, start: int, count_max: int, timeout: float) -> list[Place]:
        client = await as_the_sdk(self._connect(), timeout)
        wanted = {"from-sequence-number": start, "message-count": amqp.Int(count_max)}
        status, body = await as_the_sdk(client.request(self.path, "com.microsoft:peek-message", wanted), timeout)
        return [_place(bytes(one["message"])) for one in body["messages"]] if status == 200 else []

    async def _settle(self, delivery: ReceivedDelivery, state: bytes) -> None:
        link = self._link
        if link is None:
            raise MessageLockLostError(message="the link is gone")
        await as_the_sdk(link.settle(delivery.handle, state), 30.0)

    async def complete(self, delivery: ReceivedDelivery) -> None:
        await self._settle(delivery, amqp.ACCEPTED)

    async def abandon(self, delivery: ReceivedDelivery) -> None:
        await self._settle(delivery, amqp.encode_modified(True, False))

    async def dead_letter(self, delivery: ReceivedDelivery, reason: str, description: str) -> None:
        info: dict[Any, Any] = {amqp.Symbol("DeadLetterReason"): reason, amqp.Symbol("DeadLetterErrorDescription"): description}
        await self._settle(delivery, amqp.encode_rejected(amqp.AmqpError("com.microsoft:dead-letter", None, info)))

    async def defer(self, delivery: ReceivedDelivery) -> None:
        await self._settle(delivery, amqp.encode_modified(True, True))

    async def renew(self, delivery: ReceivedDelivery) -> None:
        client = await as_the_sdk(self._connect(), 30.0)
        token = uuid.UUID(bytes_le=delivery.handle.tag)
        request = client.request(self.path, "com.microsoft:renew-lock", {"lock-tokens": amqp.Array(0x98, [token])})
        _, body = await as_the_sdk(request, 30.0)
        delivery.locked_until_ms = int(body["expirations"].values[0])


def _delivery(incoming: Incoming) -> ReceivedDelivery:
    found = amqp.decode_message(incoming.payload)
    notes: dict[Any, Any] = found.message_annotations
    return ReceivedDelivery(
        message=None,  # the syphon works on the bytes
        payload=incoming.payload,
        message_id=str(found.properties.get("message-id")),
        sequence_number=int(notes[_NUMBER]),
        enqueued_ms=int(notes[_ENQUEUED]),
        locked_until_ms=int(notes[_LOCKED]),
        handle=incoming,
    )


def _place(payload: bytes) -> Place:
    found = amqp.decode_message(payload)
    notes: dict[Any, Any] = found.message_annotations
    return place_of(int(notes[_NUMBER]), int(notes[_ENQUEUED]), found.application_properties, notes)


class SimNamespace:
    """`client.transport.Namespace`."""

    def __init__(self, host: str, now_ms: Callable[[], int]) -> None:
        self.host = host
        self._now_ms = now_ms

    def sender(self, path: str) -> SimSender:
        return SimSender(self.host, path, self._now_ms)

    def receiver(self, path: str, *, session_id: str | None = None) -> SimReceiver:
        return SimReceiver(self.host, path)

    async def close(self) -> None:
        """Links have connections of their own."""
