"""Forwarding: what a queue holds moves on to where its description says, once, whatever crashes in between.

Within one store, leaving and arriving are one block. Between two stores the message arrives first, together with the fact TRANSFERRED
that names where it came from; when that is on disk it leaves its source; when that is on disk too the fact is forgotten. After a crash
`settle_transfers` removes from their sources the messages that some store remembers to have received. If the store that may remember cannot
be read, they wait for it.

A store that may be with another node is asked to take them until whoever has it answers; what it remembers it does not take twice. After a
replay all stores are asked what they remember, before anything is forwarded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tandem.broker import facts
from tandem.broker.ports import Effect, Loaded
from tandem.broker.queue.index import MOVING
from tandem.broker.queue.moves import reasons
from tandem.broker.queue.queue import Carrier, Carriers, Queue
from tandem.broker.recovery.stores import FarArrivals, FarTransfer
from tandem.broker.recovery.transfers import Left, LeftFor, ask_what_arrived, leave, settle_transfers
from tandem.model.errors import (
    BusError,
    EntityDisabled,
    MessageSizeExceeded,
    NotAllowed,
    QuotaExceeded,
    Retry,
    StoreUnavailable,
    Unavailable,
)
from tandem.model.message import NO_TTL, encode_body

if TYPE_CHECKING:
    from tandem.broker.queue.entity import Entity
    from tandem.broker.recovery.stores import Stores
    from tandem.broker.recovery.tenant import StoreTenant
    from tandem.model.message import Message

HOPS_MAX: Final = 4
_BATCH_MAX: Final = 256
_BATCH_BYTES_MAX: Final = 1_048_576
_RETRY_MS: Final = 1_000

_TOO_MANY_HOPS: Final = f"The maximum transfer hop count ({HOPS_MAX}) is exceeded: the message was forwarded that often already."


class Forwarders(Carriers):
    """Of one namespace."""

    def __init__(self, namespace: Stores) -> None:
        self._namespace = namespace

    def carrier_of(self, queue: Queue) -> Carrier | None:
        target = queue.description.forward_to
        carrier = queue.carrier
        if target is None or (isinstance(carrier, Forwarding) and carrier.target == target):
            return None if target is None else carrier
        return Forwarding(queue, target, self._namespace)


class Forwarding(Carrier):
    """Carries the messages of one queue. Made when the queue gets a forward target; the target is looked up for each batch."""

    def __init__(self, queue: Queue, target: str, namespace: Stores) -> None:
        self.queue = queue
        self.target = target
        self.namespace = namespace
        self.under_way: int = 0
        """Reads and commits that the current batch waits for."""
        self.retry_at: int = 0
        self.knows_far: bool = namespace.far is None
        """What other nodes have had from here is known."""

    # -- taking ------------------------------------------------------------------------------

    def pump(self, now: int) -> None:
        """Start a batch unless one is under way."""
        if self.under_way or now < self.retry_at:
            return
        queue = self.queue
        far = self.namespace.far
        if not self.knows_far and far is not None:
            self.under_way += 1
            own, must = self._stores_to_ask()
            far.learn(queue.entity_id, own, must, _Learning(self))
            return
        seqs: list[int] = []
        size = 0
        while len(seqs) < _BATCH_MAX and size < _BATCH_BYTES_MAX:
            seq = queue.ready.first()
            if seq == 0:
                break
            queue.ready.take(seq)
            if 0 < queue.index.expires_at(seq) <= now:
                queue.moves.expire(seq, now)
                continue
            queue.index.set_state(seq, MOVING)
            seqs.append(seq)
            size += queue.index.size(seq)
        if seqs:
            self.under_way += 1
            queue.bodies.load_to_write(seqs, _Taken(self, seqs))

    def clock_jumped(self) -> None:
        self.retry_at = 0

    def _stores_to_ask(self) -> tuple[int, list[int]]:
        """The store of the queue, and those where what is forwarded may have arrived."""
        namespace = self.namespace
        own = next((number for number, one in enumerate(namespace.stores) if self.queue.entity_id in one.queues), -1)
        target = namespace.forward_target(self.target)
        reached = [] if target is None else [part.entity_id for part in target.parts()]
        must = [number for number, one in enumerate(namespace.stores) if not one.queues.keys().isdisjoint(reached)]
        return own, [number for number in must if number != own]

    def learned(self, found: dict[int, list[int]]) -> None:
        """What has arrived in other stores leaves; only then is the rest forwarded."""
        self.one_came()
        queue = self.queue
        if queue.terms.out_of_service:
            return
        now = queue.turn.begin()
        try:
            for store, seqs in found.items():
                leave(self.namespace, queue, store, seqs, now)
        except StoreUnavailable:
            return  # the source is down; when it is back, it asks again
        self.knows_far = True
        queue.slot.touch()

    def taken(self, seqs: list[int], messages: list[Message | None], error: BaseException | None) -> None:
        self.one_came()
        queue = self.queue
        if queue.terms.out_of_service:
            return
        if error is not None:
            self.give_back(seqs, queue.turn.now)
            return
        batch = _Batch(self)
        queue.access(queue.turn.now)
        for at, (seq, message) in enumerate(zip(seqs, messages, strict=True)):
            if message is None or queue.index.state(seq) != MOVING:
                continue
            try:
                self._move(batch, seq, message, queue.turn.now)
            except (Retry, Unavailable):
                self.give_back(seqs[at:], queue.turn.now)
                break
        batch.send_off()

    def expect_one(self) -> None:
        """One more answer is waited for before the next batch."""
        self.under_way += 1

    def one_came(self) -> None:
        self.under_way -= 1

    def give_back(self, seqs: list[int], now: int) -> None:
        """It did not work now: the messages stay, and are tried again in a moment."""
        queue = self.queue
        self.retry_at = now + _RETRY_MS
        queue.slot.wake(self.retry_at)
        for seq in seqs:
            if queue.index.state(seq) == MOVING:
                queue.ready.give_back(seq)

    # -- moving ------------------------------------------------------------------------------

    def _move(self, batch: _Batch, seq: int, message: Message, now: int) -> None:
        queue = self.queue
        target = batch.target
        if message.hops >= HOPS_MAX:
            self.set_aside(seq, message, "MaxTransferHopCountExceeded", _TOO_MANY_HOPS, now)
            return
        if target is None:
            reason = f"The forward target '{self.target}' of '{queue.path}' does not exist."
            self.set_aside(seq, message, "MessagingEntityNotFound", reason, now)
            return
        copy = self._copy(seq, message, now)
        store, fragment = self.namespace.place_of(target, copy)
        if store >= 0:
            batch.carry(store, fragment, seq, message, copy)
            target.access(now)
            return
        try:
            target.check_send(copy, copy.size_bytes)
        except (EntityDisabled, NotAllowed, MessageSizeExceeded, QuotaExceeded) as error:
            self.set_aside(seq, message, _REASONS[type(error)], error.description, now)
            return
        part = target.destination(copy)
        if not batch.reaches(part):
            raise Unavailable("The store of the forward target is down.")
        part.intake.admit(copy, now)
        target.access(now)
        if part.rows.backing is queue.rows.backing:
            queue.ledger.settle(seq, facts.FORWARDED, now)
        else:
            batch.remember(part, seq, now)

    def _copy(self, seq: int, message: Message, now: int) -> Message:
        """As it arrives: one hop older, knowing where it was first, with the time to live that is left of its own."""
        queue = self.queue
        source = queue.terms.parent_path if queue.terms.is_dead_letter else ""
        copy = queue.rewriter.forwarded(message, seq, source)
        copy.hop(message.hops + 1)
        expires_at = queue.index.expires_at(seq)
        if queue.terms.is_dead_letter:
            # Nothing expires in a dead-letter queue; what was put aside there must not vanish on its way to who looks after it.
            copy.live_for(NO_TTL)
        elif expires_at and copy.ttl_ms != NO_TTL:
            copy.live_for(max(expires_at - now, 1))
        return copy

    def set_aside(self, seq: int, message: Message, reason: str, description: str, now: int) -> None:
        """Into the transfer dead-letter queue, which is in the store of the source."""
        queue = self.queue
        shelf = queue.transfer_dead_letters
        assert shelf is not None
        changed = queue.rewriter.with_properties(message, reasons(reason, description))
        queue.moves.move_to(shelf.intake, seq, changed, queue.index.count(seq))


_REASONS: Final[dict[type[BusError], str]] = {
    EntityDisabled: "MessagingEntityDisabled",
    NotAllowed: "Session ID is null",
    MessageSizeExceeded: "MessageSizeExceeded",
    QuotaExceeded: "QuotaExceeded",
}


class _Batch:
    """What was taken together: at most one arrival per store it goes to."""

    __slots__ = ("_arrivals", "_far", "forwarding", "namespace", "target")

    def __init__(self, forwarding: Forwarding) -> None:
        self.forwarding = forwarding
        self.namespace = forwarding.namespace
        self.target: Entity | None = forwarding.namespace.forward_target(forwarding.target)
        self._arrivals: dict[Queue, _Arrival] = {}
        self._far: dict[int, _FarArrival] = {}

    def carry(self, store: int, fragment: int, seq: int, message: Message, copy: Message) -> None:
        """It goes to a store of another node."""
        arrival = self._far.get(store)
        if arrival is None:
            arrival = self._far[store] = _FarArrival(self.forwarding, store)
        arrival.add(seq, fragment, message, copy)

    def reaches(self, part: Queue) -> bool:
        tenant = self.namespace.tenant_of(part)
        return tenant is not None and tenant.available

    def remember(self, part: Queue, seq: int, now: int) -> None:
        """It goes to another store: remembered there, in the block it arrives in."""
        arrival = self._arrivals.get(part)
        if arrival is None:
            tenant = self.namespace.tenant_of(part)
            assert tenant is not None
            arrival = self._arrivals[part] = _Arrival(self.forwarding, self.namespace, tenant)
        arrival.tenant.note_transfer((self.forwarding.queue.entity_id, seq), part.entity_id, now)
        arrival.seqs.append(seq)

    def send_off(self) -> None:
        """The next batch waits for this one's commit: a long backlog must not become one turn."""
        forwarding = self.forwarding
        forwarding.expect_one()
        for part, arrival in self._arrivals.items():
            forwarding.expect_one()
            part.when_durable(arrival)
        far = self.namespace.far
        if far is not None:
            for leaving in self._far.values():
                forwarding.expect_one()
                far.transfer(leaving)
        forwarding.queue.when_durable(_Next(forwarding))


