"""A sender that looks like the SDK's and keeps sending through an outage: to the primary, or wrapped to a backlog queue."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import MessageSizeExceededError, OperationTimeoutError, ServiceBusError

from tandem.client.envelope import HEADROOM_BYTES, SCHEDULED, alias_in, annotated, wrap
from tandem.client.errors import (
    AliasInUseError,
    BothNamespacesUnavailableError,
    NamespaceClosedError,
    SendAvailabilityMessagingError,
    classify,
    describe,
)
from tandem.client.health import PathState
from tandem.client.ordered_diversion import BacklogSenders, OrderedMessages, session_of, sessions_of
from tandem.client.sdk_codec import ensure_message_id, new_message_id, payload_from_message
from tandem.client.sdk_sender import new_batch
from tandem.client.verdicts import Verdict

if TYPE_CHECKING:
    from tandem.client.backlog import Rotation
    from tandem.client.coupling import PairSide
    from tandem.client.events import Counters, EventHub
    from tandem.client.paths import PathMonitor
    from tandem.client.session_order import PathOrder, SessionOrder
    from tandem.client.transport import Outgoing, Sender, Single

MESSAGE_BYTES_DEFAULT = 262_144
"""Assumed until a link has told its limit."""
_MESSAGE_BYTES_CEILING = 104_857_600
_HEADER_BYTES_MAX = 65_536
_DIVERTED: Final = object()
_DIVERSION_SECONDS = 5.0
"""Of the caller's time, what a diversion should find left."""
_DIVERSION_SECONDS_MIN = 0.8
"""What it gets in any case."""
_BACKLOG_FINAL = (Verdict.UNAUTHORIZED, Verdict.REFUSED)


class Pair(Protocol):
    """What a sender needs of its pair."""

    primary: PairSide
    secondary: PairSide
    rotation: Rotation
    order: SessionOrder | None
    events: EventHub
    counters: Counters
    unreachable: Callable[[BaseException], bool]
    now_ms: Callable[[], int]
    backlog_message_bytes_max: int

    def monitor(self, path: str) -> PathMonitor: ...
    def forget(self, sender: PairedSender) -> None: ...


