"""A namespace that does what a test says: two of them play an outage without a socket, and keep books on every message."""

from __future__ import annotations

import asyncio
import collections
import datetime
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from azure.servicebus import ServiceBusMessageBatch, ServiceBusReceivedMessage
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusConnectionError,
)

from tandem.amqp import DecodedMessage, Symbol, Timestamp, decode_message
from tandem.client.call_guard import CallGuard
from tandem.client.errors import NamespaceClosedError
from tandem.client.ping import CONTENT_TYPE
from tandem.client.places import Place, place_of
from tandem.client.sdk_codec import payload_from_message
from tandem.client.transport import ReceivedDelivery

if TYPE_CHECKING:
    from tandem.client.transport import Outgoing, Single

Behaviour = Callable[[str], Awaitable[None]]


@dataclass(slots=True, eq=False)
class Stored:
    """A message in a scripted entity."""

    payload: bytes
    parts: DecodedMessage
    sequence_number: int
    enqueued_ms: int
    delivery_count: int = 0
    locked_until_ms: int = 0
    lock: object = None

    @property
    def message_id(self) -> str:
        return str(self.parts.properties.get("message-id"))


@dataclass(slots=True)
class Entity:
    path: str
    message_bytes_max: int = 262_144
    duplicate_detection: bool = False
    messages: list[Stored] = field(default_factory=list)
    completed: list[Stored] = field(default_factory=list)
    dead: list[tuple[Stored, str, str]] = field(default_factory=list)
    pings: list[DecodedMessage] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    next_sequence: int = 1
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    behaviours: collections.deque[tuple[Behaviour, int | None]] = field(default_factory=collections.deque)

    @property
    def ids(self) -> list[str]:
        return [stored.message_id for stored in self.messages]


class ScriptedNamespace:
    """A namespace in memory, behind the client's transport seam. Entities exist once named, unless `strict`."""

    def __init__(self, host: str, now_ms: Callable[[], int] = lambda: 0, *, strict: bool = False, lock_ms: int = 60_000) -> None:
        self.host = host
        self.now_ms = now_ms
        self.strict = strict
        self.lock_ms = lock_ms
        self.entities: dict[str, Entity] = {}
        self.everywhere: Behaviour | None = None
        self.operations: collections.Counter[tuple[str, str]] = collections.Counter()
        self.receivers: collections.Counter[str] = collections.Counter()
        """How many were made for each path."""
        self.closed = False
        self.close_error: BaseException | None = None

    def entity(self, path: str) -> Entity:
        key = path.casefold()
        entity = self.entities.get(key)
        if entity is None:
            entity = self.entities[key] = Entity(path)
        return entity

    # -- the script ----------------------------------------------------------------------------------------------------

    def down(self) -> None:
        """Every operation meets a refused connection."""
        self.everywhere = raising(lambda: ServiceBusConnectionError(message="connection refused"))

    def hang(self) -> None:
        """Connections open and nothing ever answers."""
        self.everywhere = hanging

    def up(self) -> None:
        self.everywhere = None

    def behave(self, path: str, behaviour: Behaviour, times: int | None = None) -> None:
        """Do this on the next `times` operations on the path (for ever if None)."""
        self.entity(path).behaviours.append((behaviour, times))

    def recover(self, path: str) -> None:
        self.entity(path).behaviours.clear()

    async def meet(self, operation: str, path: str, timeout: float) -> Entity:
        """Play the script for one operation; the entity if it may go on."""
        if self.closed:
            raise NamespaceClosedError(f"{self.host} is closed")
        self.operations[operation, path] += 1
        try:
            async with asyncio.timeout(timeout):
                if self.everywhere is not None:
                    await self.everywhere(operation)
                if self.strict and path.casefold() not in self.entities:
                    raise MessagingEntityNotFoundError(message=f"no entity {path}", condition=b"amqp:not-found")
                entity = self.entity(path)
                if entity.behaviours:
                    await self._play(entity, operation)
                return entity
        except TimeoutError as error:
            raise OperationTimeoutError(message=f"{path}: no answer within {timeout} s") from error

    async def _play(self, entity: Entity, operation: str) -> None:
        behaviour, times = entity.behaviours[0]
        if times is not None:
            entity.behaviours.popleft()
            if times > 1:
                entity.behaviours.appendleft((behaviour, times - 1))
        await behaviour(operation)

    # -- the seam ------------------------------------------------------------------------------------------------------

    def sender(self, path: str, **sdk_options: Any) -> ScriptedSender:
        return ScriptedSender(self, path)

    def receiver(self, path: str, *, session_id: str | None = None) -> ScriptedReceiver:
        self.receivers[path] += 1
        return ScriptedReceiver(self, path, session_id)

    async def close(self) -> None:
        if self.close_error is not None:
            raise self.close_error
        self.closed = True

    def store(self, entity: Entity, payload: bytes) -> None:
        parts = decode_message(payload)
        if parts.properties.get("content-type") == CONTENT_TYPE:
            entity.pings.append(parts)
            return
        message_id = str(parts.properties.get("message-id"))
        if entity.duplicate_detection and message_id in entity.seen:
            return
        entity.seen.add(message_id)
        entity.messages.append(Stored(payload, parts, entity.next_sequence, self.now_ms()))
        entity.next_sequence += 1
        entity.arrived.set()


