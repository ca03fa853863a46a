"""Who holds which session, until when, and what its holder gets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandem.broker.queue.delivery import PUMP_BYTES_MAX, MessageDelivery, Receivers
from tandem.broker.queue.entity import SessionVerbs
from tandem.broker.queue.ledger import Ledger
from tandem.broker.queue.ready import SessionLine
from tandem.broker.queue.rows import Rows
from tandem.broker.queue.sessions import MessageSession, SessionEvents, SessionTable
from tandem.broker.queue.settlement import Settlement
from tandem.broker.queue.terms import Terms
from tandem.model.errors import BusError, NotAllowed, SessionCannotBeLocked, SessionLockLost

if TYPE_CHECKING:
    from tandem.broker.ports import Consumer, SessionAcceptor
    from tandem.broker.turn import TurnSlot


class SessionHolding(SessionEvents, SessionVerbs):
    """The sessions of one queue; of a queue without sessions, the refusals."""

    def __init__(self, ledger: Ledger, terms: Terms, settlement: Settlement, delivery: MessageDelivery) -> None:
        self.ledger: Ledger = ledger
        self.rows: Rows = ledger.rows
        self.slot: TurnSlot = ledger.slot
        self.terms: Terms = terms
        self.settlement: Settlement = settlement
        self.delivery: MessageDelivery = delivery
        self.receivers: Receivers = delivery.receivers
        self.table: SessionTable | None = ledger.rows.sessions

    def _table(self) -> SessionTable:
        if self.table is None:
            raise NotAllowed(f"'{self.terms.path}' does not require sessions: receive from it without a session filter.")
        return self.table

    def find(self, session_id: str) -> MessageSession | None:
        return None if self.table is None else self.table.by_id.get(session_id)

    # -- holders -----------------------------------------------------------------------------

    def held(self, session_id: str, now: int) -> MessageSession:
        """The session, if somebody holds its lock."""
        session = self.find(session_id)
        if session is None or session.holder is None or session.locked_until <= now:
            raise SessionLockLost(f"The session lock of '{session_id}' has expired or was never taken. Accept the session again.")
        return session

    def accept(self, session_id: str, consumer: Consumer, now: int) -> MessageSession:
        """Take this session; it need not exist yet."""
        table = self._table()
        session = table.get(session_id)
        if session.holder is not None and session.locked_until <= now:
            self._expire(session, now)
            session = table.get(session_id)
        if session.holder is not None:
            raise SessionCannotBeLocked(f"The requested session '{session_id}' cannot be accepted. It may be locked by another receiver.")
        self._hold(session, consumer, now)
        return session

    def _hold(self, session: MessageSession, consumer: Consumer, now: int) -> None:
        self._table().hold(session, consumer, now + self.terms.lock_ms)
        self.wake()

    def await_next(self, acceptor: SessionAcceptor) -> None:
        """Give the next free session with something to read to this one, in its turn."""
        self._table().add_waiter(acceptor)
        self.slot.wake(acceptor.deadline)
        self.slot.touch()

    def forget(self, acceptor: SessionAcceptor) -> None:
        if self.table is not None:
            self.table.waiters.pop(acceptor, None)

    def close(self, session: MessageSession, consumer: Consumer, now: int, failed: bool = False) -> None:
        """The holder's link closed: the session is free at once. MessageDelivery counts stay, unless the holder failed."""
        if session.holder is consumer:
            self.end(session, None, failed, now)

    def renew(self, session_id: str, now: int) -> int:
        session = self.held(session_id, now)
        self._table().renew(session, now + self.terms.lock_ms)
        self.wake()
        return session.locked_until

    def end(self, session: MessageSession, error: BusError | None, failed: bool, now: int) -> None:
        """The holder loses the session. `failed`: by time, or because it vanished, so that the deliveries in its hands count; else by
        closing its link."""
        holder = session.holder
        self._table().let_go(session, self.rows.index)
        for lock in list(session.locks.values()):
            if failed:
                self.settlement.lose(lock, now)
            else:
                self.settlement.release(lock, now)
        if holder is not None and error is not None:
            self.receivers.remove(holder)
            holder.lost(error)
        self.slot.touch()

    def _expire(self, session: MessageSession, now: int) -> None:
        self.end(session, SessionLockLost("The session lock has expired. Accept the session again."), True, now)

    def lose_all(self, error: BusError, now: int) -> None:
        """Every session lock is gone at once; holders are told."""
        for session in self.all_held():
            self.end(session, error, True, now)

    def tell_all(self, error: BusError) -> None:
        """The store went away with these sessions: their holders hear of it."""
        for session in self.all_held():
            if session.holder is not None:
                session.holder.lost(error)

    def all_held(self) -> list[MessageSession]:
        return [] if self.table is None else [session for session in self.table.by_id.values() if session.holder is not None]

    # -- messages ----------------------------------------------------------------------------

    def has_more(self, session: MessageSession) -> None:
        """Its holder gets it; one whose lock is over hears of that now, when it matters."""
        now = self.slot.turn.now
        if session.holder is not None and session.locked_until <= now:
            self._expire(session, now)
        elif session.holder is not None:
            self.receivers.ready(session.holder)
        else:
            self._table().refresh(session, self.rows.index)

    def pump(self, now: int) -> None:
        """Free sessions go to those who wait for one; each holder gets its own session's messages."""
        table = self._table()
        while table.waiters:
            session = table.next_free(self.rows.index)
            if session is None:
                break
            waiter, _ = table.waiters.popitem(last=False)
            if waiter.looks:
                waiter.accepted(session)
                continue
            self._hold(session, waiter.consumer, now)
            waiter.accepted(session)
        self._deliver(now)

    def _deliver(self, now: int) -> None:
        """One with nothing to read leaves the line until its session has more."""
        receivers = self.receivers
        receivers.set_more(False)
        for _ in range(len(receivers.line)):
            consumer = receivers.line.popleft()
            consumer.leave_line()
            session = consumer.session
            room = consumer.room_left()
            if session is None or room <= 0:
                continue
            if session.locked_until <= now:
                if session.first(self.rows.index):
                    self._expire(session, now)
                continue
            self.delivery.deliver(consumer, SessionLine(self.rows, session), session, room, PUMP_BYTES_MAX, now)
            if consumer.room_left() > 0 and (self.delivery.paging or session.first(self.rows.index)):
                receivers.stand(consumer)
                if self.delivery.given_bytes >= PUMP_BYTES_MAX:
                    receivers.set_more(True)
                    self.slot.touch_later()

    # -- state -------------------------------------------------------------------------------

    def state(self, session_id: str, now: int) -> bytes | None:
        return self.held(session_id, now).state

    def set_state(self, session_id: str, state: bytes | None, now: int) -> None:
        self.held(session_id, now)
        self.ledger.set_session_state(session_id, state, now)

    def list_ids(self, updated_after: int | None, skip: int, top: int) -> list[str]:
        """With messages or state, or (given an instant) those whose state was set after it."""
        if self.table is None:
            raise NotAllowed(f"'{self.terms.path}' does not require sessions.")
        ids = [
            session.id
            for session in self.table.by_id.values()
            if (
                (session.total > 0 or session.state is not None)
                if updated_after is None
                else (session.state is not None and session.state_updated_at > updated_after)
            )
        ]
        ids.sort()
        return ids[skip : skip + top]

    # -- time --------------------------------------------------------------------------------

    def wake(self) -> None:
        if self.table is not None:
            self.slot.wake(self.table.next_end())

    def due(self, now: int) -> None:
        if self.table is None:
            return
        for session in self.table.ended(now):
            if not session.locks and not session.first(self.rows.index):
                continue  # nothing in hand, nothing to read: its holder is left in peace until somebody wants the session
            self._expire(session, now)
        self.table.time_out_waiters(now)

    def is_awaited(self) -> bool:
        return self.table is not None and len(self.table.waiters) > 0