class PairedSender:
    """Sends to one queue or topic of the primary namespace. Made by `PairedNamespaces.get_queue_sender` or `get_topic_sender`.

    Safe to use from many tasks at a time. A send that returns is stored in one of the two namespaces; a send that raises may still
    have been stored (an answer can be lost), so give entities duplicate detection if a double would hurt.
    """

    def __init__(self, pair: Pair, path: str, timeout: float, sdk_options: dict[str, Any]) -> None:
        self._pair = pair
        self._monitor = pair.monitor(path)
        self._counters = pair.counters
        self._path_counters = self._monitor.counters
        self._now = asyncio.get_running_loop().time
        self._primary: Sender = pair.primary.namespace.sender(path, **sdk_options)
        self._monitor.senders.add(self._primary)
        self._backlog: Sender | None = None
        self._order = pair.order.path(path, self._monitor) if pair.order is not None else None
        self._backlogs = BacklogSenders(lambda: pair.secondary.namespace)
        self._timeout = timeout
        self._primary_seconds = primary_share(timeout, self._monitor.interval_over_in())
        self._small_bytes_max = 0
        """Bodies up to this fit certainly, whatever stands beside them; 0 until the limits are known."""
        self._closed = False
        self.entity_name = path
        self.client_identifier: str | None = sdk_options.get("client_identifier")
        self.fully_qualified_namespace = pair.primary.host

    # -- the SDK's surface ---------------------------------------------------------------------------------------------

    async def send_messages(self, message: Any, *, timeout: float | None = None) -> None:
        """Send a message, a list of messages (one batch) or a batch. Returns once a namespace has stored it."""
        if not self._monitor.on_primary or timeout is not None or type(message) is not ServiceBusMessage or self._closed:
            outgoing = self._prepare(message)
            if outgoing is not None:
                await self._route(self._primary.send, outgoing, self._seconds(timeout))
            return
        # Nearly every send. It touches as little as it can: between two of them everything else has had the processor's caches.
        self._admit(message.raw_amqp_message)
        monitor = self._monitor
        unanswered = monitor.unanswered
        unanswered[number := next(monitor.numbers)] = started = self._now()
        if monitor.watching is None:
            monitor.watch()
        try:
            await self._primary.send(message, self._primary_seconds)
        except BaseException as error:  # noqa: BLE001 - raised again unless the message can be diverted
            cause = self._failed(error, number)
        else:
            self._path_counters.sent_primary += 1
            if monitor.on_primary:
                del unanswered[number]
                monitor.answered_at = self._now()
            else:
                monitor.succeeded(number)  # while this waited, others may have failed
            return
        await self._divert_or_raise(message, started, self._timeout, cause)

    async def schedule_messages(self, messages: Any, schedule_time_utc: datetime.datetime, *, timeout: float | None = None) -> list[int]:
        """Schedule messages; their sequence numbers. While failed over they are diverted, and **no number** is returned.

        A diverted one cannot be cancelled; it is scheduled in the primary once the syphon has carried it home.
        """
        outgoing = self._prepare(messages)
        if outgoing is None:
            return []
        singles = [scheduled(single, schedule_time_utc) for single in flatten(outgoing)]
        numbers = await self._route(
            lambda all, left: self._primary.schedule(all, schedule_time_utc, left), singles, self._seconds(timeout), in_order=False
        )
        if numbers is _DIVERTED:
            self._pair.events.tell(
                "scheduled-diverted", self.entity_name, f"{len(singles)} scheduled message(s) carried as {SCHEDULED}; no sequence numbers"
            )
            return []
        return cast("list[int]", numbers)

    async def cancel_scheduled_messages(self, sequence_numbers: int | list[int], *, timeout: float | None = None) -> None:
        """Cancel scheduled messages of the primary. Diverted ones have no number and cannot be cancelled."""
        self._check_live()
        numbers = [sequence_numbers] if isinstance(sequence_numbers, int) else list(sequence_numbers)
        if numbers:
            await self._primary.cancel_scheduled(numbers, self._seconds(timeout))

    async def create_message_batch(self, max_size_in_bytes: int | None = None) -> ServiceBusMessageBatch:
        """An empty batch, its limit low enough that every message in it can be diverted. Works during an outage too."""
        self._check_live()
        if not self._primary.batch_bytes_max and not self._monitor.health.diverting:
            number = self._monitor.began(self._now())
            try:
                await self._primary.open(primary_share(self._timeout, self._monitor.interval_over_in()))
            except Exception as error:
                if not self._pair.unreachable(error):
                    raise
                self._monitor.failed(error, self._monitor.unanswered[number])
            finally:
                self._monitor.ended(number)
        limit = self._limit(self._primary.batch_bytes_max or MESSAGE_BYTES_DEFAULT)
        if max_size_in_bytes and max_size_in_bytes > limit:
            raise ValueError(f"Max message size: {max_size_in_bytes} is too large, acceptable max batch size is: {limit} bytes.")
        return new_batch(max_size_in_bytes or limit)

    async def __aenter__(self) -> PairedSender:
        self._check_live()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._pair.forget(self)
            self._monitor.senders.discard(self._primary)
            await self._primary.close()
            await self._backlogs.close()
            await self.drop_backlog()

    @property
    def state(self) -> PathState:
        """Where sends of this path go now."""
        return self._monitor.health.state

    # -- before sending ------------------------------------------------------------------------------------------------

    def _check_live(self) -> None:
        if self._closed:
            raise NamespaceClosedError(f"the sender for {self.entity_name} is closed")
        self._pair.primary.check()

    def _seconds(self, timeout: float | None) -> float:
        if timeout is None:
            return self._timeout
        if timeout <= 0:
            raise ValueError("The timeout must be greater than 0.")
        return timeout

    def _prepare(self, message: Any) -> Outgoing | None:
        """The message in a form that can be sent twice, checked as strictly as in an outage, always. None: nothing to send."""
        self._check_live()
        if isinstance(message, ServiceBusMessage):
            self._admit(message.raw_amqp_message)
            return message
        if isinstance(message, ServiceBusMessageBatch):
            for one in message._messages:
                self._admit(annotated(one))
            return message if len(message) else None
        if isinstance(message, AmqpAnnotatedMessage):
            self._admit(message)
            return message
        if isinstance(message, Mapping):
            return self._prepare(ServiceBusMessage(**message))
        if isinstance(message, Iterable) and not isinstance(message, str):
            # A generator can be read once only; the list can be sent again.
            singles: list[Single] = []
            for one in message:
                prepared = self._prepare(one)
                if not isinstance(prepared, (ServiceBusMessage, AmqpAnnotatedMessage)):
                    raise TypeError(f"a list of messages cannot contain {type(one).__name__}")
                singles.append(prepared)
            return singles or None
        raise TypeError(
            f"Only AmqpAnnotatedMessage, ServiceBusMessage instances or Mappings representing messages are supported. "
            f"Received instead: {type(message).__name__}"
        )

    def _admit(self, raw: AmqpAnnotatedMessage) -> None:
        application = raw.application_properties
        alias = alias_in(application) if application else None
        if alias is not None:
            self._counters.message_refused()
            raise AliasInUseError(f"the application property {alias} is reserved for diverted messages; rename it")
        properties = raw.properties
        if properties is None:
            ensure_message_id(raw)
        elif properties.message_id is None:
            properties.message_id = new_message_id()
        data = raw._data_body  # not `body`, which goes through a generator with every send
        if data and (len(data) > 1 or len(data[0]) > self._small_bytes_max):
            self._check_size(raw)

    def _check_size(self, raw: AmqpAnnotatedMessage) -> None:
        primary_limit = self._primary.message_bytes_max
        # A primary not asked yet will say itself what is too large; what is diverted without having asked it is looked at again.
        limit = self._limit(primary_limit or (MESSAGE_BYTES_DEFAULT if self._monitor.health.diverting else _MESSAGE_BYTES_CEILING))
        if primary_limit:
            self._small_bytes_max = max(limit - _HEADER_BYTES_MAX, 0)
        data = raw._data_body  # None: a value, or sequences, of which nothing is known before they are encoded
        if (data is None or sum(map(len, data)) + _HEADER_BYTES_MAX >= limit) and len(payload_from_message(raw)) > limit:
            self._counters.message_refused()
            raise MessageSizeExceededError(message=f"the message is larger than {limit} bytes{self._limited_by(limit)}")

    def _limit(self, primary_limit: int) -> int:
        """What fits into the primary, and wrapped into a backlog queue as well, as far as is known."""
        backlog = self._pair.backlog_message_bytes_max
        return min(primary_limit, backlog - HEADROOM_BYTES) if backlog else primary_limit

    def _limited_by(self, limit: int) -> str:
        backlog = self._pair.backlog_message_bytes_max
        if limit != backlog - HEADROOM_BYTES:
            assumed = "" if self._primary.message_bytes_max else " (assumed: it has not been reached yet)"
            return f", the limit of {self.entity_name} on {self._pair.primary.host}{assumed}"
        return (
            f": the backlog queues of {self._pair.secondary.host} take {backlog}, of which {HEADROOM_BYTES} are kept free for a diversion. "
            f"Give these queues a larger MaxMessageSizeInKilobytes; a namespace of Azure's standard tier has none to give"
        )

    # -- sending -------------------------------------------------------------------------------------------------------

    async def _route(
        self, to_primary: Callable[[Any, float], Awaitable[object]], outgoing: Outgoing, timeout: float, in_order: bool = True
    ) -> object:
        """What the primary answers, or _DIVERTED. The send that makes the path fail over is diverted itself."""
        started = self._now()
        cause: BaseException | None = None
        order = self._order if in_order else None
        behind = order is not None and order.holding and await order.must_divert(sessions_of(flatten(outgoing)), timeout)
        if not self._monitor.health.diverting and not behind:
            number = self._monitor.began(started)
            try:
                # The transport keeps the time. It is interrupted when the path fails over meanwhile, and this can then be diverted.
                answer = await to_primary(outgoing, primary_share(timeout, self._monitor.interval_over_in()))
            except BaseException as error:  # noqa: BLE001 - raised again unless the message can be diverted
                cause = self._failed(error, number)
            else:
                self._monitor.succeeded(number)
                self._path_counters.sent_primary += 1
                return answer
        await self._divert_or_raise(outgoing, started, timeout, cause)
        return _DIVERTED

    def _failed(self, error: BaseException, number: int) -> BaseException:
        """The primary did not take it. Raises, unless the path diverts now; then this is why."""
        began = self._monitor.ended(number)
        if not isinstance(error, Exception):
            raise error
        self._pair.primary.check()  # closed meanwhile: that is no outage
        if isinstance(error, TimeoutError) and not isinstance(error, ServiceBusError):
            error = OperationTimeoutError(message=f"{self.entity_name}: the primary did not answer in time", error=error)
        if not self._pair.unreachable(error):
            raise error
        self._monitor.failed(error, began)
        if not self._monitor.health.diverting:
            self._count_failed()
            raise error
        return error

    async def _divert_or_raise(self, outgoing: Outgoing, started: float, timeout: float, cause: BaseException | None) -> None:
        health = self._monitor.health
        if health.state is PathState.POISONED and health.last_error is not None:
            self._count_failed()
            raise SendAvailabilityMessagingError(
                f"{self.entity_name} is failed over, and pings are refused: {describe(health.last_error)}", health.last_error
            ) from health.last_error
        # The switch may come in the last moment of the caller's time: the diversion gets its turn all the same.
        deadline = max(started + timeout, self._now() + _DIVERSION_SECONDS_MIN)
        await self._divert(outgoing, deadline, cause or health.last_error)

    def _count_failed(self) -> None:
        self._pair.counters.message_failed(self._monitor.counters)

    # -- diverting -----------------------------------------------------------------------------------------------------

    async def _divert(self, outgoing: Outgoing, deadline: float, cause: BaseException | None) -> None:
        """Into one backlog queue after the other, within the caller's time, until one has stored everything."""
        self._pair.secondary.check()
        if not self._primary.message_bytes_max:
            for single in flatten(outgoing):
                self._check_size(annotated(single))
        now_ms = self._pair.now_ms()
        singles = flatten(outgoing)
        if self._order is not None:
            await self._divert_in_order(self._order, singles, deadline, cause)
            singles = [single for single in singles if session_of(single) is None]
        left = [wrap(single, self.entity_name, now_ms) for single in singles]
        causes: list[BaseException] = [] if cause is None else [cause]
        tried: list[str] = []
        loop = asyncio.get_running_loop()
        rotation = self._pair.rotation
        while left:
            remaining = deadline - loop.time()
            sender = self._backlog_sender(tried) if remaining > 0 else None
            if sender is None:
                self._count_failed()
                raise self._unavailable(causes, tried, remaining <= 0)
            budget = remaining / 2 if len(tried) + 1 < len(rotation.names) else remaining
            try:
                while left:
                    chunk = _chunk(left, (sender.batch_bytes_max or MESSAGE_BYTES_DEFAULT))
                    await sender.send(chunk if len(chunk) > 1 else chunk[0], budget)
                    del left[: len(chunk)]
                    self._pair.counters.messages_diverted(self._monitor.counters, len(chunk))
                rotation.succeeded(sender.path)
            except Exception as error:
                verdict = classify(error)
                if verdict in _BACKLOG_FINAL and not _gone(error):
                    self._count_failed()
                    raise
                causes.append(error)
                tried.append(sender.path)
                rotation.failed(sender.path, error)
                self._pair.counters.backlog_queue_failed()
                if self._backlog is sender:
                    await self.drop_backlog()

    async def _divert_in_order(self, order: PathOrder, singles: list[Single], deadline: float, cause: BaseException | None) -> None:
        """Messages with a session: each into the queue where its session is, or into another that is told where the others are."""
        letters = OrderedMessages(order, singles, self._pair.now_ms())
        causes: list[BaseException] = [] if cause is None else [cause]
        tried: list[str] = []
        order.begin(letters.sessions)
        try:
            while letters.left:
                remaining = deadline - self._now()
                group = await letters.next_group(tried) if remaining > 0 else None
                if group is None:
                    self._count_failed()
                    raise self._unavailable(causes, tried, remaining <= 0)
                await self._send_group(letters, *group, remaining, causes, tried)
        finally:
            order.end(letters.sessions)

    async def _send_group(
        self,
        letters: OrderedMessages,
        queue: str,
        left: list[AmqpAnnotatedMessage],
        remaining: float,
        causes: list[BaseException],
        tried: list[str],
    ) -> None:
        rotation = self._pair.rotation
        sender = self._backlogs.to(queue)
        budget = remaining / 2 if len(tried) + 1 < len(rotation.names) else remaining
        try:
            while left:
                chunk = _chunk(left, (sender.batch_bytes_max or MESSAGE_BYTES_DEFAULT))
                await sender.send(chunk if len(chunk) > 1 else chunk[0], budget)
                del left[: len(chunk)]
                letters.stored(queue, len(chunk))
                self._pair.counters.messages_diverted(self._monitor.counters, len(chunk))
            rotation.succeeded(queue)
        except Exception as error:
            if classify(error) in _BACKLOG_FINAL and not _gone(error):
                self._count_failed()
                raise
            causes.append(error)
            tried.append(queue)
            letters.failed()
            rotation.failed(queue, error)
            self._pair.counters.backlog_queue_failed()

    def _backlog_sender(self, tried: list[str]) -> Sender | None:
        """The queue this sender stays with, or another one if that has left the rotation."""
        current = self._backlog
        rotation = self._pair.rotation
        if current is not None and current.path not in tried and rotation.in_rotation(current.path):
            return current
        name = rotation.pick(tried)
        if name is None:
            return None
        if current is None or current.path != name:
            self._backlog = self._pair.secondary.namespace.sender(name)
        return self._backlog

    async def drop_backlog(self) -> None:
        sender, self._backlog = self._backlog, None
        if sender is not None:
            await sender.close()

    def _unavailable(self, causes: list[BaseException], tried: list[str], late: bool) -> BothNamespacesUnavailableError:
        """Says what happened, and to whom: the primary's error comes first, then that of each backlog queue that was tried."""
        told = list(map(describe, causes))
        lost = told.pop(0) if len(told) > len(tried) else "failed over by hand"
        queues = "; ".join(f"{name}: {why}" for name, why in zip(tried, told, strict=False)) or "no backlog queue was tried"
        error = BothNamespacesUnavailableError(
            f"a message for {self.entity_name} is stored nowhere: the primary {self._pair.primary.host} is failed over ({lost}), and the "
            f"secondary {self._pair.secondary.host} did not take it{', the time being over' if late else ''} ({queues})",
            causes,
        )
        error.__cause__ = causes[-1] if causes else None
        return error


