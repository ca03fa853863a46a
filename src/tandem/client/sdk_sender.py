"""Sending through the official SDK: concurrent sends, stale links and calls that overstay, which it leaves open, are closed here."""

from __future__ import annotations

import asyncio
import collections
import datetime
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from time import monotonic  # the clock of every event loop the SDK runs on
from typing import TYPE_CHECKING, Any, Protocol

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.aio import ServiceBusSender
from azure.servicebus.aio._transport._pyamqp_transport_async import PyamqpTransportAsync
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import (
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusConnectionError,
    ServiceBusError,
)

from tandem.client.call_guard import Watchdog
from tandem.client.errors import NamespaceClosedError, classify
from tandem.client.sdk_codec import ensure_message_id
from tandem.client.sdk_encoded import send_encoded
from tandem.client.sdk_pump import IN_FLIGHT_MAX, Job, LinkPump, supports_pipelining
from tandem.client.verdicts import Verdict

if TYPE_CHECKING:
    from tandem.client.transport import Outgoing, Single

log = logging.getLogger("tandem.client.sdk")

GRACE_SECONDS = 1.0
"""The SDK watches its own timeout; a call that overstays it by this much is cut off and its connection thrown away."""
_QUEUED_MAX = 10 * IN_FLIGHT_MAX
_ALONE_BYTES = 65_536
"""A message larger than this goes alone: it may be as large as the link allows, and a batch has a frame of its own."""


def precise(error: BaseException) -> BaseException:
    """The SDK reports an entity that does not exist as a failed authentication, because the token for it is refused first. Name it."""
    inner = getattr(error, "inner_exception", None)
    if isinstance(error, ServiceBusAuthenticationError) and getattr(inner, "status_code", None) == 404:
        text = getattr(inner, "status_description", None) or str(error)
        missing: BaseException = MessagingEntityNotFoundError(message=text, error=inner)
        return missing
    return error


class IdentifiedBatch(ServiceBusMessageBatch):  # type: ignore[misc]
    """A message is encoded when it is added, so it gets its id then: copies of it are recognised by that."""

    def add_message(self, message: Any) -> None:
        if isinstance(message, Mapping):
            message = ServiceBusMessage(**message)
        if isinstance(message, (ServiceBusMessage, AmqpAnnotatedMessage)):
            ensure_message_id(message)
        super().add_message(message)


def new_batch(bytes_max: int | None = None) -> ServiceBusMessageBatch:
    """An empty batch that asynchronous senders take as it is; one of the other kind they would pack again."""
    return IdentifiedBatch(max_size_in_bytes=bytes_max, amqp_transport=PyamqpTransportAsync)


class SenderSource(Protocol):
    """Where an `SdkSender` gets its senders from, and who closes them."""

    @property
    def host(self) -> str: ...

    @property
    def closed(self) -> bool: ...

    def make_sender(self, path: str, sdk_options: dict[str, Any]) -> ServiceBusSender: ...

    def check_open(self) -> None: ...

    def close_later(self, closing: Coroutine[Any, Any, None]) -> None: ...


class _OneSenderNamespace:
    """Stands in for a namespace where there is only one sender, which reopens itself and is not ours to close."""

    closed = False
    """The sender says itself when it is."""

    def __init__(self, sender: ServiceBusSender) -> None:
        self._sender = sender
        self.host: str = sender.fully_qualified_namespace

    def make_sender(self, path: str, sdk_options: dict[str, Any]) -> ServiceBusSender:
        return self._sender

    def check_open(self) -> None:
        self._sender._check_live()

    def close_later(self, closing: Coroutine[Any, Any, None]) -> None:
        """Not closed, only marked as broken: the SDK closes and opens it anew on its next use."""
        closing.close()
        self._sender._running = False


