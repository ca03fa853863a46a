"""A receiver over two namespaces that hands each message out once, whichever copy comes first, and however often it comes again."""

from __future__ import annotations

import asyncio
import collections
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from azure.servicebus.exceptions import MessageAlreadySettled, MessageLockLostError, ServiceBusError

from tandem.client.dedup import MemorySeenIds, SeenIds
from tandem.client.errors import BothNamespacesUnavailableError, NamespaceClosedError, classify, describe
from tandem.client.verdicts import Verdict
from tandem.model.backoff import Backoff
from tandem.model.clock import SystemClock

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusReceivedMessage

    from tandem.client.transport import ReceivedDelivery, Receiver

log = logging.getLogger("tandem.client.receiver")

_WAIT_DEFAULT = 60.0
_RENEW_MARGIN_MS = 20_000
_PASSING = (Verdict.UNREACHABLE, Verdict.BUSY)


@dataclass(slots=True, eq=False)
class Copy:
    """One copy of a message, under lock at one of the sources."""

    source: ReceiverSource
    delivery: ReceivedDelivery
    id: str | None


@dataclass(slots=True, eq=False)
class ReceiverSource:
    """One of the namespaces listened to, and how it is doing."""

    receiver: Receiver
    pauses: Backoff
    reading: asyncio.Task[list[ReceivedDelivery]] | None = None
    retry_at: float = 0.0
    error: BaseException | None = None

    def read(self, count: int, seconds: float, now: float) -> None:
        """Unless it does, or pauses."""
        if self.reading is None and now >= self.retry_at:
            self.reading = asyncio.ensure_future(self.receiver.receive(count, seconds))

    def ended(self) -> asyncio.Task[list[ReceivedDelivery]] | None:
        """What was read, once."""
        task = self.reading
        if task is None or not task.done():
            return None
        self.reading = None
        return task

    def fail(self, error: BaseException, now: float) -> float:
        """It is left alone for a while; for so long."""
        self.error = error
        pause = self.pauses.next_pause()
        self.retry_at = now + pause
        return pause

    def serve(self) -> None:
        """It has answered."""
        self.error = None
        self.pauses.reset()


@dataclass(slots=True)
class ReceiverCounters:
    handed_out: int = 0
    suppressed: int = 0
    waiting_copies: int = 0

    def hand_out(self) -> None:
        self.handed_out += 1

    def suppress(self) -> None:
        self.suppressed += 1

    def let_wait(self, copies: int) -> None:
        self.waiting_copies += copies

    def end_waiting(self, copies: int) -> None:
        self.waiting_copies -= copies


@dataclass(slots=True, kw_only=True)
class ReceiverSettings:
    retry_pause: float = 0.5
    retry_pause_max: float = 30.0
    copies_waiting_max: int = 10_000
    keep_every: float = 5.0
    counters: ReceiverCounters = field(default_factory=ReceiverCounters)


def message_id_of(message: ServiceBusReceivedMessage) -> str | None:
    return None if message.message_id is None else str(message.message_id)


