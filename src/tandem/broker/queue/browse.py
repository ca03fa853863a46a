"""Looking without taking, taking what was put aside, and holding sessions: the management node's side of a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandem.broker import facts
from tandem.broker.ports import SessionAcceptor
from tandem.broker.queue.index import DEFERRED, DEFERRED_LOCKED, DELAYED, LEASED, LOCKED, READY, SCHEDULED
from tandem.broker.queue.settlement import Settler
from tandem.model.errors import MessageNotFound, NotAllowed, SessionCannotBeLocked, SessionLockLost

if TYPE_CHECKING:
    from tandem.broker.ports import Consumer
    from tandem.broker.queue.locks import Lock
    from tandem.broker.queue.sessions import MessageSession

_VISIBLE_STATES = (READY, LOCKED, DEFERRED, SCHEDULED, DELAYED, DEFERRED_LOCKED, LEASED)


class Browser(Settler):
    """Peek, deferred messages, sessions."""

    # -- peek --------------------------------------------------------------------------------

    def peek(self, start: int, most: int, session_id: str | None, now: int) -> list[int]:
        """Sequence numbers of up to `most` messages from `start` on, active, locked, deferred and scheduled; load them next."""
        found: list[int] = []
        number = -1
        if session_id is not None:
            session = self.sessions.by_id.get(session_id) if self.sessions is not None else None
            if session is None:
                return found
            number = session.number
        at = start
        while len(found) < most:
            seqs = self.index.seqs_from(at, most if number < 0 else 1_000)
            for seq in seqs:
                if len(found) == most:
                    break
                if self._may_peek(seq, now) and (number < 0 or self.index.owner(seq) == number):
                    found.append(seq)
            if not seqs:
                break
            at = seqs[-1] + 1
        return found

    def _may_peek(self, seq: int, now: int) -> bool:
        state = self.index.state(seq)
        if state not in _VISIBLE_STATES or seq > self.durable_seq:
            return False
        expires_at = self.index.expires_at(seq)
        return not (expires_at and expires_at <= now and state == READY)

    # -- deferred ----------------------------------------------------------------------------

    def receive_deferred(self, seqs: list[int], session_id: str | None, now: int) -> list[Lock]:
        """Lock these deferred messages, all or none."""
        session = self._session_for_deferred(session_id, now)
        self._check_deferred(seqs, session)
        until = session.locked_until if session is not None else now + self.lock_ms
        taken: list[Lock] = []
        for seq in seqs:
            lock = self.locks.take(seq, until, self.index.count(seq), session, True)
            if session is not None:
                session.locks[seq] = lock
            self.index.set_state(seq, DEFERRED_LOCKED)
            self.meter.received(self.index.size(seq))
            taken.append(lock)
        facts.write_delivered(self.journal, self.entity_id, seqs, now)
        self.wake_for_locks()
        return taken

    def check_deferred(self, seqs: list[int], session_id: str | None, now: int) -> None:
        """Raises what `receive_deferred` would raise."""
        self._check_deferred(seqs, self._session_for_deferred(session_id, now))

    def _session_for_deferred(self, session_id: str | None, now: int) -> MessageSession | None:
        if not self.has_sessions:
            return None
        if session_id is None:
            raise NotAllowed(f"'{self.path}' requires sessions: deferred messages are received through a session receiver.")
        return self.held_session(session_id, now)

    def _check_deferred(self, seqs: list[int], session: MessageSession | None) -> None:
        if not seqs or len(set(seqs)) != len(seqs):
            raise MessageNotFound("Give one or more different sequence numbers.")
        for seq in seqs:
            found = self.index.state(seq) == DEFERRED and (session is None or self.index.owner(seq) == session.number)
            if not found:
                raise MessageNotFound(f"Failed to lock one or more specified messages: {seq} is not a deferred message of '{self.path}'.")

    # -- sessions ----------------------------------------------------------------------------

    def held_session(self, session_id: str, now: int) -> MessageSession:
        """The session, if somebody holds its lock."""
        session = self.sessions.by_id.get(session_id) if self.sessions is not None else None
        if session is None or session.holder is None or session.locked_until <= now:
            raise SessionLockLost(f"The session lock of '{session_id}' has expired or was never taken. Accept the session again.")
        return session

    def accept_session(self, session_id: str, consumer: Consumer, now: int) -> MessageSession:
        """Take this session; it need not exist yet."""
        if self.sessions is None:
            raise NotAllowed(f"'{self.path}' does not require sessions: receive from it without a session filter.")
        session = self.sessions.get(session_id)
        if session.holder is not None and session.locked_until <= now:
            self.session_ended(session, SessionLockLost("The session lock has expired. Accept the session again."), True, now)
            session = self.sessions.get(session_id)
        if session.holder is not None:
            raise SessionCannotBeLocked(f"The requested session '{session_id}' cannot be accepted. It may be locked by another receiver.")
        self.sessions.hold(session, consumer, now + self.lock_ms)
        self.wake_for_sessions()
        return session

    def await_session(self, acceptor: SessionAcceptor) -> None:
        """Give the next free session with something to read to this one, in its turn."""
        if self.sessions is None:
            raise NotAllowed(f"'{self.path}' does not require sessions: receive from it without a session filter.")
        self.sessions.add_waiter(acceptor)
        self.turn.wake(self, acceptor.deadline)
        self.turn.touch_queue(self)

    def forget_acceptor(self, acceptor: SessionAcceptor) -> None:
        if self.sessions is not None:
            self.sessions.waiters.pop(acceptor, None)

    def close_session(self, session: MessageSession, consumer: Consumer, now: int, failed: bool = False) -> None:
        """The holder's link closed: the session is free at once. Delivery counts stay, unless the holder failed."""
        if session.holder is consumer:
            self.session_ended(session, None, failed, now)

    def renew_session(self, session_id: str, now: int) -> int:
        session = self.held_session(session_id, now)
        assert self.sessions is not None
        self.sessions.renew(session, now + self.lock_ms)
        self.wake_for_sessions()
        return session.locked_until

    def session_state(self, session_id: str, now: int) -> bytes | None:
        return self.held_session(session_id, now).state

    def set_session_state(self, session_id: str, state: bytes | None, now: int) -> None:
        session = self.held_session(session_id, now)
        facts.write_session_state(self.journal, self.entity_id, session_id, state, now)
        session.state = state
        session.state_updated_at = now

    def list_sessions(self, updated_after: int | None, skip: int, top: int) -> list[str]:
        """Session ids: with messages or state, or (given an instant) those whose state was set after it."""
        if self.sessions is None:
            raise NotAllowed(f"'{self.path}' does not require sessions.")
        ids = [
            session.id
            for session in self.sessions.by_id.values()
            if (
                (session.total > 0 or session.state is not None)
                if updated_after is None
                else (session.state is not None and session.state_updated_at > updated_after)
            )
        ]
        ids.sort()
        return ids[skip : skip + top]
