"""Links of clients that send to a queue or receive from it: where transfers become messages and locks become deliveries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tandem.amqp.codec import skip_value, uint32
from tandem.amqp.errors import AmqpError, DecodeError
from tandem.amqp.fields import read_descriptor
from tandem.amqp.handlers import LinkHandler
from tandem.amqp.outcomes import (
    ACCEPTED,
    ACCEPTED_CODE,
    MODIFIED_CODE,
    REJECTED,
    REJECTED_CODE,
    RELEASED,
    RELEASED_CODE,
    TRANSACTIONAL,
    Outcome,
    encode_modified,
    encode_rejected,
)
from tandem.broker.entities.gathering import AllOf
from tandem.broker.meters import EMPTY, RECEIVE, REFUSED, SEND, SETTLE
from tandem.broker.meters import RELEASED as RELEASED_OUTCOME
from tandem.broker.ports import Consumer, Effect
from tandem.broker.queue.locks import Lock
from tandem.gateway.amqp.answers import PendingDisposition, ReroutableDisposition
from tandem.gateway.amqp.holding import give_back, vanished
from tandem.gateway.amqp.outcome_arguments import counts_by_default, dead_letter_words, properties_to_modify
from tandem.gateway.amqp.transactions import SettleAnswer, transaction_of
from tandem.model.errors import BusError, DecodeFailed, MessageSizeExceeded, Unavailable
from tandem.model.message import Message

if TYPE_CHECKING:
    from tandem.amqp.link import Delivery, Link, ReceiverLink, SenderLink
    from tandem.broker.queue.queue import Queue
    from tandem.broker.queue.sessions import MessageSession
    from tandem.broker.recovery.cross_store import RowId
    from tandem.gateway.amqp.connection import PeerConnection
    from tandem.model.address import Address

BATCH_FORMAT: Final = 0x80013700
_MODIFIED: Final = encode_modified(True, False, None)
_DEFERRED: Final = encode_modified(True, True, None)
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
    parts: list[bytes] = []
    at = 0
    end = len(payload)
    try:
        while at < end:
            code, value_at = read_descriptor(payload, at, end)
            after = skip_value(payload, value_at)
            if code == 0x75:
                kind = payload[value_at]
                if kind == 0xA0:
                    parts.append(payload[value_at + 2 : after])
                elif kind == 0xB0:
                    parts.append(payload[value_at + 5 : value_at + 5 + uint32(payload, value_at + 1)])
                else:
                    raise DecodeError(f"data section of type 0x{kind:02x}")
            at = after
    except (DecodeError, IndexError) as error:
        raise DecodeFailed(f"The batch could not be decoded: {str(error) or 'cut short'}.") from error
    if not parts:
        raise DecodeFailed("The batch holds no messages.")
    return parts


class LinkConsumer(Consumer):
    """A receiving link as its queue sees it."""

    __slots__ = ("client", "credit_max", "link", "unsettled_max")

    def __init__(self, client: PeerConnection, link: SenderLink, peek_lock: bool) -> None:
        super().__init__(peek_lock)
        self.client = client
        self.link: SenderLink = link
        self.unsettled_max: int = client.context.limits.unsettled_deliveries_per_link_max
        self.credit_max: int = client.context.limits.link_credit_max

    def room(self) -> int:
        client = self.client
        if client.gone or not client.writable or not self.link.attached:
            return 0
        session = self.link.session
        if session.window <= 0:
            session.hold_back(self.link)
            return 0
        credit = self.link.credit
        if credit > self.credit_max:
            credit = self.credit_max
        if self.peek_lock:
            left = self.unsettled_max - len(session.unsettled)
            if left < credit:
                credit = left
        return credit

    def deliver(self, message: Message, seq: int, enqueued_at: int, count: int, expires_at: int, lock: Lock | None) -> None:
        client = self.client
        if lock is None:
            payload = client.translator.delivery(message, seq, enqueued_at, count, expires_at, None, 0)
            if not client.gone and self.link.attached:
                self.link.send(payload, b"", True, None)
        else:
            payload = client.translator.delivery(message, seq, enqueued_at, count, expires_at, lock.token, lock.locked_until)
            self.link.send(payload, lock.token, False, lock)
        if not client.dirty:
            client.touch()

    def caught_up(self) -> None:
        if self.link.drain:
            self.link.handler.on_flow(self.link)

    def lost(self, error: BusError) -> None:
        if self.link.attached:
            self.link.detach(self.client.error_of(error, ""))
            self.client.touch()


class Receiving(LinkHandler):
    """A client receives from a queue."""

    def __init__(self, client: PeerConnection, queue: Queue, consumer: LinkConsumer) -> None:
        self.client = client
        self.queue: Queue = queue
        self.consumer: LinkConsumer = consumer
        self._pending: PendingDisposition | None = None
        self._asks: int = 0
        self._asked: bool = False
        """A receive is under way: the peer gave credit and waits."""
        self._count_asked: int = 0

    def on_flow(self, link: Link) -> None:
        consumer = self.consumer
        queue = self.queue
        if consumer.link.asks != self._asks:
            self._peer_asked(consumer.link)
        if consumer.link.credit > 0:
            queue.consumer_ready(consumer)
        if consumer.link.drain:
            queue.pump(self.client.turn.now)
            while queue.has_more:
                queue.pump(self.client.turn.now)
            if not consumer.link.drain or consumer.searching:
                return  # answered meanwhile, or will be when everything was looked at
            if consumer.reserved == 0 and not queue.paging and consumer.link.attached:
                self._receive_ended()
                consumer.link.drained()
                self.client.touch()

    def _peer_asked(self, link: SenderLink) -> None:
        """Asking again without having got anything ends one receive and begins another; a drain only ends it."""
        self._asks = link.asks
        if link.drain and self._asked:
            return
        self._receive_ended()
        if link.credit > 0:
            self._asked = True
            self._count_asked = link.delivery_count

    def _receive_ended(self) -> None:
        if self._asked:
            self._asked = False
            if self.consumer.link.delivery_count == self._count_asked:
                self.queue.metered(RECEIVE, EMPTY)

    def on_disposition(self, link: SenderLink, deliveries: list[Delivery], outcome: Outcome, settled: bool) -> None:
        now = self.client.turn.now
        code = outcome.code
        if code == ACCEPTED_CODE:
            self._complete(link, deliveries, settled, now)
        else:
            for delivery in deliveries:
                self._settle_one(link, delivery, outcome, settled, now)
        if link.credit > 0:
            # The unsettled limit may have held deliveries back.
            self.queue.consumer_ready(self.consumer)

    def _complete(self, link: SenderLink, deliveries: list[Delivery], settled: bool, now: int) -> None:
        queue = self.queue
        locks: list[Lock] = []
        for delivery in deliveries:
            lock = delivery.context
            assert isinstance(lock, Lock)
            locks.append(lock)
        waits = False
        at = 0
        while at < len(locks):
            end = at + queue.complete_run(locks, at, now)
            if end == at:
                end = at + 1
                try:
                    queue.complete(locks[at], now)
                except BusError as error:
                    self._refuse(link, deliveries[at], settled, error)
                    at = end
                    continue
            if settled:
                waits = True
            else:
                for i in range(at, end):
                    self._confirm(link, deliveries[i].delivery_id, ACCEPTED, queue.part_of(locks[i].seq))
            at = end
        if waits:
            queue.when_durable(_NOTHING)

    def _confirm(self, link: SenderLink, delivery_id: int, state: bytes, part: Queue) -> None:
        """Answer once the disk knows; runs of equal answers leave as one."""
        link.settle_locally(delivery_id)
        turn_number = self.client.turn.number
        pending = self._pending
        if (
            pending is not None
            and pending.turn_number == turn_number
            and pending.last + 1 == delivery_id
            and pending.state is state
            and pending.part is part
        ):
            pending.last = delivery_id
            return
        self._pending = self._answer(link, delivery_id, state, turn_number, part)
        part.when_durable(self._pending)

    def _answer(self, link: SenderLink, delivery_id: int, state: bytes, turn_number: int, part: Queue) -> PendingDisposition:
        return PendingDisposition(self.client, link.session, part, False, delivery_id, state, turn_number)

    def _refuse(self, link: SenderLink, delivery: Delivery, settled: bool, error: BusError) -> None:
        if settled:
            return
        link.settle_locally(delivery.delivery_id)
        state = encode_rejected(self.client.error_of(error, self.queue.path))
        link.session.send_disposition(False, delivery.delivery_id, delivery.delivery_id, True, state)
        self.client.touch()

    def _settle_one(self, link: SenderLink, delivery: Delivery, outcome: Outcome, settled: bool, now: int) -> None:
        lock = delivery.context
        assert isinstance(lock, Lock)
        queue = self.queue
        code = outcome.code
        if code not in (MODIFIED_CODE, REJECTED_CODE, RELEASED_CODE, TRANSACTIONAL):
            if settled:
                give_back(self.client, queue, [lock], counts_by_default(link.source))  # nobody dealt with it
            return
        if code == TRANSACTIONAL:
            self._settle_in_transaction(link, delivery, outcome, settled)
            return
        state = REJECTED if code == REJECTED_CODE else RELEASED if code == RELEASED_CODE else _MODIFIED
        if code == MODIFIED_CODE and outcome.undeliverable_here:
            state = _DEFERRED
        effect: Effect = _NOTHING
        if not settled:
            effect = self._answer(link, delivery.delivery_id, state, self.client.turn.number, queue.part_of(lock.seq))
        try:
            if code == RELEASED_CODE:
                queue.metered(SETTLE, RELEASED_OUTCOME)
                queue.give_up(lock, now)
                queue.when_durable(effect)
            elif code == REJECTED_CODE:
                reason, description, properties = dead_letter_words(outcome.error)
                queue.dead_letter(lock, reason, description, properties, now, effect)
            elif outcome.undeliverable_here:
                properties, _ = properties_to_modify(outcome)
                queue.defer(lock, now, properties, effect)
            else:
                properties, deliver_at = properties_to_modify(outcome)
                queue.abandon(lock, now, deliver_at, properties, effect)
        except BusError as error:
            self._refuse(link, delivery, settled, error)
            return
        if not settled:
            link.settle_locally(delivery.delivery_id)

    def _settle_in_transaction(self, link: SenderLink, delivery: Delivery, outcome: Outcome, settled: bool) -> None:
        lock = delivery.context
        assert isinstance(lock, Lock)
        client = self.client
        counts = counts_by_default(link.source)
        try:
            client.transactions.settle(outcome, self.queue, lock, SettleAnswer(client, link, delivery.delivery_id, settled), counts)
        except BusError as error:
            if settled and not client.transactions.doom(outcome.txn_id, error):
                give_back(client, self.queue, [lock], counts)
            self._refuse(link, delivery, settled, error)

    def on_detach(self, link: Link, error: AmqpError | None) -> None:
        """After a detach message locks stay: they belong to the entity and may be settled from elsewhere. A session is let go at once.
        With a connection that broke both go, the delivery counted; or both stay, where locks outlive connections."""
        session: MessageSession | None = self.consumer.session
        connection = link.session.connection
        dropped = vanished(self.client, connection, self.queue)
        self._receive_ended()
        self.queue.remove_consumer(self.consumer)
        if session is not None:
            if dropped or not connection.broken:
                self._let_go(session, dropped)
        elif dropped:
            held = [delivery.context for delivery in self.consumer.link.unsettled.values()]
            give_back(self.client, self.queue, [lock for lock in held if isinstance(lock, Lock)])
        self.client.link_gone(link)

    def _let_go(self, session: MessageSession, failed: bool) -> None:
        try:
            self.queue.close_session(session, self.consumer, self.client.turn.now, failed)
        except Unavailable as down:
            self.client.context.log(f"a session of '{self.queue.path}' is let go with its store: {down.description}")
