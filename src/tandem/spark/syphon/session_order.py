"""Whose turn it is: which messages of a page a task may send home, so that sessions kept in order stay so among all syphons."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tandem.amqp import decode_message
from tandem.client.envelope import Destination
from tandem.client.places import ANYWHERE, Key, Place, place_of
from tandem.client.precedence import PAGE, Earlier, GapSearch, OtherQueue, Standing, others
from tandem.engine_client.blocking import TransportError
from tandem.spark.connector.connections import connection, drop, unreachable

if TYPE_CHECKING:
    from tandem.spark.connector.options import Where

_SEQUENCE_NUMBER = "x-opt-sequence-number"
_ENQUEUED = "x-opt-enqueued-time"


@dataclass(frozen=True, slots=True)
class Letter:
    """One message of a page, the envelope taken off."""

    sequence_number: int
    enqueued_ms: int
    destination: Destination
    payload: bytes

    @property
    def fence(self) -> bool:
        return self.destination.fence

    @property
    def path(self) -> str:
        return self.destination.path.casefold()

    @property
    def key(self) -> Key:
        return self.path, self.destination.session_id or ""

    @property
    def in_order(self) -> bool:
        return self.destination.after is not None


class Turns:
    """Of one attempt at one backlog queue."""

    def __init__(self, secondary: Where, queue: str) -> None:
        self._secondary = secondary
        self._queue = queue
        self._seen: set[int] = set()
        """Sequence numbers this attempt has had in its hands."""
        self._held: dict[Key, int] = {}
        """Sessions that wait, with the first message that does: what stands before it may go."""

    def sort(self, page: Sequence[Letter]) -> tuple[list[Letter], list[Letter]]:
        """(those that may go now, those that have to wait), each in order."""
        self._seen.update(letter.sequence_number for letter in page)
        if not any(letter.in_order or letter.fence for letter in page):
            return list(page), []
        earlier = self._look_before(self._seen)
        elsewhere = self._look_elsewhere([_standing(letter) for letter in page if letter.destination.after])
        go: list[Letter] = []
        wait: list[Letter] = []
        for letter in page:
            (wait if self._waits(letter, earlier, elsewhere) else go).append(letter)
        return go, wait

    def _waits(self, letter: Letter, earlier: Earlier, elsewhere: Collection[int]) -> bool:
        if letter.fence:
            return earlier.before_fence(letter.path) or any(path == letter.path for path, _ in self._held)
        if not letter.in_order:
            return False
        number = letter.sequence_number
        first = self._held.get(letter.key)
        if first is not None and number > first:
            return True
        if earlier.before_session(letter.key) or number in elsewhere:
            self._held[letter.key] = number
            return True
        return False

    # -- looking -----------------------------------------------------------------------------

    def _look_before(self, numbers: Collection[int]) -> Earlier:
        search = GapSearch(numbers)
        while search.start:
            search.see(self._browse(self._queue, search.start, search.page))
        return search.result()

    def _look_elsewhere(self, marked: Sequence[Standing]) -> set[int]:
        waiting: set[int] = set()
        all_queues = self._siblings() if any(standing.after == ANYWHERE for standing in marked) else []
        for name, standings in others(self._queue, all_queues, marked).items():
            other = OtherQueue(name, self._queue, standings)
            try:
                while other.start:
                    other.see(self._browse(name, other.start, PAGE))
            except TransportError as error:
                if unreachable(error):
                    drop(self._secondary)
                other.unknown()
            waiting |= other.waiting
        return waiting

    def _siblings(self) -> list[str]:
        """All backlog queues of the pair, for messages that may follow any of them."""
        prefix = self._queue.rpartition("/")[0]
        names: list[str] = []
        for number in range(1_000):
            name = f"{prefix}/{number}"
            try:
                connection(self._secondary).request(name, "com.tandem:list-leases", {})
            except TransportError as error:
                if error.condition == "amqp:not-found":
                    return names
            names.append(name)
        return names

    def _browse(self, queue: str, start: int, count_max: int) -> list[Place]:
        client = connection(self._secondary)
        body: dict[str, object] = {"from-sequence-number": start, "message-count": client.int32(count_max)}
        answer = client.request(queue, "com.microsoft:peek-message", body)
        return [_place(bytes(one["message"])) for one in answer["messages"]] if answer is not None else []


def _standing(letter: Letter) -> Standing:
    return Standing(letter.sequence_number, letter.enqueued_ms, letter.key, letter.destination.after)


def _place(payload: bytes) -> Place:
    message = decode_message(payload)
    notes: dict[Any, Any] = message.message_annotations
    return place_of(int(notes[_SEQUENCE_NUMBER]), int(notes[_ENQUEUED]), message.application_properties, notes)
