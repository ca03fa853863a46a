"""Transactions: everything in one is done, or nothing is, over any number of entities and stores and through any crash.

Sends and settlements are held back until the transaction is discharged. If all of them are in one store they are one block. If not, every
store but one writes down its share (PREPARED); when all have, the last writes COMMITTED together with its own share, and that block
decides; then the others carry out theirs and forget it. After a crash a share is carried out if the deciding store says COMMITTED,
and dropped if it does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandem.broker.ports import Effect, FetchEffect
from tandem.broker.recovery import operations
from tandem.broker.recovery.cross_store import freeze, thaw
from tandem.broker.recovery.operations import Operation
from tandem.broker.recovery.steps import Sent, Settled
from tandem.broker.recovery.stores import FarAnswer
from tandem.model.errors import BusError, StoreUnavailable, TransactionRolledBack

if TYPE_CHECKING:
    from tandem.broker.queue.locks import Lock
    from tandem.broker.queue.queue import Queue
    from tandem.broker.recovery.cross_store import Row
    from tandem.broker.recovery.steps import Step
    from tandem.broker.recovery.stores import Stores
    from tandem.broker.recovery.tenant import StoreTenant


def commit(namespace: Stores, transaction: bytes, steps: list[Step], then: Effect) -> None:
    """Do all of it; `then` follows once it is decided. Raises, with nothing done, when something cannot be."""
    now = namespace.turn.begin()
    shares = _shares_of(namespace, steps, now)
    if len(shares) > 1:
        _decide(namespace, transaction, next(iter(shares)), shares, then, False, now)
        return
    if not shares:
        then.done(None)
        return
    for number, share in shares.items():
        tenant = namespace.stores[number]
        operations.carry_out(tenant.queues, share, now)
        tenant.journal.when_durable(then)
        namespace.turn.schedule()


def decider_for(namespace: Stores, steps: list[Step]) -> int:
    """A store of this node that may decide for all: one that has to do with it, if there is one."""
    for step in steps:
        tenant = namespace.tenant_of(step.part())
        if tenant is not None and tenant.serves:
            return namespace.stores.index(tenant)
    for number, one in enumerate(namespace.stores):
        if one.serves:
            return number
    raise StoreUnavailable("This node has no store that could decide the transaction. Try again.")


def decide(namespace: Stores, transaction: bytes, decider: int, steps: list[Step], then: Effect) -> None:
    """As `commit`, for a transaction of which other nodes have prepared their shares: this store decides for them too."""
    now = namespace.turn.begin()
    if not namespace.stores[decider].available:
        raise StoreUnavailable("The messaging store that decides the transaction is down. Try again.")
    shares = _shares_of(namespace, steps, now)
    shares.setdefault(decider, [])
    _decide(namespace, transaction, decider, shares, then, True, now)


def prepare(namespace: Stores, transaction: bytes, decider: int, steps: list[Step], then: Effect) -> PreparedShares:
    """Write down the share of this node, in a transaction that a store of another node decides; `then` follows when it is on disk."""
    now = namespace.turn.begin()
    shares = PreparedShares(namespace, transaction, decider, _shares_of(namespace, steps, now))
    shares.prepare(now, then)
    return shares


def shares_ended(namespace: Stores, transaction: bytes, decider: int, all_of_them: bool) -> None:
    """Other nodes have carried out what this store decided. Not all, or nobody knows: they are asked before it is forgotten."""
    tenant = namespace.stores[decider]
    if transaction in tenant.awaited:
        tenant.awaited.discard(transaction)
        if not all_of_them:
            tenant.inherited.add(transaction)
        _forget_decided(namespace)


def _shares_of(namespace: Stores, steps: list[Step], now: int) -> dict[int, list[Operation]]:
    """What each store has to do. From here on the client holds nothing of it any more."""
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
    return {number: share for number, share in shares.items() if share}


def _decide(
    namespace: Stores, transaction: bytes, decider: int, shares: dict[int, list[Operation]], then: Effect, far: bool, now: int
) -> None:
    others = PreparedShares(namespace, transaction, decider, {number: share for number, share in shares.items() if number != decider})
    _Decision(namespace, transaction, decider, shares[decider], others, then, far).begin(now)


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


class PreparedShares:
    """What some stores of this node have of one transaction: written down, and then carried out or dropped when it is decided."""

    def __init__(self, namespace: Stores, transaction: bytes, decider: int, shares: dict[int, list[Operation]]) -> None:
        self._namespace = namespace
        self._transaction = transaction
        self._decider = decider
        self._shares = shares
        self._tenants: dict[int, StoreTenant] = {number: namespace.stores[number] for number in shares}
        self._rows: dict[int, list[Row]] = {}
        self._waiting = 0
        self._error: BaseException | None = None
        self._then = Effect()

    def prepare(self, now: int, then: Effect) -> None:
        """`then` follows when all are on disk; with an error, and nothing left of them, if one cannot be."""
        self._then = then
        for number, share in self._shares.items():
            self._rows[number] = freeze(self._tenants[number].rows, operations.rows_of(share))
        prepared: list[StoreTenant] = []
        for number, share in self._shares.items():
            tenant = self._tenants[number]
            try:
                tenant.prepare(self._transaction, self._decider, self._rows[number], operations.encode(share), now)
            except StoreUnavailable as error:
                self._error = error
                break
            prepared.append(tenant)
        self._waiting = len(prepared)
        if not prepared:
            self._all_prepared()
            return
        for tenant in prepared:
            _wait(tenant, _Ready(self))
        self._namespace.turn.schedule()

    def prepared(self, error: BaseException | None) -> None:
        self._waiting -= 1
        self._error = self._error or error
        if not self._waiting:
            self._all_prepared()

    def _all_prepared(self) -> None:
        stores = self._namespace.stores
        if self._error is None and not all(stores[number] is tenant and tenant.available for number, tenant in self._tenants.items()):
            self._error = StoreUnavailable("a store went down")
        if self._error is not None:
            self.end(False, Effect())
        self._then.done(self._error)

    def end(self, happens: bool, then: Effect) -> None:
        """It is decided. `then` follows when the disk knows; with an error if a store asks for itself, when it is back."""
        now = self._namespace.turn.begin()
        joint = _AllEnded(then, len(self._tenants))
        for number, tenant in self._tenants.items():
            if self._namespace.stores[number] is not tenant:
                joint.done(StoreUnavailable("The store was read again since."))
            elif happens:
                _carry_out(self._namespace, tenant, self._transaction, self._shares[number], now, joint)
            else:
                thaw(tenant.queues, self._rows[number])
                _drop(self._namespace, tenant, self._transaction, joint)

    @property
    def count(self) -> int:
        return len(self._tenants)

    def doubt(self) -> None:
        """Whoever would have said how it ends is lost, or does not know: the deciding store says so when it is asked."""
        for tenant in self._tenants.values():
            found = tenant.prepared.get(self._transaction)
            if found is not None and not found.ended:
                found.doubt(True)


class _Decision(Effect):
    """A transaction over several stores, from its shares to its end."""

    def __init__(
        self,
        namespace: Stores,
        transaction: bytes,
        decider: int,
        share: list[Operation],
        others: PreparedShares,
        then: Effect,
        far: bool,
    ) -> None:
        """`far`: other nodes have shares too, which are prepared already."""
        self._namespace = namespace
        self._transaction = transaction
        self._decider = decider
        self._tenant: StoreTenant = namespace.stores[decider]
        self._share = share
        self._others = others
        self._then = then
        self._far = far
        self._rows: list[Row] = []

    def begin(self, now: int) -> None:
        self._rows = freeze(self._tenant.rows, operations.rows_of(self._share))
        self._others.prepare(now, self)

    def _serves(self) -> bool:
        return self._namespace.stores[self._decider] is self._tenant and self._tenant.available

    def done(self, error: BaseException | None) -> None:
        """The others have prepared their shares, or cannot."""
        tenant = self._tenant
        now = self._namespace.turn.begin()
        if error is None and not self._serves():
            error = StoreUnavailable("a store went down")
        if error is None:
            try:
                tenant.decide(self._transaction, self._others.count + self._far, now)
            except StoreUnavailable as refused:
                error = refused
        if error is not None:
            self._roll_back(error)
            return
        if self._far:
            tenant.awaited.add(self._transaction)
        operations.carry_out(tenant.queues, self._share, now)
        _wait(tenant, _Decided(self))
        self._namespace.turn.schedule()

    def _roll_back(self, error: BaseException) -> None:
        if self._namespace.stores[self._decider] is self._tenant:
            thaw(self._tenant.queues, self._rows)
        self._others.end(False, Effect())
        cause = error.description if isinstance(error, BusError) else "a store went down"
        self._then.done(TransactionRolledBack(f"The transaction was rolled back: {cause}"))

    def decided(self, error: BaseException | None) -> None:
        if error is not None:
            # Whether the block is on disk, its store says when it is back. Until then the shares wait.
            self._others.doubt()
            self._then.done(error)
            return
        self._tenant.committed[self._transaction] = True
        self._then.done(None)
        self._others.end(True, Effect())
        resolve(self._namespace)


def _carry_out(namespace: Stores, tenant: StoreTenant, transaction: bytes, share: list[Operation], now: int, then: Effect) -> None:
    """Doing it and noting that it is done are one block."""
    try:
        operations.carry_out(tenant.queues, share, now)
        tenant.end_prepared(transaction)
    except StoreUnavailable as error:
        then.done(error)  # when the store is back, it finds its share and asks
        return
    _wait(tenant, _Ended(namespace, tenant, transaction, then))
    namespace.turn.schedule()


def _drop(namespace: Stores, tenant: StoreTenant, transaction: bytes, then: Effect) -> None:
    if transaction not in tenant.prepared:
        then.done(None)
        return
    try:
        tenant.end_prepared(transaction)
    except StoreUnavailable as error:
        then.done(error)
        return
    _wait(tenant, _Ended(namespace, tenant, transaction, then))
    namespace.turn.schedule()


def _wait(tenant: StoreTenant, effect: Effect) -> None:
    try:
        tenant.journal.when_durable(effect)
    except StoreUnavailable as error:
        effect.done(error)


class _Ready(Effect):
    __slots__ = ("_shares",)

    def __init__(self, shares: PreparedShares) -> None:
        self._shares = shares

    def done(self, error: BaseException | None) -> None:
        self._shares.prepared(error)


class _Decided(Effect):
    __slots__ = ("_decision",)

    def __init__(self, decision: _Decision) -> None:
        self._decision = decision

    def done(self, error: BaseException | None) -> None:
        self._decision.decided(error)


class _AllEnded(Effect):
    """The shares of one node are over, with the first error if there was one."""

    __slots__ = ("_error", "_left", "_then")

    def __init__(self, then: Effect, left: int) -> None:
        self._then = then
        self._left = left
        self._error: BaseException | None = None
        if not left:
            then.done(None)

    def done(self, error: BaseException | None) -> None:
        self._left -= 1
        self._error = self._error or error
        if not self._left:
            self._then.done(self._error)


class _Ended(Effect):
    """The disk knows that a share is over; when all are, the decision need not be remembered."""

    __slots__ = ("_namespace", "_tenant", "_then", "_transaction")

    def __init__(self, namespace: Stores, tenant: StoreTenant, transaction: bytes, then: Effect) -> None:
        self._namespace = namespace
        self._tenant = tenant
        self._transaction = transaction
        self._then = then

    def done(self, error: BaseException | None) -> None:
        if error is None and self._tenant in self._namespace.stores:
            self._tenant.forget_prepared(self._transaction)
            _forget_decided(self._namespace)
        self._then.done(error)


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
        _drop(namespace, tenant, transaction, Effect())
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
            if not decided or transaction in tenant.asked or transaction in tenant.awaited:
                continue
            if any(transaction in other.prepared for other in ours):
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
            _drop(self._namespace, tenant, self._transaction, Effect())
            return
        _carry_out(self._namespace, tenant, self._transaction, operations.decode(bodies[0]), self._namespace.turn.begin(), Effect())
