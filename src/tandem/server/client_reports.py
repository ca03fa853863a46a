"""What clients of paired namespaces report of themselves: paths and their states, the last events. In memory, and bounded."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Any, Final

from tandem.model.errors import ArgumentRefused

EVENTS_MAX: Final = 10_000
REPORTERS_MAX: Final = 1_000
PATHS_MAX: Final = 1_000
"""Of one reporter."""
_TEXT_CHARS_MAX: Final = 1_000
_STATES: Final = {"path-suspect": "suspect", "path-failed-over": "failed over", "path-poisoned": "poisoned", "path-healthy": "healthy"}


@dataclass(slots=True)
class ReportedPath:
    """One path of one client, as its last event left it."""

    state: str = "healthy"
    since_ms: int = 0
    failed_pings: int = 0
    detail: str = ""
    attempted: int = 0
    diverted: int = 0
    failed: int = 0

    def tell(self, event: dict[str, Any]) -> None:
        kind = event["kind"]
        if kind in _STATES:
            self.state, self.since_ms, self.detail = _STATES[kind], event["at_ms"], event["detail"]
            self.failed_pings = 0 if kind == "path-healthy" else self.failed_pings
        elif kind == "ping-failed":
            self.failed_pings += 1
        elif kind == "counters":
            self.attempted, self.diverted, self.failed = event["attempted"], event["diverted"], event["failed"]


@dataclass(slots=True)
class Reporter:
    who: str
    heard_at_ms: int = 0
    paths: dict[str, ReportedPath] = field(default_factory=dict)

    def tell(self, event: dict[str, Any], now: int) -> None:
        self.heard_at_ms = now
        path = event["path"]
        if path and (path in self.paths or len(self.paths) < PATHS_MAX):
            self.paths.setdefault(path, ReportedPath(since_ms=event["at_ms"])).tell(event)


class ClientReports:
    """Of one namespace. Lines are those of an event log (`client/event_log.py`)."""

    def __init__(self) -> None:
        self.reporters: OrderedDict[str, Reporter] = OrderedDict()
        """Who was heard last stands last."""
        self.events: deque[dict[str, Any]] = deque(maxlen=EVENTS_MAX)
        self._number = 0

    def take(self, lines: list[Any], now: int) -> int:
        """All or none of them; returns how many."""
        events = [_checked(line, number) for number, line in enumerate(lines, 1)]
        for event in events:
            self._apply(event, now)
        return len(events)

    def _apply(self, event: dict[str, Any], now: int) -> None:
        reporter = self.reporters.pop(event["who"], None) or Reporter(event["who"])
        self.reporters[event["who"]] = reporter
        reporter.tell(event, now)
        while len(self.reporters) > REPORTERS_MAX:
            self.reporters.popitem(last=False)
        if event["kind"] != "counters":
            self._number += 1
            self.events.append({"number": self._number, **event})

    def failed_over(self) -> list[str]:
        """Paths that some client has given up for now."""
        found = {
            path: None
            for reporter in self.reporters.values()
            for path, known in reporter.paths.items()
            if known.state in ("failed over", "poisoned")
        }
        return sorted(found)


def _checked(line: Any, number: int) -> dict[str, Any]:
    if not isinstance(line, dict):
        raise ArgumentRefused(f"line {number}: an object is expected")
    event: dict[str, Any] = {}
    for name in ("who", "kind", "path", "detail"):
        value = line.get(name, "")
        if not isinstance(value, str) or (name in ("who", "kind") and not value):
            raise ArgumentRefused(f"line {number}: '{name}' must be a text")
        event[name] = value[:_TEXT_CHARS_MAX]
    for name in ("at_ms", "attempted", "diverted", "failed"):
        value = line.get(name, 0 if name != "at_ms" else None)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ArgumentRefused(f"line {number}: '{name}' must be a number")
        event[name] = value
    return event