class _Arrival(Effect):
    """Messages that go to another store: they leave their source once that one's disk knows them."""

    __slots__ = ("forwarding", "namespace", "seqs", "store", "tenant")

    def __init__(self, forwarding: Forwarding, namespace: Stores, tenant: StoreTenant) -> None:
        self.forwarding = forwarding
        self.namespace = namespace
        self.tenant = tenant
        self.store: int = namespace.stores.index(tenant)
        self.seqs: list[int] = []

    def done(self, error: BaseException | None) -> None:
        """They have arrived, or nobody knows: then their store says so when it is back (`settle_transfers`)."""
        queue = self.forwarding.queue
        self.forwarding.one_came()
        now = queue.turn.begin()
        if error is not None:
            # They may be on that store's disk all the same. Until it is back and says so, they go nowhere else.
            if self.namespace.far is None:
                self.namespace.in_doubt.append((self.store, queue.entity_id, self.seqs))
            else:
                ask_what_arrived(self.namespace, queue, self.store, self.seqs)
            return
        ids = [(queue.entity_id, seq) for seq in self.seqs]
        self.tenant.transfers_arrived(ids)
        if queue.terms.out_of_service:
            settle_transfers(self.namespace)  # the source came back meanwhile, and still has them
            return
        try:
            for seq in self.seqs:
                if queue.index.state(seq) == MOVING:
                    queue.ledger.settle(seq, facts.FORWARDED, now)
        except StoreUnavailable:
            return  # the source is down; when it is back, they leave it
        queue.when_durable(Left(self.namespace, self.store, ids))
        queue.slot.touch()