def raising(error: Callable[[], BaseException], *, on: str = "") -> Behaviour:
    """Raise on every operation, or only on those named `on`."""

    async def behave(operation: str) -> None:
        if not on or operation == on:
            raise error()

    return behave


async def hanging(operation: str) -> None:
    await asyncio.get_running_loop().create_future()


def delaying(seconds: float) -> Behaviour:
    async def behave(operation: str) -> None:
        await asyncio.sleep(seconds)

    return behave


class ScriptedSender:
    """`lose_answers` makes that many sends store their message and then fail, as when only the reply is lost."""

    def __init__(self, namespace: ScriptedNamespace, path: str) -> None:
        self._namespace = namespace
        self.path = path
        self.message_bytes_max = 0
        self.batch_bytes_max = 0
        self.lose_answers = 0
        self.closed = False
        self._calls: dict[CallGuard, None] = {}

    async def open(self, timeout: float) -> None:
        self._learn(await self._namespace.meet("open", self.path, timeout))

    def _learn(self, entity: Entity) -> None:
        self.message_bytes_max = self.batch_bytes_max = entity.message_bytes_max

    async def send(self, message: Outgoing, timeout: float) -> None:
        if isinstance(message, ServiceBusMessageBatch):
            payloads = [bytes(encoded) for encoded in message._message[5]]
        else:
            payloads = [payload_from_message(single) for single in (message if isinstance(message, list) else [message])]
        await self.send_payloads(payloads, timeout)

    async def send_payloads(self, payloads: Sequence[bytes], timeout: float) -> None:
        if self.closed:
            raise NamespaceClosedError("the sender is closed")
        with CallGuard(self._calls):
            entity = await self._namespace.meet("send", self.path, timeout)
        self._learn(entity)
        if sum(map(len, payloads)) > entity.message_bytes_max:
            raise MessageSizeExceededError(message="too large", condition=b"amqp:link:message-size-exceeded")
        for payload in payloads:
            self._namespace.store(entity, payload)
        if self.lose_answers:
            self.lose_answers -= 1
            raise ServiceBusConnectionError(message="the answer was lost")

    async def schedule(self, messages: Sequence[Single], at: datetime.datetime, timeout: float) -> list[int]:
        with CallGuard(self._calls):
            entity = await self._namespace.meet("schedule", self.path, timeout)
        numbers = []
        for message in messages:
            numbers.append(entity.next_sequence)
            self._namespace.store(entity, payload_from_message(message))
        return numbers

    async def cancel_scheduled(self, sequence_numbers: Sequence[int], timeout: float) -> None:
        entity = await self._namespace.meet("cancel", self.path, timeout)
        entity.messages = [stored for stored in entity.messages if stored.sequence_number not in sequence_numbers]

    def interrupt(self) -> None:
        for call in tuple(self._calls):
            call.interrupt()

    async def close(self) -> None:
        self.closed = True


