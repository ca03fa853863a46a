"""Links of clients that send to an entity: where transfers become messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tandem.amqp.errors import AmqpError, DecodeError
from tandem.amqp.handlers import LinkHandler
from tandem.amqp.message import data_of, scan
from tandem.amqp.outcomes import (
    ACCEPTED,
    encode_rejected,
)
from tandem.broker.entities.gathering import AllOf
from tandem.broker.meters import REFUSED, SEND
from tandem.broker.ports import Effect
from tandem.gateway.amqp.answers import PendingDisposition, ReroutableDisposition
from tandem.gateway.amqp.transactions import transaction_of
from tandem.model.errors import BusError, DecodeFailed, MessageSizeExceeded
from tandem.model.message import Message

if TYPE_CHECKING:
    from tandem.amqp.link import Link, ReceiverLink
    from tandem.broker.queue.queue import Queue
    from tandem.broker.recovery.cross_store import RowId
    from tandem.gateway.amqp.connection import PeerConnection
    from tandem.model.address import Address

BATCH_FORMAT: Final = 0x80013700
_NOTHING: Final = Effect()


class Sending(LinkHandler):
    """A client sends to an entity."""

    def __init__(self, client: PeerConnection, queue: Queue, address: Address) -> None:
        self.client = client
        self.queue: Queue = queue
        self._address = address
        self._pending: PendingDisposition | None = None

    def on_transfer(
        self, link: ReceiverLink, delivery_id: int, tag: bytes, payload: bytes, settled: bool, message_format: int, state: bytes | None
    ) -> None:
        client = self.client
        queue = self.queue
        now = client.turn.now
        context = client.context
        if (
            context.faults_active
            and context.fault_points is not None
            and context.fault_points.at_send(client, queue, link, delivery_id, settled)
        ):
            return
        try:
            if state is not None and self._in_transaction(link, delivery_id, payload, settled, message_format, state):
                return
            if queue.out_of_service:
                # Its store went down, and came back with the same queue replayed; or it is still down, which raises.
                queue = context.namespace.resolve_sender(self._address)
                self.queue = queue
            if message_format == BATCH_FORMAT:
                messages = [client.translator.message(part) for part in split_batch(payload)]
                queue.check_sends(messages)
                placed = [self._enqueue(queue, message, now) for message in messages]
            else:
                message = client.translator.message(payload)
                queue.enqueue(message, now)
        except BusError as error:
            self._reject(link, delivery_id, settled, error)
            return
        queue.accessed_at = now
        if settled:
            queue.when_durable(_NOTHING)
            return
        part = queue.part_used
        if part is not queue:
            if message_format == BATCH_FORMAT:
                self._confirm_batch(link, delivery_id, messages, placed)
            else:
                self._confirm_fragment(link, delivery_id, part, [message], queue.rows_used)
            return
        turn_number = client.turn.number
        pending = self._pending
        if pending is not None and pending.turn_number == turn_number and pending.last + 1 == delivery_id and pending.part is part:
            pending.last = delivery_id
            return
        pending = PendingDisposition(client, link.session, part, True, delivery_id, ACCEPTED, turn_number)
        self._pending = pending
        part.when_durable(pending)

    def _enqueue(self, queue: Queue, message: Message, now: int) -> tuple[Queue, list[RowId] | None]:
        """Where it went, and its rows there."""
        queue.enqueue(message, now)
        return queue.part_used, queue.rows_used

    def _confirm_fragment(
        self, link: ReceiverLink, delivery_id: int, part: Queue, messages: list[Message], rows: list[RowId] | None
    ) -> None:
        """A fragment took them: should its store fail before they are on its disk, another one takes those that have no key."""
        client = self.client
        turn_number = client.turn.number
        pending = self._pending
        if rows is None:  # copies of it are in other stores too
            self.queue.when_durable(PendingDisposition(client, link.session, part, True, delivery_id, ACCEPTED, turn_number))
        elif (
            isinstance(pending, ReroutableDisposition)
            and pending.turn_number == turn_number
            and pending.last + 1 == delivery_id
            and pending.part is part
        ):
            pending.last = delivery_id
            pending.items.append((messages, rows))
        else:
            rerouting = ReroutableDisposition(client, link.session, self.queue, part, delivery_id, turn_number)
            rerouting.items.append((messages, rows))
            self._pending = rerouting
            part.when_durable(rerouting)

    def _confirm_batch(
        self, link: ReceiverLink, delivery_id: int, messages: list[Message], placed: list[tuple[Queue, list[RowId] | None]]
    ) -> None:
        """Keyless messages of a batch go to one fragment; others may be all over the stores, and all of those have to answer."""
        parts: dict[Queue, None] = {}
        rows: list[RowId] = []
        movable = True
        for part, own in placed:
            parts[part] = None
            if own is None:
                movable = False
            else:
                rows.extend(own)
        if len(parts) == 1:
            self._confirm_fragment(link, delivery_id, placed[0][0], messages, rows if movable else None)
            return
        pending = PendingDisposition(self.client, link.session, self.queue, True, delivery_id, ACCEPTED, -1)
        if not movable:
            self.queue.when_durable(pending)
            return
        joint = AllOf(pending, len(parts))
        for part in parts:
            part.when_durable(joint)

    def _in_transaction(
        self, link: ReceiverLink, delivery_id: int, payload: bytes, settled: bool, message_format: int, state: bytes
    ) -> bool:
        """A send in a transaction is answered at once and done when the transaction is. False: it is in none."""
        client = self.client
        found = transaction_of(state)
        if found is None:
            return False
        parts = split_batch(payload) if message_format == BATCH_FORMAT else [payload]
        try:
            self.queue = client.context.namespace.resolve_sender(self._address)
            answer = client.transactions.send(found.txn_id, self.queue, [client.translator.message(part) for part in parts])
        except BusError as error:
            if settled:
                client.transactions.doom(found.txn_id, error)
            raise
        if not settled:
            link.session.send_disposition(True, delivery_id, delivery_id, True, answer)
            client.touch()
        return True

    def _reject(self, link: ReceiverLink, delivery_id: int, settled: bool, error: BusError) -> None:
        client = self.client
        self.queue.metered(SEND, REFUSED)
        if settled:
            client.log_presettled_refusal(link, error)
            return
        state = encode_rejected(client.error_of(error, self.queue.path))
        link.session.send_disposition(True, delivery_id, delivery_id, True, state)
        client.touch()

    def on_oversize(self, link: ReceiverLink, delivery_id: int, tag: bytes, settled: bool) -> None:
        limit = self.queue.message_bytes_max
        self._reject(
            link, delivery_id, settled, MessageSizeExceeded(f"The message exceeds the limit of {limit} bytes of '{self.queue.path}'.")
        )

    def on_detach(self, link: Link, error: AmqpError | None) -> None:
        self.client.link_gone(link)


def split_batch(payload: bytes) -> list[bytes]:
    """The messages of a batch: each Data section of the envelope is one; the envelope's other sections repeat the first's."""
    try:
        messages = data_of(payload, scan(payload))
    except DecodeError as error:
        raise DecodeFailed(f"The batch could not be decoded: {error}.") from error
    if not messages:
        raise DecodeFailed("The batch holds no messages.")
    return messages
