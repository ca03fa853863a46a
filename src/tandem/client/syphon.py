"""The pumps that carry diverted messages home: received from the backlog, unwrapped, accepted by the primary, only then completed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from azure.servicebus.exceptions import MessageLockLostError, ServiceBusError

from tandem.client.backlog_browsing import BacklogBrowser
from tandem.client.batch_budget import BatchBudget
from tandem.client.destinations import WAIT_SECONDS, Destinations, Fate
from tandem.client.envelope import NOT_RETRYABLE, EnvelopeError, unwrap_payload
from tandem.client.errors import describe, trouble_with
from tandem.client.lanes import Lane
from tandem.client.pauses import Pauses
from tandem.client.precedence import DivertedMessage, Precedence
from tandem.model.backoff import Backoff

if TYPE_CHECKING:
    from tandem.client.backlog import Administration
    from tandem.client.coupling import PairSide
    from tandem.client.events import Counters, EventHub
    from tandem.client.transport import ReceivedDelivery, Receiver, Sender

log = logging.getLogger("tandem.client.syphon")

_BEHIND_PAUSES = 8
"""Of the first pause: the longest while others of a session have to go first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSyphonSettings:
    poll: float = 900.0
    """Seconds one receive waits: 15 minutes, four receives per queue and hour while there is nothing to do."""
    batch_max: int = 100
    batch_bytes_max: int = 16_777_216
    """A batch is in memory as a whole: fewer messages are read at a time when they are large."""
    read_ahead_max: int = 1_000
    """Messages read at a time when those at the head of a queue cannot be delivered yet."""
    send_timeout: float = 30.0
    retry_pause: float = 1.0
    retry_pause_max: float = 10.0
    hold: float = 5.0
    """How long a batch is kept in hand when its destination goes away: a short outage is bridged, and the batch goes on where it was."""
    destination_wait: float = WAIT_SECONDS
    """How long messages wait for a destination that is missing, disabled or full before they are dead-lettered."""
    stop_grace: float = 4.0
    lock_margin_ms: int = 20_000
    """Locks with less than this left are renewed before the next step."""
    senders_max: int = 200
    subtract_time_in_backlog: bool = False


@dataclass(frozen=True, slots=True)
class LockedMessage(DivertedMessage):
    delivery: ReceivedDelivery


@dataclass(frozen=True, slots=True)
class QueueMeasure:
    """One backlog queue: how many messages wait (None without Manage) and how old the oldest is."""

    queue: str
    depth: int | None
    oldest_age_seconds: float | None


@dataclass(slots=True)
class BatchOutcome:
    """What became of one batch."""

    moved: int = 0
    dead_lettered: int = 0
    returned: int = 0
    blocked: set[str] = field(default_factory=set)
    behind: int = 0
    """Returned only because others of their session or path have to go first: it will not take long."""
    paths: frozenset[str] = frozenset()
    """Every destination of the batch."""
    hold_until: float = 0.0
    """Of the loop's time; 0 while nothing is in the way."""

    def move(self) -> None:
        self.moved += 1

    def pass_fence(self) -> None:
        """It was completed like a message, and is none."""
        self.moved -= 1

    def give_back(self) -> None:
        self.returned += 1

    def bury(self) -> None:
        self.dead_lettered += 1

    def let_wait(self, count: int) -> None:
        """Others of their session or path go first."""
        self.behind += count

    def hold(self, until: float) -> None:
        """Unless it is held already."""
        self.hold_until = self.hold_until or until

    def go_on(self) -> None:
        """Nothing is in the way."""
        self.hold_until = 0.0


