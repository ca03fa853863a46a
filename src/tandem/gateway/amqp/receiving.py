"""Links of clients that receive from an entity: where locks become deliveries, and outcomes become settlements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tandem.amqp.errors import AmqpError
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
from tandem.broker.meters import EMPTY, RECEIVE, SETTLE
from tandem.broker.meters import RELEASED as RELEASED_OUTCOME
from tandem.broker.ports import Consumer, Effect
from tandem.broker.queue.locks import Lock
from tandem.gateway.amqp.answers import PendingDisposition
from tandem.gateway.amqp.holding import give_back, vanished
from tandem.gateway.amqp.outcome_arguments import counts_by_default, dead_letter_words, properties_to_modify
from tandem.gateway.amqp.transactions import SettleAnswer
from tandem.model.errors import BusError, Unavailable
from tandem.model.message import Message

if TYPE_CHECKING:
    from tandem.amqp.link import Delivery, Link, SenderLink
    from tandem.broker.queue.queue import Queue
    from tandem.broker.queue.sessions import MessageSession
    from tandem.gateway.amqp.connection import PeerConnection

_MODIFIED: Final = encode_modified(True, False, None)
_DEFERRED: Final = encode_modified(True, True, None)
_NOTHING: Final = Effect()


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
