"""Links of attempts that may send the same message twice: each number of a scope is stored once, whichever attempt was first."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from tandem.amqp.errors import DecodeError
from tandem.amqp.message import decode_message
from tandem.amqp.outcomes import ACCEPTED
from tandem.broker.entities.joined import AllOf
from tandem.broker.ports import Effect
from tandem.broker.queue.entity import MovablePlacement
from tandem.gateway import verbs
from tandem.gateway.amqp.answers import PendingDisposition
from tandem.gateway.amqp.sending import BATCH_FORMAT, Sending, split_batch
from tandem.model.errors import BusError, DecodeFailed, InvalidField, ServerBusy

if TYPE_CHECKING:
    from tandem.amqp.link import ReceiverLink
    from tandem.broker.queue.entity import Entity
    from tandem.server.sent_once import SentOnce

ONCE: Final = "com.tandem:once"
"""Property of the link, echoed to say that it is understood; delivery annotation of a batch: [scope, numbers, eight bytes each]."""
_NUMBER: Final = Struct("<Q")


class SendingOnce(Sending):
    """Batches have the numbers of their messages; whatever else comes is taken as ever."""

    def on_transfer(
        self, link: ReceiverLink, delivery_id: int, tag: bytes, payload: bytes, settled: bool, message_format: int, state: bytes | None
    ) -> None:
        if message_format != BATCH_FORMAT or settled or state is not None:
            super().on_transfer(link, delivery_id, tag, payload, settled, message_format, state)
            return
        connection = self.connection
        seen = connection.context.sent_once
        try:
            scope, numbers = _numbers_in(payload)
            if self.queue.terms.out_of_service:
                self.queue = connection.context.namespace.resolve_sender(self.address)
            queue = self.queue
            parts = split_batch(payload)
            if len(parts) != len(numbers):
                raise InvalidField(f"{ONCE} numbers {len(numbers)} messages of a batch of {len(parts)}.")
            places = seen.unseen(scope, queue.path, numbers)
            if places is None:
                raise ServerBusy(f"Some of these messages are on their way to the disk of '{queue.path}' already. Try again.")
            placed = verbs.send_all(queue, [connection.translator.message(parts[place]) for place in places], connection.turn.now)
        except BusError as error:
            self._reject(link, delivery_id, settled, error)
            return
        fresh = [numbers[place] for place in places]
        seen.taken(scope, queue.path, fresh)
        answer = PendingDisposition(connection, link.session, queue, True, delivery_id, ACCEPTED, -1)
        noted = _Noted(answer, seen, scope, queue.path, fresh)
        used: dict[Entity, None] = {}
        for one in placed:
            used[one.part] = None
        if not used or not all(isinstance(one, MovablePlacement) for one in placed):
            queue.when_durable(noted)
            return
        joint = AllOf(noted, len(used))
        for part in used:
            part.when_durable(joint)


class _Noted(Effect):
    """The disk knows, or never will: remembered before anybody is told."""

    __slots__ = ("_answer", "_numbers", "_path", "_scope", "_seen")

    def __init__(self, answer: PendingDisposition, seen: SentOnce, scope: str, path: str, numbers: list[int]) -> None:
        self._answer = answer
        self._seen = seen
        self._scope = scope
        self._path = path
        self._numbers = numbers

    def done(self, error: BaseException | None) -> None:
        if error is None:
            self._seen.stored(self._scope, self._path, self._numbers)
        else:
            self._seen.lost(self._scope, self._path, self._numbers)
        self._answer.done(error)


def _numbers_in(payload: bytes) -> tuple[str, list[int]]:
    try:
        found = (decode_message(payload).delivery_annotations or {}).get(ONCE)
    except DecodeError as error:
        raise DecodeFailed(f"The batch could not be decoded: {error}.") from error
    if isinstance(found, list) and len(found) == 2 and isinstance(found[0], str) and isinstance(found[1], bytes) and not len(found[1]) % 8:
        return found[0], [number for (number,) in _NUMBER.iter_unpack(found[1])]
    raise InvalidField(f"A batch on a link with {ONCE} has a delivery annotation of that name: a list of scope and numbers.")
