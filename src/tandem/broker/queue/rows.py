"""What one queue holds and a restart must bring back. Only `apply_*` changes it: live facts and replayed ones are applied alike."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

from tandem.broker.queue.dedup import DuplicateHistory
from tandem.broker.queue.index import (
    DEFERRED,
    DEFERRED_LOCKED,
    DELAYED,
    LEASED,
    LOCKED,
    MOVING,
    READY,
    SCHEDULED,
    Index,
)
from tandem.broker.queue.lease import Lease
from tandem.broker.queue.passage import Passage
from tandem.broker.queue.sessions import MessageSession, SessionTable

if TYPE_CHECKING:
    from tandem.broker.ports import Journal
    from tandem.model.message import Message

_SMALL_QUEUE_BYTES: Final = 262_144
"""A queue may keep this much hot even when the store's budget is spent by others."""
_ENDED_MAX: Final = 10_000
"""Ids of completed leases that are remembered, so that completing one again is no error."""


class Backing:
    """What the queues of one store share: its journal, memory for bodies, the bodies that are kept once for several of them."""

    __slots__ = ("bytes_max", "journal", "passage", "per_queue_bytes_max", "shared", "short_of_room", "suspended", "used_bytes")

    def __init__(self, journal: Journal, bytes_max: int) -> None:
        self.journal: Journal = journal
        """One that takes nothing, while the store is down."""
        self.bytes_max: int = bytes_max
        self.per_queue_bytes_max: int = max(bytes_max // 4, 1)
        self.used_bytes: int = 0
        self.passage: Passage = Passage()
        self.shared: dict[int, int] = {}
        """By location: how many rows of all queues still need that body."""
        self.short_of_room: str = ""
        """Why the store takes no new messages at the moment; whoever watches stores keeps it up to date."""
        self.suspended: bool = False
        """Nothing may be delivered: another node may have taken the store over. Kept up to date likewise."""

    def unplug(self, journal: Journal) -> None:
        """The store goes on without these queues: nothing they still think may be written."""
        self.journal = journal

    def use(self, size: int) -> None:
        """Memory for a body; less than nothing: it is free again."""
        self.used_bytes += size

    def release(self, location: int) -> None:
        """A row no longer needs the body at this location; the last one tells the store."""
        left = self.shared.get(location)
        if left is not None:
            if left > 1:
                self.shared[location] = left - 1
                return
            del self.shared[location]
        self.journal.forget(location)


class StateCounts:
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

    def miss(self) -> None:
        self.incomplete = True

    def add(self, other: StateCounts) -> None:
        self.active += other.active
        self.locked += other.locked
        self.deferred += other.deferred
        self.scheduled += other.scheduled
        self.leased += other.leased
        self.total += other.total
        self.size_bytes += other.size_bytes
        self.incomplete = self.incomplete or other.incomplete


class Rows:
    """Messages with their states and counts, sessions, leases, ids seen; and of the bodies those that are in memory."""

    __slots__ = (
        "backing",
        "base",
        "counts_deliveries",
        "delayed",
        "delayed_until",
        "durable_seq",
        "entity_id",
        "history",
        "hot",
        "hot_bytes",
        "index",
        "leases",
        "leases_ended",
        "next_seq",
        "scheduled",
        "sessions",
    )

    def __init__(self, entity_id: int, backing: Backing, sessions: SessionTable | None, counts_deliveries: bool, base: int) -> None:
        self.entity_id: int = entity_id
        """4 * id + sub-queue number, as written in the journal."""
        self.backing: Backing = backing
        self.index: Index = Index()
        self.base: int = base
        """Sequence numbers begin after this: a fragment's number stands in the upper bits."""
        self.next_seq: int = base + 1
        self.durable_seq: int = base
        """Everything up to here is on disk and may be delivered."""
        self.hot: dict[int, Message] = {}
        self.hot_bytes: int = 0
        self.sessions: SessionTable | None = sessions
        self.history: DuplicateHistory | None = None
        self.counts_deliveries: bool = counts_deliveries
        """Not among dead letters: nothing would follow from it."""
        self.scheduled: list[tuple[int, int]] = []
        """Heap of (instant, sequence number)."""
        self.delayed: list[tuple[int, int]] = []
        """The same of messages given back with a delivery time."""
        self.delayed_until: dict[int, int] = {}
        self.leases: dict[str, Lease] = {}
        self.leases_ended: dict[str, None] = {}

    # -- facts: the only mutation ------------------------------------------------------------

    def apply_enqueued(
        self,
        seq: int,
        state: int,
        relocated: bool,
        message_id: bytes,
        session_id: str | None,
        scheduled_at: int,
        at: int,
        expires_at: int,
        count: int,
        location: int,
        size: int,
    ) -> None:
        index = self.index
        if seq < self.next_seq and index.state(seq):
            # Written again (compaction, modified properties) and the older copy is still there: the younger one counts.
            self.backing.release(index.location(seq))
            index.set_body(seq, location, size)
            index.set_state(seq, state)
            index.set_count(seq, count)
            self.drop_hot(seq)
        else:
            index.add(seq, state, location, size, at, expires_at, count)
            if self.sessions is not None and session_id is not None:
                self._enter_session(seq, session_id)
            if state == SCHEDULED:
                heapq.heappush(self.scheduled, (scheduled_at, seq))
            if seq >= self.next_seq:
                self.next_seq = seq + 1
        if self.history is not None and not relocated:
            self.history.remember(message_id, at, at)

    def apply_published(self, seq: int, session_id: str | None, at: int, expires_at: int, location: int, size: int) -> None:
        """A row whose body is kept once for several queues."""
        index = self.index
        if seq < self.next_seq and index.state(seq):
            self.backing.release(index.location(seq))
            index.set_location(seq, location)
            return
        index.add(seq, READY, location, size, at, expires_at, 0)
        if self.sessions is not None and session_id is not None:
            self._enter_session(seq, session_id)
        if seq >= self.next_seq:
            self.next_seq = seq + 1

    def apply_passed(self, number: int, message_id: bytes, relocated: bool, at: int) -> None:
        """A message went through this topic: its number is taken, its id seen."""
        if number >= self.next_seq:
            self.next_seq = number + 1
        if self.history is not None and not relocated:
            self.history.remember(message_id, at, at)

    def apply_settled(self, seq: int) -> None:
        if seq >= self.next_seq:
            self.next_seq = seq + 1
        if not self.index.state(seq):
            return  # its segment has left before this fact's did
        if self.sessions is not None:
            self._leave_session(seq)
        self.backing.release(self.index.remove(seq))
        if seq in self.hot:
            self.drop_hot(seq)
        if self.delayed_until:
            self.delayed_until.pop(seq, None)

    def apply_all_settled(self, seqs: list[int]) -> None:
        """As `apply_settled`, for several rows of a queue without sessions that are all there."""
        backing = self.backing
        locations = self.index.remove_all(seqs)
        if backing.shared:
            for location in locations:
                backing.release(location)
        else:
            journal = backing.journal
            for location in locations:
                journal.forget(location)
        hot = self.hot
        if hot:
            for seq in seqs:
                if seq in hot:
                    self.drop_hot(seq)

    def apply_state(self, seq: int, state: int, count: int, until: int) -> None:
        if not self.index.state(seq):
            return
        self.index.set_count(seq, count)
        self.index.set_state(seq, state)
        if state == DELAYED:
            self.delayed_until[seq] = until
            heapq.heappush(self.delayed, (until, seq))
        elif self.delayed_until:
            self.delayed_until.pop(seq, None)

    def apply_delivered(self, seqs: list[int]) -> None:
        """Counted at once: a delivery has failed unless something else follows."""
        if self.counts_deliveries:
            self.index.count_deliveries(seqs)

    def apply_counter(self, next_seq: int) -> None:
        self.next_seq = max(self.next_seq, next_seq)

    def apply_seen(self, message_id: bytes, at: int) -> None:
        if self.history is not None:
            self.history.remember(message_id, at, at)

    def apply_session_state(self, session_id: str, state: bytes | None, at: int) -> None:
        if self.sessions is not None:
            self.sessions.get(session_id).set_state(state, at)

    def apply_leased(self, lease_id: str, seqs: list[int], expires_at: int) -> Lease:
        """Rows that are not there yet are: compaction has written them behind this fact, and `restore_leases` finds them."""
        lease = Lease(lease_id, seqs, expires_at, 0)
        index = self.index
        for seq in seqs:
            if seq and index.state(seq) == READY:
                index.set_state(seq, LEASED)
                lease.grow(index.size(seq))
        self.leases[lease_id] = lease
        return lease

    def apply_lease_renewed(self, lease_id: str, expires_at: int) -> None:
        lease = self.leases.get(lease_id)
        if lease is not None:
            lease.renew(expires_at)

    def apply_lease_part(self, lease_id: str, seqs: list[int]) -> None:
        """These were given back out of it."""
        lease = self.leases.get(lease_id)
        if lease is not None:
            for seq in seqs:
                lease.drop(seq)
                if self.index.state(seq) == LEASED:
                    self.index.set_state(seq, READY)

    def apply_lease_ended(self, lease_id: str, completed: bool, seqs: list[int]) -> None:
        """`seqs`: what left the queue with a completed one; none if it was written by a version that did not say."""
        lease = self.leases.pop(lease_id, None)
        left = seqs if lease is None or seqs else [seq for seq in lease.seqs if seq]
        if completed:
            self.leases_ended[lease_id] = None
            if len(self.leases_ended) > _ENDED_MAX:
                for old in list(self.leases_ended)[: _ENDED_MAX // 2]:
                    del self.leases_ended[old]
        for seq in left:
            if completed:
                self.apply_settled(seq)
            elif self.index.state(seq) == LEASED:
                self.index.set_state(seq, READY)

    def apply_clock_set(self, by_ms: int) -> None:
        """What lasts for a time lasts as long as before."""
        for lease in self.leases.values():
            lease.renew(lease.expires_at + by_ms)
        self.index.shift_expiry(by_ms)
        if self.history is not None:
            self.history.shift(by_ms)

    def replay_ended(self) -> None:
        """The journal has told all: what is active may be delivered, leases hold what is left of them, sessions know their messages."""
        self.durable_seq = self.next_seq - 1
        index = self.index
        for lease in self.leases.values():
            seqs = [seq if seq and index.state(seq) in (READY, LEASED) else 0 for seq in lease.seqs]
            for seq in seqs:
                if seq:
                    index.set_state(seq, LEASED)
            lease.keep(seqs, sum([index.size(seq) for seq in seqs if seq]))
        if self.sessions is not None:
            for seq in index.seqs_from(0, index.total):
                session = self.session_of(seq) if index.state(seq) == READY else None
                if session is not None:
                    session.ready.append(seq)
            for session in list(self.sessions.by_id.values()):
                self.sessions.refresh(session, index)

    # -- sessions ----------------------------------------------------------------------------

    def session_of(self, seq: int) -> MessageSession | None:
        if self.sessions is None:
            return None
        return self.sessions.by_number.get(self.index.owner(seq))

    def _enter_session(self, seq: int, session_id: str) -> None:
        assert self.sessions is not None
        session = self.sessions.get(session_id)
        session.add_one()
        self.index.set_owner(seq, session.number)

    def _leave_session(self, seq: int) -> None:
        session = self.session_of(seq)
        if session is not None and self.sessions is not None:
            session.remove(seq)
            if session.total == 0:
                self.sessions.refresh(session, self.index)

    def now_durable(self, upto: int) -> None:
        """Everything up to here is on disk."""
        if upto > self.durable_seq:
            self.durable_seq = upto

    def detect_duplicates(self, window_ms: int) -> None:
        if self.history is None:
            self.history = DuplicateHistory(window_ms)
        else:
            self.history.look_back(window_ms)

    # -- bodies in memory --------------------------------------------------------------------

    def keep_hot(self, seq: int, message: Message, wanted: bool) -> None:
        """If there is room, or if it was read because it is wanted now."""
        size = message.size_bytes
        backing = self.backing
        hot_bytes = self.hot_bytes + size
        if not wanted:
            if hot_bytes > backing.per_queue_bytes_max:
                return
            if backing.used_bytes + size > backing.bytes_max and hot_bytes > _SMALL_QUEUE_BYTES:
                return
        self.hot[seq] = message
        self.hot_bytes = hot_bytes
        backing.use(size)

    def drop_hot(self, seq: int) -> None:
        message = self.hot.get(seq)
        if message is not None:
            self.hand_out(seq, message.size_bytes)

    def hand_out(self, seq: int, size: int) -> None:
        """It is in memory, and from now on in somebody else's hands."""
        del self.hot[seq]
        self.hot_bytes -= size
        self.backing.use(-size)

    # -- reading -----------------------------------------------------------------------------

    def failed_deliveries(self, seq: int) -> int:
        """The delivery count as others see it: the delivery of a message in somebody's hands has not failed yet."""
        in_hand = self.counts_deliveries and self.index.state(seq) in (LOCKED, DEFERRED_LOCKED)
        return self.index.count(seq) - 1 if in_hand else self.index.count(seq)

    def spent(self, seq: int, deliveries_max: int, now: int) -> bool:
        """It must not be delivered any more: expired, or delivered too often."""
        expires_at = self.index.expires_at(seq)
        return 0 < expires_at <= now or self.index.count(seq) >= deliveries_max

    def counts(self) -> StateCounts:
        n = self.index.by_state
        active = n[READY] + n[LOCKED] + n[DELAYED] + n[MOVING]
        deferred = n[DEFERRED] + n[DEFERRED_LOCKED]
        return StateCounts(active, n[LOCKED], deferred, n[SCHEDULED], n[LEASED], self.index.total, self.index.size_bytes)
