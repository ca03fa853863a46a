"""A queue: a handful of parts that hold each other, and the verbs that others may use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandem.broker.meters import Meter
from tandem.broker.ports import Rewriter
from tandem.broker.queue.bodies import Bodies
from tandem.broker.queue.browsing import Browsing
from tandem.broker.queue.delivery import MessageDelivery, Receivers
from tandem.broker.queue.entity import Entity, Placement
from tandem.broker.queue.index import Index
from tandem.broker.queue.intake import Intake
from tandem.broker.queue.leases import Leases
from tandem.broker.queue.ledger import Ledger
from tandem.broker.queue.locks import LockTable
from tandem.broker.queue.moves import Moves
from tandem.broker.queue.ready import Ready
from tandem.broker.queue.rows import Backing, Rows
from tandem.broker.queue.schedule import Schedule
from tandem.broker.queue.selective import add_seeker
from tandem.broker.queue.session_holding import SessionHolding
from tandem.broker.queue.sessions import SessionTable
from tandem.broker.queue.settlement import Settlement
from tandem.broker.queue.terms import Terms

if TYPE_CHECKING:
    from tandem.broker.ports import Consumer, Effect
    from tandem.broker.queue.locks import Lock
    from tandem.broker.queue.rows import StateCounts
    from tandem.broker.turn import Turn
    from tandem.model.entity import QueueDescription
    from tandem.model.errors import BusError
    from tandem.model.message import Message


class Carrier:
    """What sends on the messages of a queue that forwards (`broker.forwarding`)."""

    def pump(self, now: int) -> None: ...

    def clock_jumped(self) -> None:
        """Instants that were planned mean nothing any more."""


class Carriers:
    """Whoever has one for each queue that forwards."""

    def carrier_of(self, queue: Queue) -> Carrier | None:
        """The one it has already, while its target is the same."""
        return None


class Queue(Entity):
    """One queue in one store: whole, or a fragment of a partitioned one."""

    def __init__(
        self,
        entity_id: int,
        terms: Terms,
        backing: Backing,
        meter: Meter,
        turn: Turn,
        rewriter: Rewriter,
        carriers: Carriers,
        nonce: int,
        base: int,
    ) -> None:
        super().__init__(turn, terms)
        self.entity_id: int = entity_id
        """4 * id + sub-queue number, as written in the journal."""
        self.meter: Meter = meter
        self.rewriter: Rewriter = rewriter
        sessions = SessionTable() if terms.has_sessions else None
        self.rows: Rows = Rows(entity_id, backing, sessions, not terms.is_dead_letter, base)
        self.index: Index = self.rows.index
        self.ledger: Ledger = Ledger(self.rows, self.slot)
        self.ready: Ready = Ready(self.rows, self.slot)
        self.bodies: Bodies = Bodies(self.rows, self.slot, terms.path)
        self.intake: Intake = self._new_intake()
        self.moves: Moves = Moves(self.ledger, terms, self.bodies, self.ready, rewriter)
        self.bodies.hand_lost_to(self.moves)
        self.locks: LockTable = LockTable(nonce)
        self.settlement: Settlement = Settlement(self.ledger, terms, meter, self.locks, self.moves)
        self.delivery: MessageDelivery = MessageDelivery(
            self.ledger, terms, meter, self.bodies, self.ready, self.locks, self.moves, self.receivers
        )
        self.holding: SessionHolding = SessionHolding(self.ledger, terms, self.settlement, self.delivery)
        self.ready.tell_sessions(self.holding)
        self.intake.tell_sessions(self.holding)
        self.lending: Leases = Leases(self.ledger, terms, meter, self.ready, self.moves)
        self.lookup: Browsing = Browsing(self.ledger, terms, meter, self.bodies, self.settlement, self.holding)
        self.schedule: Schedule = Schedule(self.ledger, terms, self.intake, self.moves, self.settlement, self.holding, self.lending)
        self._carriers: Carriers = carriers
        self.carrier: Carrier | None = None
        """Takes all its messages elsewhere."""
        self.transfer_dead_letters: Queue | None = None
        """Where messages go that cannot be forwarded."""
        self.is_fragment: bool = False
        self.configure(terms.description)

    def _new_intake(self) -> Intake:
        return Intake(self.ledger, self.terms, self.meter)

    @property
    def sessions(self) -> SessionHolding:
        return self.holding

    @property
    def leases(self) -> Leases:
        return self.lending

    @property
    def browsing(self) -> Browsing:
        return self.lookup

    def configure(self, description: QueueDescription) -> None:
        self.terms.configure(description)
        if description.requires_duplicate_detection:
            self.rows.detect_duplicates(description.duplicate_detection_history_ms)
        self.carrier = self._carriers.carrier_of(self)

    def join(self, receivers: Receivers) -> None:
        """It is a fragment: messages without sessions go to the receivers of the whole."""
        self.is_fragment = True
        if not self.terms.has_sessions:
            self.delivery.deliver_to(receivers)
            self.receivers = receivers

    def set_aside_into(self, dead_letters: Queue | None, transfers: Queue) -> None:
        """Where its dead letters go, and those that cannot be forwarded."""
        if dead_letters is not None:
            self.moves.dead_letter_into(dead_letters.intake)
        self.transfer_dead_letters = transfers

    def part_of(self, seq: int) -> Queue:
        return self

    def parts(self) -> list[Queue]:
        return [self]

    def destination(self, message: Message) -> Queue:
        return self

    # -- sending -------------------------------------------------------------------------------

    def check_send(self, message: Message, body_bytes: int) -> None:
        self.intake.check_send(message, body_bytes)

    def enqueue(self, message: Message, now: int) -> Placement:
        return Placement(self, self.intake.enqueue(message, now))

    def when_durable(self, effect: Effect) -> None:
        self.ledger.when_durable(effect)

    # -- receiving -----------------------------------------------------------------------------

    def add_consumer(self, consumer: Consumer) -> None:
        self.receivers.add(consumer)
        if consumer.selector is not None:
            add_seeker(self.receivers, consumer)

    def remove_consumer(self, consumer: Consumer) -> None:
        self.receivers.remove(consumer)

    def consumer_ready(self, consumer: Consumer) -> None:
        self.receivers.ready(consumer)

    def tell_all(self, error: BusError) -> None:
        """The receivers of a whole have its other fragments; only who holds a session here loses something."""
        if self.is_fragment:
            self.holding.tell_all(error)
        else:
            self.receivers.tell_all(error)

    def pump(self, now: int) -> None:
        if self.receivers.has_more:
            self.receivers.set_more(False)  # or who drains would wait for a turn that delivers nothing
        if self.rows.backing.suspended:
            return
        terms = self.terms
        if terms.may_receive and not terms.deleted:
            if self.carrier is not None:
                self.carrier.pump(now)
            elif terms.has_sessions:
                self.holding.pump(now)
            else:
                self.receivers.pump(now)
                if self.receivers.watchers:
                    self.receivers.tell_watchers()
        if self.lending.waiters:
            self.lending.pump()

    def due(self, now: int) -> None:
        self.schedule.due(now)

    def clock_jumped(self, by_ms: int) -> None:
        """The machine's clock was set."""
        self.slot.forget_wakes()
        self.schedule.clock_jumped(by_ms)
        if self.carrier is not None:
            self.carrier.clock_jumped()
            self.slot.touch()

    # -- one message ---------------------------------------------------------------------------

    def find_lock(self, token: bytes) -> Lock:
        return self.settlement.find_lock(token)

    def complete_run(self, locks: list[Lock], at: int, now: int) -> int:
        return self.settlement.complete_run(locks, at, now)

    def lose_locks(self, error: BusError, now: int) -> None:
        self.settlement.lose_all(now)
        self.holding.lose_all(error, now)

    # -- looking -------------------------------------------------------------------------------

    def counts(self) -> StateCounts:
        return self.rows.counts()

    def metered(self, operation: int, outcome: int) -> None:
        self.meter.add(operation, outcome, 1, 0)

    def is_in_use(self) -> bool:
        return bool(self.receivers.consumers) or bool(self.rows.scheduled) or self.holding.is_awaited()

    def take_out_of_service(self) -> None:
        """Its store is down: whoever comes is told at once, and what is held is worth nothing."""
        self.terms.leave_service(False)
        self.locks.forfeit()

    def close(self) -> None:
        self.terms.leave_service(True)
        self.settlement.drop_all()
        for seq in self.index.seqs_from(0, self.index.total):
            self.rows.apply_settled(seq)
