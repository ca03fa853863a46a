"""Back-pressure: nobody is read from while more waits for the disk than memory should hold, or than fits into a turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from tandem.broker.ports import Journal

_TURN_BYTES_MAX: Final = 131_072
"""Of what was read in one pass of the event loop: the rest waits in the kernel while others have their turn."""


class Paused(Protocol):
    """A connection that can be left unread."""

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Backpressure:
    """Bytes taken from the network and not yet durable, over all stores; link credit bounds polite clients, this bounds the others."""

    def __init__(self, bytes_max: int, schedule: Callable[[], None]) -> None:
        self._bytes_max = bytes_max
        self._schedule = schedule
        """Asks for the turn at whose end `relieve` is called."""
        self._taken = 0
        self._journals: list[Journal] = []
        self._paused: list[Paused] = []

    def add(self, journal: Journal) -> None:
        self._journals.append(journal)

    def took(self, connection: Paused, count: int) -> None:
        """This connection has just brought so many bytes: is it to be left alone for a while?"""
        self._taken += count
        if self._taken >= _TURN_BYTES_MAX or self._behind(self._bytes_max):
            connection.pause_reading()
            self._paused.append(connection)
            self._schedule()

    def relieve(self) -> None:
        """At the end of a turn: go on reading, unless the disks have more than half of what they may have before them."""
        self._taken = 0
        if not self._paused or self._behind(self._bytes_max // 2):
            return
        paused, self._paused = self._paused, []
        for connection in paused:
            connection.resume_reading()

    def _behind(self, bytes_max: int) -> bool:
        for journal in self._journals:  # noqa: SIM110 - asked for every read: a generator would cost more than the answer
            if journal.pending_bytes > bytes_max:
                return True
        return False
