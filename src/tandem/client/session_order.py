"""Which sessions have messages in the backlog: those go on being diverted after healing, until all of theirs are home.

While a session is *held* its sends go behind what it already has in the backlog. At healing a fence is put behind it in each backlog
queue that was used; the syphon drops the fence when everything before it for the path is home; the session is then let go, unless it was
diverted again meanwhile. Once fences pass quickly, sends of held sessions wait for the next instead of going behind it, so that it ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from azure.servicebus.exceptions import MessagingEntityNotFoundError, ServiceBusError

from tandem.client.errors import describe
from tandem.client.fences import Fence, put_fence
from tandem.client.places import Key, Place, write_after
from tandem.model.backoff import Backoff

if TYPE_CHECKING:
    from tandem.client.backlog import Rotation
    from tandem.client.coupling import PairSide
    from tandem.client.events import Event, EventHub
    from tandem.client.paths import PathMonitor

log = logging.getLogger("tandem.client.order")

HOLD_SECONDS: Final = 5.0
"""How long a send waits for its session to be let go before it is diverted after all."""
_SOON_SECONDS: Final = 1.0
_ROUNDS_MAX: Final = 8
_OPERATION_SECONDS: Final = 10.0
_LOOK_AGAIN_SECONDS: Final = 5.0
_PAUSE_SECONDS: Final = 0.05
_PAUSE_SECONDS_MAX: Final = 1.0
_PAGE: Final = 250
_SEEN_MAX: Final = 2_500
"""Messages of a backlog queue looked at when a process begins; in a longer one every session is taken to have messages."""
_SESSIONS_MAX: Final = 100_000
"""Sessions of one path remembered one by one; with more, all of the path's are held."""


@dataclass(slots=True)
class HeldSession:
    """A session with messages in the backlog."""

    queue: str
    after: set[str] = field(default_factory=set)
    """Other backlog queues that may have earlier messages of it."""
    under_way: int = 0
    """Diversions begun and not ended: a fence put now may stand before them."""
    round: int = 0
    """The fence that was being waited for when the last one ended; only a later one stands behind it."""
    moves: int = 0
    """How often it changed queues."""

    def stand_after(self, queues: set[str], round_: int) -> None:
        """It may have messages in these too, as far as was known in this round."""
        self.after.update(queues - {self.queue})
        self.round = round_

    def begin(self) -> None:
        self.under_way += 1

    def end(self, round_: int) -> None:
        """A diversion, while this fence was waited for."""
        self.under_way -= 1
        self.round = round_

    def move_to(self, queue: str) -> None:
        if self.queue:
            self.after.add(self.queue)
        self.queue = queue
        self.moves += 1

    @property
    def queues(self) -> set[str]:
        return (self.after | {self.queue}) - {""}


