"""State changes of all nodes in one table of the engine: a node's own log of them may be lost with its disk."""

from __future__ import annotations

import threading
from collections import deque
from typing import Final

from tandem.model.errors import EngineAway
from tandem.stores.postgres_connection import EngineConnection

_WAITING_MAX: Final = 10_000
"""While the engine is away; then the oldest are only in the node's own log."""
_PAUSE_SECONDS: Final = 1.0

Event = tuple[int, int, str, str, str]
"""Number in this process, instant, kind, what it is about, detail."""


class EngineEvents:
    """Of one process. Nobody waits for it: a thread writes them, each until the engine has it, and none twice."""

    def __init__(self, connection: EngineConnection, node: str, incarnation: int) -> None:
        self._connection = connection
        self._node = node
        self._incarnation = incarnation
        self._waiting: deque[Event] = deque(maxlen=_WAITING_MAX)
        self._more = threading.Condition()
        self._thread: threading.Thread | None = None

    def add(self, event: Event) -> None:
        with self._more:
            self._waiting.append(event)
            self._more.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tandem-events", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            with self._more:
                while not self._waiting:
                    self._more.wait()
                event = self._waiting[0]
            try:
                self._connection.execute(
                    "INSERT INTO tandem.event (node, incarnation, number, at_ms, kind, path, detail) VALUES (%s, %s, %s, %s, %s, %s, %s) "
                    "ON CONFLICT DO NOTHING",
                    (self._node, self._incarnation, *event),
                )
            except EngineAway:
                with self._more:
                    self._more.wait(_PAUSE_SECONDS)
                continue
            with self._more:
                if self._waiting and self._waiting[0] is event:
                    self._waiting.popleft()
                self._more.notify_all()

    def flush(self, seconds: float) -> bool:
        """Whether all are written after so long at most."""
        with self._more:
            return self._more.wait_for(lambda: not self._waiting, seconds)
