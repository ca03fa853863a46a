"""Every change of state, told once: to callbacks, to the log, and to plain counters anybody may read."""

from __future__ import annotations

import collections
import dataclasses
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

log = logging.getLogger("tandem.client")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened. `at_ms` is UTC milliseconds; `detail` is a sentence for a person."""

    at_ms: int
    kind: str
    path: str = ""
    detail: str = ""
    error: BaseException | None = None


Callback = Callable[[Event], None]

_LEVELS = {
    "path-suspect": logging.WARNING,
    "path-failed-over": logging.ERROR,
    "path-poisoned": logging.ERROR,
    "path-healthy": logging.WARNING,
    "backlog-queue-out": logging.WARNING,
    "backlog-queue-readmitted": logging.INFO,
    "namespace-faulted": logging.ERROR,
    "namespace-closed": logging.WARNING,
    "backlog-assumed": logging.WARNING,
    "backlog-unavailable": logging.WARNING,
    "roles-switched": logging.WARNING,
    "dead-lettered": logging.WARNING,
    "destination-waiting": logging.WARNING,
    "ping-failed": logging.INFO,
}


class EventHub:
    """Tells each event to every subscriber, logs it, and keeps the last ones to look at."""

    def __init__(self, now_ms: Callable[[], int], recent_max: int = 1_000) -> None:
        self._now_ms = now_ms
        self._callbacks: list[Callback] = []
        self.recent: collections.deque[Event] = collections.deque(maxlen=recent_max)

    def subscribe(self, callback: Callback) -> Callable[[], None]:
        """Call `callback(event)` on the loop for every event from now on; returns what ends it. It must not block."""
        self._callbacks.append(callback)

        def unsubscribe() -> None:
            if callback in self._callbacks:
                self._callbacks.remove(callback)

        return unsubscribe

    def tell(self, kind: str, path: str = "", detail: str = "", error: BaseException | None = None) -> Event:
        event = Event(at_ms=self._now_ms(), kind=kind, path=path, detail=detail, error=error)
        self.recent.append(event)
        log.log(_LEVELS.get(kind, logging.INFO), "%s %s: %s", kind, path or "-", detail)
        for callback in tuple(self._callbacks):
            try:
                callback(event)
            except Exception:
                # A broken listener must not break sending; it is told where its owner looks first.
                log.exception("callback %r failed on %s", callback, kind)
        return event


@dataclass(slots=True)
class Counters:
    """Counts since the pair was made; plain numbers, read or export them as you like."""

    diverted: int = 0
    failed: int = 0
    refused: int = 0
    failovers: int = 0
    failbacks: int = 0
    pings_sent: int = 0
    pings_failed: int = 0
    backlog_queue_failures: int = 0
    syphon_receives: int = 0
    syphon_moved: int = 0
    syphon_dead_lettered: int = 0
    syphon_returned: int = 0
    destinations_waiting: int = 0
    """Destinations that the syphon waits for now: missing, disabled or full."""
    by_path: dict[str, PathCounters] = field(default_factory=dict)

    def message_failed(self, path: PathCounters) -> None:
        """It is stored nowhere."""
        self.failed += 1
        path.message_failed()

    def messages_diverted(self, path: PathCounters, count: int) -> None:
        self.diverted += count
        path.messages_diverted(count)

    def message_refused(self) -> None:
        """By ourselves, before anybody was asked."""
        self.refused += 1

    def failed_over(self) -> None:
        self.failovers += 1

    def failed_back(self) -> None:
        self.failbacks += 1

    def pinged(self) -> None:
        self.pings_sent += 1

    def ping_failed(self) -> None:
        self.pings_failed += 1

    def backlog_queue_failed(self) -> None:
        self.backlog_queue_failures += 1

    def syphon_asked(self) -> None:
        """One long poll."""
        self.syphon_receives += 1

    def syphoned(self, moved: int, returned: int) -> None:
        """What became of a batch."""
        self.syphon_moved += moved
        self.syphon_returned += returned

    def syphon_dead_letter(self) -> None:
        self.syphon_dead_lettered += 1

    def syphon_waits(self, destinations: int) -> None:
        """For so many, now."""
        self.destinations_waiting = destinations

    def path(self, key: str) -> PathCounters:
        counters = self.by_path.get(key)
        if counters is None:
            counters = self.by_path[key] = PathCounters()
        return counters

    @property
    def sent_primary(self) -> int:
        return sum(path.sent_primary for path in self.by_path.values())

    def snapshot(self) -> dict[str, object]:
        return {"sent_primary": self.sent_primary, **dataclasses.asdict(self)}


@dataclass(slots=True)
class PathCounters:
    sent_primary: int = 0
    diverted: int = 0
    failed: int = 0

    def primary_answered(self) -> None:
        self.sent_primary += 1

    def messages_diverted(self, count: int) -> None:
        self.diverted += count

    def message_failed(self) -> None:
        self.failed += 1
