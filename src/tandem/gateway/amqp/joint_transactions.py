"""Transactions over entities of several nodes: each writes down its share, a store of one of them decides, the others hear of it.

The node that the client came to drives it. If it has entities of the transaction itself, one of its stores decides; else a store of the
node that was the first to have any. Whoever is lost on the way: a share that is written down asks the deciding store what became of the
transaction, and that either has decided or never will.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, cast

from tandem.amqp.errors import AmqpError
from tandem.amqp.outcomes import ACCEPTED, ACCEPTED_CODE, DECLARED, Outcome, encode_declared, encode_outcome
from tandem.broker.ports import Effect
from tandem.broker.recovery import transactions
from tandem.model.errors import BusError, DecodeFailed, NotImplementedByBroker, TransactionRolledBack

if TYPE_CHECKING:
    from tandem.broker.recovery.steps import Step
    from tandem.broker.recovery.transactions import PreparedShares
    from tandem.gateway.amqp.carried_transactions import CarriedTransaction
    from tandem.gateway.amqp.connection import PeerConnection
    from tandem.gateway.amqp.transactions import OpenTransaction, Transactions
    from tandem.server.context import NamespaceContext

LEAD: Final = "lead"
PREPARE: Final = "prepare"
DECIDE: Final = "decide"
END: Final = "end"
ENDED: Final = "ended"


class CoordinatorAnswer(Effect):
    """Whoever waits for the end of a transaction, or for a word about a share."""

    def send(self, state: bytes) -> None:
        """In place of `done`: an outcome, encoded."""


class Committed(Effect):
    """Receivers hear of it before whoever discharged it does."""

    __slots__ = ("_answer", "_transaction")

    def __init__(self, transaction: OpenTransaction, answer: Effect) -> None:
        self._transaction = transaction
        self._answer = answer

    def done(self, error: BaseException | None) -> None:
        if error is None:
            self._transaction.committed()
        self._answer.done(error)


class JointDischarge:
    """One transaction, driven to its end. It is open no longer: nothing is added to it."""

    def __init__(
        self,
        context: NamespaceContext,
        all_: Transactions,
        transaction: OpenTransaction,
        parts: list[CarriedTransaction],
        answer: CoordinatorAnswer,
    ) -> None:
        self._context = context
        self._transactions = all_
        self._transaction = transaction
        self._id = transaction.id
        self._first = None if transaction.has_work else parts[0]
        """Whose store decides; None: one of this node."""
        self._others = [part for part in parts if part is not self._first]
        self._answer = answer

    async def run(self) -> None:
        try:
            decider = await self._lead()
            for outcome in await self._tell(PREPARE, decider):
                _must_be(outcome, ACCEPTED_CODE)
        except BusError as refused:
            self._context.turn.begin()
            self._transactions.roll_back(self._transaction)
            self._answer.done(TransactionRolledBack(f"The transaction was rolled back: {refused.description}"))
            await self._tell(END, False)
            return
        happened = await (self._decide_here(decider) if self._first is None else self._decide_there(self._first, decider))
        over = all(outcome.code == ACCEPTED_CODE for outcome in await self._tell(END, happened)) and happened is True
        if self._first is None:
            self._context.turn.begin()
            transactions.shares_ended(self._context.namespace, self._id, decider, over)
        else:
            await self._first.share(ENDED, self._id, over)

    async def _tell(self, verb: str, *said: object) -> list[Outcome]:
        return await asyncio.gather(*(part.share(verb, self._id, *said) for part in self._others))

    async def _lead(self) -> int:
        if self._first is None:
            return transactions.decider_for(self._context.namespace, self._transaction.steps)
        return int.from_bytes(_must_be(await self._first.share(LEAD), DECLARED).txn_id or b"", "big")

    async def _decide_here(self, decider: int) -> bool | None:
        """None: only the store knows."""
        self._context.turn.begin()
        word = _Word()
        namespace = self._context.namespace
        then = Committed(self._transaction, word)
        self._transactions.close(self._transaction, word, lambda steps: transactions.decide(namespace, self._id, decider, steps, then))
        error = await word.said
        self._answer.done(error)
        return error is None or (False if isinstance(error, TransactionRolledBack) else None)

    async def _decide_there(self, first: CarriedTransaction, decider: int) -> bool | None:
        outcome = await first.share(DECIDE, self._id, decider, lasts=True)
        self._answer.send(encode_outcome(outcome))
        if outcome.code == ACCEPTED_CODE:
            return True
        return False if outcome.error is not None and outcome.error.condition == TransactionRolledBack.condition else None


def _must_be(outcome: Outcome, code: int) -> Outcome:
    if outcome.code != code:
        error = outcome.error or AmqpError(TransactionRolledBack.condition, "a node does not take it")
        raise TransactionRolledBack(error.description or error.condition)
    return outcome


class _Word(Effect):
    """What the deciding store says."""

    def __init__(self) -> None:
        self.said: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

    def done(self, error: BaseException | None) -> None:
        if not self.said.done():
            self.said.set_result(error)


class NodeShares:
    """The other side: what this node has of transactions that another drives, over one link of it."""

    def __init__(self, connection: PeerConnection) -> None:
        self._connection = connection
        self._prepared: dict[bytes, tuple[PreparedShares, OpenTransaction]] = {}
        self._led: dict[bytes, int] = {}
        """Decided by a store here, and which: until all shares are over."""
        self._over = False

    def answer(self, fields: list[object], answer: CoordinatorAnswer) -> None:
        """[what, the transaction as it is known here, as it is known to all, …]. Raises what refuses it."""
        try:
            verb, id_, *said = fields
        except ValueError:
            raise DecodeFailed("A request about a share names what is asked, and of which transaction.") from None
        open_, namespace = self._connection.transactions, self._connection.context.namespace
        if verb == LEAD:
            decider = transactions.decider_for(namespace, open_.find(cast(bytes, id_)).steps)
            answer.send(encode_declared(decider.to_bytes(4, "big")))
            return
        transaction = said[0] if said else None
        if not isinstance(transaction, bytes):
            raise DecodeFailed("A request about a share names the transaction as binary.")
        if verb == PREPARE:
            self._prepare(cast(bytes, id_), transaction, cast(int, said[1]), answer)
        elif verb == DECIDE:
            decider = self._led[transaction] = cast(int, said[1])
            then = Committed(open_.find(cast(bytes, id_)), answer)
            open_.take(cast(bytes, id_), answer, lambda steps: transactions.decide(namespace, transaction, decider, steps, then))
        elif verb == END:
            self._end(transaction, said[1], answer)
        elif verb == ENDED:
            self._shares_ended(transaction, said[1] is True)
            answer.send(ACCEPTED)
        else:
            raise NotImplementedByBroker(f"Shares of transactions know no {verb!r}: the other node is of another version.")

    def _prepare(self, id_: bytes, transaction: bytes, decider: int, answer: Effect) -> None:
        found = self._connection.transactions.find(id_)

        def prepare(steps: list[Step]) -> None:
            shares = transactions.prepare(self._connection.context.namespace, transaction, decider, steps, answer)
            self._prepared[transaction] = shares, found
            if self._over:
                self._doubt(transaction)

        self._connection.transactions.take(id_, answer, prepare)

    def _end(self, transaction: bytes, happens: object, answer: Effect) -> None:
        prepared = self._prepared.get(transaction)
        if happens is None or prepared is None:  # it has no share, or asks
            self._doubt(transaction)
            answer.done(None)
            return
        del self._prepared[transaction]
        shares, found = prepared
        shares.end(happens is True, Committed(found, answer) if happens is True else answer)

    def _doubt(self, transaction: bytes) -> None:
        prepared = self._prepared.pop(transaction, None)
        if prepared is not None:
            prepared[0].doubt()
            transactions.resolve(self._connection.context.namespace)

    def _shares_ended(self, transaction: bytes, all_of_them: bool) -> None:
        decider = self._led.pop(transaction, None)
        if decider is not None:
            transactions.shares_ended(self._connection.context.namespace, transaction, decider, all_of_them)

    def gone(self) -> None:
        """Whoever drives them is lost."""
        self._over = True
        for transaction in list(self._prepared):
            self._doubt(transaction)
        for transaction in list(self._led):
            self._shares_ended(transaction, False)
