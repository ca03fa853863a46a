"""Transactions: everything in one is done, or nothing is, over any number of entities and stores and through any crash.

Sends and settlements are held back until the transaction is discharged. If all of them are in one store they are one block. If not, every
store but one writes down its share (PREPARED); when all have, the last writes COMMITTED together with its own share, and that block
decides; then the others carry out theirs and forget it. After a crash a share is carried out if the deciding store says COMMITTED,
and dropped if it does not.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Final

from tandem.broker import facts
from tandem.broker.ports import Effect, FetchEffect
from tandem.broker.queue.index import DEFERRED, READY
from tandem.broker.recovery import operations
from tandem.broker.recovery.cross_store import freeze, thaw
from tandem.broker.recovery.operations import Operation
from tandem.broker.recovery.stores import FarAnswer
from tandem.model.errors import BusError, StoreUnavailable, TransactionRolledBack
from tandem.model.message import encode_body

if TYPE_CHECKING:
    from tandem.broker.queue.entity import Entity
    from tandem.broker.queue.locks import Lock
    from tandem.broker.queue.queue import Queue
    from tandem.broker.recovery.cross_store import Row
    from tandem.broker.recovery.stores import Stores
    from tandem.broker.recovery.tenant import StoreTenant
    from tandem.model.message import Message

COMPLETE: Final = 0
ABANDON: Final = 1
DEFER: Final = 2
DEAD_LETTER: Final = 3


class Step:
    """One send or settlement. `queue` is what the client named; the part of it that holds the message is found when it counts."""

    def __init__(self, queue: Entity) -> None:
        self.queue = queue

    def check(self, now: int) -> None:
        """Raises what stands in the way of doing it now."""

    @abstractmethod
    def part(self) -> Queue:
        """The queue whose store has to do with it."""

    def release(self) -> None:
        """It is going to happen: the client no longer holds anything."""

    def operations(self) -> list[Operation]:
        return []

    def size(self) -> int:
        return 0


class Sent(Step):
    def __init__(self, queue: Entity, message: Message) -> None:
        super().__init__(queue)
        self.message = message

    def check(self, now: int) -> None:
        self.queue.check_send(self.message, self.message.size_bytes)

    def part(self) -> Queue:
        return self.queue.destination(self.message)

    def operations(self) -> list[Operation]:
        return [] if self.message.is_ping else [operations.put(self.part(), self.message)]

    def size(self) -> int:
        return self.message.size_bytes


class Settled(Step):
    """`changed` is the message with its new properties, where the outcome brings some."""

    def __init__(self, queue: Entity, lock: Lock, how: int, changed: Message | None = None) -> None:
        super().__init__(queue)
        self.lock = lock
        self.how = how
        self.changed = changed

    def check(self, now: int) -> None:
        self.queue.part_of(self.lock.seq).settlement.require(self.lock, now)

    def part(self) -> Queue:
        return self.queue.part_of(self.lock.seq)

    def release(self) -> None:
        self.part().settlement.drop_lock(self.lock)

    def operations(self) -> list[Operation]:
        queue, lock = self.part(), self.lock
        seq = lock.seq
        if self.how == COMPLETE:
            return [Operation(operations.REMOVE, queue.entity_id, seq, facts.COMPLETED)]
        shelf = queue.moves.dead_letters
        if self.how == DEAD_LETTER and shelf is not None:
            assert self.changed is not None
            body = encode_body(self.changed)
            return [
                Operation(operations.REMOVE, queue.entity_id, seq, facts.DEAD_LETTERED),
                Operation(operations.TAKE, shelf.rows.entity_id, 0, queue.index.enqueued_at(seq), lock.count, body),
            ]
        count = queue.index.count(seq)
        state = DEFERRED if self.how == DEFER or lock.deferred else READY
        if self.changed is not None:
            return [Operation(operations.REWRITE, queue.entity_id, seq, state, count, encode_body(self.changed))]
        return [Operation(operations.STATE, queue.entity_id, seq, state, count)]

    def size(self) -> int:
        return 0 if self.changed is None else self.changed.size_bytes


def commit(namespace: Stores, transaction: bytes, steps: list[Step], then: Effect) -> None:
    """Do all of it; `then` follows once it is decided. Raises, with nothing done, when something cannot be."""
    now = namespace.turn.begin()
    _check(steps, now)
    shares: dict[int, list[Operation]] = {}
    for step in steps:
        part = step.part()
        tenant = namespace.tenant_of(part)
        if tenant is None or not tenant.available:
            raise StoreUnavailable(f"The messaging store that holds '{part.path}' is down. Try again.")
        shares.setdefault(namespace.stores.index(tenant), []).extend(step.operations())
    for step in steps:
        step.release()
    numbers = [number for number, share in shares.items() if share]
    if len(numbers) > 1:
        _Decision(namespace, transaction, {number: shares[number] for number in numbers}, then).prepare(now)
        return
    if not numbers:
        then.done(None)
        return
    tenant = namespace.stores[numbers[0]]
    operations.carry_out(tenant.queues, shares[numbers[0]], now)
    tenant.journal.when_durable(then)
    namespace.turn.schedule()


def _check(steps: list[Step], now: int) -> None:
    """Everything that may refuse it is asked first; what fits one by one must fit together too."""
    sizes: dict[Queue, int] = {}
    locks: set[Lock] = set()
    for step in steps:
        step.check(now)
        if isinstance(step, Sent):
            part = step.part()
            sizes[part] = sizes.get(part, 0) + step.size()
        elif isinstance(step, Settled):
            if step.lock in locks:
                raise TransactionRolledBack(f"Message {step.lock.seq} of '{step.queue.path}' is settled twice in one transaction.")
            locks.add(step.lock)
    for queue, size in sizes.items():
        queue.intake.check_room(size)


class _Decision:
    """A transaction over several stores, from its shares to its end."""

    def __init__(self, namespace: Stores, transaction: bytes, shares: dict[int, list[Operation]], then: Effect) -> None:
        self._namespace = namespace
        self._transaction = transaction
        self._then = then
        self._decider = next(iter(shares))
        self._shares = shares
        self._tenants: dict[int, StoreTenant] = {number: namespace.stores[number] for number in shares}
        self._others = [number for number in shares if number != self._decider]
        self._rows: dict[int, list[Row]] = {}
        self._waiting = 0
        self._error: BaseException | None = None

    def prepare(self, now: int) -> None:
        for number, share in self._shares.items():
            self._rows[number] = freeze(self._tenants[number].rows, operations.rows_of(share))
        prepared: list[StoreTenant] = []
        for number in self._others:
            tenant = self._tenants[number]
            try:
                tenant.prepare(self._transaction, self._decider, self._rows[number], operations.encode(self._shares[number]), now)
            except StoreUnavailable as error:
                self._error = error
                break
            prepared.append(tenant)
        self._waiting = len(prepared)
        if not prepared:
            self._roll_back()
            return
        for tenant in prepared:
            _wait(tenant, _Ready(self))
        self._namespace.turn.schedule()

    def prepared(self, error: BaseException | None) -> None:
        self._waiting -= 1
        self._error = self._error or error
        if self._waiting:
            return
        now = self._namespace.turn.begin()
        if self._error is not None or not self._in_service():
            self._roll_back()
            return
        tenant = self._tenants[self._decider]
        try:
            tenant.decide(self._transaction, len(self._others), now)
        except StoreUnavailable as refused:
            self._error = refused
            self._roll_back()
            return
        operations.carry_out(tenant.queues, self._shares[self._decider], now)
        _wait(tenant, _Decided(self))
        self._namespace.turn.schedule()

    def _in_service(self) -> bool:
        return all(self._namespace.stores[number] is tenant and tenant.available for number, tenant in self._tenants.items())

    def _roll_back(self) -> None:
        for number, tenant in self._tenants.items():
            if self._namespace.stores[number] is tenant:
                thaw(tenant.queues, self._rows[number])
                _drop(self._namespace, tenant, self._transaction)
        cause = self._error.description if isinstance(self._error, BusError) else "a store went down"
        self._then.done(TransactionRolledBack(f"The transaction was rolled back: {cause}"))

    def decided(self, error: BaseException | None) -> None:
        if error is not None:
            # Whether the block is on disk, its store says when it is back. Until then the shares wait.
            for number in self._others:
                found = self._tenants[number].prepared.get(self._transaction)
                if found is not None:
                    found.doubt(True)
            self._then.done(error)
            return
        self._tenants[self._decider].committed[self._transaction] = True
        self._then.done(None)
        now = self._namespace.turn.begin()
        for number in self._others:
            tenant = self._tenants[number]
            if self._namespace.stores[number] is tenant:
                _carry_out(self._namespace, tenant, self._transaction, self._shares[number], now)
        resolve(self._namespace)


def _carry_out(namespace: Stores, tenant: StoreTenant, transaction: bytes, share: list[Operation], now: int) -> None:
    """Doing it and noting that it is done are one block."""
    try:
        operations.carry_out(tenant.queues, share, now)
        tenant.end_prepared(transaction)
    except StoreUnavailable:
        return  # when the store is back, it finds its share and asks
    _wait(tenant, _Ended(namespace, tenant, transaction))
    namespace.turn.schedule()


def _drop(namespace: Stores, tenant: StoreTenant, transaction: bytes) -> None:
    if transaction not in tenant.prepared:
        return
    try:
        tenant.end_prepared(transaction)
    except StoreUnavailable:
        return
    _wait(tenant, _Ended(namespace, tenant, transaction))
    namespace.turn.schedule()


def _wait(tenant: StoreTenant, effect: Effect) -> None:
    try:
        tenant.journal.when_durable(effect)
    except StoreUnavailable as error:
        effect.done(error)


class _Ready(Effect):
    __slots__ = ("_decision",)

    def __init__(self, decision: _Decision) -> None:
        self._decision = decision

    def done(self, error: BaseException | None) -> None:
        self._decision.prepared(error)


class _Decided(Effect):
    __slots__ = ("_decision",)

    def __init__(self, decision: _Decision) -> None:
        self._decision = decision

    def done(self, error: BaseException | None) -> None:
        self._decision.decided(error)


class _Ended(Effect):
    """The disk knows that a share is over; when all are, the decision need not be remembered."""

    __slots__ = ("_namespace", "_tenant", "_transaction")

    def __init__(self, namespace: Stores, tenant: StoreTenant, transaction: bytes) -> None:
        self._namespace = namespace
        self._tenant = tenant
        self._transaction = transaction

    def done(self, error: BaseException | None) -> None:
        if error is None and self._tenant in self._namespace.stores:
            self._tenant.forget_prepared(self._transaction)
            _forget_decided(self._namespace)


# --- after a replay


def resolve(namespace: Stores) -> None:
    """A store was replayed: shares whose outcome nobody in this process knows are carried out or dropped."""
    stores = namespace.stores
    far = namespace.far
    for tenant in stores:
        if not tenant.available:
            continue
        for transaction, found in list(tenant.prepared.items()):
            if found.ended or not found.in_doubt or found.decider >= len(stores):
                continue
            decider = stores[found.decider]
            if far is not None and decider.elsewhere:
                found.doubt(False)  # until it has said
                far.decided(found.decider, transaction, _FarDecision(namespace, tenant, transaction))
            elif decider.available:
                _resolve_one(namespace, tenant, transaction, decider.committed.get(transaction))
    _forget_decided(namespace)


def _resolve_one(namespace: Stores, tenant: StoreTenant, transaction: bytes, decided: bool | None) -> None:
    found = tenant.prepared.get(transaction)
    if found is None or found.ended:
        return
    if decided is None:
        thaw(tenant.queues, found.rows)
        _drop(namespace, tenant, transaction)
    elif decided:
        found.doubt(False)
        tenant.journal.fetch([found.location], _Share(namespace, tenant, transaction))


class _FarDecision(FarAnswer):
    """What the store of another node says of a share here."""

    def __init__(self, namespace: Stores, tenant: StoreTenant, transaction: bytes) -> None:
        self._namespace: Stores = namespace
        self._tenant: StoreTenant = tenant
        self._transaction: bytes = transaction

    def is_over(self) -> bool:
        return self._tenant not in self._namespace.stores or not self._tenant.available

    def said(self, yes: bool) -> None:
        if not self.is_over():
            _resolve_one(self._namespace, self._tenant, self._transaction, True if yes else None)


def _forget_decided(namespace: Stores) -> None:
    """What no store has a share of any more was carried out everywhere."""
    far = namespace.far
    ours = [tenant for tenant in namespace.stores if far is None or not tenant.elsewhere]
    left = [tenant for tenant in namespace.stores if tenant not in ours]
    if not all(tenant.available for tenant in ours):
        return
    for tenant in ours:
        for transaction, decided in list(tenant.committed.items()):
            if not decided or transaction in tenant.asked or any(transaction in other.prepared for other in ours):
                continue
            # a store that has left with its share may have another node that still has to ask what was decided
            shared = transaction in tenant.inherited or any(transaction in other.prepared for other in left)
            if far is None or not shared:
                tenant.end_committed(transaction)
            else:
                tenant.inherited.discard(transaction)
                tenant.asked.add(transaction)
                far.held(transaction, _FarShares(tenant, transaction))


class _FarShares(FarAnswer):
    """Whether another node still has a share of what was decided here before this process began."""

    def __init__(self, tenant: StoreTenant, transaction: bytes) -> None:
        self._tenant: StoreTenant = tenant
        self._transaction: bytes = transaction

    def is_over(self) -> bool:
        return not self._tenant.available

    def said(self, yes: bool) -> None:
        self._tenant.asked.discard(self._transaction)
        if yes:
            self._tenant.inherited.add(self._transaction)  # asked again with the next transaction, or after the next start
        elif self._transaction in self._tenant.committed:
            self._tenant.end_committed(self._transaction)


class _Share(FetchEffect):
    """A share that was decided and not carried out, read back from its store."""

    __slots__ = ("_namespace", "_tenant", "_transaction")

    def __init__(self, namespace: Stores, tenant: StoreTenant, transaction: bytes) -> None:
        self._namespace = namespace
        self._tenant = tenant
        self._transaction = transaction

    def fetched(self, bodies: list[bytes], error: BaseException | None) -> None:
        tenant = self._tenant
        found = tenant.prepared.get(self._transaction)
        if found is None or found.ended or tenant not in self._namespace.stores:
            return
        if error is not None:
            found.doubt(True)
            if isinstance(error, StoreUnavailable):
                return  # asked again when the store is back
            raise error
        if not bodies[0]:  # lost to damage, which the store has told: nothing can be carried out, and what it held is free again
            thaw(tenant.queues, found.rows)
            _drop(self._namespace, tenant, self._transaction)
            return
        _carry_out(self._namespace, tenant, self._transaction, operations.decode(bodies[0]), self._namespace.turn.begin())
