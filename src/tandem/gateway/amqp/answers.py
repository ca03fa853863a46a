"""Answers that wait for the disk: one for a run of deliveries, sent when the journal has them, or another store has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandem.amqp.outcomes import ACCEPTED, encode_rejected
from tandem.broker.entities.partitioned import PartitionedQueue
from tandem.broker.ports import Effect
from tandem.model.errors import BusError, StoreUnavailable

if TYPE_CHECKING:
    from tandem.amqp.session import Session
    from tandem.broker.queue.queue import Queue
    from tandem.broker.recovery.cross_store import RowId
    from tandem.gateway.amqp.connection import PeerConnection
    from tandem.model.message import Message


class PendingDisposition(Effect):
    """A run of deliveries of one session that get the same answer once the disk knows."""

    __slots__ = ("client", "entity", "first", "last", "part", "receiver_role", "session", "state", "turn_number")

    def __init__(
        self, client: PeerConnection, session: Session, part: Queue, receiver_role: bool, first: int, state: bytes, turn_number: int
    ) -> None:
        self.client = client
        self.part: Queue = part
        """The queue, or the fragment, whose journal is waited for."""
        self.entity: str = part.path
        self.session = session
        self.receiver_role: bool = receiver_role
        self.first: int = first
        self.last: int = first
        self.state: bytes = state
        self.turn_number: int = turn_number

    def done(self, error: BaseException | None) -> None:
        client = self.client
        if client.gone:
            return
        if error is not None:
            self.state = encode_rejected(client.error_of(error, self.entity))
        context = client.context
        if context.faults_active and context.fault_points is not None and context.fault_points.at_answer(self):
            return
        self.session.send_disposition(self.receiver_role, self.first, self.last, True, self.state)
        client.touch()

    def send(self) -> None:
        """Late, after an injected delay."""
        if not self.client.gone:
            self.session.send_disposition(self.receiver_role, self.first, self.last, True, self.state)
            self.client.touch()


class ReroutableDisposition(PendingDisposition):
    """The same for messages that a fragment of a partitioned entity took. If its store fails before they are durable, those without a
    key are taken by another fragment, and their sender hears nothing but that they were accepted."""

    __slots__ = ("_arriving", "items", "queue")

    def __init__(self, client: PeerConnection, session: Session, queue: Queue, part: Queue, first: int, turn_number: int) -> None:
        super().__init__(client, session, part, True, first, ACCEPTED, turn_number)
        self.queue: Queue = queue
        """The whole of which `part` is a fragment."""
        self.items: list[tuple[list[Message], list[RowId]]] = []
        """Per delivery its messages, and their rows in the journal."""
        self._arriving: list[RowId] = []
        """Rows that a failed store may have on its disk all the same, and must give up when it is back."""

    def done(self, error: BaseException | None) -> None:
        queue = self.queue
        if not isinstance(queue, PartitionedQueue):
            super().done(error)
        elif error is None:
            if self._arriving:
                queue.arrived(self._arriving)
            super().done(None)
        elif not self.client.gone and isinstance(error, StoreUnavailable):
            self._go_elsewhere(queue)
        else:
            super().done(error)

    def _go_elsewhere(self, queue: PartitionedQueue) -> None:
        client = self.client
        now = client.turn.begin()
        self.part.out_of_service = True  # found out before whoever watches the stores did
        again: ReroutableDisposition | None = None
        delivery_id = self.first - 1
        for messages, rows in self.items:
            delivery_id += 1
            try:
                placed, left = queue.reroute(messages, rows, now)
            except BusError as refusal:
                again = None
                state = encode_rejected(client.error_of(refusal, self.entity))
                self.session.send_disposition(True, delivery_id, delivery_id, True, state)
                continue
            part = queue.part_used
            if again is not None and again.part is part:
                again.last = delivery_id
            else:
                again = ReroutableDisposition(client, self.session, queue, part, delivery_id, -1)
                part.when_durable(again)
            again.items.append((messages, left + placed))
            again._arriving.extend(left)
        client.touch()
        client.turn.schedule()
