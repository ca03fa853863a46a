"""Looking without taking, taking what was put aside, and clearing away: what is asked for by number or by instant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandem.broker import facts
from tandem.broker.meters import Meter
from tandem.broker.queue.bodies import Bodies
from tandem.broker.queue.entity import BrowsingVerbs
from tandem.broker.queue.index import DEFERRED, DEFERRED_LOCKED, DELAYED, LEASED, LOCKED, READY, SCHEDULED
from tandem.broker.queue.ledger import Ledger
from tandem.broker.queue.rows import Rows
from tandem.broker.queue.session_holding import SessionHolding
from tandem.broker.queue.settlement import Settlement
from tandem.broker.queue.terms import Terms
from tandem.model.errors import MessageNotFound, NotAllowed

if TYPE_CHECKING:
    from tandem.broker.ports import Loaded
    from tandem.broker.queue.locks import Lock
    from tandem.broker.queue.sessions import MessageSession

_VISIBLE_STATES = (READY, LOCKED, DEFERRED, SCHEDULED, DELAYED, DEFERRED_LOCKED, LEASED)


class Browsing(BrowsingVerbs):
    """The management node's side of a queue."""

    def __init__(
        self, ledger: Ledger, terms: Terms, meter: Meter, bodies: Bodies, settlement: Settlement, sessions: SessionHolding
    ) -> None:
        self.ledger: Ledger = ledger
        self.rows: Rows = ledger.rows
        self.terms: Terms = terms
        self.meter: Meter = meter
        self.bodies: Bodies = bodies
        self.settlement: Settlement = settlement
        self.sessions: SessionHolding = sessions

    def peek(self, start: int, most: int, session_id: str | None, now: int) -> list[int]:
        index = self.rows.index
        found: list[int] = []
        number = -1
        if session_id is not None:
            session = self.sessions.find(session_id)
            if session is None:
                return found
            number = session.number
        at = start
        while len(found) < most:
            seqs = index.seqs_from(at, most if number < 0 else 1_000)
            for seq in seqs:
                if len(found) == most:
                    break
                if self._may_peek(seq, now) and (number < 0 or index.owner(seq) == number):
                    found.append(seq)
            if not seqs:
                break
            at = seqs[-1] + 1
        return found

    def _may_peek(self, seq: int, now: int) -> bool:
        state = self.rows.index.state(seq)
        if state not in _VISIBLE_STATES or seq > self.rows.durable_seq:
            return False
        return not (state == READY and 0 < self.rows.index.expires_at(seq) <= now)

    def load(self, seqs: list[int], then: Loaded) -> None:
        self.bodies.load(seqs, then)

    # -- deferred ----------------------------------------------------------------------------

    def receive_deferred(self, seqs: list[int], session_id: str | None, now: int) -> list[Lock]:
        session = self.check_deferred(seqs, session_id, now)
        index = self.rows.index
        until = session.locked_until if session is not None else now + self.terms.lock_ms
        taken: list[Lock] = []
        for seq in seqs:
            lock = self.settlement.locks.take(seq, until, index.count(seq), session, True)
            if session is not None:
                session.locks[seq] = lock
            index.set_state(seq, DEFERRED_LOCKED)
            self.meter.received(index.size(seq))
            taken.append(lock)
        self.ledger.deliver(seqs, now)
        self.settlement.wake_for_locks()
        return taken

    def check_deferred(self, seqs: list[int], session_id: str | None, now: int) -> MessageSession | None:
        """The session they belong to, if any; raises what `receive_deferred` would raise."""
        session: MessageSession | None = None
        if self.terms.has_sessions:
            if session_id is None:
                raise NotAllowed(f"'{self.terms.path}' requires sessions: deferred messages are received through a session receiver.")
            session = self.sessions.held(session_id, now)
        if not seqs or len(set(seqs)) != len(seqs):
            raise MessageNotFound("Give one or more different sequence numbers.")
        index = self.rows.index
        for seq in seqs:
            if index.state(seq) != DEFERRED or (session is not None and index.owner(seq) != session.number):
                path = self.terms.path
                raise MessageNotFound(f"Failed to lock one or more specified messages: {seq} is not a deferred message of '{path}'.")
        return session

    # -- removal -----------------------------------------------------------------------------

    def cancel_scheduled(self, seqs: list[int], now: int) -> None:
        for seq in seqs:
            if self.rows.index.state(seq) != SCHEDULED:
                path = self.terms.path
                raise MessageNotFound(f"Failed to cancel: there is no scheduled message with sequence number {seq} in '{path}'.")
        for seq in dict.fromkeys(seqs):
            self.ledger.settle(seq, facts.CANCELLED, now)

    def purge(self, before: int, most: int, now: int, session_id: str | None = None) -> int:
        owner = 0
        if session_id is not None:
            session = self.sessions.find(session_id)
            if session is None:
                return 0
            owner = session.number
        index = self.rows.index
        removed = 0
        at = self.rows.base + 1
        end = self.rows.durable_seq + 1
        while removed < most:
            at = index.next_in_state(READY, at, end)
            if at >= end:
                break
            if index.enqueued_at(at) <= before and (owner == 0 or index.owner(at) == owner):
                self.ledger.settle(at, facts.PURGED, now)
                removed += 1
            at += 1
        return removed
