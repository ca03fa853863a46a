"""The transport over the official `azure-servicebus` SDK: a namespace, and receiving with the bytes kept beside what it decodes."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender
from azure.servicebus.exceptions import (
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusError,
)

from tandem.client.errors import NamespaceClosedError
from tandem.client.places import Place, place_of
from tandem.client.sdk_codec import payload_from_message
from tandem.client.sdk_sender import GRACE_SECONDS, SdkSender, precise
from tandem.client.transport import ReceivedDelivery

log = logging.getLogger("tandem.client.sdk")

_Handler = TypeVar("_Handler", ServiceBusSender, ServiceBusReceiver)
_CLOSE_SECONDS = 5.0
_SETTLE_OPEN_SECONDS = 30.0


class SdkNamespace:
    """One namespace, by connection string or by a client the application made (and then keeps to close)."""

    def __init__(self, connection: str | ServiceBusClient, **options: Any) -> None:
        """`options` go to the SDK's client when it is made here (`connection_verify`, `transport_type`, …).

        A client made here does not retry inside a send (`retry_total=0`): the SDK's back-off of many seconds would hide an outage from
        the defence above. What a retry is good for, a connection gone stale while idle, is retried at once, here. A client handed in
        keeps its own policy.
        """
        self.owned = isinstance(connection, str)
        if isinstance(connection, str):
            options.setdefault("retry_total", 0)
            self.client = ServiceBusClient.from_connection_string(connection, **options)
        else:
            if options:
                raise ValueError(f"options {sorted(options)} belong to a connection string; set them on the client instead")
            self.client = connection
        self.host: str = self.client.fully_qualified_namespace
        self._made: weakref.WeakSet[ServiceBusSender | ServiceBusReceiver] = weakref.WeakSet()
        self._closing: set[asyncio.Task[None]] = set()
        self.closed = False

    def sender(self, path: str, **sdk_options: Any) -> SdkSender:
        """`sdk_options` as `get_queue_sender` of the SDK's client takes them."""
        self.check_open()
        return SdkSender(self, path, sdk_options)

    def receiver(self, path: str, *, session_id: str | None = None) -> SdkReceiver:
        self.check_open()
        return SdkReceiver(self, path, session_id)

    def make_sender(self, path: str, sdk_options: dict[str, Any]) -> ServiceBusSender:
        # The class's method: that of a client the application paired gives out protected senders.
        return self._keep(type(self.client).get_queue_sender(self.client, path, **sdk_options))

    def make_receiver(self, path: str, session_id: str | None) -> ServiceBusReceiver:
        topic, _, rest = path.partition("/Subscriptions/")
        subscription, _, sub_queue = rest.partition("/$")
        if subscription and not sub_queue:
            return self._keep(self.client.get_subscription_receiver(topic, subscription, session_id=session_id))
        return self._keep(self.client.get_queue_receiver(path, session_id=session_id))

    def _keep(self, handler: _Handler) -> _Handler:
        """What is made here is closed here. The client walks over all it has made while it closes, and must find nothing of ours there:
        ours come and go meanwhile."""
        self.client._handlers.discard(handler)
        self._made.add(handler)
        return handler

    def on_close(self, told: Callable[[], Awaitable[None]]) -> Callable[[], None]:
        """Hear of it first when the application closes its own client; returns what ends that. The client's `close` waits for ours."""
        client_close = self.client.close

        async def close() -> None:
            await told()
            await self._let_go()
            await client_close()

        def end() -> None:
            if vars(self.client).get("close") is close:
                del self.client.close

        self.client.close = close
        return end

    def check_open(self) -> None:
        if self.closed:
            raise NamespaceClosedError(f"namespace {self.host} is closed")

    def close_later(self, closing: Coroutine[Any, Any, None]) -> None:
        """Close something whose peer may never answer without making anybody wait for it."""
        task = asyncio.ensure_future(_quietly(closing, self.host))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        await self._let_go()
        await _quietly(type(self.client).close(self.client), self.host)

    async def _let_go(self) -> None:
        """Close all that was made here, and make nothing more."""
        self.closed = True
        await asyncio.gather(*(_quietly(handler.close(), self.host) for handler in tuple(self._made)))
        if self._closing:
            await asyncio.wait(tuple(self._closing), timeout=_CLOSE_SECONDS)


