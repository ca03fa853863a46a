"""One path's health as a pure machine: outcomes and instants go in, transitions come out; it reads no clock and sends nothing.

    HEALTHY --unreachable, or unanswered--> SUSPECT --interval over, confirmed by a second failure or a probe--> FAILED_OVER
    HEALTHY --unreachable, interval 0--> FAILED_OVER          SUSPECT --any success--> HEALTHY
    FAILED_OVER --ping succeeds or marked healthy--> HEALTHY  FAILED_OVER --ping refused for good--> POISONED --ping succeeds--> HEALTHY

Instants are milliseconds of any clock that never jumps; durations are what matters here, so callers hand in a monotonic one.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class PathState(enum.Enum):
    HEALTHY = "healthy"
    SUSPECT = "suspect"
    FAILED_OVER = "failed over"
    POISONED = "poisoned"


@dataclass(frozen=True, slots=True)
class Transition:
    before: PathState
    after: PathState
    at: int
    error: BaseException | None


_DIVERTING = (PathState.FAILED_OVER, PathState.POISONED)


class PathHealth:
    """The state of one entity path in one process. Every method that may change it returns the change, or None."""

    __slots__ = ("_interval_ms", "at_once", "failures", "held", "last_error", "since", "state")

    def __init__(self, failover_interval_ms: int, now: int) -> None:
        self._interval_ms = failover_interval_ms
        self.at_once = failover_interval_ms == 0
        """The first failure of a healthy path switches."""
        self.state = PathState.HEALTHY
        self.since = now
        self.failures = 0
        self.last_error: BaseException | None = None
        self.held = False
        """Failed over by hand and to stay so until marked healthy by hand."""

    @property
    def diverting(self) -> bool:
        return self.state in _DIVERTING

    @property
    def suspect_until(self) -> int | None:
        """When the failover interval ends; None unless suspect. It runs from the start of the first send that failed, or got no answer."""
        return self.since + self._interval_ms if self.state is PathState.SUSPECT else None

    def succeeded(self, now: int) -> Transition | None:
        """A send was accepted by the primary. In failed-over state only a ping heals: this one may have started long ago."""
        if self.state is PathState.SUSPECT:
            return self._become(PathState.HEALTHY, now, None)
        return None

    def failed(self, error: BaseException, now: int, since: int | None = None) -> Transition | None:
        """A send or a probe did not reach the primary, which has not been heard of `since` then: when the send began."""
        self.last_error = error
        if self.state is PathState.HEALTHY:
            self.failures = 1
            change = self._become(PathState.FAILED_OVER if self.at_once else PathState.SUSPECT, now, error)
            if since is not None and not self.at_once:
                self.since = min(since, now)
            return change
        if self.state is PathState.SUSPECT:
            self.failures += 1
            return self.expired(now)
        return None

    def expired(self, now: int) -> Transition | None:
        """The interval may be over: switch if a second failure has confirmed the first, else wait for a probe."""
        until = self.suspect_until
        if until is None or now < until or self.failures < 2:
            return None
        return self._become(PathState.FAILED_OVER, now, self.last_error)

    def ping_succeeded(self, now: int) -> Transition | None:
        if self.state is PathState.HEALTHY or self.held:
            return None
        return self._become(PathState.HEALTHY, now, None)

    def ping_refused(self, error: BaseException, now: int) -> Transition | None:
        """The primary answers, and the answer is a lasting no: later sends must hear it instead of being diverted."""
        self.last_error = error
        if self.state is not PathState.FAILED_OVER or self.held:
            return None
        return self._become(PathState.POISONED, now, error)

    def fail_over(self, now: int, hold: bool) -> Transition | None:
        self.held = hold
        if self.state is PathState.FAILED_OVER:
            return None
        return self._become(PathState.FAILED_OVER, now, None)

    def mark_healthy(self, now: int) -> Transition | None:
        self.held = False
        if self.state is PathState.HEALTHY:
            return None
        return self._become(PathState.HEALTHY, now, None)

    def _become(self, after: PathState, now: int, error: BaseException | None) -> Transition:
        before = self.state
        self.state = after
        self.since = now
        if after is PathState.HEALTHY:
            self.failures = 0
            self.last_error = None
            self.held = False
        return Transition(before, after, now, error)