class Syphon:
    """One pump per backlog queue. Any number of processes may run one: they compete under peek-lock.

    Order is kept per (path, session id): such messages are sent one after the other, and once one has to wait all behind it wait too.
    """

    def __init__(
        self,
        primary: PairSide,
        secondary: PairSide,
        queues: Sequence[str],
        *,
        settings: ClientSyphonSettings,
        events: EventHub,
        counters: Counters,
        now_ms: Callable[[], int],
        administration: Administration | None = None,
        failed_over: Callable[[str], bool] = lambda path: False,
    ) -> None:
        self._primary = primary
        self._secondary = secondary
        self.queues = list(queues)
        self.settings = settings
        self._events = events
        self._counters = counters
        self._now_ms = now_ms
        self._administration = administration
        self._failed_over = failed_over
        self._senders: dict[str, Sender] = {}
        self._pauses = Pauses(settings.retry_pause, settings.retry_pause_max, settings.senders_max)
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()
        self._resting: dict[asyncio.Event, None] = {}
        self._wakes = 0
        """How often some path came back."""
        self._took_lately: dict[str, None] = {}
        """Paths that took messages until they went away, if they did: worth a moment's wait."""
        self._destinations = Destinations(int(settings.destination_wait * 1000))

    @property
    def running(self) -> bool:
        return any(not task.done() for task in self._tasks)

    def start(self, queues: Sequence[str] = ()) -> None:
        """A pump for each queue, and for those found since."""
        self.queues += [queue for queue in queues if queue not in self.queues]
        self._tasks += [asyncio.ensure_future(self._pump(queue)) for queue in self.queues[len(self._tasks) :]]

    def interrupt(self, path: str) -> None:
        """The path has failed over: what is under way to it would only run into its timeout."""
        sender = self._senders.get(path.casefold())
        if sender is not None:
            sender.interrupt()

    def wake(self, path: str) -> None:
        """The path can be reached again: end every pause now."""
        self._wakes += 1
        self._pauses.end(path.casefold())
        for resting in self._resting:
            resting.set()

    async def stop(self) -> None:
        """Let each pump finish the message it is moving, give the others back, and end."""
        self._stopping.set()
        for resting in self._resting:
            resting.set()
        mine = [task for task in self._tasks if task is not asyncio.current_task()]
        if mine:
            _, late = await asyncio.wait(mine, timeout=self.settings.stop_grace)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=1.0)
        for sender in self._senders.values():
            await sender.close()
        self._senders.clear()

    async def measure(self, timeout: float = 10.0) -> list[QueueMeasure]:
        """Depth and age of every backlog queue, asked of the secondary now."""
        measures = []
        for queue in self.queues:
            receiver = self._secondary.namespace.receiver(queue)
            try:
                oldest = await receiver.peek(1, timeout)
                depth = await self._administration.depth(queue) if self._administration is not None else None
            finally:
                await receiver.close()
            enqueued = oldest[0].enqueued_time_utc if oldest else None
            age = max(0.0, self._now_ms() / 1000 - enqueued.timestamp()) if enqueued else None
            measures.append(QueueMeasure(queue, depth, age))
        return measures

    async def drain(self, idle: float = 1.0) -> int:
        """Move what is in the queues now and return how many messages that were; for tools and tests. Not beside `start`."""
        before = self._counters.syphon_moved
        for queue in self.queues:
            receiver = self._secondary.namespace.receiver(queue)
            browser = BacklogBrowser(self._secondary.namespace, self.queues)
            budget = BatchBudget(self.settings.batch_bytes_max)
            try:
                while not self._stopping.is_set():
                    deliveries = await receiver.receive(budget.count(self.settings.batch_max), idle)
                    if not deliveries:
                        break
                    budget.seen(len(delivery.payload) for delivery in deliveries)
                    outcome = await self._move(receiver, browser, deliveries)
                    if outcome.blocked:
                        break
            finally:
                await browser.close()
                await receiver.close()
        return self._counters.syphon_moved - before

    # -- one queue -----------------------------------------------------------------------------------------------------

    async def _pump(self, queue: str) -> None:
        settings = self.settings
        backoff = Backoff(settings.retry_pause, settings.retry_pause_max)
        count = settings.batch_max
        budget = BatchBudget(settings.batch_bytes_max)
        while not self._stopping.is_set():
            receiver = self._secondary.namespace.receiver(queue)
            browser = BacklogBrowser(self._secondary.namespace, self.queues)
            try:
                while not self._stopping.is_set():
                    deliveries = await self._receive(receiver, budget.count(count))
                    if not deliveries:
                        continue
                    budget.seen(len(delivery.payload) for delivery in deliveries)
                    wakes = self._wakes
                    outcome = await self._move(receiver, browser, deliveries)
                    count = self._next_count(count, outcome)
                    if outcome.blocked and not outcome.moved and wakes == self._wakes:
                        pause = backoff.next_pause()
                        await self._rest(min(pause, _BEHIND_PAUSES * settings.retry_pause) if outcome.behind else pause, outcome.blocked)
                    else:
                        backoff.reset()
            except asyncio.CancelledError:
                raise
            except Exception as error:  # noqa: BLE001 - told, and tried again for as long as the pair lives
                pause = backoff.next_pause()
                self._events.tell("syphon-waiting", queue, f"trying again in {pause:.3g} s: {describe(error)}", error)
                await self._rest(pause, set())
            finally:
                await browser.close()
                await receiver.close()

    async def _receive(self, receiver: Receiver, count: int) -> list[ReceivedDelivery]:
        """One long poll, ended early when the syphon is told to stop."""
        self._counters.syphon_asked()
        reading = asyncio.ensure_future(receiver.receive(count, self.settings.poll))
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((reading, stopping), return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                return reading.result()
            return []
        finally:
            stopping.cancel()
            if not reading.done():
                reading.cancel()
                await asyncio.wait((reading,), timeout=1.0)

    def _next_count(self, count: int, outcome: BatchOutcome) -> int:
        """Messages that cannot move yet sit at the head and would come again and again: read further past them each time."""
        if not outcome.blocked:
            return self.settings.batch_max
        return min(self.settings.read_ahead_max, count * 2)

    async def _rest(self, pause: float, blocked: set[str]) -> None:
        if self._stopping.is_set():
            return
        woken = asyncio.Event()
        self._resting[woken] = None
        try:
            async with asyncio.timeout(pause):
                await woken.wait()
        except TimeoutError:
            log.debug("rested %.3g s for %s", pause, sorted(blocked) or "an error")
        finally:
            self._resting.pop(woken, None)

    # -- one batch -----------------------------------------------------------------------------------------------------

    async def _move(self, receiver: Receiver, browser: BacklogBrowser, deliveries: list[ReceivedDelivery]) -> BatchOutcome:
        outcome = BatchOutcome()
        items: list[LockedMessage] = []
        for delivery in sorted(deliveries, key=lambda one: one.sequence_number):
            try:
                unwrapped = unwrap_payload(delivery.payload, self._now_ms() if self.settings.subtract_time_in_backlog else None)
            except EnvelopeError as error:
                await self._dead_letter(receiver, delivery, error.reason, error.description, outcome)
                continue
            items.append(LockedMessage(delivery.sequence_number, delivery.enqueued_ms, unwrapped.destination, unwrapped.payload, delivery))
        go, wait = await self._divide(receiver, browser, items)
        lanes: dict[tuple[str, str | None], list[LockedMessage]] = {}
        for item in go:
            if not item.fence:
                lanes.setdefault((item.path, item.destination.session_id), []).append(item)
        outcome.paths = frozenset(item.path for item in items if not item.fence)
        unsettled = dict(lanes)
        for key, lane in lanes.items():
            del unsettled[key]
            await self._move_lane(receiver, lane, [item for left in unsettled.values() for item in left], outcome)
        outcome.let_wait(len(wait))
        for item in wait:
            await self._give_back(receiver, [item], item.destination.path, outcome)
        for item in go:
            if item.fence:
                await self._pass_fence(receiver, item, outcome)
        self._counters.syphoned(outcome.moved, outcome.returned)
        return outcome

    async def _divide(
        self, receiver: Receiver, browser: BacklogBrowser, items: list[LockedMessage]
    ) -> tuple[list[LockedMessage], list[LockedMessage]]:
        """(those that may go now, those that have to wait)."""
        if not any(item.in_order or item.fence for item in items):
            return items, []
        earlier, elsewhere = await browser.look_around(receiver, items)
        return Precedence().divide(items, earlier, elsewhere)

    async def _pass_fence(self, receiver: Receiver, fence: LockedMessage, outcome: BatchOutcome) -> None:
        """A fence goes when everything before it for its path has gone."""
        if fence.path in {path.casefold() for path in outcome.blocked}:
            outcome.let_wait(1)
            await self._give_back(receiver, [fence], fence.destination.path, outcome)
        else:
            await self._complete(receiver, fence, outcome)
            outcome.pass_fence()

    async def _move_lane(self, receiver: Receiver, items: list[LockedMessage], behind: list[LockedMessage], outcome: BatchOutcome) -> None:
        """Messages of one path and session. Those `behind` them are of other lanes, and keep their locks meanwhile."""
        path = items[0].destination.path
        lane = Lane(path, items, self.settings.read_ahead_max)
        while lane.next_transfer(self._batch_bytes_max(path)):
            if self._stopping.is_set() or (self._is_resting(path) and not await self._hold(lane.left(), path, outcome)):
                await self._give_back(receiver, lane.left(), path, outcome)
                return
            left = lane.left()
            lost = await self._keep_locks(receiver, [*left, *behind])
            if any(item.sequence_number in lost for item in left):
                # It comes again, to us or to another syphon; sending it now could only double it, and what is behind it comes after it.
                await self._give_back(receiver, left, path, outcome)
                return
            wakes = self._wakes
            error = await self._send(path, lane.under_way)
            if error is None:
                for item in lane.accepted():
                    await self._complete(receiver, item, outcome)
                outcome.go_on()
                continue
            dead = lane.refused(self._fate(path, error))
            if dead is None:
                if wakes == self._wakes:  # else it came back while this was failing: there is nothing to wait for
                    self._pause_path(path, error)
                continue
            for item in dead:
                await self._dead_letter(receiver, item.delivery, NOT_RETRYABLE, f"{path}: {describe(error)}", outcome)

    def _batch_bytes_max(self, path: str) -> int:
        sender = self._senders.get(path.casefold())
        return (sender.batch_bytes_max if sender is not None else 0) or 262_144

    async def _send(self, path: str, items: list[LockedMessage]) -> BaseException | None:
        try:
            sender = await self._sender(path)
            await sender.send_payloads([item.payload for item in items], self.settings.send_timeout)
        except Exception as error:  # noqa: BLE001 - the caller decides by its kind what becomes of the messages
            return error
        self._pauses.end(path.casefold())
        self._took_lately[path.casefold()] = None
        if self._destinations.took(path):
            self._counters.syphon_waits(len(self._destinations.refusing))
            self._events.tell("destination-back", path, "takes messages again")
        return None

    async def _sender(self, path: str) -> Sender:
        self._primary.check()
        key = path.casefold()
        sender = self._senders.get(key)
        if sender is None:
            if len(self._senders) >= self.settings.senders_max:
                oldest = next(iter(self._senders))
                self._took_lately.pop(oldest, None)
                await self._senders.pop(oldest).close()
            sender = self._senders[key] = self._primary.namespace.sender(path)
        return sender

    # -- paths that cannot be reached ----------------------------------------------------------------------------------

    def _fate(self, path: str, error: BaseException) -> Fate:
        known = len(self._destinations.refusing)
        fate = self._destinations.judge(trouble_with(error), path, self._now_ms())
        if len(self._destinations.refusing) != known:
            self._counters.syphon_waits(len(self._destinations.refusing))
            patience = f"its messages wait up to {self.settings.destination_wait:.0f} s"
            self._events.tell("destination-waiting", path, f"{patience}: {describe(error)}", error)
        return fate

    async def _hold(self, items: list[LockedMessage], path: str, outcome: BatchOutcome) -> bool:
        """Keep the batch for a moment while its path is left alone, if nothing else in it could be moved; whether to try it now."""
        if any(item.in_order for item in items):
            return False  # whether it was their turn was asked before; it has to be asked again
        now = asyncio.get_running_loop().time
        outcome.hold(now() + self.settings.hold)
        while self._is_resting(path):
            safe = all(item.delivery.locked_until_ms - self._now_ms() > self.settings.lock_margin_ms for item in items)
            left = outcome.hold_until - now()
            alone = path.casefold() in self._took_lately and all(map(self._is_resting, outcome.paths))
            if left <= 0 or not safe or self._stopping.is_set() or not self._tasks or not alone:
                self._took_lately.pop(path.casefold(), None)
                return False
            until = self._pauses.until(path.casefold())
            # Woken when the path is healthy; a path that no sender here watches is tried when its pause is over.
            wait = left if not until or self._failed_over(path) else min(left, max(0.001, until - now()))
            await self._rest(wait, {path})
        return True

    def _is_resting(self, path: str) -> bool:
        if self._failed_over(path):
            return True
        return asyncio.get_running_loop().time() < self._pauses.until(path.casefold())

    def _pause_path(self, path: str, error: BaseException) -> None:
        length = self._pauses.begin(path.casefold(), anew=path.casefold() in self._took_lately)
        self._events.tell("syphon-path-waiting", path, f"left alone for {length:.3g} s: {describe(error)}", error)

    # -- settling ------------------------------------------------------------------------------------------------------

    async def _keep_locks(self, receiver: Receiver, items: list[LockedMessage]) -> set[int]:
        """Which of them could not be kept, by their sequence numbers."""
        lost: set[int] = set()
        soon = self._now_ms() + self.settings.lock_margin_ms
        for item in items:
            if 0 < item.delivery.locked_until_ms < soon:
                try:
                    await receiver.renew(item.delivery)
                except ServiceBusError as error:
                    lost.add(item.sequence_number)
                    log.info("lock of %s not renewed: %s", item.delivery.message_id, describe(error))
        return lost

    async def _complete(self, receiver: Receiver, item: LockedMessage, outcome: BatchOutcome) -> None:
        outcome.move()
        try:
            await receiver.complete(item.delivery)
        except MessageLockLostError as error:
            # The primary has it and the backlog still does: the second copy has the same id, which duplicate detection drops.
            self._events.tell("syphon-lock-lost", item.destination.path, f"{item.delivery.message_id} may arrive twice", error)

    async def _give_back(self, receiver: Receiver, items: list[LockedMessage], path: str, outcome: BatchOutcome) -> None:
        outcome.blocked.add(path)
        for item in items:
            outcome.give_back()
            try:
                await receiver.abandon(item.delivery)
            except MessageLockLostError:
                log.debug("%s was given back by the end of its lock", item.delivery.message_id)

    async def _dead_letter(
        self, receiver: Receiver, delivery: ReceivedDelivery, reason: str, description: str, outcome: BatchOutcome
    ) -> None:
        outcome.bury()
        self._counters.syphon_dead_letter()
        self._events.tell("dead-lettered", receiver.path, f"{delivery.message_id}: {reason}: {description}")
        await receiver.dead_letter(delivery, reason, description[:1024])
