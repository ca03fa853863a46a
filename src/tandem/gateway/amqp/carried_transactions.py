"""Transactions whose entities another node has: declared and discharged there too, under an id of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tandem.amqp.errors import AmqpError
from tandem.amqp.handlers import LinkHandler
from tandem.amqp.message import VALUE, encode_message
from tandem.amqp.outcomes import ACCEPTED_CODE, DECLARED, NO_OUTCOME, REJECTED_CODE, Outcome, encode_outcome, encode_transactional
from tandem.amqp.terminus import Coordinator, Terminus
from tandem.amqp.types import Described, Symbol, ULong
from tandem.model.errors import BusError, StoreUnavailable

if TYPE_CHECKING:
    from tandem.amqp.link import Delivery, Link, SenderLink
    from tandem.gateway.amqp.carrying import CarriedConnection, CarriedReceiving, CarriedSending

_DECLARE: Final = ULong(0x31)
_DISCHARGE: Final = ULong(0x32)
SHARE: Final = Symbol("com.tandem:transaction-share:list")
"""Its share of a transaction over several nodes: see `joint_transactions`."""
_LOST: Final = AmqpError("amqp:internal-error", "The node that has this transaction was lost. Nothing of it has happened. Try again.")
_IN_DOUBT: Final = AmqpError(
    "amqp:internal-error",
    "The node that has this transaction was lost before it answered: all of it has happened, or nothing. Look before you try again.",
)


class FarCoordinator(LinkHandler):
    """The coordinator of another node, for one client."""

    def __init__(self, carried: CarriedConnection) -> None:
        self._carried = carried
        self._tags = 0
        self._queued: list[tuple[bytes, Callable[[Outcome], None]]] = []
        self._in_doubt: set[Callable[[Outcome], None]] = set()
        """Those whose request will have happened if its answer is lost."""
        session = carried.engine.begin()
        self._link = session.attach_sender("coordinator", Terminus(), Coordinator(["amqp:local-transactions"]), self)
        carried.touch()

    @property
    def is_over(self) -> bool:
        return self._link.told

    def ask(self, descriptor: object, fields: list[object], then: Callable[[Outcome], None], lasts: bool = False) -> None:
        """`lasts`: it may have happened although nobody was told."""
        if lasts:
            self._in_doubt.add(then)
        payload = encode_message(body=Described(descriptor, fields), body_kind=VALUE)
        if self._link.told or self._carried.gone:
            then(Outcome(REJECTED_CODE, _LOST))
        elif self._link.attached:
            self._send(payload, then)
        else:
            self._queued.append((payload, then))

    def _send(self, payload: bytes, then: Callable[[Outcome], None]) -> None:
        self._tags += 1
        self._link.send(payload, self._tags.to_bytes(4, "big"), False, then)
        self._carried.touch()

    def on_attached(self, link: Link) -> None:
        # The engine says so just before the link can be used; what waits is sent with its first credit.
        self._carried.touch()

    def on_flow(self, link: Link) -> None:
        queued, self._queued = self._queued, []
        for payload, then in queued:
            self._send(payload, then)

    def on_disposition(self, link: SenderLink, deliveries: list[Delivery], outcome: Outcome, settled: bool) -> None:
        for delivery in deliveries:
            then = delivery.context
            assert callable(then)
            self._in_doubt.discard(then)
            then(outcome)

    def on_detach(self, link: Link, error: AmqpError | None) -> None:
        asked = [delivery.context for delivery in self._link.unsettled()]
        queued, self._queued = self._queued, []
        doubtful, self._in_doubt = self._in_doubt, set()
        for then in asked:
            assert callable(then)
            then(Outcome(REJECTED_CODE, _IN_DOUBT if then in doubtful else error or _LOST))
        for _, waiting in queued:
            waiting(Outcome(REJECTED_CODE, error or _LOST))


class CarriedTransaction:
    """One client's transaction, as the node knows it that has its entities."""

    def __init__(self, carried: CarriedConnection, ours: bytes) -> None:
        self.carried = carried
        self._ours = ours
        self._theirs: bytes | None = None
        self._refused: AmqpError | None = None
        self._waiting: list[Callable[[bytes | None], None]] = []
        found = carried.coordinator
        self._coordinator = found if isinstance(found, FarCoordinator) and not found.is_over else FarCoordinator(carried)
        carried.coordinator = self._coordinator
        self._coordinator.ask(_DECLARE, [None], self._declared)

    def when_declared(self, work: Callable[[bytes | None], None]) -> None:
        """In order; with None if the node does not take the transaction."""
        if self._theirs is not None or self._refused is not None:
            work(self._theirs)
        else:
            self._waiting.append(work)

    def _declared(self, outcome: Outcome) -> None:
        if outcome.code == DECLARED and outcome.txn_id is not None:
            self._theirs = outcome.txn_id
            self.carried.transactions[outcome.txn_id] = self._ours
        else:
            self._refused = outcome.error or _LOST
        waiting, self._waiting = self._waiting, []
        for work in waiting:
            work(self._theirs)

    def refusal(self) -> BusError:
        why = self._refused.description if self._refused is not None else None
        return StoreUnavailable(f"The node that has the entities of this transaction does not take it: {why}")

    async def share(self, verb: str, *said: object, lasts: bool = False) -> Outcome:
        """What the node says of its share. `lasts`: as with the coordinator."""
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def answered(outcome: Outcome) -> None:
            if not answer.done():
                answer.set_result(outcome)

        def ask(theirs: bytes | None) -> None:
            if theirs is None:
                answered(Outcome(REJECTED_CODE, self._refused or _LOST))
            else:
                self._coordinator.ask(SHARE, [verb, theirs, *said], answered, lasts)

        self.when_declared(ask)
        return await answer

    def discharge(self, fail: bool, then: Callable[[bytes], None]) -> None:
        """`then` is given the answer of the node, encoded."""

        def ask(theirs: bytes | None) -> None:
            if theirs is None:
                then(encode_outcome(Outcome(REJECTED_CODE, self._refused or _LOST)))
            else:
                self._coordinator.ask(_DISCHARGE, [theirs, fail], answered, not fail)

        def answered(outcome: Outcome) -> None:
            if self._theirs is not None:
                self.carried.transactions.pop(self._theirs, None)
            then(encode_outcome(outcome if outcome.code in (ACCEPTED_CODE, REJECTED_CODE) else Outcome(REJECTED_CODE, _LOST)))

        self.when_declared(ask)


