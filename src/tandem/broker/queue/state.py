"""What one queue holds: its rows, its hot bodies, its place in the journal. The lowest layer of a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tandem.broker import facts
from tandem.broker.meters import Meter
from tandem.broker.ports import Effect, FetchEffect, Loaded, Pumped
from tandem.broker.queue.index import DEFERRED, DEFERRED_LOCKED, DELAYED, HELD, LEASED, LOCKED, MOVING, READY, SCHEDULED, Index
from tandem.broker.queue.locks import LockTable
from tandem.broker.turn import Turn
from tandem.model.entity import EntityStatus, QueueDescription
from tandem.model.errors import Corrupt, StoreUnavailable
from tandem.model.message import DAMAGED_TTL, Message, decode_body

if TYPE_CHECKING:
    from tandem.broker.ports import Journal

_SMALL_QUEUE_BYTES: Final = 262_144
"""A queue may keep this much hot even when the store's budget is spent by others."""


class HotBudget:
    """Bytes of message bodies kept in memory, over all queues of a store."""

    __slots__ = ("bytes_max", "per_queue_bytes_max", "short_of_room", "used_bytes")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max: int = bytes_max
        self.per_queue_bytes_max: int = max(bytes_max // 4, 1)
        self.used_bytes: int = 0
        self.short_of_room: str = ""
        """Why the store takes no new messages at the moment; whoever watches stores keeps it up to date."""


class Counts:
    """Messages per state, as an operator sees them."""

    __slots__ = ("active", "deferred", "incomplete", "leased", "locked", "scheduled", "size_bytes", "total")

    def __init__(self, active: int, locked: int, deferred: int, scheduled: int, leased: int, total: int, size_bytes: int) -> None:
        self.active = active
        self.locked = locked
        self.deferred = deferred
        self.scheduled = scheduled
        self.leased = leased
        self.total = total
        self.size_bytes = size_bytes
        self.incomplete = False
        """A store that holds part of the entity is down."""

    def add(self, other: Counts) -> None:
        self.active += other.active
        self.locked += other.locked
        self.deferred += other.deferred
        self.scheduled += other.scheduled
        self.leased += other.leased
        self.total += other.total
        self.size_bytes += other.size_bytes
        self.incomplete = self.incomplete or other.incomplete


class QueueState(Pumped):
    """Fields shared by all layers, and the few moves that keep them consistent."""

    def __init__(
        self, entity_id: int, path: str, description: QueueDescription, journal: Journal, turn: Turn, budget: HotBudget, nonce: int
    ) -> None:
        super().__init__()
        self.entity_id: int = entity_id
        """4 * id + sub-queue number, as written in the journal."""
        self.path: str = path
        self.description: QueueDescription = description
        self.journal: Journal = journal
        self.turn: Turn = turn
        self.index: Index = Index()
        self.locks: LockTable = LockTable(nonce)
        self.next_seq: int = 1
        self.durable_seq: int = 0
        """Everything up to here is on disk and may be delivered."""
        self.hot: dict[int, Message] = {}
        self.hot_bytes: int = 0
        self.budget: HotBudget = budget
        self.meter: Meter = Meter(entity_id, None)
        """Counts operations; its store gives it one that is written."""
        self.deleted: bool = False
        self.out_of_service: bool = False
        """Its store is down; only a partitioned queue asks, of its fragments."""
        self.base: int = 0
        """Sequence numbers begin after this: a fragment's number stands in the upper bits."""
        self.accessed_at: int = 0
        self.lock_ms: int = 0
        self.max_delivery_count: int = 0
        self.default_ttl_ms: int = 0
        self.dead_letter_expired: bool = False
        self.quota_bytes: int = 0
        self.may_send: bool = True
        self.may_receive: bool = True
        self.is_dead_letter: bool = False
        self.has_sessions: bool = False
        self.forwards: bool = False
        """What arrives here moves on to another entity."""
        self.shared: dict[int, int] = {}
        """Bodies kept once for several subscriptions: how many rows of all queues still need each. Owned by the topic."""
        self.configure(description)

    def configure(self, description: QueueDescription) -> None:
        """Take over a new description; what it changes holds for messages from now on."""
        self.description = description
        self.lock_ms = description.lock_duration_ms
        self.max_delivery_count = description.max_delivery_count
        self.default_ttl_ms = description.default_message_time_to_live_ms
        self.dead_letter_expired = description.dead_lettering_on_message_expiration
        self.quota_bytes = description.max_size_megabytes * 1_048_576
        status: EntityStatus = description.status
        self.may_send = status.may_send
        self.may_receive = status.may_receive

    # -- bodies in memory ------------------------------------------------------------------

    def keep_hot(self, seq: int, message: Message) -> None:
        size = message.size_bytes
        budget = self.budget
        if self.hot_bytes + size > budget.per_queue_bytes_max:
            return
        if budget.used_bytes + size > budget.bytes_max and self.hot_bytes + size > _SMALL_QUEUE_BYTES:
            return
        self.hot[seq] = message
        self.hot_bytes += size
        budget.used_bytes += size

    def drop_hot(self, seq: int) -> None:
        message = self.hot.pop(seq, None)
        if message is not None:
            size = message.size_bytes
            self.hot_bytes -= size
            self.budget.used_bytes -= size

    def load(self, seqs: list[int], then: Loaded) -> None:
        """Give `then` these messages: at once when all are hot, else when the store has read them."""
        hot = self.hot
        missing = [seq for seq in seqs if seq not in hot and self.index.state(seq)]
        if not missing:
            then.loaded([hot.get(seq) for seq in seqs], None)
            return
        locations = [self.index.location(seq) for seq in missing]
        # Kept meanwhile: one that is hot now may have cooled down, and still be here, when the others have been read.
        warm: dict[int, Message] = {}
        for seq in seqs:
            message = hot.get(seq)
            if message is not None:
                warm[seq] = message
        self.journal.fetch(locations, _Loading(self, seqs, missing, warm, then))

    def decode(self, seq: int, body: bytes) -> Message:
        try:
            return decode_body(body)
        except (ValueError, IndexError) as error:
            raise Corrupt(f"message {seq} of '{self.path}' cannot be read back: {error}") from error

    def set_aside(self, seq: int, message: Message) -> None:
        """Its body was lost to damage; `message` says where. Settled above."""

    # -- facts -----------------------------------------------------------------------------

    def settle(self, seq: int, reason: int, now: int) -> None:
        """The message leaves the queue: one fact, and its row and body are free."""
        facts.write_settled(self.journal, self.entity_id, seq, reason, now)
        self.remove_row(seq)

    def remove_row(self, seq: int) -> None:
        if self.has_sessions:
            self.leave_session(seq)
        location = self.index.remove(seq)
        if self.shared:
            self.release(location)
        else:
            self.journal.forget(location)
        if seq in self.hot:
            self.drop_hot(seq)

    def leave_session(self, seq: int) -> None:
        """The message is about to leave; its session counts one less."""

    def release(self, location: int) -> None:
        """A row no longer needs the body at this location; the last one tells the store."""
        left = self.shared.get(location)
        if left is None:
            self.journal.forget(location)
        elif left > 1:
            self.shared[location] = left - 1
        else:
            del self.shared[location]
            self.journal.forget(location)

    def append_message(
        self, seq: int, state: int, relocated: bool, message: Message, body: bytes, enqueued_at: int, expires_at: int, count: int
    ) -> int:
        """Write ENQUEUED; returns the location."""
        id_, session, scheduled_at = message.message_id, message.session_id, message.scheduled_at
        return facts.write_enqueued(
            self.journal, self.entity_id, seq, state, relocated, id_, session, scheduled_at, enqueued_at, expires_at, count, body
        )

    def when_durable(self, effect: Effect) -> None:
        """A store that is down answers at once."""
        try:
            self.journal.when_durable(effect)
        except StoreUnavailable as error:
            effect.done(error)
            return
        self.turn.schedule()

    def counts(self) -> Counts:
        n = self.index.by_state
        deferred = n[DEFERRED] + n[DEFERRED_LOCKED]
        locked = n[LOCKED]
        active = n[READY] + locked + n[HELD] + n[DELAYED] + n[MOVING]
        return Counts(active, locked, deferred, n[SCHEDULED], n[LEASED], self.index.total, self.index.size_bytes)


class _Loading(FetchEffect):
    __slots__ = ("missing", "queue", "seqs", "then", "warm")

    def __init__(self, queue: QueueState, seqs: list[int], missing: list[int], warm: dict[int, Message], then: Loaded) -> None:
        self.queue = queue
        self.seqs = seqs
        self.missing = missing
        self.warm = warm
        self.then = then

    def fetched(self, bodies: list[bytes], error: BaseException | None) -> None:
        queue = self.queue
        queue.turn.begin()
        if error is not None:
            self.then.loaded([], error)
            return
        found = self.warm
        damaged: list[tuple[int, Message]] = []
        try:
            for seq, body in zip(self.missing, bodies, strict=True):
                message = queue.decode(seq, body)
                if message.ttl_ms == DAMAGED_TTL:
                    damaged.append((seq, message))
                else:
                    found[seq] = message
        except Corrupt as damage:
            self.then.loaded([], damage)
            return
        for seq, lost in damaged:
            queue.set_aside(seq, lost)
        messages: list[Message | None] = []
        for seq in self.seqs:
            messages.append(found.get(seq) if queue.index.state(seq) else None)
        self.then.loaded(messages, None)
