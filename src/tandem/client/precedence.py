"""Before messages of a session are sent home: are there earlier ones of it in the backlog that somebody else has, or that wait?

Syphons compete for messages, locks end, and a session may have changed queues while one was down. Whoever sends a message of a session
kept in order has seen that all before it are home or sends them himself, first. So each syphon alone keeps the order, and all do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tandem.client.places import Key, Place, gaps, read_after

PAGE: Final = 250
_SEEN_MAX: Final = 5_000


@dataclass(frozen=True, slots=True)
class Standing:
    """One message in our hands, as far as order is concerned."""

    sequence_number: int
    enqueued_ms: int
    key: Key
    after: str | None
    """As in the envelope; None: its session is not kept in order."""


@dataclass(frozen=True, slots=True)
class Earlier:
    """What stands before ours in our own queue."""

    keys: frozenset[Key]
    paths: frozenset[str]
    everything: bool
    """Too much to look through: all of ours wait."""

    def before_session(self, key: Key) -> bool:
        return self.everything or key in self.keys

    def before_fence(self, path: str) -> bool:
        return self.everything or path in self.paths


def earlier(places: Iterable[Place], complete: bool) -> Earlier:
    seen = [place for place in places if not place.fence]
    keys = frozenset(place.key for place in seen if place.key is not None)
    return Earlier(keys, frozenset(place.path for place in seen), not complete)


class GapSearch:
    """Looks through the gaps: usually one look at the head of the queue says that there is nobody."""

    def __init__(self, sequence_numbers: Collection[int]) -> None:
        self._mine = set(sequence_numbers)
        self._gaps = gaps(self._mine)
        self._found: list[Place] = []
        self._complete = True
        self.page = 1
        self.start = self._gaps[0][0] if self._gaps else 0
        """Where to look next; 0 when all is seen."""

    def see(self, page: Sequence[Place]) -> None:
        self._found += [place for place in page if place.sequence_number not in self._mine and place.sequence_number < self._gaps[-1][1]]
        self.start = self._next(page[-1].sequence_number + 1) if page else 0
        self.page = min(PAGE, self.page * 8)
        if len(self._found) > _SEEN_MAX:
            self.start, self._complete = 0, False

    def _next(self, start: int) -> int:
        return next((max(start, first) for first, end in self._gaps if end > start), 0)

    def result(self) -> Earlier:
        return earlier(self._found, self._complete)


class OtherQueue:
    """Which of ours have to wait for what stands in another queue. Of two of the same instant the one in the lower queue goes first."""

    def __init__(self, other: str, queue: str, standings: Sequence[Standing]) -> None:
        self._tie = 1 if other < queue else 0
        self._all = standings
        self._last_ms = max(standing.enqueued_ms for standing in standings)
        self._by_key: dict[Key, list[Standing]] = {}
        for standing in standings:
            self._by_key.setdefault(standing.key, []).append(standing)
        self._seen = 0
        self.waiting: set[int] = set()
        """Sequence numbers of ours."""
        self.start = 1
        """Where to look next; 0 when all is seen."""

    def see(self, page: Sequence[Place]) -> None:
        for place in page:
            for standing in self._by_key.get(place.key, ()) if place.key is not None else ():
                if place.enqueued_ms < standing.enqueued_ms + self._tie:
                    self.waiting.add(standing.sequence_number)
        self._seen += len(page)
        self.start = page[-1].sequence_number + 1 if page and page[-1].enqueued_ms <= self._last_ms else 0
        if self.start and self._seen > _SEEN_MAX:
            self.unknown()

    def unknown(self) -> None:
        """It is away, or too long to look through: all of ours wait."""
        self.waiting = {standing.sequence_number for standing in self._all}
        self.start = 0


def others(queue: str, all_queues: Sequence[str], marked: Iterable[Standing]) -> Mapping[str, list[Standing]]:
    """The other queues that may have earlier ones of the sessions of these."""
    wanted: dict[str, list[Standing]] = {}
    for standing in marked:
        for name in read_after(standing.after or "", queue, all_queues):
            wanted.setdefault(name, []).append(standing)
    return wanted


@dataclass(slots=True)
class Permission:
    """How much of what was received may be sent home now."""

    earlier: Earlier
    waiting: set[int] = field(default_factory=set)
    """Sequence numbers of those that have to wait for another queue."""

    def count(self, lane: Sequence[Standing]) -> int:
        """How many of one session's messages, from the front."""
        if all(standing.after is None for standing in lane):
            return len(lane)
        if self.earlier.before_session(lane[0].key):
            return 0
        return next((at for at, standing in enumerate(lane) if standing.sequence_number in self.waiting), len(lane))
