"""One `fetch` on its way: bodies in memory are taken at once, others are read on the reader's thread, all are delivered on the loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tandem.broker.ports import FetchEffect
from tandem.model.errors import BusError


class BodySource(Protocol):
    def read(self, locations: list[int], damaged: list[str]) -> list[bytes]:
        """In the order asked for. One that fails its checksum is replaced by what says so, and a line is added to `damaged`."""
        ...


class Fetch:
    """`delivered` is called on the loop, once."""

    __slots__ = ("_count", "_delivered", "bodies", "damaged", "effect", "error", "found", "wanted")

    def __init__(self, count: int, effect: FetchEffect, delivered: Callable[[Fetch], None]) -> None:
        self._count = count
        self._delivered = delivered
        self.effect = effect
        self.wanted: list[int] = []
        self.found: dict[int, bytes] = {}
        self.bodies: list[bytes] = []
        self.damaged: list[str] = []
        """A line for each body that fails its checksum."""
        self.error: Exception | None = None

    def read(self, reader: BodySource) -> None:
        """On the reader's thread."""
        try:
            self.bodies = reader.read(self.wanted, self.damaged)
        except (OSError, BusError) as error:
            self.error = error

    def fail(self, error: Exception) -> None:
        self.error = error

    def deliver(self) -> None:
        self._delivered(self)

    def in_order(self) -> list[bytes]:
        if not self.found:
            return self.bodies
        read = iter(self.bodies)
        return [self.found[i] if i in self.found else next(read) for i in range(self._count)]