def state_for_client(carried: CarriedConnection, outcome: Outcome) -> bytes:
    """A transactional state as the client knows it: its own id for the transaction."""
    inner = b"" if outcome.inner is None else encode_outcome(outcome.inner)
    theirs = outcome.txn_id or b""
    return encode_transactional(carried.transactions.get(theirs, theirs), inner)


def carry_send(sending: CarriedSending, id_: bytes | None, delivery_id: int, tag: bytes, payload: bytes, settled: bool, kind: int) -> None:
    """A send in a transaction: after the transaction is known there. Raises what refuses it."""
    part = sending.client.transactions.carry(id_, sending.carried)

    def send(theirs: bytes | None) -> None:
        far = sending.far
        if theirs is None or far is None or not far.attached:
            refusal = part.refusal()
            if settled:
                sending.client.transactions.doom(id_, refusal)
            if sending.near.attached:
                sending.reject(delivery_id, settled, refusal)
            return
        far.send(payload, tag, settled, delivery_id, kind, encode_transactional(theirs))
        sending.carried.touch()

    part.when_declared(send)


def carry_settlement(receiving: CarriedReceiving, deliveries: list[Delivery], outcome: Outcome, settled: bool) -> None:
    """A settlement in a transaction, likewise."""
    part = receiving.client.transactions.carry(outcome.txn_id, receiving.carried)
    inner = encode_outcome(outcome.inner or NO_OUTCOME)

    def settle(theirs: bytes | None) -> None:
        if theirs is None:
            receiving.refuse(deliveries, settled, part.refusal())
        else:
            receiving.settle(deliveries, settled, encode_transactional(theirs, inner))

    part.when_declared(settle)