class DuplicateSuppressingReceiver:
    """Receives under peek-lock from several copies of an entity, with the SDK's method names.

    An id counts as seen once `complete_message` was called for it, never before: a copy that comes while another is being processed
    waits, unseen, and is completed with it, or handed out in its place if that one is abandoned or loses its lock. Messages without
    an id are all handed out. Order is that of each namespace by itself; across the two, the first copy to arrive wins.
    """

    def __init__(
        self,
        receivers: Sequence[Receiver],
        *,
        seen: SeenIds | None = None,
        identify: Callable[[ServiceBusReceivedMessage], str | None] = message_id_of,
        max_wait_time: float | None = None,
        now_ms: Callable[[], int] | None = None,
        settings: ReceiverSettings | None = None,
    ) -> None:
        """`identify` names what both copies share: the message id, or for example a property of your own."""
        if not receivers:
            raise ValueError("at least one receiver is needed")
        self._scope = receivers[0].path.casefold()
        self._seen: SeenIds = seen if seen is not None else MemorySeenIds()
        self._seen_is_ours = seen is None
        self._identify = identify
        self._wait = max_wait_time
        self._now_ms = now_ms or SystemClock().now_ms
        self._settings = kept = settings or ReceiverSettings()
        self._sources = [ReceiverSource(receiver, Backoff(kept.retry_pause, kept.retry_pause_max)) for receiver in receivers]
        self.counters = self._settings.counters
        self._ready: collections.deque[Copy] = collections.deque()
        self._claims: dict[str, Copy] = {}
        """The copy of each id that is ready or handed out; all others of that id wait."""
        self._copies: dict[str, list[Copy]] = {}
        self._out: dict[int, tuple[ServiceBusReceivedMessage, Copy]] = {}
        self._keeper: asyncio.Task[None] | None = None
        self._closed = False

    # -- receiving -----------------------------------------------------------------------------------------------------

    async def receive_messages(self, max_message_count: int = 1, max_wait_time: float | None = None) -> list[ServiceBusReceivedMessage]:
        """Up to that many messages as soon as there is one; an empty list when the wait is over.

        While one namespace is down the other goes on. With both down for the whole wait it raises.
        """
        self._check_live()
        if max_message_count < 1:
            raise ValueError("The max_message_count must be greater than 0")
        loop = asyncio.get_running_loop()
        wait = max_wait_time or self._wait or _WAIT_DEFAULT
        deadline = loop.time() + wait
        self._let_go_of_lost_locks()
        while not self._ready:
            left = deadline - loop.time()
            if left <= 0:
                self._raise_if_all_down()
                return []
            await self._read(max_message_count, left)
        return [self._hand_out(self._ready.popleft()) for _ in range(min(max_message_count, len(self._ready)))]

    def __aiter__(self) -> AsyncIterator[ServiceBusReceivedMessage]:
        return self._iterate()

    async def _iterate(self) -> AsyncIterator[ServiceBusReceivedMessage]:
        """Message after message; ends when `max_wait_time` was given and passes without one."""
        while not self._closed:
            messages = await self.receive_messages(1)
            if not messages and self._wait is not None:
                return
            for message in messages:
                yield message

    def _hand_out(self, copy: Copy) -> ServiceBusReceivedMessage:
        message = copy.delivery.message
        self._out[id(message)] = (message, copy)
        self.counters.hand_out()
        return message

    async def _read(self, count: int, left: float) -> None:
        """Wait until a source has brought something, failed, or the time is over."""
        loop = asyncio.get_running_loop()
        for source in self._sources:
            source.read(count, left, loop.time())
        reading = [source.reading for source in self._sources if source.reading is not None]
        resting = [source.retry_at - loop.time() for source in self._sources if source.reading is None]
        timeout = min([left, *resting])
        if reading:
            await asyncio.wait(reading, timeout=max(0.0, timeout), return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(max(0.001, timeout))
        for source in self._sources:
            task = source.ended()
            if task is not None:
                await self._take(source, task)

    async def _take(self, source: ReceiverSource, task: asyncio.Task[list[ReceivedDelivery]]) -> None:
        try:
            deliveries = task.result()
        except Exception as error:
            if classify(error) not in _PASSING:
                raise
            pause = source.fail(error, asyncio.get_running_loop().time())
            log.info("receiving from %s pauses for %.3g s: %s", source.receiver.path, pause, describe(error))
            return
        source.serve()
        for delivery in deliveries:
            await self._admit(Copy(source, delivery, self._identify(delivery.message)))

    def _raise_if_all_down(self) -> None:
        errors = [source.error for source in self._sources if source.error is not None]
        if len(errors) == len(self._sources):
            raise BothNamespacesUnavailableError(
                f"no namespace lets us receive from {self._scope}: {describe(errors[-1])}", errors
            ) from errors[-1]

    # -- which copy ----------------------------------------------------------------------------------------------------

    async def _admit(self, copy: Copy) -> None:
        if copy.id is None:
            self._ready.append(copy)
            return
        if await self._seen.seen(self._scope, copy.id, self._now_ms()):
            await self._suppress(copy)
            return
        claim = self._claims.get(copy.id)
        if claim is None or self._is_same_message_again(claim, copy):
            self._claims[copy.id] = copy
            self._ready.append(copy)
        else:
            await self._let_wait(copy, copy.id)

    def _is_same_message_again(self, claim: Copy, copy: Copy) -> bool:
        """A redelivery from the same namespace: the earlier lock is gone, so whoever holds that one cannot settle it any more."""
        if claim.source is not copy.source or claim.delivery.sequence_number != copy.delivery.sequence_number:
            return False
        if claim in self._ready:
            self._ready.remove(claim)
        return True

    async def _let_wait(self, copy: Copy, message_id: str) -> None:
        if self.counters.waiting_copies >= self._settings.copies_waiting_max:
            await self._quietly(copy.source.receiver.abandon(copy.delivery), copy)
            return
        self._copies.setdefault(message_id, []).append(copy)
        self.counters.let_wait(1)
        if self._keeper is None or self._keeper.done():
            self._keeper = asyncio.ensure_future(self._keep_locks())

    async def _suppress(self, copy: Copy) -> None:
        self.counters.suppress()
        await self._quietly(copy.source.receiver.complete(copy.delivery), copy)

    def _let_go_of_lost_locks(self) -> None:
        """What was handed out and has lost its lock is no longer anybody's: its other copy may go out now."""
        now = self._now_ms()
        for message_id, claim in list(self._claims.items()):
            if 0 < claim.delivery.locked_until_ms <= now:
                if claim in self._ready:
                    self._ready.remove(claim)
                self._release(message_id)
        for key, (_, copy) in list(self._out.items()):
            if 0 < copy.delivery.locked_until_ms <= now - 600_000:
                del self._out[key]

    def _release(self, message_id: str) -> None:
        """The claim ends without the message being processed: the next copy still under lock takes its place."""
        self._claims.pop(message_id, None)
        copies = self._copies.pop(message_id, [])
        self.counters.end_waiting(len(copies))
        now = self._now_ms()
        alive = [copy for copy in copies if copy.delivery.locked_until_ms == 0 or copy.delivery.locked_until_ms > now]
        if alive:
            self._claims[message_id] = alive[0]
            self._ready.append(alive[0])
            if alive[1:]:
                self._copies[message_id] = alive[1:]
                self.counters.let_wait(len(alive) - 1)

    async def _keep_locks(self) -> None:
        """Copies wait as long as the first one is processed, which may outlast their locks."""
        while self._copies and not self._closed:
            soon = self._now_ms() + _RENEW_MARGIN_MS
            for copies in list(self._copies.values()):
                for copy in copies:
                    if 0 < copy.delivery.locked_until_ms < soon:
                        await self._quietly(copy.source.receiver.renew(copy.delivery), copy)
            await asyncio.sleep(self._settings.keep_every)

    async def _quietly(self, settling: Awaitable[None], copy: Copy) -> None:
        """Settle a copy nobody asked for. If that fails the copy comes again and is suppressed again: nothing is lost by it."""
        try:
            await settling
        except ServiceBusError as error:
            log.info("a second copy of %s: %s", copy.id, describe(error))

    # -- settling ------------------------------------------------------------------------------------------------------

    async def complete_message(self, message: ServiceBusReceivedMessage) -> None:
        """The message is processed: its id is remembered first, then this copy and all waiting ones are completed.

        If the lock is lost by now this raises, and yet the id stays remembered, because the work is done.
        """
        copy = self._mine(message)
        if copy.id is not None:
            await self._seen.remember(self._scope, copy.id, self._now_ms())
            if self._claims.get(copy.id) is copy:
                del self._claims[copy.id]
            for other in self._copies.pop(copy.id, []):
                self.counters.end_waiting(1)
                await self._suppress(other)
        await self._settle(copy, copy.source.receiver.complete(copy.delivery))

    async def abandon_message(self, message: ServiceBusReceivedMessage) -> None:
        """Give the message back; another copy of it that waits is handed out next."""
        copy = self._mine(message)
        await self._settle(copy, copy.source.receiver.abandon(copy.delivery))

    async def dead_letter_message(
        self, message: ServiceBusReceivedMessage, reason: str | None = None, error_description: str | None = None
    ) -> None:
        """Dead-letter this copy. That is not processing: the other copy, if there is one, is handed out."""
        copy = self._mine(message)
        await self._settle(copy, copy.source.receiver.dead_letter(copy.delivery, reason or "", error_description or ""))

    async def defer_message(self, message: ServiceBusReceivedMessage) -> None:
        copy = self._mine(message)
        await self._settle(copy, copy.source.receiver.defer(copy.delivery))

    async def renew_message_lock(self, message: ServiceBusReceivedMessage) -> None:
        entry = self._out.get(id(message))
        if entry is None:
            raise MessageAlreadySettled(action="renew")
        await entry[1].source.receiver.renew(entry[1].delivery)

    def _mine(self, message: ServiceBusReceivedMessage) -> Copy:
        self._check_live()
        entry = self._out.pop(id(message), None)
        if entry is None:
            raise MessageAlreadySettled(action="settle")
        return entry[1]

    async def _settle(self, copy: Copy, settling: Awaitable[None]) -> None:
        try:
            await settling
        except MessageLockLostError:
            raise
        except ServiceBusError:
            self._out[id(copy.delivery.message)] = (copy.delivery.message, copy)
            raise
        finally:
            if copy.id is not None and self._claims.get(copy.id) is copy and id(copy.delivery.message) not in self._out:
                self._release(copy.id)

    # -- the end -------------------------------------------------------------------------------------------------------

    def _check_live(self) -> None:
        if self._closed:
            raise NamespaceClosedError("the receiver is closed")

    async def __aenter__(self) -> DuplicateSuppressingReceiver:
        self._check_live()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Give back what was not handed out, and close the receivers (and the memory of ids, unless it was passed in)."""
        if self._closed:
            return
        self._closed = True
        if self._keeper is not None:
            self._keeper.cancel()
        for source in self._sources:
            if source.reading is not None:
                source.reading.cancel()
                await asyncio.wait((source.reading,), timeout=1.0)
        held = [*self._ready, *(copy for copies in self._copies.values() for copy in copies)]
        for copy in held:
            await self._quietly(copy.source.receiver.abandon(copy.delivery), copy)
        for source in self._sources:
            await source.receiver.close()
        if self._seen_is_ours:
            await self._seen.close()
