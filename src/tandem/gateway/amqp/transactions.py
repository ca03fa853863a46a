"""The transaction coordinator of a connection: declares, gathers what belongs to a transaction, and discharges it.

Work in a transaction is answered at once, provisionally, and held back until the discharge says what becomes of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tandem.amqp.errors import AmqpError, DecodeError
from tandem.amqp.handlers import LinkHandler
from tandem.amqp.message import VALUE, decode_message
from tandem.amqp.outcomes import (
    ACCEPTED,
    ACCEPTED_CODE,
    MODIFIED_CODE,
    NO_OUTCOME,
    REJECTED_CODE,
    TRANSACTIONAL,
    Outcome,
    decode_outcome,
    encode_declared,
    encode_outcome,
    encode_rejected,
    encode_transactional,
)
from tandem.amqp.types import Described
from tandem.broker.ports import Effect, Loaded
from tandem.broker.recovery import transactions
from tandem.broker.recovery.transactions import Sent, Settled, Step
from tandem.gateway.amqp.holding import give_back, vanished
from tandem.gateway.amqp.outcome_arguments import dead_letter_words, properties_to_modify
from tandem.model.errors import (
    BusError,
    DecodeFailed,
    NotImplementedByBroker,
    QuotaExceeded,
    TransactionRolledBack,
    TransactionTimeout,
    TransactionUnknown,
)

if TYPE_CHECKING:
    from tandem.amqp.link import Link, ReceiverLink, SenderLink
    from tandem.amqp.session import Session
    from tandem.broker.queue.locks import Lock
    from tandem.broker.queue.queue import Queue
    from tandem.gateway.amqp.connection import PeerConnection
    from tandem.model.message import Message

_DECLARE: Final = (0x31, "amqp:declare:list")
_DISCHARGE: Final = (0x32, "amqp:discharge:list")
_LATE_MAX: Final = 64


class OpenTransaction:
    """Between declare and discharge."""

    __slots__ = ("bytes", "deadline", "discharge", "doomed", "id", "link", "loading", "returning", "steps")

    def __init__(self, id_: bytes, link: ReceiverLink, deadline: int) -> None:
        self.id = id_
        self.link = link
        self.deadline = deadline
        self.steps: list[Step] = []
        self.bytes = 0
        self.doomed: BusError | None = None
        """Something in it went wrong that its client could not be told."""
        self.loading = 0
        """Steps that wait for a message to be read."""
        self.discharge: Callable[[], None] | None = None
        """What to do once nothing is loading."""
        self.returning: list[tuple[Queue, Lock, bool]] = []
        """Settled by their receivers for good: given back if it is rolled back. True: the delivery counts."""


class Transactions:
    """All open transactions of one connection."""

    def __init__(self, client: PeerConnection, new_id: Callable[[], bytes]) -> None:
        self._client = client
        self._new_id = new_id
        self._open: dict[bytes, OpenTransaction] = {}
        self._late: dict[bytes, None] = {}
        """Rolled back because they took too long; the last few."""

    def declare(self, link: ReceiverLink) -> bytes:
        limits = self._client.context.limits
        if len(self._open) >= limits.transactions_open_max:
            raise QuotaExceeded(f"{limits.transactions_open_max} transactions are open on this connection; discharge some first.")
        transaction = OpenTransaction(self._new_id(), link, self._client.turn.clock.steady_ms() + limits.transaction_ms_max)
        self._open[transaction.id] = transaction
        return transaction.id

    def find(self, id_: bytes | None) -> OpenTransaction:
        found = self._open.get(id_ or b"")
        if found is not None and found.deadline > self._client.turn.clock.steady_ms():
            return found
        if found is not None:
            self._too_late(found)
        if id_ in self._late:
            raise TransactionTimeout("The transaction took too long and was rolled back. Nothing of it has happened.")
        raise TransactionUnknown("There is no transaction of this id on this connection.")

    def _too_late(self, transaction: OpenTransaction) -> None:
        self._open.pop(transaction.id, None)
        self._roll_back(transaction)
        self._late[transaction.id] = None
        if len(self._late) > _LATE_MAX:
            del self._late[next(iter(self._late))]

    def look_after(self) -> None:
        """What is held back for transactions that took too long is let go."""
        if not self._open:
            return
        now = self._client.turn.clock.steady_ms()
        for transaction in [one for one in self._open.values() if one.deadline <= now]:
            self._too_late(transaction)

    def coordinator_gone(self, link: Link) -> None:
        """Its transactions are rolled back."""
        for id_ in [one.id for one in self._open.values() if one.link is link]:
            self._roll_back(self._open.pop(id_))

    def _roll_back(self, transaction: OpenTransaction) -> None:
        """Nothing of it was done. What its receivers settled for good is given back; the rest they hold on, unless they vanished."""
        client = self._client
        for queue, lock, counts in transaction.returning:
            give_back(client, queue, [lock], counts)
        connection = transaction.link.session.connection
        for step in transaction.steps:
            if isinstance(step, Settled) and vanished(client, connection, step.queue):
                give_back(client, step.queue, [step.lock])

    def add(self, transaction: OpenTransaction, step: Step) -> None:
        limits = self._client.context.limits
        if len(transaction.steps) >= limits.transaction_operations_max:
            raise QuotaExceeded(f"A transaction may hold {limits.transaction_operations_max} operations.")
        size = step.size()
        if transaction.bytes + size > limits.transaction_bytes_max:
            raise QuotaExceeded(f"A transaction may hold {limits.transaction_bytes_max} bytes of messages.")
        transaction.steps.append(step)
        transaction.bytes += size

    # -- work in a transaction ---------------------------------------------------------------

    def send(self, id_: bytes | None, queue: Queue, messages: list[Message]) -> bytes:
        """Hold these back; returns the provisional answer. Raises what would refuse them outside of a transaction."""
        transaction = self.find(id_)
        now = self._client.turn.now
        steps = [Sent(queue, message) for message in messages]
        for step in steps:
            step.check(now)
        for step in steps:
            self.add(transaction, step)
        queue.accessed_at = now
        return encode_transactional(transaction.id, ACCEPTED)

    def settle(self, outcome: Outcome, queue: Queue, lock: Lock, answer: SettleAnswer, counts: bool) -> None:
        """Hold a settlement back; `answer` follows when it is taken in. Raises what would refuse it outside of a transaction.
        `counts`: so does the delivery, if its receiver settled it for good and the transaction is rolled back."""
        transaction = self.find(outcome.txn_id)
        if answer.settled:
            transaction.returning.append((queue, lock, counts))
        inner = outcome.inner or NO_OUTCOME
        queue.require(lock, self._client.turn.now)
        how, changes = _meaning(inner)
        shown = encode_rejected(None) if inner.code == REJECTED_CODE else encode_outcome(inner)
        answer.state = encode_transactional(transaction.id, shown)
        if how == transactions.DEAD_LETTER or changes:
            transaction.loading += 1
            queue.load([lock.seq], _Changing(self, transaction, queue, lock, how, changes, answer))
        else:
            self.add(transaction, Settled(queue, lock, how))
            answer.done(None)

    def loaded(self, transaction: OpenTransaction) -> None:
        transaction.loading -= 1
        if transaction.loading == 0 and transaction.discharge is not None:
            transaction.discharge()

    def doom(self, id_: bytes | None, error: BusError) -> bool:
        """A message whose sender does not listen was refused: the transaction cannot be what its client thinks. False: it is over."""
        found = self._open.get(id_ or b"")
        if found is not None:
            found.doomed = found.doomed or error
        return found is not None

    # -- discharge ---------------------------------------------------------------------------

    def discharge(self, id_: bytes, fail: bool, then: Effect) -> None:
        transaction = self.find(id_)
        if fail:
            self._roll_back(self._open.pop(id_))
            then.done(None)
        elif transaction.loading:
            transaction.discharge = lambda: self._commit(transaction, then)
        else:
            self._commit(transaction, then)

    def _commit(self, transaction: OpenTransaction, then: Effect) -> None:
        if self._open.pop(transaction.id, None) is None:
            then.done(TransactionRolledBack("The transaction was rolled back while it was being discharged."))
            return
        if transaction.doomed is not None:
            self._roll_back(transaction)
            then.done(TransactionRolledBack(f"The transaction was rolled back: {transaction.doomed.description}"))
            return
        try:
            transactions.commit(self._client.context.namespace, transaction.id, transaction.steps, then)
        except BusError as error:
            self._roll_back(transaction)
            then.done(TransactionRolledBack(f"The transaction was rolled back: {error.description}"))


def _meaning(inner: Outcome) -> tuple[int, dict[str, object]]:
    """(what becomes of the message, properties to change)."""
    if inner.code == ACCEPTED_CODE:
        return transactions.COMPLETE, {}
    if inner.code == REJECTED_CODE:
        reason, description, changes = dead_letter_words(inner.error)
        if reason:
            changes["DeadLetterReason"] = reason
        if description:
            changes["DeadLetterErrorDescription"] = description
        return transactions.DEAD_LETTER, changes
    if inner.code == MODIFIED_CODE:
        changes, _ = properties_to_modify(inner)
        return (transactions.DEFER if inner.undeliverable_here else transactions.ABANDON), changes
    raise NotImplementedByBroker("In a transaction a message is accepted, rejected or modified; other outcomes have no place there.")


class _Changing(Loaded):
    """A settlement that changes properties: the message is read first."""

    __slots__ = ("_answer", "_changes", "_how", "_lock", "_queue", "_transaction", "_transactions")

    def __init__(
        self,
        all_: Transactions,
        transaction: OpenTransaction,
        queue: Queue,
        lock: Lock,
        how: int,
        changes: dict[str, object],
        answer: Effect,
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
            changed = self._queue.rewriter.with_properties(message, self._changes)
            self._transactions.add(self._transaction, Settled(self._queue, self._lock, self._how, changed))
        except BusError as refused:
            self._transaction.doomed = self._transaction.doomed or refused
            self._answer.done(refused)
        else:
            self._answer.done(None)
        self._transactions.loaded(self._transaction)


class CoordinatorLink(LinkHandler):
    """The link on which a client declares and discharges."""

    def __init__(self, client: PeerConnection, all_: Transactions) -> None:
        self._client = client
        self._transactions = all_

    def on_transfer(
        self, link: ReceiverLink, delivery_id: int, tag: bytes, payload: bytes, settled: bool, message_format: int, state: bytes | None
    ) -> None:
        answer = _Answer(self._client, link.session, delivery_id, settled)
        try:
            code, fields = _request(payload)
            if code == _DECLARE[0]:
                answer.send(encode_declared(self._transactions.declare(link)))
                return
            id_, fail = _discharge_fields(fields)
            self._transactions.discharge(id_, fail, answer)
        except BusError as error:
            answer.done(error)

    def on_detach(self, link: Link, error: AmqpError | None) -> None:
        self._transactions.coordinator_gone(link)
        self._client.link_gone(link)


class _Answer(Effect):
    """The word on a declare or discharge."""

    __slots__ = ("_client", "_delivery_id", "_session", "_settled")

    def __init__(self, client: PeerConnection, session: Session, delivery_id: int, settled: bool) -> None:
        self._client = client
        self._session = session
        self._delivery_id = delivery_id
        self._settled = settled

    def send(self, state: bytes) -> None:
        if not self._settled and not self._client.gone:
            self._session.send_disposition(True, self._delivery_id, self._delivery_id, True, state)
            self._client.touch()

    def done(self, error: BaseException | None) -> None:
        self.send(ACCEPTED if error is None else encode_rejected(self._client.error_of(error, "")))


def _request(payload: bytes) -> tuple[int, list[object]]:
    try:
        message = decode_message(payload)
        body = message.body
    except DecodeError as error:
        raise DecodeFailed(f"The request to the coordinator could not be decoded: {error.description}.") from error
    if message.body_kind != VALUE or not isinstance(body, Described) or not isinstance(body.value, list):
        raise DecodeFailed("A message to the coordinator holds one value: declare or discharge.")
    if body.descriptor in _DECLARE:
        return _DECLARE[0], body.value
    if body.descriptor in _DISCHARGE:
        return _DISCHARGE[0], body.value
    raise NotImplementedByBroker(f"The coordinator knows declare and discharge, not {body.descriptor!r}.")


def _discharge_fields(fields: list[object]) -> tuple[bytes, bool]:
    id_ = fields[0] if fields else None
    if not isinstance(id_, bytes):
        raise DecodeFailed("A discharge names its transaction as binary.")
    return id_, len(fields) > 1 and fields[1] is True


def transaction_of(state: bytes) -> Outcome | None:
    """The transactional state of a transfer; None when it has another."""
    try:
        outcome = decode_outcome(state)
    except DecodeError as error:
        raise DecodeFailed(f"The state of the transfer could not be decoded: {error.description}.") from error
    return outcome if outcome.code == TRANSACTIONAL else None


class SettleAnswer(Effect):
    """The provisional answer to a settlement in a transaction."""

    __slots__ = ("_client", "_delivery_id", "_link", "settled", "state")

    def __init__(self, client: PeerConnection, link: SenderLink, delivery_id: int, settled: bool) -> None:
        self._client = client
        self._link = link
        self._delivery_id = delivery_id
        self.settled = settled
        self.state = b""

    def done(self, error: BaseException | None) -> None:
        if self._client.gone or self.settled:
            return
        self._link.settle_locally(self._delivery_id)
        state = self.state if error is None else encode_rejected(self._client.error_of(error, ""))
        self._link.session.send_disposition(False, self._delivery_id, self._delivery_id, True, state)
        self._client.touch()
