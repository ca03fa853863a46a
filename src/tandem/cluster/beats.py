"""When a node beats: on a thread of its own. Whoever simulates nodes beats in a time of its own instead."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from tandem.model.errors import EngineAway


class BeatingNode(Protocol):
    """What a beat is made of. Nothing here waits but `ask` and `heed`, which are called where waiting harms nobody."""

    interval_ms: int
    boot_ms: Callable[[], int]

    def ask(self, begun: int) -> Callable[[], None]:
        """One beat, and what it showed: what the loop is to make of it. Blocks."""
        ...

    def heed(self, seconds: float) -> Callable[[], None] | None:
        """Between two beats, for so long at most: what the loop is to do because another node said something. Blocks."""
        ...

    def is_away(self, cause: str) -> None:
        """On the loop: the engine did not take a beat, or did not answer between two."""

    def tell(self, what: Callable[[], None]) -> None:
        """From any thread: the loop does it."""

    def is_deposed(self) -> bool:
        """It must not beat any more."""
        ...

    def has_ended(self) -> None:
        """After the last beat."""


class Beats(Protocol):
    def start(self) -> None: ...

    def stop(self) -> None:
        """Returns when none is under way, or will not end soon."""


class ThreadBeats:
    """The engine may hang, and the loop goes on."""

    def __init__(self, node: BeatingNode) -> None:
        self._node = node
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="tandem-beats", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ending.set()
        if self._thread is not None:
            self._thread.join(5)

    def _run(self) -> None:
        node = self._node
        due = 0
        while not self._ending.is_set():
            begun = node.boot_ms()
            try:
                if begun < due:
                    told = node.heed((due - begun) / 1000)
                else:
                    due = begun + node.interval_ms
                    told = node.ask(begun)
            except EngineAway as error:
                away = error.description
                node.tell(lambda away=away: node.is_away(away))  # type: ignore[misc]
                self._ending.wait(node.interval_ms / 1000)
                continue
            if told is not None:
                node.tell(told)
            if node.is_deposed():
                return
        node.has_ended()
