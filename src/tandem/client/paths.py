"""One entity path in this process: its health, who is sending to it now, its failover timer and its pings."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from azure.servicebus.exceptions import OperationTimeoutError

from tandem.client.coupling import SideState
from tandem.client.errors import describe
from tandem.client.health import PathHealth, PathState, Transition
from tandem.client.ping import Pinger, PingResult, ping

if TYPE_CHECKING:
    from tandem.client.coupling import PairSide
    from tandem.client.events import Counters, EventHub, PathCounters
    from tandem.client.transport import Sender

_KINDS = {
    PathState.HEALTHY: "path-healthy",
    PathState.SUSPECT: "path-suspect",
    PathState.FAILED_OVER: "path-failed-over",
    PathState.POISONED: "path-poisoned",
}
_SILENCE_SECONDS_MIN = 1.0
"""A send may wait this long before anybody asks the primary whether it is there."""
_PROBE_SECONDS_MIN = 3.5
"""What a probe has for its answer at least; with the silence before it less than the 5 seconds a hang may cost beyond the interval."""


@dataclass(frozen=True, slots=True)
class PathStatus:
    """A path's state to look at. `seconds` is how long it has been so."""

    path: str
    state: PathState
    seconds: float
    failures: int
    last_error: BaseException | None
    held: bool
    held_sessions: int = 0
    """Sessions that are still diverted because their backlog is not home; only with `keep_session_order`."""


@dataclass(frozen=True, slots=True)
class PathSettings:
    failover_interval_ms: int
    ping_interval: float
    ping_timeout: float


