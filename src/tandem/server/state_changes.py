"""State changes of a broker with their instants: of its stores, of itself, of its clock. Bounded; the oldest go first."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from tandem.broker.turn import Turn

_KEPT: Final = 10_000


class StateChanges:
    """`number` only grows."""

    def __init__(self, turn: Turn, tell: Callable[[dict[str, Any]], None]) -> None:
        self._turn = turn
        self._tell = tell
        self._number = 0
        self._events: deque[dict[str, Any]] = deque(maxlen=_KEPT)

    def record(self, subject: str, state: str, cause: str, before_ms: int = 0, namespace: str = "") -> None:
        """Without a namespace it is of the whole broker."""
        self._number += 1
        event = {"number": self._number, "at_ms": self._turn.now - before_ms, "subject": subject, "state": state, "cause": cause}
        if namespace:
            event["namespace"] = namespace
        self._events.append(event)
        self._tell(event)

    def of(self, namespace: str) -> list[dict[str, Any]]:
        """Of one namespace and of the whole broker, oldest first; what happens to others is nobody's business there."""
        return [event for event in self._events if event.get("namespace", namespace) == namespace]
