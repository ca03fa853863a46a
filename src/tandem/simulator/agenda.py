"""Virtual time: what is planned, in one order for everything, and whose it is. The hot half of `loop.py`, compiled where possible."""

from __future__ import annotations

import contextvars
import heapq
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from tandem.model.clock import Clock


class Machine:
    """Whoever owns callbacks: a broker's process, or the clients. Callbacks of a dead one never run, those of one that is stopped later."""

    __slots__ = ("alive", "asleep", "name", "postponed")

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.asleep = False
        """Nothing happens on it; whatever is due happens afterwards, in its order."""
        self.postponed: list[ScheduledCall] = []

    def die(self) -> None:
        self.alive = False

    @property
    def host(self) -> str:
        return self.name.partition("#")[0]


_copy_context: Final = contextvars.copy_context
_heappush: Final = heapq.heappush
_heappop: Final = heapq.heappop

CLIENTS: Final = Machine("clients")
MACHINE: Final[contextvars.ContextVar[Machine]] = contextvars.ContextVar("machine", default=CLIENTS)


class Stuck(Exception):
    """Nothing is planned and the story has not ended: somebody waits for what will never come."""


class ScheduledCall:
    """Quacks like asyncio.TimerHandle."""

    __slots__ = ("args", "callback", "context", "gone", "when_")

    def __init__(self, when: float, callback: Callable[..., object], args: tuple[Any, ...], context: contextvars.Context) -> None:
        self.when_ = when
        self.callback = callback
        self.args = args
        self.context = context
        self.gone = False

    def cancel(self) -> None:
        self.gone = True

    def cancelled(self) -> bool:
        return self.gone

    def when(self) -> float:
        return self.when_


class Agenda:
    """Time jumps to the next instant at which anything is planned. Exceptions that escape from a callback are collected in `mishaps`."""

    __slots__ = ("_number", "_ready", "_time", "_timers", "event_count", "failed", "mishaps", "now_ms", "over")

    def __init__(self) -> None:
        self._time = 0.0
        self.now_ms = 0
        self._number = 0
        self._ready: deque[ScheduledCall] = deque()
        self._timers: list[tuple[float, int, ScheduledCall]] = []
        self.over = False
        """Nothing is planned any more."""
        self.mishaps: list[BaseException] = []
        self.event_count = 0
        self.failed: BaseException | None = None
        """Set by whoever finds a promise broken: ends the run at once."""

    def time(self) -> float:
        return self._time

    def call_soon(self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None) -> ScheduledCall:
        event = ScheduledCall(self._time, callback, args, context if context is not None else _copy_context())
        if not self.over:
            self._ready.append(event)
        return event

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> ScheduledCall:
        return self._plan(self._time + delay, callback, args, context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> ScheduledCall:
        return self._plan(when, callback, args, context)

    def _plan(
        self, when: float, callback: Callable[..., object], args: tuple[Any, ...], context: contextvars.Context | None
    ) -> ScheduledCall:
        self._number += 1
        event = ScheduledCall(when, callback, args, context if context is not None else _copy_context())
        if not self.over:
            _heappush(self._timers, (when, self._number, event))
        return event

    def run(self, done: Callable[[], bool]) -> None:
        """All that is due now, then what is due next, until it is done or has failed: that is asked between the two."""
        ready = self._ready
        clients = CLIENTS
        while self.failed is None and not done():
            if not ready:
                self._advance()
            for _ in range(len(ready)):
                event = ready.popleft()
                if event.gone:
                    continue
                context = event.context
                machine: Machine = context.get(MACHINE, clients)
                if not machine.alive:
                    continue
                if machine.asleep:
                    machine.postponed.append(event)
                    continue
                self.event_count += 1
                try:
                    context.run(event.callback, *event.args)
                except Exception as error:  # noqa: BLE001 - the story judges it: nothing may escape from a callback
                    if machine.alive:
                        self.mishaps.append(error)

    def put_to_sleep(self, machine: Machine, seconds: float) -> None:
        """It stands still for so long, or until it is woken."""
        machine.asleep = True
        self.call_later(seconds, self.wake, machine, context=contextvars.Context())

    def wake(self, machine: Machine) -> None:
        """What was due meanwhile comes before anything else."""
        machine.asleep = False
        self._ready.extendleft(reversed(machine.postponed))
        machine.postponed.clear()

    def _advance(self) -> None:
        timers = self._timers
        while timers and timers[0][2].gone:
            _heappop(timers)
        if not timers:
            raise Stuck("nothing is planned any more")
        when = timers[0][0]
        if when > self._time:
            self._time = when
            self.now_ms = round(when * 1000)
        while timers and timers[0][0] <= when:
            self._ready.append(_heappop(timers)[2])

    def end(self) -> None:
        self.over = True
        self._ready.clear()
        self._timers.clear()


class SimClock(Clock):
    """An agenda's virtual time as instants. `ahead_ms` is what the machine's clock is wrong by; it is noticed when somebody looks."""

    __slots__ = ("_agenda", "_epoch_ms", "_noticed_ms", "ahead_ms")

    def __init__(self, agenda: Agenda, epoch_ms: int) -> None:
        self._agenda = agenda
        self._epoch_ms = epoch_ms
        self._noticed_ms: int = 0
        self.ahead_ms: int = 0

    def now_ms(self) -> int:
        return self._agenda.now_ms + self._epoch_ms + self._noticed_ms

    def steady_ms(self) -> int:
        return self._agenda.now_ms + self._epoch_ms

    @property
    def is_right(self) -> bool:
        """And known to be."""
        return self.ahead_ms == 0 and self._noticed_ms == 0

    def jumped(self) -> int:
        by_ms = self.ahead_ms - self._noticed_ms
        self._noticed_ms = self.ahead_ms
        return by_ms


class PowerCut(Exception):
    """The machine is off. Every later call to the disk raises it too, until it is restarted."""


class Stall(Protocol):
    @property
    def stalled_until(self) -> float: ...


class Busy(Protocol):
    """A disk that takes its time."""

    @property
    def faults(self) -> Stall: ...

    @property
    def latency(self) -> Callable[[], float]: ...


class SimWorker:
    """A thread in virtual time: one job after the other, each after the disk's latency, in its machine's context."""

    def __init__(self, agenda: Agenda, disk: Busy) -> None:
        self._agenda = agenda
        self._disk = disk
        self._jobs: deque[Callable[[], None]] = deque()
        self._planned = False

    def submit(self, job: Callable[[], None]) -> None:
        self._jobs.append(job)
        self._plan()

    def _plan(self) -> None:
        if not self._planned and self._jobs:
            self._planned = True
            at = max(self._agenda.time() + self._disk.latency(), self._disk.faults.stalled_until)
            self._agenda.call_at(at, self._run)

    def _run(self) -> None:
        self._planned = False
        if self._disk.faults.stalled_until > self._agenda.time():
            self._plan()
            return
        if self._jobs:
            try:
                self._jobs.popleft()()
            except PowerCut:
                return
            self._plan()

    def stop(self, timeout_seconds: float) -> bool:
        """The caller waits, so what is left is done now; a stalled disk keeps everybody waiting."""
        if self._disk.faults.stalled_until > self._agenda.time() and self._jobs:
            return False
        while self._jobs:
            self._jobs.popleft()()
        return True