class PathMonitor:
    """Turns outcomes, and sends that have none yet, into state changes, and those into timers, pings, events and counters."""

    def __init__(
        self,
        path: str,
        primary: PairSide,
        settings: PathSettings,
        events: EventHub,
        counters: Counters,
        random_id: Callable[[], str],
        unreachable: Callable[[BaseException], bool],
    ) -> None:
        self.path = path
        self._primary = primary
        self._settings = settings
        self._events = events
        self._counters = counters
        self._random_id = random_id
        self._unreachable = unreachable
        self._loop = asyncio.get_running_loop()
        self.health = PathHealth(settings.failover_interval_ms, self.now())
        self.on_primary = True
        """Every send goes to the primary: the path is healthy, the primary open, no session held. One look says so to nearly every send."""
        self._holding = False
        self.counters: PathCounters = counters.path(path.casefold())
        self.senders: set[Sender] = set()
        """To the primary. What they have under way is cut short the moment the path fails over, so that it can be diverted in time."""
        self.healed = asyncio.Event()
        """Set while sends go to the primary."""
        self.healed.set()
        self.numbers = itertools.count()
        self.unanswered: dict[int, float] = {}
        """Sends to the primary under way, by number, and when each began; the oldest comes first."""
        self.answered_at = 0.0
        """When the primary was last heard of."""
        self.watching: asyncio.TimerHandle | None = None
        interval = settings.failover_interval_ms / 1000
        self._suspicious_after = max(interval / 2, _SILENCE_SECONDS_MIN)
        self._probe_after = max(interval - _PROBE_SECONDS_MIN, interval / 2)
        self._timer: asyncio.TimerHandle | None = None
        self._probe: asyncio.Task[None] | None = None
        self._pinger = Pinger(settings.ping_interval, self._ping_once, self._ping_cut_off)
        primary.watch(self._refresh_on_primary)
        self._refresh_on_primary(primary)

    def _refresh_on_primary(self, primary: PairSide) -> None:
        self.on_primary = self.health.state is PathState.HEALTHY and primary.state is SideState.OPEN and not self._holding
        if primary.state is not SideState.OPEN:
            self.stop()

    def hold(self, holding: bool) -> None:
        """Sessions of this path go on being diverted although it may be healthy."""
        self._holding = holding
        self._refresh_on_primary(self._primary)

    def now(self) -> int:
        return int(self._loop.time() * 1000)

    def status(self) -> PathStatus:
        health = self.health
        return PathStatus(self.path, health.state, (self.now() - health.since) / 1000, health.failures, health.last_error, health.held)

    # -- outcomes ------------------------------------------------------------------------------------------------------

    def began(self, at: float) -> int:
        """A send to the primary is under way from now on; its number, for `ended`."""
        number = next(self.numbers)
        self.unanswered[number] = at
        if self.watching is None:
            self.watch()
        return number

    def succeeded(self, number: int) -> None:
        """The primary accepted the send with this number."""
        del self.unanswered[number]
        self.answered_at = self._loop.time()
        if self.health.state is PathState.SUSPECT:
            self._apply(self.health.succeeded(self.now()), "a send was accepted")

    def ended(self, number: int) -> float:
        """The send with this number will get no answer any more; when it began."""
        return self.unanswered.pop(number)

    def failed(self, error: BaseException, began: float) -> None:
        """A send that began then did not reach the primary."""
        since = int(max(began, self.answered_at) * 1000)
        self._apply(self.health.failed(error, self.now(), since), describe(error))

    def interval_over_in(self) -> float:
        """Seconds until the failover interval may be over for a send that begins now; 0 if it is."""
        until = self.health.suspect_until
        return self._settings.failover_interval_ms / 1000 if until is None else max(0.0, (until - self.now()) / 1000)

    def fail_over(self, hold: bool) -> None:
        self._apply(self.health.fail_over(self.now(), hold), "by hand" + (", held until marked healthy" if hold else ""))

    def mark_healthy(self) -> None:
        self._apply(self.health.mark_healthy(self.now()), "by hand")

    # -- what follows from them ----------------------------------------------------------------------------------------

    def _apply(self, change: Transition | None, why: str) -> None:
        if change is None:
            return
        self._refresh_on_primary(self._primary)
        self._stop_timer()
        if change.after is PathState.SUSPECT:
            self._timer = self._loop.call_at(self.health.since / 1000 + self._probe_after, self._probe_due)
        elif change.after is PathState.FAILED_OVER:
            if change.before is not PathState.POISONED:
                self._counters.failed_over()
            self.healed.clear()
            self._pinger.start()
            for sender in self.senders:
                sender.interrupt()
        elif change.after is PathState.HEALTHY:
            self._pinger.stop()
            if change.before is not PathState.SUSPECT:
                self._counters.failed_back()
            self.healed.set()
        self._events.tell(_KINDS[change.after], self.path, f"{change.before.value} -> {change.after.value}: {why}", change.error)

    # -- silence -------------------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Look at the oldest send under way once it is late. One timer per path: it costs a send nothing."""
        oldest = next(iter(self.unanswered.values()))
        self.watching = self._loop.call_at(max(oldest, self.answered_at) + self._suspicious_after, self._look_for_silence)

    def _look_for_silence(self) -> None:
        self.watching = None
        if not self.unanswered or self.health.diverting:
            return
        now = self._loop.time()
        since = max(next(iter(self.unanswered.values())), self.answered_at)
        if now < since + self._suspicious_after:  # the very sum that the timer was set to: another form may differ by a rounding
            self.watch()
            return
        if self.health.at_once:
            self._ask()
        elif self.health.state is PathState.HEALTHY:
            host = self._primary.host
            self.failed(OperationTimeoutError(message=f"{self.path}: {host} has not answered a send for {now - since:.3g} s"), since)
        self.watching = self._loop.call_later(self._suspicious_after, self._look_for_silence)

    def _ask(self) -> None:
        """Send the probe, beside whatever else is waiting for an answer; one at a time."""
        if self._probe is None or self._probe.done():
            left = max(_PROBE_SECONDS_MIN, self.interval_over_in())
            self._probe = asyncio.ensure_future(self._probe_once(left))

    def _probe_due(self) -> None:
        """A single failure on a quiet path is no proof: ask the primary before the interval is over."""
        self._timer = self._loop.call_later(self.interval_over_in(), self._interval_over)
        if self.health.failures < 2:
            self._ask()

    def _interval_over(self) -> None:
        self._timer = None
        change = self.health.expired(self.now())
        if change is not None:
            self._apply(change, describe(change.error) if change.error else "no success within the failover interval")
        elif self.health.state is PathState.SUSPECT:
            self._ask()

    async def _probe_once(self, timeout: float) -> None:
        began = self._loop.time()
        _, error = await self._send_ping(timeout)
        if self.health.diverting or self.answered_at >= began:
            return
        if error is not None and self._unreachable(error):
            self.failed(error, began)
            return
        self.answered_at = self._loop.time()
        if self.health.state is PathState.SUSPECT:
            self._apply(self.health.succeeded(self.now()), "a probe was accepted" if error is None else "a probe was answered")

    # -- pings ---------------------------------------------------------------------------------------------------------

    async def _ping_once(self) -> None:
        result, error = await self._send_ping(self._settings.ping_timeout)
        if result is PingResult.ACCEPTED:
            self._apply(self.health.ping_succeeded(self.now()), "a ping was accepted")
        elif result is PingResult.REFUSED and error is not None:
            self._apply(self.health.ping_refused(error, self.now()), describe(error))

    def _ping_cut_off(self) -> None:
        self._counters.ping_failed()
        self._events.tell("ping-failed", self.path, "cut off without an answer: newer ones are on their way")

    async def _send_ping(self, timeout: float) -> tuple[PingResult, BaseException | None]:
        self._counters.pinged()
        result, error = await ping(self._primary.namespace, self.path, timeout, self._random_id)
        if error is not None:
            self._counters.ping_failed()
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
        if self.watching is not None:
            self.watching.cancel()
            self.watching = None
        self._pinger.stop()
