"""Links of clients that send to an entity: where transfers become messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tandem.amqp.errors import AmqpError, DecodeError
from tandem.amqp.handlers import LinkHandler
from tandem.amqp.message import data_of, scan
from tandem.amqp.outcomes import ACCEPTED, encode_rejected, encode_transactional
from tandem.broker.entities.joined import AllOf
from tandem.broker.meters import REFUSED, SEND
from tandem.broker.queue.entity import MovablePlacement
from tandem.gateway import verbs
from tandem.gateway.amqp.answers import PendingDisposition, ReroutableDisposition, accept_when_durable
from tandem.gateway.amqp.settlements import transaction_of
from tandem.model.errors import BusError, DecodeFailed, MessageSizeExceeded, shutting_down
from tandem.model.message import Message

if TYPE_CHECKING:
    from tandem.amqp.link import Link, ReceiverLink
    from tandem.broker.queue.entity import Entity, Placement
    from tandem.gateway.amqp.connection import PeerConnection
    from tandem.model.address import Address

BATCH_FORMAT: Final = 0x80013700


class Sending(LinkHandler):
    """A client sends to an entity."""

    def __init__(self, connection: PeerConnection, queue: Entity, address: Address) -> None:
        self.connection = connection
        self.queue: Entity = queue
        self.address = address
        self._pending: PendingDisposition | None = None

    def on_transfer(
        self, link: ReceiverLink, delivery_id: int, tag: bytes, payload: bytes, settled: bool, message_format: int, state: bytes | None
    ) -> None:
        connection = self.connection
        queue = self.queue
        now = connection.turn.now
        try:
            if connection.context.draining:
                raise shutting_down()
            if state is not None and self._in_transaction(link, delivery_id, payload, settled, message_format, state):
                return
            if queue.terms.out_of_service:
                # Its store went down, and came back with the same queue replayed; or it is still down, which raises.
                queue = connection.context.namespace.resolve_sender(self.address)
                self.queue = queue
            if message_format == BATCH_FORMAT:
                self._send_batch(link, delivery_id, queue, payload, settled, now)
                return
            message = connection.translator.message(payload)
            placed = verbs.send(queue, message, now)
        except BusError as error:
            self._reject(link, delivery_id, settled, error)
            return
        if settled:
            queue.when_durable(verbs.NOTHING)
        elif placed.part is not queue:
            self._answer_for_fragment(link, delivery_id, placed)
        else:
            self._pending = accept_when_durable(self._pending, connection, link.session, queue, True, delivery_id)

    def _answer_for_fragment(self, link: ReceiverLink, delivery_id: int, placed: Placement) -> None:
        """A fragment took it: should its store fail before it is on its disk, another one takes it if it has no key."""
        pending = self._pending
        part = placed.part
        turn_number = self.connection.turn.number
        if not isinstance(placed, MovablePlacement):  # copies of it are in other stores too
            whole = PendingDisposition(self.connection, link.session, part, True, delivery_id, ACCEPTED, turn_number)
            self.queue.when_durable(whole)
        elif isinstance(pending, ReroutableDisposition) and pending.extend(delivery_id, part, ACCEPTED, turn_number):
            pending.items.append(placed)
        else:
            begun = ReroutableDisposition(self.connection, link.session, self.queue, part, delivery_id, turn_number, [placed], False)
            self._pending = begun
            part.when_durable(begun)

    def _send_batch(self, link: ReceiverLink, delivery_id: int, queue: Entity, payload: bytes, settled: bool, now: int) -> None:
        self._send_messages(
            link, delivery_id, queue, [self.connection.translator.message(part) for part in split_batch(payload)], settled, now
        )

    def _send_messages(self, link: ReceiverLink, delivery_id: int, queue: Entity, messages: list[Message], settled: bool, now: int) -> None:
        placed = verbs.send_all(queue, messages, now)
        if settled:
            queue.when_durable(verbs.NOTHING)
            return
        connection = self.connection
        parts: dict[Entity, None] = {}
        movable: list[MovablePlacement] = []
        for one in placed:
            parts[one.part] = None
            if isinstance(one, MovablePlacement):
                movable.append(one)
        if queue in parts:
            self._pending = accept_when_durable(self._pending, connection, link.session, queue, True, delivery_id)
        elif len(parts) == 1 and len(movable) == len(placed):
            holder = placed[0].part
            holder.when_durable(ReroutableDisposition(connection, link.session, queue, holder, delivery_id, -1, movable, True))
        else:
            # Keyless messages of a batch go to one fragment; others may be all over the stores, and all of those have to answer.
            pending = PendingDisposition(connection, link.session, queue, True, delivery_id, ACCEPTED, -1)
            if len(movable) < len(placed):
                queue.when_durable(pending)
                return
            joint = AllOf(pending, len(parts))
            for part in parts:
                part.when_durable(joint)

    def _in_transaction(
        self, link: ReceiverLink, delivery_id: int, payload: bytes, settled: bool, message_format: int, state: bytes
    ) -> bool:
        """A send in a transaction is answered at once and done when the transaction is. False: it is in none."""
        connection = self.connection
        found = transaction_of(state)
        if found is None:
            return False
        parts = split_batch(payload) if message_format == BATCH_FORMAT else [payload]
        try:
            self.queue = connection.context.namespace.resolve_sender(self.address)
            id_ = connection.transactions.send(found.txn_id, self.queue, [connection.translator.message(part) for part in parts])
        except BusError as error:
            if settled:
                connection.transactions.doom(found.txn_id, error)
            raise
        if not settled:
            connection.send_disposition(link.session, True, delivery_id, delivery_id, encode_transactional(id_, ACCEPTED), "")
        return True

    def _reject(self, link: ReceiverLink, delivery_id: int, settled: bool, error: BusError) -> None:
        connection = self.connection
        self.queue.metered(SEND, REFUSED)
        if settled:
            connection.log_presettled_refusal(error)
            return
        state = encode_rejected(connection.error_of(error, self.queue.path))
        connection.send_disposition(link.session, True, delivery_id, delivery_id, state, "")

    def on_oversize(self, link: ReceiverLink, delivery_id: int, tag: bytes, settled: bool) -> None:
        limit = self.queue.terms.message_bytes_max
        large = MessageSizeExceeded(f"The message exceeds the limit of {limit} bytes of '{self.queue.path}'.")
        self._reject(link, delivery_id, settled, large)

    def on_detach(self, link: Link, error: AmqpError | None) -> None:
        self.connection.link_gone(link)


def split_batch(payload: bytes) -> list[bytes]:
    """The messages of a batch: each Data section of the envelope is one; the envelope's other sections repeat the first's."""
    try:
        messages = data_of(payload, scan(payload))
    except DecodeError as error:
        raise DecodeFailed(f"The batch could not be decoded: {error}.") from error
    if not messages:
        raise DecodeFailed("The batch holds no messages.")
    return messages