class SdkSender:
    """Sends to one path over one SDK sender at a time; a broken one is replaced."""

    def __init__(self, namespace: SenderSource, path: str, sdk_options: dict[str, Any] | None = None) -> None:
        self._namespace = namespace
        self.path = path
        self._sdk_options = sdk_options or {}
        self._sender: ServiceBusSender | None = None
        self._busy = False
        self._queue: collections.deque[Job] = collections.deque()
        self._pump: asyncio.Task[None] | None = None
        self._closed = False
        self._watchdog = Watchdog()
        self._idle_link_call = self._watchdog.reusable()
        self.message_bytes_max = 0
        self.batch_bytes_max = 0

    @classmethod
    def around(cls, sender: ServiceBusSender) -> SdkSender:
        """Pipelining for a sender the application made; it stays the application's to close."""
        made = cls(_OneSenderNamespace(sender), sender.entity_name)
        made._sender = sender
        return made

    def _current(self) -> ServiceBusSender:
        if self._closed:
            raise NamespaceClosedError(f"the sender for {self.path} is closed")
        self._namespace.check_open()
        if self._sender is None:
            self._sender = self._namespace.make_sender(self.path, self._sdk_options)
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
        return self._alone(message, timeout)

    async def _alone(self, message: Outgoing, timeout: float) -> None:
        """One send over a link that is open and idle, as nearly all are; whatever is different goes the long way."""
        sender = self._sender
        if sender is None or not sender._running or self._busy or self._closed or self._namespace.closed:
            await self._exclusive(lambda sender, left: sender.send_messages(message, timeout=left), timeout)
            return
        call = self._idle_link_call
        self._watchdog.begin(call, monotonic() + timeout + GRACE_SECONDS)
        self._busy = True
        try:
            await sender.send_messages(message, timeout=timeout)
            call.done()
        except BaseException as error:  # noqa: BLE001 - raised again unless it is worth a second attempt
            deadline = call.deadline - GRACE_SECONDS
            left = self._retry_or_raise(call.end(error) or error, sender, True, deadline, timeout)
            await self._attempt(lambda sender, left: sender.send_messages(message, timeout=left), deadline, left)
        finally:
            self._busy = False
            if self._queue:
                self._release()

    async def send_payloads(self, payloads: Sequence[bytes], timeout: float) -> None:
        """One batch whose data sections are the encoded messages themselves, as the service defines a batch."""
        if len(payloads) == 1 and len(payloads[0]) > _ALONE_BYTES:
            await self._exclusive(partial(_send_alone, payloads[0]), timeout)
            return
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
            await self._wait_for_link(deadline)
        self._busy = True
        try:
            return await self._attempt(operation, deadline, timeout)
        finally:
            self._release()

    async def _wait_for_link(self, deadline: float) -> None:
        if asyncio.get_running_loop().time() >= deadline:
            raise OperationTimeoutError(message=f"another operation held the link to {self.path} for the whole timeout")
        await self._guarded(asyncio.sleep(0.005), deadline)

    async def _guarded(self, waiting: Awaitable[None], deadline: float) -> None:
        """Not longer than that, and not after an interruption."""
        try:
            with self._watchdog.guard(deadline + GRACE_SECONDS):
                await waiting
        except TimeoutError as error:
            if isinstance(error, ServiceBusError):
                raise
            raise OperationTimeoutError(message=f"{self.path}: no answer in time") from error

    async def _attempt(self, operation: Callable[[ServiceBusSender, float], Awaitable[Any]], deadline: float, timeout: float) -> Any:
        sender = self._current()
        was_open = sender._running
        try:
            with self._watchdog.guard(deadline + GRACE_SECONDS):
                answer = await operation(sender, timeout)
            if not was_open:
                self._learn_limits(sender)
            return answer
        except BaseException as error:  # noqa: BLE001 - raised again unless it is worth a second attempt
            left = self._retry_or_raise(error, sender, was_open, deadline, timeout)
        return await self._attempt(operation, deadline, left)

    def _retry_or_raise(self, error: BaseException, sender: ServiceBusSender, was_open: bool, deadline: float, timeout: float) -> float:
        """The time left for another attempt, if a link gone stale while idle may have been all that was wrong; raises otherwise."""
        if isinstance(error, TimeoutError):
            self._discard(sender)
            if isinstance(error, ServiceBusError):
                raise error
            raise OperationTimeoutError(message=f"{self.path}: no answer within {timeout:.3g} s") from error
        if not isinstance(error, Exception):
            # Cancelled in the middle of an exchange: what the link is waiting for is anybody's guess.
            self._discard(sender)
            raise error
        if classify(error) is not Verdict.UNREACHABLE:
            raise precise(error) from error.__cause__
        self._discard(sender)
        left = deadline - asyncio.get_running_loop().time()
        if not was_open or left <= 0 or isinstance(error, OperationTimeoutError):
            raise error
        log.info("the link to %s on %s had gone stale; opening a new one", self.path, self._namespace.host)
        return left

    def _learn_limits(self, sender: ServiceBusSender) -> None:
        self.message_bytes_max = sender._max_message_size_on_link or self.message_bytes_max
        self.batch_bytes_max = sender._max_batch_size_on_link or self.batch_bytes_max

    async def _queued(self, message: Outgoing, timeout: float) -> None:
        if self._closed:
            raise NamespaceClosedError(f"the sender for {self.path} is closed")
        if len(self._queue) >= _QUEUED_MAX:
            raise ServiceBusError(f"{_QUEUED_MAX} sends to {self.path} are waiting already; bound your sends in flight")
        deadline = asyncio.get_running_loop().time() + timeout
        job = Job(message, deadline)
        self._queue.append(job)
        await self._guarded(job.outcome, deadline)

    def interrupt(self) -> None:
        self._watchdog.interrupt()

    def _release(self) -> None:
        self._busy = False
        while self._queue and self._queue[0].outcome.done():
            self._queue.popleft()  # cancelled: nobody waits for it any more
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
            self._fail(pump, self._known(error, sender), sender)
        except BaseException:
            self._fail(pump, self._was_closed(), sender)
            raise
        finally:
            self._pump = None
            self._release()

    def _known(self, error: Exception, sender: ServiceBusSender | None) -> BaseException:
        if isinstance(error, (ServiceBusError, ValueError)):
            return precise(error)
        if self._closed:
            return self._was_closed()  # the SDK stumbles over what was taken away from it, and would log that as its own failure
        return precise(_translate(sender, error))

    def _was_closed(self) -> BaseException:
        error: BaseException = ServiceBusConnectionError(message=f"the sender for {self.path} was closed")
        return error

    def _fail(self, pump: LinkPump | None, error: BaseException, sender: ServiceBusSender | None) -> None:
        if sender is not None:
            self._discard(sender)
        if pump is not None:
            pump.fail(error)
        self._fail_queued(error)

    def _fail_queued(self, error: BaseException) -> None:
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
            self._fail_queued(self._was_closed())  # one that has not begun to run tells nobody
        sender, self._sender = self._sender, None
        if sender is not None:
            # The SDK takes up to a second to end its keep-alive; every send has had its outcome, so nobody needs to wait for that.
            self._namespace.close_later(sender.close())


async def _send_alone(payload: bytes, sender: ServiceBusSender, timeout: float) -> None:
    async def send(timeout: float) -> None:
        await send_encoded(sender, payload, timeout)

    await sender._do_retryable_operation(send, timeout=timeout, operation_requires_timeout=True)


def _translate(sender: ServiceBusSender | None, error: Exception) -> BaseException:
    if sender is None:
        return error
    # As the SDK does it: it calls an endpoint of one's own that is down an authentication error, and here a connection error again.
    endpoint = sender._config.custom_endpoint_address
    translated: BaseException = sender._amqp_transport.create_servicebus_exception(log, error, custom_endpoint_address=endpoint)
    return translated
