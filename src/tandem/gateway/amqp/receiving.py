"""Links of clients that receive from an entity: where locks become deliveries, and outcomes become settlements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tandem.amqp.errors import AmqpError
from tandem.amqp.handlers import LinkHandler
from tandem.amqp.outcomes import (
    ACCEPTED_CODE,
    MODIFIED_CODE,
    NO_OUTCOME,
    REJECTED,
    REJECTED_CODE,
    RELEASED,
    TRANSACTIONAL,
    Outcome,
    encode_modified,
    encode_outcome,
    encode_rejected,
    encode_transactional,
)
from tandem.broker.meters import EMPTY, RECEIVE
from tandem.broker.ports import Consumer, Effect
from tandem.broker.queue.locks import Lock
from tandem.gateway import verbs
from tandem.gateway.amqp.answers import PendingDisposition, accept_when_durable
from tandem.gateway.amqp.returning_locks import locks_end, locks_end_with, return_locks
from tandem.gateway.amqp.settlements import counts_by_default, settlement_of
from tandem.model.errors import BusError, Unavailable
from tandem.model.message import Message

if TYPE_CHECKING:
    from tandem.amqp.link import Delivery, Link, SenderLink
    from tandem.broker.queue.entity import Entity
    from tandem.broker.queue.sessions import MessageSession
    from tandem.gateway.amqp.connection import PeerConnection

_MODIFIED: Final = encode_modified(True, False, None)
_DEFERRED: Final = encode_modified(True, True, None)


class LinkConsumer(Consumer):
    """A receiving link as its queue sees it."""

    __slots__ = ("connection", "credit_max", "link", "unsettled_max")

    def __init__(self, connection: PeerConnection, link: SenderLink, peek_lock: bool) -> None:
        super().__init__(peek_lock)
        self.connection = connection
        self.link: SenderLink = link
        self.unsettled_max: int = connection.context.limits.unsettled_deliveries_per_link_max
        self.credit_max: int = connection.context.limits.link_credit_max

    def room(self) -> int:
        connection = self.connection
        if connection.gone or not connection.writable or not self.link.attached or connection.context.draining:
            return 0
        session = self.link.session
        if session.window <= 0:
            session.hold_back(self.link)
            return 0
        credit = self.link.credit
        if credit > self.credit_max:
            credit = self.credit_max
        if self.peek_lock:
            left = self.unsettled_max - self.link.unsettled_count
            if left < credit:
                credit = left
        return credit

    def deliver(self, message: Message, seq: int, enqueued_at: int, count: int, expires_at: int, lock: Lock | None) -> None:
        connection = self.connection
        if lock is None:
            payload = connection.translator.delivery(message, seq, enqueued_at, count, expires_at, None, 0)
            if not connection.gone and self.link.attached:
                self.link.send(payload, b"", True, None)
        else:
            payload = connection.translator.delivery(message, seq, enqueued_at, count, expires_at, lock.token, lock.locked_until)
            self.link.send(payload, lock.token, False, lock)
        if not connection.dirty:
            connection.touch()

    def caught_up(self) -> None:
        if self.link.drain:
            self.link.handler.on_flow(self.link)

    def lost(self, error: BusError) -> None:
        if self.link.attached:
            self.link.detach(self.connection.error_of(error, ""))
            self.connection.touch()


class Receiving(LinkHandler):
    """A client receives from a queue."""

    def __init__(self, connection: PeerConnection, queue: Entity, consumer: LinkConsumer) -> None:
        self.connection = connection
        self.queue: Entity = queue
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
            queue = queue.line_of(consumer)
            queue.pump(self.connection.turn.now)
            while queue.receivers.has_more:
                queue.pump(self.connection.turn.now)
            if not consumer.link.drain or consumer.searching:
                return  # answered meanwhile, or will be when everything was looked at
            if consumer.reserved == 0 and not queue.receivers.paging and consumer.link.attached:
                self._receive_ended()
                consumer.link.drained()
                self.connection.touch()

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
        now = self.connection.turn.now
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
            try:
                end = at + verbs.complete_run(queue, locks, at, now)
            except BusError as error:
                self._refuse(link, deliveries[at], settled, error)
                at += 1
                continue
            if settled:
                waits = True
            else:
                for i in range(at, end):
                    delivery_id = deliveries[i].delivery_id
                    link.settle_locally(delivery_id)
                    part = queue.part_of(locks[i].seq)
                    self._pending = accept_when_durable(self._pending, self.connection, link.session, part, False, delivery_id)
            at = end
        if waits:
            queue.when_durable(verbs.NOTHING)

    def _refuse(self, link: SenderLink, delivery: Delivery, settled: bool, error: BusError) -> None:
        if settled:
            return
        link.settle_locally(delivery.delivery_id)
        state = encode_rejected(self.connection.error_of(error, self.queue.path))
        self.connection.send_disposition(link.session, False, delivery.delivery_id, delivery.delivery_id, state, "")

    def _settle_one(self, link: SenderLink, delivery: Delivery, outcome: Outcome, settled: bool, now: int) -> None:
        lock = delivery.context
        assert isinstance(lock, Lock)
        queue = self.queue
        if outcome.code == TRANSACTIONAL:
            self._settle_in_transaction(link, delivery, outcome, settled)
            return
        settlement = settlement_of(outcome)
        if settlement is None:
            if settled:
                return_locks(self.connection.context, queue, [lock], counts_by_default(link.source))  # nobody dealt with it
            return
        then: Effect = verbs.NOTHING
        if not settled:
            part = queue.part_of(lock.seq)
            state = _state_shown(outcome)
            then = PendingDisposition(self.connection, link.session, part, False, delivery.delivery_id, state, self.connection.turn.number)
        try:
            verbs.settle(queue, settlement, lock, now, then)
        except BusError as error:
            self._refuse(link, delivery, settled, error)
            return
        if not settled:
            link.settle_locally(delivery.delivery_id)

    def _settle_in_transaction(self, link: SenderLink, delivery: Delivery, outcome: Outcome, settled: bool) -> None:
        lock = delivery.context
        assert isinstance(lock, Lock)
        connection = self.connection
        counts = counts_by_default(link.source)
        inner = outcome.inner or NO_OUTCOME
        shown = encode_rejected(None) if inner.code == REJECTED_CODE else encode_outcome(inner)
        then = ProvisionalAnswer(connection, link, delivery.delivery_id, settled, outcome.txn_id or b"", shown)
        try:
            connection.transactions.settle(outcome.txn_id, settlement_of(inner), self.queue, lock, settled, counts, then)
        except BusError as error:
            if settled and not connection.transactions.doom(outcome.txn_id, error):
                return_locks(connection.context, self.queue, [lock], counts)
            self._refuse(link, delivery, settled, error)

    def take_away(self, error: AmqpError) -> None:
        """Detach it because its entity is elsewhere now: a client has no link left to settle on, so its locks go as with a broken
        connection."""
        if self.consumer.session is None and locks_end(self.queue, self.connection.context):
            self._return_unsettled()
        self.consumer.link.detach(error)

    def _return_unsettled(self) -> None:
        held = [delivery.context for delivery in self.consumer.link.unsettled()]
        return_locks(self.connection.context, self.queue, [lock for lock in held if isinstance(lock, Lock)])

    def on_detach(self, link: Link, error: AmqpError | None) -> None:
        """After a detach message locks stay: they belong to the entity and may be settled from elsewhere. A session is let go at once.
        With a connection that broke both go, the delivery counted; or both stay, where locks outlive connections. Another node says with
        an error that it has taken the link away from its client."""
        session: MessageSession | None = self.consumer.session
        engine = link.session.connection
        context = self.connection.context
        taken_away = error is not None and not self.connection.is_of_a_client() and locks_end(self.queue, context)
        dropped = taken_away or locks_end_with(engine, self.queue, context)
        self._receive_ended()
        self.queue.remove_consumer(self.consumer)
        if session is not None:
            if dropped or not engine.broken:
                self._let_go(session, dropped)
        elif dropped:
            self._return_unsettled()
        self.connection.link_gone(link)

    def _let_go(self, session: MessageSession, failed: bool) -> None:
        try:
            self.queue.sessions.close(session, self.consumer, self.connection.turn.now, failed)
        except Unavailable as down:
            self.connection.context.warn(f"a session of '{self.queue.path}' is let go with its store: {down.description}")


def _state_shown(outcome: Outcome) -> bytes:
    """What the receiver hears back about its outcome."""
    if outcome.code == REJECTED_CODE:
        return REJECTED
    if outcome.code != MODIFIED_CODE:
        return RELEASED
    return _DEFERRED if outcome.undeliverable_here else _MODIFIED


class ProvisionalAnswer(Effect):
    """To a settlement in a transaction: it is taken in, and happens when the transaction does. The delivery stays unsettled until then:
    if the transaction is rolled back, its receiver still holds it and may settle it again."""

    __slots__ = ("_connection", "_delivery_id", "_link", "_outcome", "_settled", "_transaction")

    def __init__(
        self, connection: PeerConnection, link: SenderLink, delivery_id: int, settled: bool, transaction: bytes, outcome: bytes
    ) -> None:
        self._connection = connection
        self._link: SenderLink = link
        self._delivery_id: int = delivery_id
        self._settled: bool = settled
        self._transaction: bytes = transaction
        self._outcome: bytes = outcome

    def done(self, error: BaseException | None) -> None:
        connection = self._connection
        if error is not None:
            self._answer(True, encode_rejected(connection.error_of(error, "")))
        else:
            self._answer(False, encode_transactional(self._transaction, self._outcome))

    def happened(self) -> None:
        """The transaction is committed."""
        self._answer(True, self._outcome)

    def _answer(self, settled: bool, state: bytes) -> None:
        connection = self._connection
        if connection.gone or self._settled:
            return
        self._link.session.send_disposition(False, self._delivery_id, self._delivery_id, settled, state)
        connection.touch()