def as_namespace(given: Any, sdk_options: dict[str, Any] | None = None) -> Any:
    """A namespace from a connection string, an SDK client, or whatever already keeps the promises of the seam."""
    if isinstance(given, str):
        return SdkNamespace(given, **(sdk_options or {}))
    if isinstance(given, ServiceBusClient):
        return SdkNamespace(given)
    if not (hasattr(given, "sender") and hasattr(given, "receiver")):
        raise TypeError(f"a namespace is a connection string or an azure.servicebus.aio.ServiceBusClient, not {type(given)!r}")
    return given


async def _quietly(closing: Coroutine[Any, Any, None], host: str) -> None:
    try:
        async with asyncio.timeout(_CLOSE_SECONDS):
            await closing
    except TimeoutError:
        log.info("%s did not answer a close within %s s; its connection was dropped", host, _CLOSE_SECONDS)
    except Exception as error:  # noqa: BLE001 - whatever breaks while letting go, the connection is gone, which was wanted
        log.info("closing a link to %s: %s", host, error)


class SdkReceiver:
    """Receives from one path, keeping the bytes of every message beside the object the SDK makes of it."""

    def __init__(self, namespace: SdkNamespace, path: str, session_id: str | None = None) -> None:
        self._namespace = namespace
        self.path = path
        self._session_id = session_id
        self._receiver: ServiceBusReceiver | None = None
        self._link: Any = None
        self._payloads: dict[int, bytes] = {}
        self._closed = False
        self._settling = asyncio.Lock()

    def _current(self) -> ServiceBusReceiver:
        if self._closed:
            raise NamespaceClosedError(f"the receiver for {self.path} is closed")
        self._namespace.check_open()
        if self._receiver is None:
            self._receiver = self._namespace.make_receiver(self.path, self._session_id)
        return self._receiver

    def _discard(self) -> None:
        receiver, self._receiver, self._link = self._receiver, None, None
        self._payloads.clear()
        if receiver is not None:
            self._namespace.close_later(receiver.close())

    async def open(self, timeout: float) -> None:
        receiver = self._current()
        try:
            async with asyncio.timeout(timeout + GRACE_SECONDS):
                await receiver._do_retryable_operation(receiver._open, timeout=timeout, operation_requires_timeout=True)
        except TimeoutError as error:
            self._discard()
            raise OperationTimeoutError(message=f"{self.path}: the link did not open within {timeout:.3g} s") from error
        except ServiceBusError as error:
            self._discard()
            raise precise(error) from error.__cause__
        except BaseException:
            self._discard()
            raise
        handler: Any = receiver._handler
        if handler._link is not self._link:
            self._link = handler._link
            self._payloads.clear()
            _keep_payloads(self._link, self._payloads)

    async def receive(self, count_max: int, wait: float) -> list[ReceivedDelivery]:
        clock = asyncio.get_running_loop().time
        started = clock()
        await self.open(min(wait, 60.0))
        receiver = self._current()
        left = max(0.05, wait - (clock() - started))
        handler: Any = receiver._handler
        if handler._received_messages.empty():
            self._payloads.clear()  # of messages the SDK gave back because nobody was receiving
        try:
            messages = await receiver.receive_messages(max_message_count=count_max, max_wait_time=left)
            await self._take_credit_back(handler._link)
        except BaseException:
            self._discard()
            raise
        deliveries = [self._delivery(message) for message in messages]
        if handler._shutdown:
            # It met something that it cannot read, says nothing of it, and would find nothing at once from now on.
            self._discard()
            if not deliveries:
                raise ServiceBusConnectionError(message=f"{self.path}: the SDK gave its link up over something it cannot read")
        return deliveries

    async def _take_credit_back(self, link: Any) -> None:
        """Nobody reads until the next call. What came meanwhile would be locked here, or given back by the SDK and come again at once."""
        if link.current_link_credit > 0:
            try:
                await link.flow(link_credit=0)
            except Exception as error:  # noqa: BLE001 - the messages are here all the same; settling them finds out what is wrong
                log.info("credit of %s not taken back: %s", self.path, error)

    def _delivery(self, message: ServiceBusReceivedMessage) -> ReceivedDelivery:
        payload = self._payloads.pop(message._delivery_id, None) if message._delivery_id is not None else None
        if payload is None:
            payload = payload_from_message(message)
        locked = message.locked_until_utc
        enqueued = message.enqueued_time_utc
        return ReceivedDelivery(
            message=message,
            payload=payload,
            message_id=None if message.message_id is None else str(message.message_id),
            sequence_number=message.sequence_number or 0,
            enqueued_ms=int(enqueued.timestamp() * 1000) if enqueued else 0,
            locked_until_ms=int(locked.timestamp() * 1000) if locked else 0,
            handle=self._receiver,
        )

    async def peek(self, count_max: int, timeout: float) -> list[ServiceBusReceivedMessage]:
        messages: list[ServiceBusReceivedMessage] = await self._current().peek_messages(max_message_count=count_max, timeout=timeout)
        return messages

    async def browse(self, start: int, count_max: int, timeout: float) -> list[Place]:
        peeking = self._current().peek_messages(max_message_count=count_max, sequence_number=max(start, 1), timeout=timeout)
        try:
            async with asyncio.timeout(timeout + GRACE_SECONDS):
                found: list[ServiceBusReceivedMessage] = await peeking
        except TimeoutError as error:
            self._discard()
            raise OperationTimeoutError(message=f"{self.path}: not seen within {timeout:.3g} s") from error
        except ServiceBusError as error:
            self._discard()
            raise precise(error) from error.__cause__
        return [_place(message) for message in found]

    async def complete(self, delivery: ReceivedDelivery) -> None:
        await self._settle(delivery, lambda r: r.complete_message(delivery.message))

    async def abandon(self, delivery: ReceivedDelivery) -> None:
        await self._settle(delivery, lambda r: r.abandon_message(delivery.message))

    async def dead_letter(self, delivery: ReceivedDelivery, reason: str, description: str) -> None:
        await self._settle(delivery, lambda r: r.dead_letter_message(delivery.message, reason=reason, error_description=description))

    async def defer(self, delivery: ReceivedDelivery) -> None:
        await self._settle(delivery, lambda r: r.defer_message(delivery.message))

    async def renew(self, delivery: ReceivedDelivery) -> None:
        async def renewing(receiver: ServiceBusReceiver) -> None:
            until = await receiver.renew_message_lock(delivery.message)
            delivery.locked_until_ms = int(until.timestamp() * 1000)

        await self._settle(delivery, renewing)

    async def _settle(self, delivery: ReceivedDelivery, operation: Callable[[ServiceBusReceiver], Awaitable[Any]]) -> None:
        """Settle through the receiver that got it; if that is gone, through a new one, by lock token: the lock outlives a link."""
        async with self._settling:
            if self._receiver is None or not self._receiver._running:
                await self.open(_SETTLE_OPEN_SECONDS)
            await operation(self._current())

    async def close(self) -> None:
        self._closed = True
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            await _quietly(receiver.close(), self._namespace.host)


def _place(message: ServiceBusReceivedMessage) -> Place:
    raw, enqueued = message.raw_amqp_message, message.enqueued_time_utc
    at_ms = int(enqueued.timestamp() * 1000) if enqueued else 0
    return place_of(message.sequence_number or 0, at_ms, raw.application_properties, raw.annotations)


def _keep_payloads(link: Any, payloads: dict[int, bytes]) -> None:
    """Copy each message's bytes as its frames pass; the SDK decodes them and forgets the wire types."""
    deliver = link._incoming_transfer
    buffer = bytearray()
    first_id = 0

    async def incoming_transfer(frame: Any) -> None:
        nonlocal first_id
        if frame[1] is not None and (not buffer or frame[1] != first_id):
            first_id = frame[1]
            buffer.clear()
        buffer.extend(frame[11])
        if not frame[5]:
            payloads[first_id] = bytes(buffer)
            buffer.clear()
        await deliver(frame)

    link._incoming_transfer = incoming_transfer
