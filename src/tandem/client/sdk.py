"""The transport over the official `azure-servicebus` SDK: what it leaves open (concurrent sends, stale links, raw bytes) is closed here."""

from __future__ import annotations

import asyncio
import collections
import datetime
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from azure.servicebus import ServiceBusMessageBatch, ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender
from azure.servicebus.aio._transport._pyamqp_transport_async import PyamqpTransportAsync
from azure.servicebus.exceptions import (
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusConnectionError,
    ServiceBusError,
)

from tandem.client.cutting import Watchdog
from tandem.client.errors import NamespaceClosedError, classify
from tandem.client.sdk_codec import encode_message
from tandem.client.sdk_pump import IN_FLIGHT_MAX, Job, LinkPump, supports_pipelining
from tandem.client.transport import Delivery
from tandem.client.verdicts import Verdict

if TYPE_CHECKING:
    from tandem.client.transport import Outgoing, Single

log = logging.getLogger("tandem.client.sdk")

_GRACE_SECONDS = 1.0
"""The SDK watches its own timeout; a call that overstays it by this much is cut off and its connection thrown away."""
_CLOSE_SECONDS = 5.0
_SETTLE_OPEN_SECONDS = 30.0
_QUEUED_MAX = 10 * IN_FLIGHT_MAX


def precise(error: BaseException) -> BaseException:
    """The SDK reports an entity that does not exist as a failed authentication, because the token for it is refused first. Name it."""
    inner = getattr(error, "inner_exception", None)
    if isinstance(error, ServiceBusAuthenticationError) and getattr(inner, "status_code", None) == 404:
        text = getattr(inner, "status_description", None) or str(error)
        missing: BaseException = MessagingEntityNotFoundError(message=text, error=inner)
        return missing
    return error


def new_batch(bytes_max: int | None = None) -> ServiceBusMessageBatch:
    """An empty batch that asynchronous senders take as it is; one of the other kind they would pack again."""
    return ServiceBusMessageBatch(max_size_in_bytes=bytes_max, amqp_transport=PyamqpTransportAsync)


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
        self._closing: set[asyncio.Task[None]] = set()
        self.closed = False

    def sender(self, path: str) -> SdkSender:
        self.check_open()
        return SdkSender(self, path)

    def receiver(self, path: str, *, session_id: str | None = None) -> SdkReceiver:
        self.check_open()
        return SdkReceiver(self, path, session_id)

    def make_sender(self, path: str) -> ServiceBusSender:
        return self.client.get_queue_sender(path)

    def check_open(self) -> None:
        if self.closed:
            raise NamespaceClosedError(f"namespace {self.host} is closed")

    def close_later(self, closing: Coroutine[Any, Any, None]) -> None:
        """Close something whose peer may never answer without making anybody wait for it."""
        task = asyncio.ensure_future(_quietly(closing, self.host))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        self.closed = True
        await _quietly(self.client.close(), self.host)
        if self._closing:
            await asyncio.wait(tuple(self._closing), timeout=_CLOSE_SECONDS)


class _Lone:
    """Stands in for a namespace where there is only one sender, which reopens itself and is not ours to close."""

    def __init__(self, sender: ServiceBusSender) -> None:
        self._sender = sender
        self.host: str = sender.fully_qualified_namespace

    def make_sender(self, path: str) -> ServiceBusSender:
        return self._sender

    def check_open(self) -> None:
        self._sender._check_live()

    def close_later(self, closing: Coroutine[Any, Any, None]) -> None:
        """Not closed, only marked as broken: the SDK closes and opens it anew on its next use."""
        closing.close()
        self._sender._running = False


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


