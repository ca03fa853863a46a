"""Answers that wait for the disk: one for a run of deliveries, sent when the journal has them, or another store has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandem.amqp.outcomes import ACCEPTED, encode_rejected
from tandem.broker.entities.partitioned import PartitionedQueue
from tandem.broker.ports import Effect
from tandem.broker.queue.entity import MovablePlacement
from tandem.model.errors import BusError, StoreUnavailable

if TYPE_CHECKING:
    from tandem.amqp.session import Session
    from tandem.broker.ports import RowId
    from tandem.broker.queue.entity import Entity
    from tandem.gateway.amqp.connection import PeerConnection


class PendingDisposition(Effect):
    """A run of deliveries of one session that get the same answer once the disk knows."""

    __slots__ = ("connection", "first", "last", "part", "receiver_role", "session", "state", "turn_number")

    def __init__(
        self, connection: PeerConnection, session: Session, part: Entity, receiver_role: bool, first: int, state: bytes, turn_number: int
    ) -> None:
        self.connection = connection
        self.part: Entity = part
        """The queue, or the fragment, whose journal is waited for."""
        self.session = session
        self.receiver_role: bool = receiver_role
        self.first: int = first
        self.last: int = first
        self.state: bytes = state
        self.turn_number: int = turn_number
        """Of the turn in which it may grow: a later one has a commit of its own."""

    def extend(self, delivery_id: int, part: Entity, state: bytes, turn_number: int) -> bool:
        """Does this delivery get the same answer? Then the run ends with it from now on."""
        if self.last + 1 != delivery_id or self.turn_number != turn_number or self.part is not part or self.state != state:
            return False
        self.last = delivery_id
        return True

    def done(self, error: BaseException | None) -> None:
        connection = self.connection
        if connection.gone:
            return
        entity = self.part.terms.path
        state = self.state if error is None else encode_rejected(connection.error_of(error, entity))
        connection.send_disposition(self.session, self.receiver_role, self.first, self.last, state, entity)


def accept_when_durable(
    run: PendingDisposition | None, connection: PeerConnection, session: Session, part: Entity, receiver_role: bool, delivery_id: int
) -> PendingDisposition:
    """Accepted, once the disk knows: the run under way if this delivery continues it, else a new one."""
    turn_number = connection.turn.number
    if run is not None and run.extend(delivery_id, part, ACCEPTED, turn_number):
        return run
    begun = PendingDisposition(connection, session, part, receiver_role, delivery_id, ACCEPTED, turn_number)
    part.when_durable(begun)
    return begun


class ReroutableDisposition(PendingDisposition):
    """The same for messages that a fragment of a partitioned entity took. If its store fails before they are durable, those without a
    key are taken by another fragment, and their sender hears nothing but that they were accepted."""

    __slots__ = ("_arriving", "_is_batch", "items", "queue")

    def __init__(
        self,
        connection: PeerConnection,
        session: Session,
        queue: Entity,
        part: Entity,
        first: int,
        turn_number: int,
        items: list[MovablePlacement],
        is_batch: bool,
    ) -> None:
        super().__init__(connection, session, part, True, first, ACCEPTED, turn_number)
        self.queue: Entity = queue
        """The whole of which `part` is a fragment."""
        self.items: list[MovablePlacement] = items
        """One for each delivery."""
        self._is_batch: bool = is_batch
        """All of them are of one delivery."""
        self._arriving: list[RowId] = []
        """Rows that a failed store may have on its disk all the same, and must give up when it is back."""

    def done(self, error: BaseException | None) -> None:
        queue = self.queue
        if not isinstance(queue, PartitionedQueue):
            super().done(error)
        elif error is None:
            if self._arriving:
                queue.rerouting.arrived(self._arriving)
            super().done(None)
        elif not self.connection.gone and isinstance(error, StoreUnavailable) and not self._may_move():
            self._go_elsewhere(queue)
        else:
            super().done(error)

    def _may_move(self) -> bool:
        """Whoever has the failed store next knows nothing of what was rerouted here: its sender tries again, or has duplicates detected."""
        far = self.connection.context.namespace.far
        return far is not None and far.stores_move()

    def _go_elsewhere(self, queue: PartitionedQueue) -> None:
        connection = self.connection
        now = connection.turn.begin()
        self.part.terms.leave_service(False)  # found out before whoever watches the stores did
        again: ReroutableDisposition | None = None
        delivery_id = self.first - 1
        for items in [self.items] if self._is_batch else [[item] for item in self.items]:
            delivery_id += 1
            messages = [item.message for item in items]
            try:
                part, placed, left = queue.rerouting.reroute(messages, [row for item in items for row in item.rows()], now)
            except BusError as refusal:
                again = None
                state = encode_rejected(connection.error_of(refusal, self.part.path))
                connection.send_disposition(self.session, True, delivery_id, delivery_id, state, "")
                continue
            if again is None or not again.extend(delivery_id, part, ACCEPTED, -1):
                again = ReroutableDisposition(connection, self.session, queue, part, delivery_id, -1, [], self._is_batch)
                part.when_durable(again)
            rows = left + placed
            for message in messages:
                again.items.append(MovablePlacement(part, 0, now, message, rows))
                rows = []  # they are those of all messages of the delivery
            again._arriving.extend(left)
        connection.touch()
        connection.turn.schedule()
