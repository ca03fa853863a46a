"""Which messages of a page a task may send home, so that sessions kept in order stay so among all syphons."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from tandem.amqp import decode_message
from tandem.client.places import ANYWHERE, Place, place_of
from tandem.client.precedence import PAGE, DivertedMessage, Earlier, GapSearch, OtherQueue, Precedence, others
from tandem.engine_client.blocking import TransportError
from tandem.spark.connector.connections import connection, drop, unreachable

if TYPE_CHECKING:
    from tandem.spark.connector.options import Where

_SEQUENCE_NUMBER = "x-opt-sequence-number"
_ENQUEUED = "x-opt-enqueued-time"


class BacklogPrecedence:
    """Of one attempt at one backlog queue."""

    def __init__(self, secondary: Where, queue: str) -> None:
        self._secondary = secondary
        self._queue = queue
        self._seen: set[int] = set()
        """Sequence numbers this attempt has taken."""
        self._order = Precedence()

    def divide(self, page: Sequence[DivertedMessage]) -> tuple[list[DivertedMessage], list[DivertedMessage]]:
        """(those that may go now, those that have to wait), each in order."""
        self._seen.update(message.sequence_number for message in page)
        if not any(message.in_order or message.fence for message in page):
            return list(page), []
        earlier = self._look_before(self._seen)
        elsewhere = self._look_elsewhere([message for message in page if message.destination.after])
        return self._order.divide(page, earlier, elsewhere)

    # -- looking -----------------------------------------------------------------------------

    def _look_before(self, numbers: Collection[int]) -> Earlier:
        search = GapSearch(numbers)
        while search.start:
            search.see(self._browse(self._queue, search.start, search.page))
        return search.result()

    def _look_elsewhere(self, marked: Sequence[DivertedMessage]) -> set[int]:
        waiting: set[int] = set()
        all_queues = self._siblings() if any(message.destination.after == ANYWHERE for message in marked) else []
        for name, concerned in others(self._queue, all_queues, marked).items():
            other = OtherQueue(name, self._queue, concerned)
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


def _place(payload: bytes) -> Place:
    message = decode_message(payload)
    notes: dict[Any, Any] = message.message_annotations
    return place_of(int(notes[_SEQUENCE_NUMBER]), int(notes[_ENQUEUED]), message.application_properties, notes)