class SdkSender:
    """Sends to one path over one SDK sender at a time; a broken one is replaced."""

    def __init__(self, namespace: SdkNamespace | _Lone, path: str) -> None:
        self._namespace = namespace
        self.path = path
        self._sender: ServiceBusSender | None = None
        self._busy = False
        self._queue: collections.deque[Job] = collections.deque()
        self._pump: asyncio.Task[None] | None = None
        self._closed = False
        self._watchdog = Watchdog()
        self.message_bytes_max = 0
        self.batch_bytes_max = 0

    @classmethod
    def around(cls, sender: ServiceBusSender) -> SdkSender:
        """Pipelining for a sender the application made; it stays the application's to close."""
        made = cls(_Lone(sender), sender.entity_name)
        made._sender = sender
        return made

    def _current(self) -> ServiceBusSender:
        if self._closed:
            raise NamespaceClosedError(f"the sender for {self.path} is closed")
        self._namespace.check_open()
        if self._sender is None:
            self._sender = self._namespace.make_sender(self.path)
        return self._sender

    def _discard(self, sender: ServiceBusSender) -> None:
        if self._sender is sender:
            self._sender = None
        self._namespace.close_later(sender.close())

    async def open(self, timeout: float) -> None:
        # Not _open itself: what the AMQP layer raises becomes one of the SDK's own exceptions on this way.
        await self._exclusive(
            lambda sender, left: sender._do_retryable_operation(sender._open, timeout=left, operation_requires_timeout=True), timeout
        )

    def send(self, message: Outgoing, timeout: float) -> Coroutine[Any, Any, None]:
        if self._busy:
            return self._queued(message, timeout)
        return self._exclusive(lambda sender, left: sender.send_messages(message, timeout=left), timeout)

    async def send_payloads(self, payloads: Sequence[bytes], timeout: float) -> None:
        """One batch whose data sections are the encoded messages themselves, as the service defines a batch."""
        batch = new_batch()
        batch._message[5].extend(payloads)
        batch._count = len(payloads)
        await self.send(batch, timeout)

    async def schedule(self, messages: Sequence[Single], at: datetime.datetime, timeout: float) -> list[int]:
        numbers: list[int] = await self._exclusive(lambda sender, left: sender.schedule_messages(list(messages), at, timeout=left), timeout)
        return numbers

    async def cancel_scheduled(self, sequence_numbers: Sequence[int], timeout: float) -> None:
        await self._exclusive(lambda sender, left: sender.cancel_scheduled_messages(list(sequence_numbers), timeout=left), timeout)

    async def _exclusive(self, operation: Callable[[ServiceBusSender, float], Awaitable[Any]], timeout: float) -> Any:
        """Run one SDK call with the link to itself. Calls that come meanwhile queue up and are pipelined afterwards."""
        deadline = asyncio.get_running_loop().time() + timeout
        while self._busy:
            await self._turn(deadline)
        self._busy = True
        try:
            return await self._attempt(operation, deadline, timeout)
        finally:
            self._release()

    async def _turn(self, deadline: float) -> None:
        if asyncio.get_running_loop().time() >= deadline:
            raise OperationTimeoutError(message=f"another operation held the link to {self.path} for the whole timeout")
        await asyncio.sleep(0.005)

    async def _attempt(self, operation: Callable[[ServiceBusSender, float], Awaitable[Any]], deadline: float, timeout: float) -> Any:
        sender = self._current()
        was_open = sender._running
        try:
            with self._watchdog.guard(deadline + _GRACE_SECONDS):
                answer = await operation(sender, timeout)
            if not was_open:
                self._learn_limits(sender)
            return answer
        except TimeoutError as error:
            self._discard(sender)
            if isinstance(error, ServiceBusError):
                raise
            raise OperationTimeoutError(message=f"{self.path}: no answer within {timeout:.3g} s") from error
        except Exception as error:
            if classify(error) is not Verdict.UNREACHABLE:
                raise precise(error) from error.__cause__
            self._discard(sender)
            left = deadline - asyncio.get_running_loop().time()
            if not was_open or left <= 0 or isinstance(error, OperationTimeoutError):
                raise
        except BaseException:
            # Cancelled in the middle of an exchange: what the link is waiting for is anybody's guess.
            self._discard(sender)
            raise
        log.info("the link to %s on %s had gone stale; opening a new one", self.path, self._namespace.host)
        return await self._attempt(operation, deadline, left)

    def _learn_limits(self, sender: ServiceBusSender) -> None:
        self.message_bytes_max = sender._max_message_size_on_link or self.message_bytes_max
        self.batch_bytes_max = sender._max_batch_size_on_link or self.batch_bytes_max

    async def _queued(self, message: Outgoing, timeout: float) -> None:
        if len(self._queue) >= _QUEUED_MAX:
            raise ServiceBusError(f"{_QUEUED_MAX} sends to {self.path} are waiting already; bound your sends in flight")
        job = Job(message, asyncio.get_running_loop().time() + timeout)
        self._queue.append(job)
        await job.outcome

    def _release(self) -> None:
        self._busy = False
        if self._queue:
            self._busy = True
            self._pump = asyncio.ensure_future(self._run_pump())

    async def _run_pump(self) -> None:
        """Send everything queued over one link. If it breaks, nobody knows what became of what was in flight, and all are told so."""
        pump: LinkPump | None = None
        sender: ServiceBusSender | None = None
        try:
            sender = self._current()
            if not supports_pipelining(sender):
                await self._one_by_one(sender)
                return
            left = max(0.001, max(job.deadline for job in self._queue) - asyncio.get_running_loop().time())
            await sender._open(left)
            self._learn_limits(sender)
            pump = LinkPump(sender, self._queue)
            await pump.run()
        except Exception as error:  # noqa: BLE001 - told to every waiting caller
            known = precise(error) if isinstance(error, (ServiceBusError, ValueError)) else precise(_translate(sender, error))
            self._fail(pump, known, sender)
        except BaseException:
            self._fail(pump, ServiceBusConnectionError(message=f"the sender for {self.path} was closed"), sender)
            raise
        finally:
            self._pump = None
            self._release()

    def _fail(self, pump: LinkPump | None, error: BaseException, sender: ServiceBusSender | None) -> None:
        if sender is not None:
            self._discard(sender)
        if pump is not None:
            pump.fail(error)
            return
        while self._queue:
            job = self._queue.popleft()
            if not job.outcome.done():
                job.outcome.set_exception(error)

    async def _one_by_one(self, sender: ServiceBusSender) -> None:
        while self._queue:
            job = self._queue.popleft()
            left = job.deadline - asyncio.get_running_loop().time()
            try:
                if left <= 0:
                    raise OperationTimeoutError(message="Send operation timed out before its turn came")
                await sender.send_messages(job.message, timeout=left)
            except Exception as error:  # noqa: BLE001 - told to its caller
                if not job.outcome.done():
                    job.outcome.set_exception(error)
            else:
                if not job.outcome.done():
                    job.outcome.set_result(None)

    async def close(self) -> None:
        self._closed = True
        self._watchdog.stop()
        if self._pump is not None:
            self._pump.cancel()
        sender, self._sender = self._sender, None
        if sender is not None:
            # The SDK takes up to a second to end its keep-alive; every send has had its outcome, so nobody needs to wait for that.
            self._namespace.close_later(sender.close())


