"""Back-pressure: nobody is read from while more waits for the disk than memory should hold."""

from __future__ import annotations

from typing import Protocol

from tandem.broker.journal import Journal


class Paused(Protocol):
    """A connection that can be left unread."""

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Ingress:
    """Bytes taken from the network and not yet durable, over all stores; link credit bounds polite clients, this bounds the others."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._journals: list[Journal] = []
        self._paused: list[Paused] = []

    def add(self, journal: Journal) -> None:
        self._journals.append(journal)

    def took(self, connection: Paused) -> None:
        """This connection has just brought something: is it to be left alone for a while?"""
        for journal in self._journals:
            if journal.pending_bytes > self._bytes_max:
                connection.pause_reading()
                self._paused.append(connection)
                return

    def relieve(self) -> None:
        """At the end of a turn: go on reading when the disks have caught up by half."""
        if not self._paused or any(journal.pending_bytes > self._bytes_max // 2 for journal in self._journals):
            return
        paused, self._paused = self._paused, []
        for connection in paused:
            connection.resume_reading()