class _FarArrival(FarTransfer):
    """Messages that go to a store of another node: they leave their source once whoever has it has answered."""

    def __init__(self, forwarding: Forwarding, store: int) -> None:
        super().__init__(store, forwarding.target, forwarding.queue.entity_id)
        self._forwarding: Forwarding = forwarding
        self._originals: dict[int, Message] = {}

    def add(self, seq: int, fragment: int, message: Message, copy: Message) -> None:
        self.messages.append((seq, fragment, encode_body(copy)))
        self._originals[seq] = message

    def is_over(self) -> bool:
        """Its source came back, or forwards elsewhere now: who does so asks itself what has arrived."""
        queue = self._forwarding.queue
        return queue.terms.out_of_service or (queue.carrier is not None and queue.carrier is not self._forwarding)

    def dropped(self) -> None:
        queue = self._forwarding.queue
        if not queue.terms.out_of_service:
            for seq in self._originals:
                if queue.index.state(seq) == MOVING:
                    queue.ready.give_back(seq)

    def answered(self, refused: dict[int, tuple[str, str]]) -> None:
        forwarding = self._forwarding
        queue = forwarding.queue
        forwarding.one_came()
        if queue.terms.out_of_service:
            return
        now = queue.turn.begin()
        left: list[int] = []
        try:
            for seq, message in self._originals.items():
                if seq not in refused:
                    left.append(seq)
                if queue.index.state(seq) != MOVING:
                    continue
                if seq in refused:
                    forwarding.set_aside(seq, message, refused[seq][0], refused[seq][1], now)
                else:
                    queue.ledger.settle(seq, facts.FORWARDED, now)
        except StoreUnavailable:
            return  # the source is down; when it is back, it asks what has arrived
        queue.when_durable(LeftFor(forwarding.namespace, self.store, self.source, left))
        queue.slot.touch()


class _Learning(FarArrivals):
    def __init__(self, forwarding: Forwarding) -> None:
        self._forwarding: Forwarding = forwarding

    def is_over(self) -> bool:
        return self._forwarding.queue.terms.out_of_service

    def learned(self, found: dict[int, list[int]]) -> None:
        self._forwarding.learned(found)


class _Next(Effect):
    """What was moved within the store is on disk: on with the next batch."""

    __slots__ = ("forwarding",)

    def __init__(self, forwarding: Forwarding) -> None:
        self.forwarding = forwarding

    def done(self, error: BaseException | None) -> None:
        self.forwarding.one_came()
        if error is None:
            self.forwarding.queue.slot.touch()


class _Taken(Loaded):
    __slots__ = ("forwarding", "seqs")

    def __init__(self, forwarding: Forwarding, seqs: list[int]) -> None:
        self.forwarding = forwarding
        self.seqs = seqs

    def loaded(self, messages: list[Message | None], error: BaseException | None) -> None:
        self.forwarding.taken(self.seqs, messages, error)