def _translate(sender: ServiceBusSender | None, error: Exception) -> BaseException:
    if sender is None:
        return error
    translated: BaseException = sender._amqp_transport.create_servicebus_exception(log, error)
    return translated


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
            topic, _, rest = self.path.partition("/Subscriptions/")
            subscription, _, sub_queue = rest.partition("/$")
            if subscription and not sub_queue:
                self._receiver = self._namespace.client.get_subscription_receiver(topic, subscription, session_id=self._session_id)
            else:
                self._receiver = self._namespace.client.get_queue_receiver(self.path, session_id=self._session_id)
        return self._receiver

    def _discard(self) -> None:
        receiver, self._receiver, self._link = self._receiver, None, None
        self._payloads.clear()
        if receiver is not None:
            self._namespace.close_later(receiver.close())

    async def open(self, timeout: float) -> None:
        receiver = self._current()
        try:
            async with asyncio.timeout(timeout + _GRACE_SECONDS):
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

    async def receive(self, count_max: int, wait: float) -> list[Delivery]:
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
        except BaseException:
            self._discard()
            raise
        return [self._delivery(message) for message in messages]

    def _delivery(self, message: ServiceBusReceivedMessage) -> Delivery:
        payload = self._payloads.pop(message._delivery_id, None) if message._delivery_id is not None else None
        if payload is None:
            payload = encode_message(message)
        locked = message.locked_until_utc
        enqueued = message.enqueued_time_utc
        return Delivery(
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

    async def complete(self, delivery: Delivery) -> None:
        await self._settle(delivery, lambda r: r.complete_message(delivery.message))

    async def abandon(self, delivery: Delivery) -> None:
        await self._settle(delivery, lambda r: r.abandon_message(delivery.message))

    async def dead_letter(self, delivery: Delivery, reason: str, description: str) -> None:
        await self._settle(delivery, lambda r: r.dead_letter_message(delivery.message, reason=reason, error_description=description))

    async def defer(self, delivery: Delivery) -> None:
        await self._settle(delivery, lambda r: r.defer_message(delivery.message))

    async def renew(self, delivery: Delivery) -> None:
        async def renewing(receiver: ServiceBusReceiver) -> None:
            until = await receiver.renew_message_lock(delivery.message)
            delivery.locked_until_ms = int(until.timestamp() * 1000)

        await self._settle(delivery, renewing)

    async def _settle(self, delivery: Delivery, operation: Callable[[ServiceBusReceiver], Awaitable[Any]]) -> None:
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
