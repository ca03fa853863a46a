"""Before messages of a session are sent home: are there earlier ones of it in the backlog that somebody else has, or that wait?

Syphons compete for messages, locks end, and a session may have changed queues while one was down. Whoever sends a message of a session
kept in order has seen that all before it are home or sends them himself, first. So each syphon alone keeps the order, and all do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from tandem.client.envelope import Destination
from tandem.client.places import Key, Place, gaps, read_after

PAGE: Final = 250
_SEEN_MAX: Final = 5_000


@dataclass(frozen=True, slots=True)
class DivertedMessage:
    """One message that a syphon has taken from a backlog queue, the envelope taken off."""

    sequence_number: int
    enqueued_ms: int
    destination: Destination
    payload: bytes

    @property
    def path(self) -> str:
        """Without case."""
        return self.destination.path.casefold()

    @property
    def key(self) -> Key:
        return self.path, self.destination.session_id or ""

    @property
    def in_order(self) -> bool:
        """Its session is kept in order."""
        return self.destination.after is not None

    @property
    def fence(self) -> bool:
        """It only marks a place: never sent, passed when all before it are home."""
        return self.destination.fence


M = TypeVar("M", bound=DivertedMessage)


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

    def __init__(self, other: str, queue: str, messages: Sequence[DivertedMessage]) -> None:
        self._tie = 1 if other < queue else 0
        self._all = messages
        self._last_ms = max(message.enqueued_ms for message in messages)
        self._by_key: dict[Key, list[DivertedMessage]] = {}
        for message in messages:
            self._by_key.setdefault(message.key, []).append(message)
        self._seen = 0
        self.waiting: set[int] = set()
        """Sequence numbers of ours."""
        self.start = 1
        """Where to look next; 0 when all is seen."""

    def see(self, page: Sequence[Place]) -> None:
        for place in page:
            for message in self._by_key.get(place.key, ()) if place.key is not None else ():
                if place.enqueued_ms < message.enqueued_ms + self._tie:
                    self.waiting.add(message.sequence_number)
        self._seen += len(page)
        self.start = page[-1].sequence_number + 1 if page and page[-1].enqueued_ms <= self._last_ms else 0
        if self.start and self._seen > _SEEN_MAX:
            self.unknown()

    def unknown(self) -> None:
        """It is away, or too long to look through: all of ours wait."""
        self.waiting = {message.sequence_number for message in self._all}
        self.start = 0


def others(queue: str, all_queues: Sequence[str], marked: Iterable[DivertedMessage]) -> Mapping[str, list[DivertedMessage]]:
    """The other queues that may have earlier ones of the sessions of these."""
    wanted: dict[str, list[DivertedMessage]] = {}
    for message in marked:
        for name in read_after(message.destination.after or "", queue, all_queues):
            wanted.setdefault(name, []).append(message)
    return wanted


class Precedence:
    """Which messages of one attempt at a backlog queue may be sent home now."""

    def __init__(self) -> None:
        self._held: dict[Key, int] = {}
        """Sessions that wait, with the first message that does: what stands before it may go."""

    def divide(self, messages: Sequence[M], earlier: Earlier, elsewhere: Collection[int]) -> tuple[list[M], list[M]]:
        """(those that may go now, those that have to wait), each in order. `elsewhere`: those that have to wait for another queue."""
        go: list[M] = []
        wait: list[M] = []
        for message in messages:
            (wait if self._waits(message, earlier, elsewhere) else go).append(message)
        return go, wait

    def _waits(self, message: DivertedMessage, earlier: Earlier, elsewhere: Collection[int]) -> bool:
        if message.fence:
            return earlier.before_fence(message.path) or any(path == message.path for path, _ in self._held)
        if not message.in_order:
            return False
        number = message.sequence_number
        first = self._held.get(message.key)
        if first is not None and number > first:
            return True
        if earlier.before_session(message.key) or number in elsewhere:
            self._held[message.key] = number
            return True
        return False