class PathOrder:
    """The held sessions of one path."""

    def __init__(self, path: str, order: SessionOrder, monitor: PathMonitor) -> None:
        self.path = path
        self._order = order
        self._monitor = monitor
        self.sessions: dict[str, HeldSession] = {}
        self.everything: dict[str, int] = {}
        """Backlog queues that may hold messages of sessions we do not know of, with the round in which that became so; while there are
        some, every session is held."""
        self._round = 0
        self._closing = False
        """Sends of held sessions wait for the next fence."""
        self._insisting = False
        """… and go on doing so after one has waited in vain: they come faster than the syphon carries them home."""
        self._took = 0.0
        """Seconds of the last round; 0 in the first."""
        self._turn = asyncio.Event()
        """Set at the end of every round; each has its own."""
        self._task: asyncio.Task[None] | None = None

    @property
    def holding(self) -> bool:
        return bool(self.sessions or self.everything)

    def holds(self, sessions: Collection[str]) -> bool:
        if not sessions:
            return False
        return bool(self.everything) or any(session in self.sessions for session in sessions)

    def inherit(self, found: Mapping[str, set[str]], unseen: Iterable[str]) -> None:
        """Sessions that have messages in these queues, from before; queues that may hold more."""
        self.everything.update((queue, self._round) for queue in unseen)
        for session, queues in found.items():
            first, *others = sorted(queues)
            held = self.sessions.setdefault(session, HeldSession(first))
            held.stand_after({first, *others, *self.everything}, self._round)
        self._monitor.hold(self.holding)
        if not self._monitor.health.diverting:
            self.bring_home()

    # -- sending -------------------------------------------------------------------------------------------------------

    async def must_divert(self, sessions: Collection[str], seconds: float) -> bool:
        """Whether messages of these sessions have to go behind others in the backlog; waits a little if they are nearly home."""
        loop = asyncio.get_running_loop()
        until = loop.time() + min(max(HOLD_SECONDS, 2 * self._took) if self._insisting else HOLD_SECONDS, seconds / 2)
        while self.holds(sessions):
            left = until - loop.time()
            if not self._closing or left <= 0 or self._monitor.health.diverting:
                return True
            try:
                async with asyncio.timeout(left):
                    await self._turn.wait()
            except TimeoutError:
                self._closing = self._insisting
                log.debug("%s: a send waited for its session and goes behind it now", self.path)
        return False

    def begin(self, sessions: Iterable[str]) -> None:
        """Messages of these sessions are about to be diverted."""
        for session in sessions:
            self._held(session).begin()
        self._monitor.hold(self.holding)

    def end(self, sessions: Iterable[str]) -> None:
        """The diversion is over, whatever came of it."""
        for session in sessions:
            self._held(session).end(self._round)
        if len(self.sessions) > _SESSIONS_MAX and not any(held.under_way for held in self.sessions.values()):
            self.everything.update((queue, self._round) for held in self.sessions.values() for queue in held.queues)
            self.sessions.clear()
        if not self._monitor.health.diverting:
            self.bring_home()

    def _held(self, session: str) -> HeldSession:
        held = self.sessions.get(session)
        if held is None:
            held = self.sessions[session] = HeldSession("", set(self.everything))
        return held

    def queue_for(self, session: str, tried: Collection[str]) -> tuple[str, str] | None:
        """(backlog queue, what the message has to come after): where the session's others are, while that queue can be used."""
        held = self._held(session)
        rotation = self._order.rotation()
        if not held.queue or held.queue in tried or not rotation.in_rotation(held.queue):
            name = rotation.pick_for(f"{self.path.casefold()}\n{session}", tried)
            if name is None:
                return None
            held.move_to(name)
        return held.queue, write_after(held.after - {held.queue})

    # -- coming home ---------------------------------------------------------------------------------------------------

    def bring_home(self) -> None:
        """The primary takes messages again: find out when the backlog of the held sessions is empty."""
        if self.holding and (self._task is None or self._task.done()):
            self._task = self._order.run(self._bring_home())

    def stop(self) -> None:
        """The path is failed over again: nothing is waited for, all is held."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        self._end_round(closing=False)

    def _end_round(self, closing: bool) -> None:
        self._closing = closing
        turn, self._turn = self._turn, asyncio.Event()
        turn.set()
        self._monitor.hold(self.holding)

    async def _bring_home(self) -> None:
        told = len(self.sessions)
        self._order.events.tell("sessions-held", self.path, f"{told} session(s) are diverted until their backlog is home")
        first = self._round
        now = asyncio.get_running_loop().time
        self._took = 0.0
        self._insisting = False
        while self.holding:
            started = now()
            self._round += 1
            covered = {session: (held.moves, set(held.after)) for session, held in self.sessions.items() if not held.under_way}
            queues = {queue for session in covered for queue in self.sessions[session].queues}
            queues.update(queue for queue, since in self.everything.items() if since < self._round)
            await self._fences(queues)
            for session, (moves, after) in covered.items():
                self._passed(session, moves, after)
            self.everything = {queue: since for queue, since in self.everything.items() if since >= self._round}
            # Sends wait for the next fence only if it will not take long, or if they would never let it end.
            self._took = now() - started
            self._insisting = self._insisting or self._round - first > _ROUNDS_MAX
            self._end_round(closing=self._took < _SOON_SECONDS or self._insisting)
            if not queues:
                await asyncio.sleep(_PAUSE_SECONDS)
        self._insisting = False
        self._end_round(closing=False)
        self._order.events.tell("sessions-home", self.path, "nothing of its sessions is left in the backlog")

    def _passed(self, session: str, moves: int, after: set[str]) -> None:
        """All that the session had in the backlog when the round began is home."""
        held = self.sessions.get(session)
        if held is None:
            return
        if held.round < self._round and not held.under_way:
            del self.sessions[session]
        elif held.moves == moves:
            held.after.difference_update(after)  # nothing of it is left there: who carries the next one need not look

    async def _fences(self, queues: Collection[str]) -> None:
        """Put one into each queue and wait until all have passed. Before them stands what was sent during the last round: if this one takes
        longer, messages come faster than they are carried home, and from now on they wait."""
        fences = asyncio.gather(*(self._fence(queue) for queue in sorted(queues)))
        try:
            async with asyncio.timeout(max(self._took, _SOON_SECONDS) if self._took else None):
                await asyncio.shield(fences)
        except TimeoutError:
            self._closing = self._insisting = True
            log.debug("%s: sessions come faster than they are carried home: their sends wait", self.path)
            await fences
        except asyncio.CancelledError:
            fences.cancel()
            await asyncio.gather(fences, return_exceptions=True)  # or nobody would ever have asked how they ended, and the loop says so
            raise

    async def _fence(self, queue: str) -> None:
        """Put a fence into the queue and wait until it is gone, however long the queue is away."""
        backoff = Backoff(_PAUSE_SECONDS, _PAUSE_SECONDS_MAX)
        fence: Fence | None = None
        while True:
            try:
                if fence is None:
                    fence = await put_fence(self._order.secondary.namespace, queue, self.path, self._order.new_id, self._order.now_ms())
                if await self._passes(fence):
                    return
            except ServiceBusError as error:
                pause = backoff.next_pause()
                self._order.events.tell("sessions-waiting", self.path, f"{queue}: trying again in {pause:.3g} s: {describe(error)}", error)
                await asyncio.sleep(pause)

    async def _passes(self, fence: Fence) -> bool:
        receiver = self._order.secondary.namespace.receiver(fence.queue)
        backoff = Backoff(_PAUSE_SECONDS, _PAUSE_SECONDS_MAX)
        try:
            while not await fence.is_gone(receiver, _OPERATION_SECONDS):  # noqa: ASYNC110 - only the queue itself can say so
                await asyncio.sleep(backoff.next_pause())
        finally:
            self._order.run(receiver.close())  # which may take a second, and nobody waits for it
        return True


class SessionOrder:
    """The held sessions of every path of a pair."""

    def __init__(
        self, secondary: PairSide, rotation: Callable[[], Rotation], events: EventHub, new_id: Callable[[], str], now_ms: Callable[[], int]
    ) -> None:
        self.secondary = secondary
        self.rotation = rotation
        self.events = events
        self.new_id = new_id
        self.now_ms = now_ms
        self._paths: dict[str, PathOrder] = {}
        self._found: dict[Key, set[str]] = {}
        """What stood in the backlog when this process began, by whom it belongs to, and in which queues."""
        self._unseen: set[str] = set()
        """Backlog queues that could not be looked through then."""
        self.looked = asyncio.Event()
        """Set once it is known who has messages in the backlog; until then their order is not kept."""
        self._tasks: set[asyncio.Task[None]] = set()
        events.subscribe(self._happened)

    async def look(self, queues: Sequence[str]) -> None:
        """See what earlier processes left in the backlog: it has to be home before anything else of its sessions."""
        seen = await asyncio.gather(*(self._look_into(queue) for queue in queues))
        if queues and not any(seen):
            # The secondary is away. Who has something there is not known, and to send nothing at all would be the greater harm.
            self._unseen.clear()
            self.run(self._look_later(queues))
        else:
            self.looked.set()

    async def _look_later(self, queues: Sequence[str]) -> None:
        while True:
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)
            if any(await asyncio.gather(*(self._look_into(queue) for queue in queues))):
                break
        for known in self._paths.values():
            self._tell(known)
        self.looked.set()

    async def _look_into(self, queue: str) -> bool:
        """False if it cannot be reached."""
        receiver = self.secondary.namespace.receiver(queue)
        try:
            start = 1
            for _ in range(_SEEN_MAX // _PAGE):
                page: list[Place] = await receiver.browse(start, _PAGE, _OPERATION_SECONDS)
                for place in page:
                    if place.key is not None:
                        self._found.setdefault(place.key, set()).add(queue)
                if not page:
                    self._unseen.discard(queue)
                    return True
                start = page[-1].sequence_number + 1
            self._unseen.add(queue)
        except MessagingEntityNotFoundError:
            return True
        except ServiceBusError as error:
            self._unseen.add(queue)
            self.events.tell("sessions-waiting", queue, f"what it holds is not known yet: {describe(error)}", error)
            return False
        finally:
            await receiver.close()
        return True

    def path(self, path: str, monitor: PathMonitor) -> PathOrder:
        key = path.casefold()
        known = self._paths.get(key)
        if known is None:
            known = self._paths[key] = PathOrder(path, self, monitor)
            self._tell(known)
        return known

    def _tell(self, known: PathOrder) -> None:
        """What was found of this path's sessions, or that not everything could be."""
        found = {session: queues for (owner, session), queues in self._found.items() if owner == known.path.casefold()}
        known.inherit(found, self._unseen)

    def held_count(self, path: str) -> int:
        """Sessions of the path still held, one more if there may be others that nobody knows."""
        known = self._paths.get(path.casefold())
        return len(known.sessions) + bool(known.everything) if known is not None else 0

    def _happened(self, event: Event) -> None:
        known = self._paths.get(event.path.casefold())
        if known is None:
            return
        if event.kind == "path-healthy":
            known.bring_home()
        elif event.kind == "path-failed-over":
            known.stop()

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def stop(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
