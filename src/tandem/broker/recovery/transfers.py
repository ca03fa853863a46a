"""What was on its way between two stores when one of them stopped, or went to another node: has it arrived, and may it leave its source?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandem.broker import facts
from tandem.broker.ports import Effect
from tandem.broker.queue.index import GONE, MOVING, READY
from tandem.broker.recovery.stores import FarArrivals
from tandem.model.errors import StoreUnavailable

if TYPE_CHECKING:
    from tandem.broker.queue.queue import Queue
    from tandem.broker.recovery.cross_store import TransferId
    from tandem.broker.recovery.stores import Stores
    from tandem.broker.recovery.tenant import StoreTenant


def leave(namespace: Stores, queue: Queue, store: int, seqs: list[int], now: int) -> None:
    """What has arrived in that store leaves its source."""
    for seq in seqs:
        if queue.index.state(seq):
            queue.ledger.settle(seq, facts.FORWARDED, now)
    if seqs:
        queue.when_durable(LeftFor(namespace, store, queue.entity_id, seqs))


def ask_what_arrived(namespace: Stores, queue: Queue, store: int, seqs: list[int]) -> None:
    """They were on their way to a store that stopped, and may be with another node by now: whoever has it says which have arrived."""
    far = namespace.far
    assert far is not None
    own = next((number for number, one in enumerate(namespace.stores) if one.queues.get(queue.entity_id) is queue), -1)
    if own >= 0:  # else it was replayed since, and asks itself
        far.learn(queue.entity_id, own, [store], _Doubtful(namespace, queue, store, seqs))


class _Doubtful(FarArrivals):
    def __init__(self, namespace: Stores, queue: Queue, store: int, seqs: list[int]) -> None:
        self._namespace: Stores = namespace
        self._queue: Queue = queue
        self._store: int = store
        self._seqs: list[int] = seqs

    def is_over(self) -> bool:
        return self._queue.terms.out_of_service

    def learned(self, found: dict[int, list[int]]) -> None:
        queue = self._queue
        if queue.terms.out_of_service:
            return
        now = queue.turn.begin()
        arrived = set(found.get(self._store, []))
        try:
            leave(self._namespace, queue, self._store, [seq for seq in self._seqs if seq in arrived], now)
        except StoreUnavailable:
            return  # the source is down; when it is back, it asks again
        for seq in self._seqs:
            if seq not in arrived and queue.index.state(seq) == MOVING:
                queue.ready.give_back(seq)
        queue.slot.touch()


class LeftFor(Effect):
    """The source has forgotten what another store has, durably."""

    __slots__ = ("_namespace", "_seqs", "_source", "_store")

    def __init__(self, namespace: Stores, store: int, source: int, seqs: list[int]) -> None:
        self._namespace = namespace
        self._store = store
        self._source = source
        self._seqs = seqs

    def done(self, error: BaseException | None) -> None:
        far = self._namespace.far
        if error is None and self._seqs and far is not None:
            far.ended(self._store, self._source, self._seqs)


class Left(Effect):
    """The source has forgotten them, durably: nobody will ever ask again whether they arrived."""

    __slots__ = ("ids", "namespace", "store")

    def __init__(self, namespace: Stores, store: int, ids: list[TransferId]) -> None:
        self.namespace = namespace
        self.store = store
        self.ids = ids

    def done(self, error: BaseException | None) -> None:
        if error is None and self.ids:
            self.namespace.stores[self.store].end_transfers(self.ids)


def settle_transfers(namespace: Stores) -> None:
    """After a store was replayed: what one store received and its source still has leaves the source."""
    all_up = all(tenant.serves for tenant in namespace.stores)
    for number, tenant in enumerate(namespace.stores):
        left: dict[int, list[TransferId]] = {}
        for id_, arrived in list(tenant.transfers.items()):
            if namespace.far is not None and not tenant.serves and id_ not in tenant.rerouted:
                continue  # whoever has that store now is asked before anything is forwarded
            holder = next((place for place, one in enumerate(namespace.stores) if id_[0] in one.queues), -1)
            if holder < 0:
                if all_up and arrived:  # its queue was deleted
                    tenant.end_transfers([id_])
            elif namespace.stores[holder].serves and _source_may_forget(namespace, number, holder, id_, arrived):
                left.setdefault(holder, []).append(id_)
        for holder, ids in left.items():
            namespace.stores[holder].journal.when_durable(Left(namespace, number, ids))
    _retry_undelivered(namespace)
    namespace.turn.schedule()


def _source_may_forget(namespace: Stores, number: int, holder: int, id_: TransferId, arrived: bool) -> bool:
    """Whether the source need not keep it: store `number` has it for certain. Else it stays where it is, held, until that is certain."""
    source, seq = id_
    queue = namespace.stores[holder].queues[source]
    state = queue.index.state(seq)
    enqueued_at = namespace.stores[number].rerouted.get(id_, -1)
    if state and enqueued_at >= 0 and queue.index.enqueued_at(seq) != enqueued_at:
        state = GONE  # it was not kept over there, and its number has gone to another message
    if arrived and namespace.stores[number].serves:
        if state:
            queue.ledger.settle(seq, facts.FORWARDED, queue.turn.now)
        return True
    if state and state != MOVING:
        queue.index.set_state(seq, MOVING)
        namespace.in_doubt.append((number, source, [seq]))
    return False


def suspend_forwarding(namespace: Stores, tenant: StoreTenant, unread: set[int]) -> None:
    """`tenant` was replayed while other stores have not been read since the start: what it has still to forward may be in one of them
    already, and waits until all of them have said."""
    if namespace.far is not None:
        return  # all of them are asked before anything is forwarded
    for queue in tenant.queues.values():
        name = queue.description.forward_to
        target = None if name is None else namespace.forward_target(name)
        if target is None:
            continue
        holders = [namespace.tenant_of(part) for part in target.parts()]
        reached = [number for number in sorted(unread) if namespace.stores[number] in holders]
        if not reached:
            continue
        seqs: list[int] = []
        seq = queue.index.next_in_state(READY, queue.rows.base + 1, queue.rows.next_seq)
        while seq < queue.rows.next_seq:
            queue.index.set_state(seq, MOVING)
            seqs.append(seq)
            seq = queue.index.next_in_state(READY, seq + 1, queue.rows.next_seq)
        if seqs:
            namespace.in_doubt.extend((number, queue.entity_id, seqs) for number in reached)


def _retry_undelivered(namespace: Stores) -> None:
    """What had not arrived when its store stopped is tried again."""
    if namespace.far is not None:
        _ask_about_moved(namespace)
    if not any(namespace.stores[store].serves for store, _, _ in namespace.in_doubt):
        return
    still: list[tuple[int, int, list[int]]] = []
    elsewhere = {(source, seq) for store, source, seqs in namespace.in_doubt if not namespace.stores[store].serves for seq in seqs}
    for store, source, seqs in namespace.in_doubt:
        tenant = namespace.stores[store]
        queue = next((one.queues[source] for one in namespace.stores if source in one.queues and one.serves), None)
        if not tenant.serves or queue is None:
            still.append((store, source, seqs))
            continue
        waiting: list[int] = []
        for seq in seqs:
            state = queue.index.state(seq)
            if state and (source, seq) in tenant.transfers:
                waiting.append(seq)
            elif state == MOVING and (source, seq) not in elsewhere:
                queue.ready.give_back(seq)
        if waiting:
            still.append((store, source, waiting))
    namespace.still_in_doubt(still)


def _ask_about_moved(namespace: Stores) -> None:
    """What waits for a store that another node has by now."""
    moved = [one for one in namespace.in_doubt if namespace.stores[one[0]].elsewhere]
    if not moved:
        return
    namespace.still_in_doubt([one for one in namespace.in_doubt if not namespace.stores[one[0]].elsewhere])
    for store, source, seqs in moved:
        queue = next((one.queues[source] for one in namespace.stores if source in one.queues and one.serves), None)
        if queue is not None:
            ask_what_arrived(namespace, queue, store, seqs)
