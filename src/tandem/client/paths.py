"""One entity path in this process: its health, who is sending to it now, its failover timer and its pings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tandem.client.coupling import SideState
from tandem.client.errors import describe
from tandem.client.health import PathHealth, PathState, Transition
from tandem.client.ping import Pinger, PingResult, ping

if TYPE_CHECKING:
    from tandem.client.coupling import Side
    from tandem.client.events import Counters, EventHub, PathCounters
    from tandem.client.transport import Sender

_KINDS = {
    PathState.HEALTHY: "path-healthy",
    PathState.SUSPECT: "path-suspect",
    PathState.FAILED_OVER: "path-failed-over",
    PathState.POISONED: "path-poisoned",
}
_PROBE_SECONDS_MAX = 10.0


@dataclass(frozen=True, slots=True)
class PathStatus:
    """A path's state to look at. `seconds` is how long it has been so."""

    path: str
    state: PathState
    seconds: float
    failures: int
    last_error: BaseException | None
    held: bool


@dataclass(frozen=True, slots=True)
class PathSettings:
    failover_interval_ms: int
    ping_interval: float
    ping_timeout: float


class PathMonitor:
    """Turns outcomes into state changes, and state changes into timers, pings, events and counters."""

    def __init__(
        self,
        path: str,
        primary: Side,
        settings: PathSettings,
        events: EventHub,
        counters: Counters,
        random_id: Callable[[], str],
    ) -> None:
        self.path = path
        self._primary = primary
        self._settings = settings
        self._events = events
        self._counters = counters
        self._random_id = random_id
        self._loop = asyncio.get_running_loop()
        self.health = PathHealth(settings.failover_interval_ms, self.now())
        self.sunny = True
        """Healthy, and the primary is open: what nearly every send finds, in one look."""
        self.counters: PathCounters = counters.path(path.casefold())
        self.senders: set[Sender] = set()
        """To the primary. What they have under way is cut short the moment the path fails over, so that it can be diverted in time."""
        self.healed = asyncio.Event()
        """Set while sends go to the primary."""
        self.healed.set()
        self._timer: asyncio.TimerHandle | None = None
        self._probe: asyncio.Task[None] | None = None
        self._pinger = Pinger(settings.ping_interval, self._ping_once)
        primary.watch(self._look_at_the_sky)
        self._look_at_the_sky(primary)

    def _look_at_the_sky(self, primary: Side) -> None:
        self.sunny = self.health.state is PathState.HEALTHY and primary.state is SideState.OPEN

    def now(self) -> int:
        return int(self._loop.time() * 1000)

    def status(self) -> PathStatus:
        health = self.health
        return PathStatus(self.path, health.state, (self.now() - health.since) / 1000, health.failures, health.last_error, health.held)

    # -- outcomes ------------------------------------------------------------------------------------------------------

    def succeeded(self) -> None:
        if self.health.state is PathState.SUSPECT:
            self._apply(self.health.succeeded(self.now()), "a send was accepted")

    def failed(self, error: BaseException) -> None:
        self._apply(self.health.failed(error, self.now()), describe(error))

    def fail_over(self, hold: bool) -> None:
        self._apply(self.health.fail_over(self.now(), hold), "by hand" + (", held until marked healthy" if hold else ""))

    def mark_healthy(self) -> None:
        self._apply(self.health.mark_healthy(self.now()), "by hand")

    # -- what follows from them ----------------------------------------------------------------------------------------

    def _apply(self, change: Transition | None, why: str) -> None:
        if change is None:
            return
        self._look_at_the_sky(self._primary)
        self._stop_timer()
        if change.after is PathState.SUSPECT:
            self._timer = self._loop.call_later(self._settings.failover_interval_ms / 1000, self._interval_over)
        elif change.after is PathState.FAILED_OVER:
            self._counters.failovers += change.before is not PathState.POISONED
            self.healed.clear()
            self._pinger.start()
            for sender in self.senders:
                sender.interrupt()
        elif change.after is PathState.HEALTHY:
            self._pinger.stop()
            if change.before is not PathState.SUSPECT:
                self._counters.failbacks += 1
            self.healed.set()
        self._events.tell(_KINDS[change.after], self.path, f"{change.before.value} -> {change.after.value}: {why}", change.error)

    def _interval_over(self) -> None:
        """The failover interval is over. A single failure on a quiet path is no proof: ask the primary before leaving it."""
        self._timer = None
        change = self.health.expired(self.now())
        if change is not None:
            self._apply(change, describe(change.error) if change.error else "no success within the failover interval")
        elif self.health.state is PathState.SUSPECT:
            self._probe = asyncio.ensure_future(self._probe_once())

    async def _probe_once(self) -> None:
        result, error = await self._send_ping(min(self._settings.ping_timeout, _PROBE_SECONDS_MAX))
        if self.health.state is not PathState.SUSPECT:
            return
        if result is PingResult.UNANSWERED and error is not None:
            self.failed(error)
        elif result is PingResult.ACCEPTED:
            self._apply(self.health.succeeded(self.now()), "a probe was accepted")

    async def _ping_once(self) -> bool:
        """One ping; whether to go on pinging."""
        result, error = await self._send_ping(self._settings.ping_timeout)
        if result is PingResult.ACCEPTED:
            self._apply(self.health.ping_succeeded(self.now()), "a ping was accepted")
        elif result is PingResult.REFUSED and error is not None:
            self._apply(self.health.ping_refused(error, self.now()), describe(error))
        return self.health.diverting

    async def _send_ping(self, timeout: float) -> tuple[PingResult, BaseException | None]:
        self._counters.pings_sent += 1
        result, error = await ping(self._primary.namespace, self.path, timeout, self._random_id)
        if error is not None:
            self._counters.pings_failed += 1
            self._events.tell("ping-failed", self.path, describe(error), error)
        return result, error

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._probe is not None and self._probe is not asyncio.current_task():
            self._probe.cancel()
        self._probe = None

    def stop(self) -> None:
        """End timers and pings; the state stays as it is."""
        self._stop_timer()
        self._pinger.stop()
