"""Drives a broker's turns from its event loop: soon after one is asked for, when something is due, and for housekeeping."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from tandem.broker.ports import Journal
from tandem.broker.turn import Turn
from tandem.model.clock import Clock
from tandem.model.histogram import Histogram
from tandem.server.backpressure import Backpressure
from tandem.server.context import NamespaceContext

_DISTRUST_MS: Final = 10_000
"""After the clock was set nobody is cut off for an old token for so long: clocks that were set wrong are often set right soon."""


def _ignore_jump(by_ms: int) -> None:
    """Until somebody wants to know."""


class Chore(Protocol):
    """What nobody waits for: called a few times a second, it decides for itself how often to look."""

    def look_after(self, now: int) -> None: ...

    def clock_jumped(self, by_ms: int) -> None:
        """The machine's clock was set by so much, and `now` with it."""


class TurnDriver:
    """Drives the turns of one broker from one event loop."""

    def __init__(self, clock: Clock, connection_clock: Clock, ingress_bytes_max: int, real_time: bool) -> None:
        self._clock = clock
        self._connection_clock = connection_clock
        self.on_jump: Callable[[int], None] = _ignore_jump
        """Told when the machine's clock was set, and by how much."""
        self._real_time = real_time
        """False: the clock is moved by a test, which then calls `run_turn`."""
        self.turn = Turn(clock, self._schedule_turn)
        self.backpressure = Backpressure(ingress_bytes_max, self.turn.schedule)
        self.contexts: list[NamespaceContext] = []
        self.chores: list[Chore] = []
        self.journals: list[Journal] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0
        self._tick_seconds = 0.0
        self._ticks: asyncio.TimerHandle | None = None
        self._handing_over = False
        self.loop_lag = Histogram()
        """How late the loop came to a tick."""
        self._tick_due = 0.0

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def add_journal(self, journal: Journal) -> None:
        self.journals.append(journal)
        self.backpressure.add(journal)

    # -- turns -------------------------------------------------------------------------------

    def _schedule_turn(self) -> None:
        if self._loop is not None and not self._handing_over:
            self._loop.call_soon(self.run_turn)

    def run_turn(self) -> None:
        """One turn; arms the timer for the next instant anything is due."""
        turn = self.turn
        turn.run()
        self.backpressure.relieve()
        if not self._real_time or self._loop is None:
            return
        at = turn.deadline()
        if at == self._timer_at and self._timer is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at = at
        if at:
            self._timer = self._loop.call_later(max(at - turn.now, 0) / 1000, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self.run_turn()

    def hand_over(self, work: Callable[[], None]) -> None:
        """From a store's thread to the loop."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._take_over, work)

    def _take_over(self, work: Callable[[], None]) -> None:
        """A store has news. Whoever waited for it is answered now, not after one more pass of the event loop."""
        quiet = not self.turn.scheduled
        self._handing_over = quiet
        try:
            work()
        finally:
            self._handing_over = False
            if quiet and self.turn.scheduled:
                self.run_turn()

    # -- housekeeping ------------------------------------------------------------------------

    def start_housekeeping(self, seconds: float) -> None:
        self._tick_seconds = seconds
        self._tick()

    def stop_housekeeping(self) -> None:
        if self._ticks is not None:
            self._ticks.cancel()
            self._ticks = None

    def _tick(self) -> None:
        assert self._loop is not None
        again = self._ticks is not None
        now = self._loop.time()
        if again:
            self.loop_lag.observe((now - self._tick_due) * 1000)
        self._tick_due = now + self._tick_seconds
        self._ticks = self._loop.call_later(self._tick_seconds, self._tick)
        if again:
            self.run_housekeeping()

    def check_clock(self) -> None:
        """Whether it was set, and everybody is told."""
        by_ms = self._clock.jumped()
        theirs = by_ms if self._connection_clock is self._clock else self._connection_clock.jumped()
        if theirs:
            for context in self.contexts:
                context.distrust_clock_until(self._connection_clock.steady_ms() + _DISTRUST_MS)
        if not by_ms:
            return
        self.turn.begin()
        self._timer_at = -1  # whatever was planned is planned anew
        for context in self.contexts:
            context.namespace.clock_jumped(by_ms)
        for chore in self.chores:
            chore.clock_jumped(by_ms)
        self.on_jump(by_ms)

    def run_housekeeping(self) -> None:
        """The clock, heartbeats, silent peers, lapsed tokens, stores that fail, compaction."""
        turn = self.turn
        self.check_clock()
        turn.begin()
        now = self._connection_clock.steady_ms()
        for context in self.contexts:
            for client in list(context.connections):
                client.look_after(now)
        for chore in self.chores:
            chore.look_after(turn.now)
        for journal in self.journals:
            journal.step_compaction()
        self.run_turn()
