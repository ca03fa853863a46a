"""Batch leases: a run of messages set aside under an id, readable as often as needed, settled or returned as one."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

from tandem.broker import facts
from tandem.broker.ports import Consumer
from tandem.broker.queue.browse import Browser
from tandem.broker.queue.index import LEASED, READY
from tandem.broker.queue.state import HotBudget
from tandem.model.errors import ArgumentRefused, EntityDisabled, LeaseLost

if TYPE_CHECKING:
    from tandem.broker.ports import Effect, Journal, LeaseWaiter
    from tandem.broker.queue.sessions import MessageSession
    from tandem.broker.turn import Turn
    from tandem.model.entity import QueueDescription

_ENDED_MAX: Final = 10_000
"""Ids of completed leases that are remembered, so that completing one again is no error."""


class Lease:
    """Who asked, what it holds, until when."""

    __slots__ = ("expires_at", "holder", "id", "places", "seqs", "sessions", "size_bytes")

    def __init__(self, lease_id: str, seqs: list[int], expires_at: int, size_bytes: int) -> None:
        self.id: str = lease_id
        self.seqs: list[int] = seqs
        """In order, each at its place for as long as the lease lives; 0 where a message was settled or returned before the others."""
        self.places: dict[int, int] = {}
        """Sequence number to place, made when the first part is settled."""
        self.expires_at: int = expires_at
        self.size_bytes: int = size_bytes
        self.holder: Consumer = Consumer(True)
        """Stands in as the holder of leased sessions."""
        self.sessions: list[MessageSession] = []

    def remaining(self) -> int:
        return len(self.seqs) - self.seqs.count(0)

    def place(self, seq: int) -> int:
        """Where it stands; -1 when it is not (or no longer) part of this lease."""
        if not self.places:
            self.places = {seq: at for at, seq in enumerate(self.seqs) if seq}
        at = self.places.get(seq, -1)
        return at if at >= 0 and self.seqs[at] == seq else -1

    def joined(self, other: Lease) -> Lease:
        """Two parts of one lease, as its reader sees them."""
        return Lease(self.id, self.seqs + other.seqs, min(self.expires_at, other.expires_at), self.size_bytes + other.size_bytes)


class Leaser(Browser):
    """The layer of a queue that lends batches."""

    def __init__(
        self, entity_id: int, path: str, description: QueueDescription, journal: Journal, turn: Turn, budget: HotBudget, nonce: int
    ) -> None:
        super().__init__(entity_id, path, description, journal, turn, budget, nonce)
        self.leases: dict[str, Lease] = {}
        self.leases_ended: dict[str, None] = {}
        self.lease_waiters: dict[LeaseWaiter, None] = {}
        self._lease_ends: list[tuple[int, str]] = []

    def pump(self, now: int) -> None:
        """Receivers come first; what they leave is for those who wait to lease it."""
        super().pump(now)
        if self.lease_waiters and self._has_ready():
            waiters = self.lease_waiters
            self.lease_waiters = {}
            for waiter in waiters:
                waiter.ready()

    def await_lease(self, waiter: LeaseWaiter) -> None:
        self.lease_waiters[waiter] = None

    def forget_lease_waiter(self, waiter: LeaseWaiter) -> None:
        self.lease_waiters.pop(waiter, None)

    def shift_leases(self, by_ms: int) -> None:
        """The clock was set: every lease lasts as long as before."""
        for lease in self.leases.values():
            lease.expires_at += by_ms
        self._lease_ends = [(at + by_ms, lease_id) for at, lease_id in self._lease_ends]

    def wake_for_leases(self) -> None:
        if self._lease_ends:
            self.turn.wake(self, self._lease_ends[0][0])

    def all_leases(self) -> list[Lease]:
        return list(self.leases.values())

    def _has_ready(self) -> bool:
        if self.sessions is None:
            return self.next_ready() != 0
        return self.sessions.next_free(self.index) is not None

    def lease(self, lease_id: str, messages_max: int, bytes_max: int, duration_ms: int, now: int, before: int = 0) -> Lease:
        """Set up to so many ready messages aside. The same id again gives the same lease, whatever the limits.

        With `before`, only messages that were enqueued by that instant.
        """
        known = self.leases.get(lease_id)
        if known is not None:
            return known
        self._check_new(lease_id)
        lease = Lease(lease_id, [], now + duration_ms, 0)
        if self.sessions is None:
            self._gather(lease, messages_max, bytes_max, now, before)
        else:
            self._gather_sessions(lease, messages_max, bytes_max, now, before)
            self._let_idle_sessions_go(lease)
        if lease.seqs:
            self._keep_lease(lease)
            self._write_lease(lease, now)
        return lease

    def _check_new(self, lease_id: str) -> None:
        if lease_id in self.leases_ended:
            raise ArgumentRefused(f"The lease '{lease_id}' of '{self.path}' was completed; a new batch needs a new id.")
        if not self.may_receive:
            raise EntityDisabled(f"Messaging entity '{self.path}' is currently disabled for receiving. Set its status to Active.")

    def lease_again(self, lease_id: str, seqs: list[int], duration_ms: int, now: int) -> Lease:
        """Exactly these messages, or none: for a batch that was planned and whose lease has lapsed since."""
        known = self.leases.get(lease_id)
        if known is not None:
            return known
        self._check_new(lease_id)
        missing = sum(1 for seq in seqs if self.index.state(seq) != READY)
        if missing or not seqs or len(set(seqs)) != len(seqs):
            raise LeaseLost(
                f"The lease '{lease_id}' of '{self.path}' cannot be taken again: {missing} of its {len(seqs)} messages are gone or in use."
            )
        lease = Lease(lease_id, [], now + duration_ms, 0)
        self._hold_sessions(lease, seqs)
        for seq in seqs:
            self._take_for_lease(lease, seq)
        self._keep_lease(lease)
        self._write_lease(lease, now)
        return lease

    def _hold_sessions(self, lease: Lease, seqs: list[int]) -> None:
        sessions = self.sessions
        if sessions is None:
            return
        wanted: dict[str, MessageSession] = {}
        for seq in seqs:
            session = self.session_of(seq)
            if session is not None:
                wanted[session.id] = session
        for session in wanted.values():
            if session.holder is not None:
                raise LeaseLost(f"The lease '{lease.id}' of '{self.path}' cannot be taken again: session '{session.id}' is in use.")
        for session in wanted.values():
            sessions.hold(session, lease.holder, lease.expires_at)
            lease.sessions.append(session)

    def _fits(self, lease: Lease, seq: int, bytes_max: int, before: int) -> bool:
        if before and self.index.enqueued_at(seq) > before:
            return False
        return not lease.seqs or lease.size_bytes + self.index.size(seq) <= bytes_max

    def _take_for_lease(self, lease: Lease, seq: int) -> None:
        lease.seqs.append(seq)
        lease.size_bytes += self.index.size(seq)
        self.index.set_state(seq, LEASED)
        self.meter.received(self.index.size(seq))

    def _gather(self, lease: Lease, messages_max: int, bytes_max: int, now: int, before: int) -> None:
        while len(lease.seqs) < messages_max:
            seq = self.next_ready()
            if seq == 0 or not self._fits(lease, seq, bytes_max, before):
                return
            if seq >= self.cursor:
                self.cursor = seq + 1
            else:
                heapq.heappop(self.returned)
            if not self._spent(seq, now):
                self._take_for_lease(lease, seq)

    def _gather_sessions(self, lease: Lease, messages_max: int, bytes_max: int, now: int, before: int) -> None:
        """Whole sessions in order: nobody else may receive from them while the lease holds their head."""
        sessions = self.sessions
        assert sessions is not None
        while len(lease.seqs) < messages_max:
            session = sessions.next_free(self.index)
            if session is None:
                return
            sessions.hold(session, lease.holder, lease.expires_at)
            lease.sessions.append(session)
            while len(lease.seqs) < messages_max:
                seq = session.first(self.index)
                if seq == 0 or not self._fits(lease, seq, bytes_max, before):
                    break
                session.take_first()
                if not self._spent(seq, now):
                    self._take_for_lease(lease, seq)
            left = session.first(self.index)
            if left and not (before and self.index.enqueued_at(left) > before):
                return

    def _let_idle_sessions_go(self, lease: Lease) -> None:
        """Sessions that turned out to hold nothing for this lease."""
        sessions = self.sessions
        if sessions is None:
            return
        used = {self.index.owner(seq) for seq in lease.seqs}
        for session in lease.sessions:
            if session.number not in used:
                sessions.let_go(session, self.index)
        lease.sessions = [session for session in lease.sessions if session.number in used]

    def _spent(self, seq: int, now: int) -> bool:
        expires_at = self.index.expires_at(seq)
        if (expires_at and expires_at <= now) or self.index.count(seq) >= self.max_delivery_count:
            self.remove_spent(seq, now)
            return True
        return False

    def _keep_lease(self, lease: Lease) -> None:
        self.leases[lease.id] = lease
        heapq.heappush(self._lease_ends, (lease.expires_at, lease.id))
        self.turn.wake(self, lease.expires_at)

    def _write_lease(self, lease: Lease, now: int) -> None:
        facts.write_leased(self.journal, self.entity_id, lease.id, lease.seqs, lease.expires_at, now)

    def find_lease(self, lease_id: str, now: int) -> Lease:
        lease = self.leases.get(lease_id)
        if lease is None or lease.expires_at <= now:
            raise LeaseLost(f"The lease '{lease_id}' of '{self.path}' has expired, was returned, or never existed.")
        return lease

    def renew_lease(self, lease_id: str, duration_ms: int, now: int) -> Lease:
        """Extend it. Volatile until the fact rides along: after a crash a lease has at least the time last written."""
        lease = self.find_lease(lease_id, now)
        lease.expires_at = now + duration_ms
        self._keep_lease(lease)
        if self.sessions is not None:
            for session in lease.sessions:
                self.sessions.renew(session, lease.expires_at)
        facts.write_lease_renewed(self.journal, self.entity_id, lease.id, lease.expires_at, now)
        return lease

    def complete_lease(self, lease_id: str, now: int) -> int:
        """All its messages are done: one fact. Completing it again does nothing. Returns how many left the queue."""
        if lease_id in self.leases_ended:
            return 0
        lease = self.find_lease(lease_id, now)
        left = lease.remaining()
        facts.write_lease_ended(self.journal, self.entity_id, lease_id, True, left, now)
        self.lease_done(lease)
        return left

    def lease_done(self, lease: Lease) -> None:
        del self.leases[lease.id]
        self.note_lease_ended(lease.id)
        for seq in lease.seqs:
            if seq and self.index.state(seq) == LEASED:
                self.remove_row(seq)
        self._free_sessions(lease)

    def note_lease_ended(self, lease_id: str) -> None:
        self.leases_ended[lease_id] = None
        if len(self.leases_ended) > _ENDED_MAX:
            for old in list(self.leases_ended)[: _ENDED_MAX // 2]:
                del self.leases_ended[old]

    def abandon_lease(self, lease_id: str, now: int) -> int:
        """Give the messages back as they were; unknown or ended leases have nothing to give."""
        lease = self.leases.get(lease_id)
        if lease is None:
            return 0
        left = lease.remaining()
        self._return_lease(lease, now)
        return left

    # -- parts -------------------------------------------------------------------------------

    def complete_part(self, lease_id: str, seqs: list[int], now: int) -> int:
        """These messages are done; the others stay leased. What is not (or no longer) in the lease is passed over. Returns how many."""
        lease = self.find_lease(lease_id, now)
        done = 0
        for seq in seqs:
            at = lease.place(seq)
            if at >= 0 and self.index.state(seq) == LEASED:
                lease.seqs[at] = 0
                self.settle(seq, facts.COMPLETED, now)
                done += 1
        return done

    def dead_letter_part(self, lease_id: str, seq: int, reason: str, description: str, now: int, effect: Effect) -> bool:
        """Move one message of the lease to the dead-letter queue; False (and no effect) when it is not in the lease."""
        lease = self.find_lease(lease_id, now)
        at = lease.place(seq)
        if at < 0 or self.index.state(seq) != LEASED:
            return False
        lease.seqs[at] = 0
        self.move_dead(seq, {"DeadLetterReason": reason, "DeadLetterErrorDescription": description}, effect)
        return True

    def return_part(self, lease_id: str, seqs: list[int], now: int) -> int:
        """Give these back to the queue before the others."""
        lease = self.find_lease(lease_id, now)
        given = [seq for seq in seqs if lease.place(seq) >= 0 and self.index.state(seq) == LEASED]
        if not given:
            return 0
        facts.write_lease_part(self.journal, self.entity_id, lease.id, given, now)
        for seq in given:
            lease.seqs[lease.place(seq)] = 0
            self.make_ready(seq)
        return len(given)

    def forget_part(self, lease: Lease, seqs: list[int]) -> None:
        """A replay tells that these were given back."""
        for seq in seqs:
            at = lease.place(seq)
            if at >= 0:
                lease.seqs[at] = 0

    # -- the end -----------------------------------------------------------------------------

    def _return_lease(self, lease: Lease, now: int) -> None:
        facts.write_lease_ended(self.journal, self.entity_id, lease.id, False, lease.remaining(), now)
        del self.leases[lease.id]
        self.give_back_leased(lease)

    def give_back_leased(self, lease: Lease) -> None:
        for seq in lease.seqs:
            if seq and self.index.state(seq) == LEASED:
                self.make_ready(seq)
        self._free_sessions(lease)
        self.turn.touch_queue(self)

    def _free_sessions(self, lease: Lease) -> None:
        sessions = self.sessions
        if sessions is None:
            return
        for session in lease.sessions:
            if session.holder is lease.holder:
                sessions.let_go(session, self.index)
        self.turn.touch_queue(self)

    def leases_expired(self, now: int) -> None:
        ends = self._lease_ends
        while ends and ends[0][0] <= now:
            at, lease_id = heapq.heappop(ends)
            lease = self.leases.get(lease_id)
            if lease is not None and lease.expires_at == at:
                self._return_lease(lease, now)
        if ends:
            self.turn.wake(self, ends[0][0])

    def restore_leases(self) -> None:
        """After a replay: the rows of living leases are set aside again, wherever compaction has moved them."""
        for lease in self.leases.values():
            lease.seqs = [seq if seq and self.index.state(seq) == READY else 0 for seq in lease.seqs]
            lease.places = {}
            for seq in lease.seqs:
                if not seq:
                    continue
                self.index.set_state(seq, LEASED)
                lease.size_bytes += self.index.size(seq)
                session = self.session_of(seq)
                if session is not None and self.sessions is not None and session.holder is None:
                    self.sessions.hold(session, lease.holder, lease.expires_at)
                    lease.sessions.append(session)
            heapq.heappush(self._lease_ends, (lease.expires_at, lease.id))
            self.turn.wake(self, lease.expires_at)
