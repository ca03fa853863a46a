"""What the tests of every engine share: a loop that runs when told, a tenant that keeps books, effects that remember."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Protocol

from tandem.broker.facts import COUNTER, ENQUEUED, RELOCATED, SETTLED
from tandem.broker.ports import Effect, FetchEffect, Journal
from tandem.model.clock import Clock


class Loop:
    """The loop's thread is the test's: calls handed over by other threads run while the test waits for something."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.handed_over = 0

    def call(self, function: Callable[[], None]) -> None:
        self._calls.put(function)

    def run_until(self, condition: Callable[[], bool], seconds: float = 20) -> None:
        while not condition():
            self._calls.get(timeout=seconds)()
            self.handed_over += 1

    def run_ready(self) -> None:
        while not self._calls.empty():
            self._calls.get()()


class ManualClock(Clock):
    def __init__(self) -> None:
        self.now = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.now

    def steady_ms(self) -> int:
        return self.now_ms()

    def jumped(self) -> int:
        return 0


class Note(Effect):
    """Remembers that it was called, in which order and with what."""

    def __init__(self, log: list[tuple[str, BaseException | None]], name: str) -> None:
        self.log = log
        self.name = name

    def done(self, error: BaseException | None) -> None:
        self.log.append((self.name, error))


class Fetched(FetchEffect):
    def __init__(self) -> None:
        self.bodies: list[bytes] | None = None
        self.error: BaseException | None = None

    def fetched(self, bodies: list[bytes], error: BaseException | None) -> None:
        self.bodies = bodies
        self.error = error

    @property
    def arrived(self) -> bool:
        return self.bodies is not None


class Sink:
    """A tenant that writes down what it is told and wants nothing kept."""

    def __init__(self) -> None:
        self.replayed_facts: list[tuple[int, int, int, int, int, int, bytes, int, int]] = []
        self.offered: list[tuple[int, int, int, int, int, int, bytes, bytes | None, int]] = []
        self.left: list[set[int]] = []

    def replayed(self, kind: int, flags: int, entity: int, seq: int, at: int, aux: int, key: bytes, location: int, body_bytes: int) -> None:
        self.replayed_facts.append((kind, flags, entity, seq, at, aux, key, location, body_bytes))

    def relocate(
        self, kind: int, flags: int, entity: int, seq: int, at: int, aux: int, key: bytes, body: bytes | None, location: int
    ) -> bool:
        self.offered.append((kind, flags, entity, seq, at, aux, key, body, location))
        return False

    def segment_leaving(self, entities: set[int]) -> None:
        self.left.append(entities)


class Shop:
    """A tenant in the small: messages that come and go, and a counter per entity that must never run backwards."""

    def __init__(self) -> None:
        self.journal: Journal | None = None
        self.messages: dict[tuple[int, int], tuple[bytes, int]] = {}
        """(entity, seq) -> key, location."""
        self.counters: dict[int, int] = {}
        self.replays = 0

    def put(self, entity: int, key: bytes, body: bytes) -> int:
        assert self.journal is not None
        seq = self.counters.get(entity, 0) + 1
        self.counters[entity] = seq
        self.messages[entity, seq] = (key, self.journal.append(ENQUEUED, 0, entity, seq, 10, 20, key, body))
        return seq

    def settle(self, entity: int, seq: int) -> None:
        assert self.journal is not None
        _, location = self.messages.pop((entity, seq))
        self.journal.append(SETTLED, 0, entity, seq, 30, 0, b"", b"")
        self.journal.forget(location)

    def replayed(self, kind: int, flags: int, entity: int, seq: int, at: int, aux: int, key: bytes, location: int, body_bytes: int) -> None:
        assert self.journal is not None
        self.replays += 1
        if kind == ENQUEUED:
            before = self.messages.get((entity, seq))
            if before is not None:
                self.journal.forget(before[1])
            self.messages[entity, seq] = (key, location)
            self.counters[entity] = max(self.counters.get(entity, 0), seq)
        elif kind == SETTLED:
            gone = self.messages.pop((entity, seq), None)
            if gone is not None:  # a tombstone outlives what it buried by a segment or two
                self.journal.forget(gone[1])
        elif kind == COUNTER:
            self.counters[entity] = max(self.counters.get(entity, 0), seq)

    def relocate(
        self, kind: int, flags: int, entity: int, seq: int, at: int, aux: int, key: bytes, body: bytes | None, location: int
    ) -> bool:
        assert self.journal is not None
        if kind == ENQUEUED and self.messages.get((entity, seq), (b"", -1))[1] == location:
            if body is None:
                return True
            self.messages[entity, seq] = (key, self.journal.append(kind, flags | RELOCATED, entity, seq, at, aux, key, body))
        return False

    def segment_leaving(self, entities: set[int]) -> None:
        assert self.journal is not None
        for entity in sorted(entities):
            if entity in self.counters:
                self.journal.append(COUNTER, 0, entity, self.counters[entity], 0, 0, b"", b"")


class Opener(Protocol):
    def __call__(self) -> Journal: ...
