"""Batch leases: a run of messages set aside under an id, readable as often as needed, settled or returned as one."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from tandem.broker import facts
from tandem.broker.meters import Meter
from tandem.broker.queue.entity import LeaseVerbs
from tandem.broker.queue.index import LEASED, READY
from tandem.broker.queue.lease import Lease
from tandem.broker.queue.ledger import Ledger
from tandem.broker.queue.moves import Moves, reasons
from tandem.broker.queue.ready import Line, Ready, SessionLine
from tandem.broker.queue.rows import Rows
from tandem.broker.queue.terms import Terms
from tandem.model.errors import ArgumentRefused, LeaseLost

if TYPE_CHECKING:
    from tandem.broker.ports import Effect, LeaseWaiter
    from tandem.broker.queue.sessions import MessageSession, SessionTable
    from tandem.broker.turn import TurnSlot


class Leases(LeaseVerbs):
    """The leases of one queue, and those who wait for one."""

    def __init__(self, ledger: Ledger, terms: Terms, meter: Meter, ready: Ready, moves: Moves) -> None:
        self.ledger: Ledger = ledger
        self.rows: Rows = ledger.rows
        self.slot: TurnSlot = ledger.slot
        self.terms: Terms = terms
        self.meter: Meter = meter
        self.ready: Ready = ready
        self.moves: Moves = moves
        self.sessions: SessionTable | None = ledger.rows.sessions
        self.waiters: dict[LeaseWaiter, None] = {}
        self._ends: list[tuple[int, str]] = []

    # -- waiting -----------------------------------------------------------------------------

    def pump(self) -> None:
        """Receivers come first; what they leave is for those who wait to lease it."""
        if self._has_ready():
            waiters = self.waiters
            self.waiters = {}
            for waiter in waiters:
                waiter.ready()

    def _has_ready(self) -> bool:
        if self.sessions is None:
            return self.ready.first() != 0
        return self.sessions.next_free(self.rows.index) is not None

    def await_ready(self, waiter: LeaseWaiter) -> None:
        self.waiters[waiter] = None

    def forget_waiter(self, waiter: LeaseWaiter) -> None:
        self.waiters.pop(waiter, None)

    # -- taking ------------------------------------------------------------------------------

    def lease(self, lease_id: str, messages_max: int, bytes_max: int, duration_ms: int, now: int, before: int = 0) -> Lease:
        """Set up to so many ready messages aside. The same id again gives the same lease, whatever the limits.

        With `before`, only messages that were enqueued by that instant.
        """
        known = self.rows.leases.get(lease_id)
        if known is not None:
            return known
        self._check_new(lease_id)
        wanted = _Wanted(self, messages_max, bytes_max, before)
        if self.sessions is None:
            wanted.gather(self.ready, now)
        else:
            wanted.gather_sessions(self.sessions, now)
        if not wanted.seqs:
            return Lease(lease_id, [], now + duration_ms, 0)
        return self._take(lease_id, wanted.seqs, now + duration_ms, now)

    def lease_again(self, lease_id: str, seqs: list[int], duration_ms: int, now: int, before: int = 0) -> Lease:
        """Exactly these messages, or none: for a batch that was planned and whose lease has lapsed since.

        With `before`, one that was enqueued later is another message: the queue was made anew, and counts from 1 again.
        """
        known = self.rows.leases.get(lease_id)
        if known is not None:
            return known
        self._check_new(lease_id)
        refused = f"The lease '{lease_id}' of '{self.terms.path}' cannot be taken again"
        index = self.rows.index
        missing = sum(1 for seq in seqs if index.state(seq) != READY or 0 < before < index.enqueued_at(seq))
        if missing or not seqs or len(set(seqs)) != len(seqs):
            raise LeaseLost(f"{refused}: {missing} of its {len(seqs)} messages are gone or in use.")
        for session in self._sessions_of(seqs):
            if session.holder is not None:
                raise LeaseLost(f"{refused}: session '{session.id}' is in use.")
        return self._take(lease_id, seqs, now + duration_ms, now)

    def _check_new(self, lease_id: str) -> None:
        if lease_id in self.rows.leases_ended:
            raise ArgumentRefused(f"The lease '{lease_id}' of '{self.terms.path}' was completed; a new batch needs a new id.")
        self.terms.check_receiving()

    def _take(self, lease_id: str, seqs: list[int], expires_at: int, now: int) -> Lease:
        for seq in seqs:
            self.meter.received(self.rows.index.size(seq))
        lease = self.ledger.lease(lease_id, seqs, expires_at, now)
        self._keep(lease)
        return lease

    def _keep(self, lease: Lease) -> None:
        """It is there: nobody else may receive from its sessions, and it has an end."""
        for session in self._sessions_of(lease.seqs):
            if session.holder is None and self.sessions is not None:
                self.sessions.hold(session, lease.holder, lease.expires_at)
                lease.sessions.append(session)
        self._expect_end(lease)

    def _expect_end(self, lease: Lease) -> None:
        heapq.heappush(self._ends, (lease.expires_at, lease.id))
        self.slot.wake(lease.expires_at)

    def _sessions_of(self, seqs: list[int]) -> list[MessageSession]:
        if self.sessions is None:
            return []
        found: dict[str, MessageSession] = {}
        for seq in seqs:
            session = self.rows.session_of(seq) if seq else None
            if session is not None:
                found[session.id] = session
        return list(found.values())

    # -- looking after it --------------------------------------------------------------------

    def holds(self, lease_id: str) -> bool:
        return lease_id in self.rows.leases

    def all_leases(self) -> list[Lease]:
        return list(self.rows.leases.values())

    def find(self, lease_id: str, now: int) -> Lease:
        lease = self.rows.leases.get(lease_id)
        if lease is None or lease.expires_at <= now:
            raise LeaseLost(f"The lease '{lease_id}' of '{self.terms.path}' has expired, was returned, or never existed.")
        return lease

    def renew(self, lease_id: str, duration_ms: int, now: int) -> Lease:
        """Extend it. Volatile until the fact rides along: after a crash a lease has at least the time last written."""
        lease = self.find(lease_id, now)
        self.ledger.renew_lease(lease_id, now + duration_ms, now)
        self._expect_end(lease)
        if self.sessions is not None:
            for session in lease.sessions:
                self.sessions.renew(session, lease.expires_at)
        return lease

    # -- the end -----------------------------------------------------------------------------

    def complete(self, lease_id: str, now: int) -> int:
        """All its messages are done: one fact. Completing it again does nothing. Returns how many left the queue."""
        if lease_id in self.rows.leases_ended:
            return 0
        lease = self.find(lease_id, now)
        left = lease.remaining()
        if lease.moving:
            # It is not done with: should it not get where it is going, it is in the queue again.
            self.ledger.return_part(lease_id, lease.moving, now)
        self.ledger.end_lease(lease, True, now)
        self._free_sessions(lease)
        return left

    def abandon(self, lease_id: str, now: int) -> int:
        """Give the messages back as they were; unknown or ended leases have nothing to give."""
        lease = self.rows.leases.get(lease_id)
        if lease is None:
            return 0
        left = lease.remaining()
        self._return(lease, now)
        return left

    def _return(self, lease: Lease, now: int) -> None:
        leased = [seq for seq in lease.seqs if seq and self.rows.index.state(seq) == LEASED]
        self.ledger.end_lease(lease, False, now)
        for seq in leased:
            self.ready.give_back(seq)
        self._free_sessions(lease)

    def _free_sessions(self, lease: Lease) -> None:
        if self.sessions is not None:
            for session in lease.sessions:
                if session.holder is lease.holder:
                    self.sessions.let_go(session, self.rows.index)
        self.slot.touch()

    # -- parts -------------------------------------------------------------------------------

    def _leased(self, lease: Lease, seq: int) -> bool:
        return lease.place(seq) >= 0 and self.rows.index.state(seq) == LEASED

    def complete_part(self, lease_id: str, seqs: list[int], now: int) -> int:
        """These messages are done; the others stay leased. What is not (or no longer) in the lease is passed over. Returns how many."""
        lease = self.find(lease_id, now)
        done = 0
        for seq in seqs:
            if self._leased(lease, seq):
                lease.drop(seq)
                self.ledger.settle(seq, facts.COMPLETED, now)
                done += 1
        return done

    def dead_letter_part(self, lease_id: str, seq: int, reason: str, description: str, now: int, effect: Effect) -> bool:
        """Move one message of the lease to the dead-letter queue; False (and no effect) when it is not in the lease."""
        lease = self.find(lease_id, now)
        if not self._leased(lease, seq):
            return False
        if self.moves.dead_letters is None:
            # Dead-lettering inside a dead-letter queue leaves the message there.
            self.return_part(lease_id, [seq], now)
            self.ledger.when_durable(effect)
            return True
        lease.begin_move(seq)
        self.moves.dead_letter(seq, self.rows.index.count(seq), reasons(reason, description), effect, lease=lease)
        return True

    def return_part(self, lease_id: str, seqs: list[int], now: int) -> int:
        """Give these back to the queue before the others."""
        lease = self.find(lease_id, now)
        given = [seq for seq in seqs if self._leased(lease, seq)]
        if given:
            self.ledger.return_part(lease_id, given, now)
            for seq in given:
                self.ready.give_back(seq)
        return len(given)

    # -- time --------------------------------------------------------------------------------

    def due(self, now: int) -> None:
        ends = self._ends
        while ends and ends[0][0] <= now:
            at, lease_id = heapq.heappop(ends)
            lease = self.rows.leases.get(lease_id)
            if lease is not None and lease.expires_at == at:
                self._return(lease, now)
        self.wake()

    def wake(self) -> None:
        if self._ends:
            self.slot.wake(self._ends[0][0])

    def restore(self) -> None:
        """After a replay, or when the clock was set: the ends of all there are."""
        self._ends = []
        for lease in self.rows.leases.values():
            self._keep(lease)


class _Wanted:
    """Messages that are being gathered for a lease."""

    def __init__(self, leases: Leases, messages_max: int, bytes_max: int, before: int) -> None:
        self._leases: Leases = leases
        self._messages_max: int = messages_max
        self._bytes_max: int = bytes_max
        self._before: int = before
        self._size_bytes: int = 0
        self.seqs: list[int] = []

    def _too_late(self, seq: int) -> bool:
        return 0 < self._before < self._leases.rows.index.enqueued_at(seq)

    def gather(self, line: Line, now: int) -> None:
        """Until there are enough, or the next one does not fit."""
        rows = self._leases.rows
        while len(self.seqs) < self._messages_max:
            seq = line.first()
            if seq == 0 or self._too_late(seq) or (self.seqs and self._size_bytes + rows.index.size(seq) > self._bytes_max):
                return
            line.take(seq)
            if rows.spent(seq, self._leases.terms.max_delivery_count, now):
                self._leases.moves.remove_spent(seq, now)
            else:
                self.seqs.append(seq)
                self._size_bytes += rows.index.size(seq)

    def gather_sessions(self, sessions: SessionTable, now: int) -> None:
        """Whole sessions in order. One that turns out to hold nothing for this lease is passed over."""
        rows = self._leases.rows
        passed: list[MessageSession] = []
        while len(self.seqs) < self._messages_max:
            session = sessions.next_free(rows.index)
            if session is None:
                break
            sessions.free.pop(session.id)
            passed.append(session)
            self.gather(SessionLine(rows, session), now)
            left = session.first(rows.index)
            if left and not self._too_late(left):
                break
        for session in passed:
            sessions.refresh(session, rows.index)
