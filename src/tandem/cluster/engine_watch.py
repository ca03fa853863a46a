"""An engine beside the first, watched on a thread of its own: nobody waits for one that does not answer, and what it showed is kept."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Protocol

from tandem.cluster.membership import EngineView
from tandem.model.errors import ConfigurationError, EngineAway
from tandem.model.store_row import StoreRow

_FIRST_LOOK_SECONDS: Final = 10.0
"""So long a node that starts waits for an engine that may be away; then it starts without."""


class OtherEngine(Protocol):
    """Calls block, on one thread."""

    name: str

    def prepare(self) -> None:
        """Is it what it should be, and are its stores there? ConfigurationError with what to do if not."""

    def beat(self) -> None: ...

    def look(self) -> tuple[dict[str, tuple[int, int]], list[StoreRow]]:
        """By node its incarnation and beat there; and the stores that live there."""
        ...

    def give_up_after(self, milliseconds: int) -> None:
        """On any thread: a call that takes longer fails."""

    def close(self) -> None: ...


class EngineWatch:
    """Beats there as a node does in the first engine. Attributes are replaced whole: any thread may read them."""

    def __init__(self, engine: OtherEngine, interval_ms: int, boot_ms: Callable[[], int], log: Callable[[str], None]) -> None:
        self.name = engine.name
        self._engine = engine
        self._interval_ms = interval_ms
        self._boot_ms = boot_ms
        self._log = log
        self._ending = threading.Event()
        self._looked = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"tandem-beats-{engine.name}", daemon=True)
        self._prepared = False
        self.refused: ConfigurationError | None = None
        """Why it may not be used."""
        self.view = EngineView(at_ms=boot_ms())
        self.away = "not asked yet"
        """Why it cannot be used; empty: it answers."""
        self.beat_ms = 0

    def start(self) -> None:
        if not self._thread.is_alive():
            self._thread.start()

    def first_look(self) -> None:
        """Returns when it has answered, or will not soon. ConfigurationError if it is not what it should be."""
        self.start()
        if not self._looked.wait(_FIRST_LOOK_SECONDS):
            self._engine.give_up_after(0)
        if self.refused is not None:
            raise self.refused

    def stop(self) -> None:
        self._ending.set()
        self._engine.give_up_after(0)
        if self._thread.is_alive():
            self._thread.join(5)

    def is_late(self, milliseconds: int) -> bool:
        return self._boot_ms() - self.view.at_ms > milliseconds

    def hangs(self, after_ms: int, give_up_ms: int) -> None:
        """On the loop: nothing was heard of it for so long. A call that takes longer than `give_up_ms` fails."""
        self._engine.give_up_after(give_up_ms)
        if self.view.answers:
            self._cannot(f"no answer for more than {after_ms} ms")

    def _run(self) -> None:
        while not self._ending.is_set():
            begun = self._boot_ms()
            try:
                self._look(begun)
            except EngineAway as error:
                self._cannot(error.description)
            except ConfigurationError as error:
                self.refused = error
                if self._looked.is_set():  # else whoever starts hears it
                    self._cannot(str(error))
                self.away = str(error)
            self._looked.set()
            self._ending.wait(max(0, begun + self._interval_ms - self._boot_ms()) / 1000)
        self._engine.close()

    def _look(self, begun: int) -> None:
        if not self._prepared:
            self._engine.prepare()
            self._prepared, self.refused = True, None
        self._engine.beat()
        nodes, stores = self._engine.look()
        self.view = EngineView(self.view.beats + 1, nodes, tuple(stores), True, begun)
        self.beat_ms = self._boot_ms() - begun
        if self.away:
            if self._looked.is_set():
                self._log(f"engine {self.name} takes our beats again")
            self.away = ""

    def _cannot(self, why: str) -> None:
        if self.view.answers or not self._looked.is_set():
            self._log(f"engine {self.name} does not take our beats: {why}")
        self.away = why
        self.view = replace(self.view, answers=False)
