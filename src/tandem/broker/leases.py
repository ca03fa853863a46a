"""Batch leases: a run of messages set aside under an id, readable as often as needed, settled or returned as one."""

from __future__ import annotations

import heapq
from struct import Struct
from typing import TYPE_CHECKING, Final

from tandem.broker import facts
from tandem.broker.browse import Browser
from tandem.broker.dispatch import Consumer
from tandem.broker.index import LEASED, READY
from tandem.broker.state import HotBudget
from tandem.model.errors import ArgumentRefused, LeaseLost

if TYPE_CHECKING:
    from tandem.broker.journal import Journal
    from tandem.broker.message_sessions import MessageSession
    from tandem.broker.turn import Turn
    from tandem.model.entity import QueueDescription

_SEQ: Final = Struct("<Q")
_ENDED_MAX: Final = 10_000
"""Ids of completed leases that are remembered, so that completing one again is no error."""


class Lease:
    """Who asked, what it holds, until when."""

    __slots__ = ("expires_at", "holder", "id", "seqs", "sessions", "size_bytes")

    def __init__(self, lease_id: str, seqs: list[int], expires_at: int, size_bytes: int) -> None:
        self.id: str = lease_id
        self.seqs: list[int] = seqs
        self.expires_at: int = expires_at
        self.size_bytes: int = size_bytes
        self.holder: Consumer = Consumer(True)
        """Stands in as the holder of leased sessions."""
        self.sessions: list[MessageSession] = []


class Leaser(Browser):
    """The layer of a queue that lends batches."""

    def __init__(
        self, entity_id: int, path: str, description: QueueDescription, journal: Journal, turn: Turn, budget: HotBudget, nonce: int
    ) -> None:
        super().__init__(entity_id, path, description, journal, turn, budget, nonce)
        self.leases: dict[str, Lease] = {}
        self.leases_ended: dict[str, None] = {}
        self._lease_ends: list[tuple[int, str]] = []

    def lease(self, lease_id: str, messages_max: int, bytes_max: int, duration_ms: int, now: int) -> Lease:
        """Set up to so many ready messages aside. The same id again gives the same lease, whatever the limits."""
        known = self.leases.get(lease_id)
        if known is not None:
            return known
        if lease_id in self.leases_ended:
            raise ArgumentRefused(f"The lease '{lease_id}' of '{self.path}' was completed; a new batch needs a new id.")
        lease = Lease(lease_id, [], now + duration_ms, 0)
        if self.sessions is None:
            self._gather(lease, messages_max, bytes_max, now)
        else:
            self._gather_sessions(lease, messages_max, bytes_max, now)
        if lease.seqs:
            self._keep_lease(lease)
            self._write_lease(lease, now)
        return lease

    def _fits(self, lease: Lease, seq: int, bytes_max: int) -> bool:
        return not lease.seqs or lease.size_bytes + self.index.size(seq) <= bytes_max

    def _take_for_lease(self, lease: Lease, seq: int) -> None:
        lease.seqs.append(seq)
        lease.size_bytes += self.index.size(seq)
        self.index.set_state(seq, LEASED)

    def _gather(self, lease: Lease, messages_max: int, bytes_max: int, now: int) -> None:
        while len(lease.seqs) < messages_max:
            seq = self.next_ready()
            if seq == 0 or not self._fits(lease, seq, bytes_max):
                return
            if seq >= self.cursor:
                self.cursor = seq + 1
            else:
                heapq.heappop(self.returned)
            if not self._spent(seq, now):
                self._take_for_lease(lease, seq)

    def _gather_sessions(self, lease: Lease, messages_max: int, bytes_max: int, now: int) -> None:
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
                if seq == 0 or not self._fits(lease, seq, bytes_max):
                    break
                session.take_first()
                if not self._spent(seq, now):
                    self._take_for_lease(lease, seq)
            if session.first(self.index):
                return

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
        packed = b"".join([_SEQ.pack(seq) for seq in lease.seqs])
        self.journal.append(facts.LEASED, 0, self.entity_id, 0, now, lease.expires_at, facts.pack_lease(lease.id, packed), b"")

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
        self.journal.append(facts.LEASE_RENEWED, 0, self.entity_id, 0, now, lease.expires_at, facts.pack_lease(lease.id, b""), b"")
        return lease

    def complete_lease(self, lease_id: str, now: int) -> int:
        """All its messages are done: one fact. Completing it again does nothing. Returns how many left the queue."""
        if lease_id in self.leases_ended:
            return 0
        lease = self.find_lease(lease_id, now)
        self.journal.append(facts.LEASE_ENDED, 1, self.entity_id, 0, now, len(lease.seqs), facts.pack_lease(lease_id, b""), b"")
        self.lease_done(lease)
        return len(lease.seqs)

    def lease_done(self, lease: Lease) -> None:
        del self.leases[lease.id]
        self.note_lease_ended(lease.id)
        for seq in lease.seqs:
            if self.index.state(seq) == LEASED:
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
        self._return_lease(lease, now)
        return len(lease.seqs)

    def _return_lease(self, lease: Lease, now: int) -> None:
        self.journal.append(facts.LEASE_ENDED, 0, self.entity_id, 0, now, len(lease.seqs), facts.pack_lease(lease.id, b""), b"")
        del self.leases[lease.id]
        self.give_back_leased(lease)

    def give_back_leased(self, lease: Lease) -> None:
        for seq in lease.seqs:
            if self.index.state(seq) == LEASED:
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
            seqs = [seq for seq in lease.seqs if self.index.state(seq) == READY]
            lease.seqs = seqs
            for seq in seqs:
                self.index.set_state(seq, LEASED)
                lease.size_bytes += self.index.size(seq)
                session = self.session_of(seq)
                if session is not None and self.sessions is not None and session.holder is None:
                    self.sessions.hold(session, lease.holder, lease.expires_at)
                    lease.sessions.append(session)
            heapq.heappush(self._lease_ends, (lease.expires_at, lease.id))
            self.turn.wake(self, lease.expires_at)
