"""The loop of the house: what happened in one pass is decided, recorded and announced together."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from tandem.model.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from tandem.broker.ports import Flushed, Journal, Pumped, Recorded
    from tandem.model.clock import Clock


class Turn:
    """Collects what changed and runs it once: queues pump, journals commit, connections write.

    All facts appended within one turn land in one block of the journal: they are one, or they did not happen.
    The driver calls `run` soon after `wanted` says so, and again at `deadline()`.
    """

    def __init__(self, clock: Clock, wanted: Callable[[], None]) -> None:
        self.clock = clock
        self.number: int = 1
        self.now: int = clock.now_ms()
        self._wanted = wanted
        self.scheduled: bool = False
        """A run was asked for, or is under way."""
        self._queues: list[TurnSlot] = []
        self._later: list[TurnSlot] = []
        self._connections: list[Flushed] = []
        self._records: list[Recorded] = []
        self._journals: list[Journal] = []
        self._timers: list[tuple[int, int, TurnSlot]] = []
        self._timer_number: int = 0
        self.guard: Callable[[], None] | None = None
        """Called whenever an instant begins, before anything is decided."""

    def add_journal(self, journal: Journal) -> None:
        self._journals.append(journal)

    def begin(self) -> int:
        """Every entry into the house (bytes, timer, commit) starts here; returns the instant that holds for all of it."""
        self.now = self.clock.now_ms()
        if self.guard is not None:
            self.guard()
        return self.now

    def add_queue(self, queue: TurnSlot) -> None:
        self._queues.append(queue)
        if not self.scheduled:
            self.schedule()

    def add_later(self, queue: TurnSlot) -> None:
        """There is more to deliver, but not in this turn."""
        self._later.append(queue)

    def add_connection(self, connection: Flushed) -> None:
        self._connections.append(connection)
        if not self.scheduled:
            self.schedule()

    def touch_record(self, record: Recorded) -> None:
        """It has facts to write at the end of this turn, or of the next one if nobody asks for it sooner."""
        self._records.append(record)

    def schedule(self) -> None:
        """Ask for a run. Facts were appended, or somebody is dirty."""
        if not self.scheduled:
            self.scheduled = True
            self._wanted()

    def add_timer(self, queue: TurnSlot, at: int) -> None:
        """An earlier wish of the same queue is void."""
        self._timer_number += 1
        heapq.heappush(self._timers, (at, self._timer_number, queue))
        if not self.scheduled and self._timers[0][2] is queue:
            self.schedule()

    def deadline(self) -> int:
        """When to run at the latest; 0 = nothing is planned."""
        timers = self._timers
        while timers and timers[0][2].wake_at != timers[0][0]:
            heapq.heappop(timers)
        return timers[0][0] if timers else 0

    def run(self) -> None:
        self.scheduled = True  # whoever asks while we run is served by this run
        whole = False
        try:
            self._run(self.begin())
            whole = True
        finally:
            self.scheduled = False
            if not whole or self._queues or self._connections:
                # A defect in one queue or connection goes up to whoever logs it; everybody else has the next turn.
                self.schedule()

    def _run(self, now: int) -> None:
        if self._timers and self._timers[0][0] <= now:
            self._due(now)
        while self._queues:
            queues = self._queues
            self._queues = []
            queues.reverse()
            while queues:
                queue = queues.pop()
                try:
                    queue.pump(now)
                except Unavailable:
                    continue  # its store is down: its receivers are told by whoever watches stores
                except Exception:
                    self._queues = queues[::-1] + self._queues
                    raise
        self.number += 1
        records = self._records
        self._records = []
        for record in records:
            try:
                record.record(now)
            except Unavailable:
                continue  # what its store did not commit did not happen, and is not counted
        for journal in self._journals:
            journal.flush()
        connections = self._connections
        self._connections = []
        connections.reverse()
        while connections:
            connection = connections.pop()
            try:
                connection.flush()
            except Exception:
                self._connections = connections[::-1] + self._connections
                raise
        if self._later:
            later = self._later
            self._later = []
            for queue in later:
                queue.touch()

    def _due(self, now: int) -> None:
        timers = self._timers
        while timers and timers[0][0] <= now:
            at, _, queue = heapq.heappop(timers)
            try:
                queue.due(at, now)
            except Unavailable:
                continue  # replayed when the store comes back, timers included


class TurnSlot:
    """One queue's place in the turns: how its parts ask for attention."""

    __slots__ = ("_dirty", "owner", "turn", "wake_at")

    def __init__(self, turn: Turn, owner: Pumped) -> None:
        self.turn: Turn = turn
        self.owner: Pumped = owner
        self.wake_at: int = 0
        """When it is due; 0 = it has not asked for that."""
        self._dirty: bool = False

    def touch(self) -> None:
        if not self._dirty:
            self._dirty = True
            self.turn.add_queue(self)

    def touch_later(self) -> None:
        self.turn.add_later(self)

    def wake(self, at: int) -> None:
        """At this instant, or at an earlier one that was asked for before. 0: there is no such instant."""
        if at and (self.wake_at == 0 or at < self.wake_at):
            self.wake_at = at
            self.turn.add_timer(self, at)

    def forget_wakes(self) -> None:
        self.wake_at = 0

    def pump(self, now: int) -> None:
        self._dirty = False
        self.owner.pump(now)

    def due(self, at: int, now: int) -> None:
        """A timer that was set for `at` goes off."""
        if self.wake_at == at:
            self.wake_at = 0
            self.owner.due(now)
