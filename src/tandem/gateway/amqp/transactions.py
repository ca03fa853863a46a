"""The open transactions of a connection: what belongs to each is gathered, and done or dropped with it.

Work in a transaction is answered at once, provisionally, and held back until the discharge says what becomes of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tandem.broker.ports import Effect, Loaded
from tandem.broker.recovery import transactions
from tandem.broker.recovery.steps import Sent, Settled, Step
from tandem.gateway import verbs
from tandem.gateway.amqp.carried_transactions import CarriedTransaction
from tandem.gateway.amqp.joint_transactions import Committed, CoordinatorAnswer, JointDischarge
from tandem.gateway.amqp.returning_locks import locks_end_with, return_locks
from tandem.model.errors import (
    BusError,
    NotImplementedByBroker,
    QuotaExceeded,
    TransactionRolledBack,
    TransactionTimeout,
    TransactionUnknown,
)

if TYPE_CHECKING:
    from tandem.amqp.link import Link, ReceiverLink
    from tandem.broker.queue.entity import Entity
    from tandem.broker.queue.locks import Lock
    from tandem.gateway.amqp.carrying import CarriedConnection
    from tandem.gateway.amqp.receiving import ProvisionalAnswer
    from tandem.gateway.verbs import SettlementArguments
    from tandem.model.message import Message
    from tandem.server.context import NamespaceContext

_LATE_MAX: Final = 64
_ENDED_MEANWHILE: Final = "The transaction was rolled back while it was being discharged."


class OpenTransaction:
    """Between declare and discharge."""

    __slots__ = (
        "bytes",
        "carried",
        "deadline",
        "discharge",
        "doomed",
        "id",
        "link",
        "loading",
        "provisional",
        "returning",
        "rolled_back",
        "steps",
    )

    def __init__(self, id_: bytes, link: ReceiverLink, deadline: int) -> None:
        self.id = id_
        self.link = link
        self.deadline = deadline
        self.steps: list[Step] = []
        self.bytes = 0
        self.rolled_back = False
        self.doomed: BusError | None = None
        """Something in it went wrong that its client could not be told."""
        self.loading = 0
        """Steps that wait for a message to be read."""
        self.discharge: Callable[[], None] | None = None
        """What to do once nothing is loading."""
        self.carried: dict[str, CarriedTransaction] = {}
        """The same on other nodes, by their names, where entities of it are."""
        self.returning: list[tuple[Entity, Lock, bool]] = []
        """Settled by their receivers for good: given back if it is rolled back. True: the delivery counts."""
        self.provisional: list[ProvisionalAnswer] = []
        """What its receivers were answered: they hear once more when it is committed."""

    @property
    def has_work(self) -> bool:
        """Entities of this node have to do with it."""
        return bool(self.steps) or self.loading > 0

    def add(self, step: Step, size: int) -> None:
        self.steps.append(step)
        self.bytes += size

    def forget_after(self, count: int, size: int) -> None:
        """Of a batch that is refused nothing stays."""
        del self.steps[count:]
        self.bytes = size

    def doom(self, error: BusError) -> None:
        self.doomed = self.doomed or error

    def end(self) -> None:
        """Nothing of it happens."""
        self.rolled_back = True

    def committed(self) -> None:
        for answer in self.provisional:
            answer.happened()

    def load_one(self) -> None:
        self.loading += 1

    def one_loaded(self) -> None:
        self.loading -= 1
        if self.loading == 0 and self.discharge is not None:
            self.discharge()

    def when_loaded(self, discharge: Callable[[], None]) -> None:
        self.discharge = discharge


def _unheard(answer: bytes) -> None:
    """Nobody waits for it."""


class Transactions:
    """All open transactions of one connection."""

    def __init__(self, context: NamespaceContext) -> None:
        self._context = context
        self._open: dict[bytes, OpenTransaction] = {}
        self._late: dict[bytes, None] = {}
        """Rolled back because they took too long; the last few."""

    def declare(self, link: ReceiverLink) -> bytes:
        limits = self._context.limits
        if len(self._open) >= limits.transactions_open_max:
            raise QuotaExceeded(f"{limits.transactions_open_max} transactions are open on this connection; discharge some first.")
        transaction = OpenTransaction(
            self._context.new_transaction_id(), link, self._context.turn.clock.steady_ms() + limits.transaction_ms_max
        )
        self._open[transaction.id] = transaction
        return transaction.id

    def find(self, id_: bytes | None) -> OpenTransaction:
        found = self._open.get(id_ or b"")
        if found is not None and found.deadline > self._context.turn.clock.steady_ms():
            return found
        if found is not None:
            self._too_late(found)
        if id_ in self._late:
            raise TransactionTimeout("The transaction took too long and was rolled back. Nothing of it has happened.")
        raise TransactionUnknown("There is no transaction of this id on this connection.")

    def _too_late(self, transaction: OpenTransaction) -> None:
        self._open.pop(transaction.id, None)
        self.roll_back(transaction)
        self._late[transaction.id] = None
        if len(self._late) > _LATE_MAX:
            del self._late[next(iter(self._late))]

    def look_after(self) -> None:
        """What is held back for transactions that took too long is let go."""
        if not self._open:
            return
        now = self._context.turn.clock.steady_ms()
        for transaction in [one for one in self._open.values() if one.deadline <= now]:
            self._too_late(transaction)

    def coordinator_gone(self, link: Link) -> None:
        """Its transactions are rolled back."""
        for id_ in [one.id for one in self._open.values() if one.link is link]:
            self.roll_back(self._open.pop(id_))

    def roll_back(self, transaction: OpenTransaction) -> None:
        """Nothing of it was done. What its receivers settled for good is given back; the rest they hold on, unless they vanished."""
        context = self._context
        transaction.end()
        for part in transaction.carried.values():
            part.discharge(True, _unheard)
        for queue, lock, counts in transaction.returning:
            return_locks(context, queue, [lock], counts)
        engine = transaction.link.session.connection
        for step in transaction.steps:
            if isinstance(step, Settled) and locks_end_with(engine, step.queue, context):
                return_locks(context, step.queue, [step.lock])

    def carry(self, id_: bytes | None, carried: CarriedConnection) -> CarriedTransaction:
        """This transaction on the node where an entity of it is."""
        transaction = self.find(id_)
        part = transaction.carried.get(carried.node)
        if part is None:
            part = transaction.carried[carried.node] = CarriedTransaction(carried, transaction.id)
        elif part.carried is not carried or carried.engine.closed:
            raise TransactionRolledBack("A node that has entities of this transaction was lost. Nothing of it has happened. Try again.")
        return part

    def node_of(self, id_: bytes | None) -> str:
        """Where it has begun; empty: here, or nowhere yet."""
        transaction = self.find(id_)
        return "" if transaction.has_work else next(iter(transaction.carried), "")

    def add(self, transaction: OpenTransaction, step: Step) -> None:
        limits = self._context.limits
        if len(transaction.steps) >= limits.transaction_operations_max:
            raise QuotaExceeded(f"A transaction may hold {limits.transaction_operations_max} operations.")
        size = step.size()
        if transaction.bytes + size > limits.transaction_bytes_max:
            raise QuotaExceeded(f"A transaction may hold {limits.transaction_bytes_max} bytes of messages.")
        transaction.add(step, size)

    # -- work in a transaction ---------------------------------------------------------------

    def send(self, id_: bytes | None, queue: Entity, messages: list[Message]) -> bytes:
        """Hold these back; returns the transaction's id. Raises what would refuse them outside of a transaction."""
        transaction = self.find(id_)
        now = self._context.turn.now
        steps = [Sent(queue, message) for message in messages]
        for step in steps:
            step.check(now)
        before = len(transaction.steps), transaction.bytes
        try:
            for step in steps:
                self.add(transaction, step)
        except QuotaExceeded:
            transaction.forget_after(*before)
            raise
        queue.access(now)
        return transaction.id

    def settle(
        self,
        id_: bytes | None,
        settlement: SettlementArguments | None,
        queue: Entity,
        lock: Lock,
        settled: bool,
        counts: bool,
        then: ProvisionalAnswer,
    ) -> None:
        """Hold a settlement back; `then` follows when it is taken in. Raises what would refuse it outside of a transaction.
        `counts`: so does the delivery, if its receiver settled it for good and the transaction is rolled back."""
        transaction = self.find(id_)
        if settled:
            transaction.returning.append((queue, lock, counts))
        queue.part_of(lock.seq).settlement.require(lock, self._context.turn.now)
        if settlement is None or settlement.kind == verbs.RELEASE:
            raise NotImplementedByBroker(
                "In a transaction a message is accepted, rejected or modified; other outcomes have no place there."
            )
        changes = settlement.changes()
        if settlement.kind == verbs.DEAD_LETTER or changes:
            transaction.load_one()
            queue.browsing.load([lock.seq], _Changing(self, transaction, queue, lock, settlement.kind, changes, then))
        else:
            self.settle_step(transaction, Settled(queue, lock, settlement.kind), then)

    def settle_step(self, transaction: OpenTransaction, step: Settled, then: ProvisionalAnswer) -> None:
        self.add(transaction, step)
        transaction.provisional.append(then)
        then.done(None)

    def loaded(self, transaction: OpenTransaction) -> None:
        transaction.one_loaded()

    def doom(self, id_: bytes | None, error: BusError) -> bool:
        """A message whose sender does not listen was refused: the transaction cannot be what its client thinks. False: it is over."""
        found = self._open.get(id_ or b"")
        if found is not None:
            found.doom(error)
        return found is not None

    # -- discharge ---------------------------------------------------------------------------

    def discharge(self, id_: bytes, fail: bool, answer: CoordinatorAnswer) -> None:
        """When nothing of it is on its way any more, unless it fails anyway."""
        transaction = self.find(id_)
        if transaction.loading and not fail:
            transaction.when_loaded(lambda: self._discharge(transaction, fail, answer))
        else:
            self._discharge(transaction, fail, answer)

    def _discharge(self, transaction: OpenTransaction, fail: bool, answer: CoordinatorAnswer) -> None:
        id_ = transaction.id
        if transaction.rolled_back:
            answer.done(TransactionRolledBack(_ENDED_MEANWHILE))
            return
        parts = [] if transaction.doomed is not None else list(transaction.carried.values())
        if len(parts) == 1 and not transaction.has_work:
            del self._open[id_]
            parts[0].discharge(fail, answer.send)
        elif fail:
            self.roll_back(self._open.pop(id_))
            answer.done(None)
        elif parts:
            del self._open[id_]
            self._context.spawn(JointDischarge(self._context, self, transaction, parts, answer).run())
        else:
            then = Committed(transaction, answer)
            self.close(transaction, answer, lambda steps: transactions.commit(self._context.namespace, id_, steps, then))

    def take(self, id_: bytes, then: Effect, work: Callable[[list[Step]], None]) -> None:
        """It is open no longer: see `close`."""
        transaction = self.find(id_)
        del self._open[id_]
        self.close(transaction, then, work)

    def close(self, transaction: OpenTransaction, then: Effect, work: Callable[[list[Step]], None]) -> None:
        """`work` is given its steps, when all are there. What `work` raises rolls it back."""
        if transaction.loading:
            transaction.when_loaded(lambda: self.close(transaction, then, work))
            return
        if transaction.rolled_back:
            then.done(TransactionRolledBack(_ENDED_MEANWHILE))
            return
        self._open.pop(transaction.id, None)
        try:
            if transaction.doomed is not None:
                raise transaction.doomed
            work(transaction.steps)
        except BusError as error:
            self.roll_back(transaction)
            then.done(TransactionRolledBack(f"The transaction was rolled back: {error.description}"))


class _Changing(Loaded):
    """A settlement that changes properties: the message is read first."""

    __slots__ = ("_answer", "_changes", "_how", "_lock", "_queue", "_transaction", "_transactions")

    def __init__(
        self,
        all_: Transactions,
        transaction: OpenTransaction,
        queue: Entity,
        lock: Lock,
        how: int,
        changes: dict[str, object],
        answer: ProvisionalAnswer,
    ) -> None:
        self._transactions = all_
        self._transaction = transaction
        self._queue = queue
        self._lock = lock
        self._how = how
        self._changes = changes
        self._answer = answer

    def loaded(self, messages: list[Message | None], error: BaseException | None) -> None:
        message = messages[0] if messages else None
        try:
            if error is not None or message is None:
                raise error or BusError("The message left the queue while it was being settled.")
            changed = self._queue.part_of(self._lock.seq).rewriter.with_properties(message, self._changes)
            self._transactions.settle_step(self._transaction, Settled(self._queue, self._lock, self._how, changed), self._answer)
        except BusError as refused:
            self._transaction.doom(refused)
            self._answer.done(refused)
        self._transactions.loaded(self._transaction)