def primary_share(timeout: float, interval_over_in: float) -> float:
    """How much of the caller's time the primary gets: the diversion has its turn in it once the failover interval is over.

    If the interval ends in time, the primary has until then, and half of the time at least. If it ends with the caller's time, or
    after it, the primary has all of it: the caller hears its error, or is diverted in the last moment.
    """
    if interval_over_in > timeout - min(timeout / 2, _DIVERSION_SECONDS):
        return timeout
    return max(timeout / 2, interval_over_in)


def _gone(error: BaseException) -> bool:
    """A backlog queue that was deleted or disabled: the others may well be there."""
    return type(error).__name__ in ("MessagingEntityNotFoundError", "MessagingEntityDisabledError")


def flatten(outgoing: Outgoing) -> list[Single]:
    if isinstance(outgoing, ServiceBusMessageBatch):
        return list(outgoing._messages)
    return list(outgoing) if isinstance(outgoing, list) else [outgoing]


def scheduled(single: Single, at: datetime.datetime) -> ServiceBusMessage:
    """The message with its instant, in the only form that the SDK schedules."""
    made = single if isinstance(single, ServiceBusMessage) else ServiceBusMessage(None, message=single, raw_amqp_message=single)
    made.scheduled_enqueue_time_utc = at
    return made


def _chunk(messages: list[AmqpAnnotatedMessage], bytes_max: int) -> list[AmqpAnnotatedMessage]:
    """As many messages from the front as fit into one batch; always at least one."""
    if len(messages) == 1:
        return messages[:1]
    total = 1_024
    for count, message in enumerate(messages):
        total += len(payload_from_message(message)) + 8
        if total > bytes_max and count:
            return messages[:count]
    return list(messages)