class ScriptedReceiver:
    """Peek-lock over a scripted entity; with a session id, only that session's messages."""

    def __init__(self, namespace: ScriptedNamespace, path: str, session_id: str | None) -> None:
        self._namespace = namespace
        self.path = path
        self._session_id = session_id
        self.closed = False

    async def open(self, timeout: float) -> None:
        await self._namespace.meet("open", self.path, timeout)

    async def receive(self, count_max: int, wait: float) -> list[ReceivedDelivery]:
        deadline = asyncio.get_running_loop().time() + wait
        while True:
            entity = await self._namespace.meet("receive", self.path, wait)
            taken = self._take(entity, count_max)
            if taken:
                return taken
            entity.arrived.clear()
            left = deadline - asyncio.get_running_loop().time()
            try:
                async with asyncio.timeout(max(0.0, left)):
                    await entity.arrived.wait()
            except TimeoutError:
                return []

    def _take(self, entity: Entity, count_max: int) -> list[ReceivedDelivery]:
        now = self._namespace.now_ms()
        taken: list[ReceivedDelivery] = []
        for stored in entity.messages:
            if len(taken) >= count_max:
                break
            if stored.lock is not None and stored.locked_until_ms > now:
                continue
            if self._session_id is not None and stored.parts.properties.get("group-id") != self._session_id:
                continue
            if stored.lock is not None:
                stored.delivery_count += 1
            stored.lock = object()
            stored.locked_until_ms = now + self._namespace.lock_ms
            taken.append(self._delivery(stored))
        return taken

    def _delivery(self, stored: Stored) -> ReceivedDelivery:
        parts = decode_message(stored.payload)
        parts.message_annotations = {
            **parts.message_annotations,
            Symbol("x-opt-sequence-number"): stored.sequence_number,
            Symbol("x-opt-enqueued-time"): Timestamp(stored.enqueued_ms),
            Symbol("x-opt-locked-until"): Timestamp(stored.locked_until_ms),
        }
        payload = parts.encode()
        return ReceivedDelivery(
            message=ServiceBusReceivedMessage.from_bytes(payload),
            payload=payload,
            message_id=stored.message_id,
            sequence_number=stored.sequence_number,
            enqueued_ms=stored.enqueued_ms,
            locked_until_ms=stored.locked_until_ms,
            handle=(stored, stored.lock),
        )

    async def peek(self, count_max: int, timeout: float) -> list[ServiceBusReceivedMessage]:
        entity = await self._namespace.meet("peek", self.path, timeout)
        return [ServiceBusReceivedMessage.from_bytes(self._delivery(stored).payload) for stored in entity.messages[:count_max]]

    async def browse(self, start: int, count_max: int, timeout: float) -> list[Place]:
        entity = await self._namespace.meet("peek", self.path, timeout)
        ahead = [stored for stored in entity.messages if stored.sequence_number >= start][:count_max]
        return [place_of(s.sequence_number, s.enqueued_ms, s.parts.application_properties, s.parts.message_annotations) for s in ahead]

    async def _held(self, operation: str, delivery: ReceivedDelivery) -> tuple[Entity, Stored]:
        entity = await self._namespace.meet(operation, self.path, 60.0)
        stored: Stored
        stored, lock = delivery.handle
        if stored not in entity.messages or stored.lock is not lock or stored.locked_until_ms <= self._namespace.now_ms():
            raise MessageLockLostError(message="the lock is gone")
        return entity, stored

    async def complete(self, delivery: ReceivedDelivery) -> None:
        entity, stored = await self._held("complete", delivery)
        entity.messages.remove(stored)
        entity.completed.append(stored)

    async def abandon(self, delivery: ReceivedDelivery) -> None:
        entity, stored = await self._held("abandon", delivery)
        stored.lock, stored.delivery_count = None, stored.delivery_count + 1
        entity.arrived.set()

    async def dead_letter(self, delivery: ReceivedDelivery, reason: str, description: str) -> None:
        entity, stored = await self._held("dead_letter", delivery)
        entity.messages.remove(stored)
        entity.dead.append((stored, reason, description))

    async def defer(self, delivery: ReceivedDelivery) -> None:
        entity, stored = await self._held("defer", delivery)
        stored.locked_until_ms = 1 << 62
        entity.arrived.set()

    async def renew(self, delivery: ReceivedDelivery) -> None:
        _, stored = await self._held("renew", delivery)
        stored.locked_until_ms = self._namespace.now_ms() + self._namespace.lock_ms
        delivery.locked_until_ms = stored.locked_until_ms

    async def close(self) -> None:
        self.closed = True


class ScriptedAdministration:
    """Creates queues in a strict scripted namespace; `error` is raised instead if set."""

    def __init__(self, namespace: ScriptedNamespace) -> None:
        self._namespace = namespace
        self.created: list[str] = []
        self.message_kilobytes_max: int | None = 102_400
        """Of the queues it makes; None is a namespace with one size for all."""
        self.error: Callable[[], BaseException] | None = None
        self.wait: Callable[[], Awaitable[None]] | None = None

    async def exists(self, name: str) -> bool:
        if self.wait is not None:
            await self.wait()
        if self.error is not None:
            raise self.error()
        if self._namespace.everywhere is not None:
            await self._namespace.everywhere("exists")
        return name.casefold() in self._namespace.entities

    async def create(self, name: str) -> None:
        self.created.append(name)
        entity = self._namespace.entity(name)
        if self.message_kilobytes_max is not None:
            entity.message_bytes_max = self.message_kilobytes_max * 1_024

    async def depth(self, name: str) -> int:
        return len(self._namespace.entity(name).messages)


def user_view(parts: DecodedMessage) -> dict[str, Any]:
    """What a receiver can see of a message, for comparing two of them."""
    annotations = {
        str(k): v for k, v in parts.message_annotations.items() if not str(k).startswith(("x-opt-enqueued", "x-opt-seq", "x-opt-lock"))
    }
    return {
        "header": parts.header,
        "annotations": annotations,
        "properties": parts.properties,
        "application_properties": parts.application_properties,
        "body": parts.body_sections,
        "footer": parts.footer_section,
    }
