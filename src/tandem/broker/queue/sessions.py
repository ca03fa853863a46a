"""Message sessions: a session has one holder ever, its messages come in order, its state outlives the holder."""

from __future__ import annotations

import heapq
from collections import OrderedDict

from tandem.broker.ports import Consumer, SessionAcceptor
from tandem.broker.ports import MessageSession as MessageSession
from tandem.broker.queue.index import Index


class SessionEvents:
    """Whoever looks after the holders of sessions."""

    def has_more(self, session: MessageSession) -> None:
        """A message of this session may be delivered."""


class SessionTable:
    """All sessions of a queue: who is free and has something to read, who waits for one."""

    __slots__ = ("_ending", "_entries", "_next_number", "_patience", "by_id", "by_number", "free", "waiters")

    def __init__(self) -> None:
        self.by_id: dict[str, MessageSession] = {}
        self.by_number: dict[int, MessageSession] = {}
        # Ordered: a plain dict finds its first item by walking over all that were removed before it.
        self.free: OrderedDict[str, MessageSession] = OrderedDict()
        """Unheld sessions with messages to deliver, oldest first."""
        self.waiters: OrderedDict[SessionAcceptor, None] = OrderedDict()
        """In the order in which they came."""
        self._patience: list[tuple[int, int, SessionAcceptor]] = []
        """Heap of the waiters' deadlines; those who left are taken out when their time comes, or when too many have."""
        self._ending: list[tuple[int, int, MessageSession]] = []
        """Heap of the ends of session locks; those that were renewed or let go are taken out when their time comes."""
        self._next_number: int = 1
        self._entries: int = 0
        """How many either heap ever had: of two with one instant the earlier comes first."""

    def get(self, session_id: str) -> MessageSession:
        """The session of this id, made when there is none."""
        session = self.by_id.get(session_id)
        if session is None:
            session = MessageSession(session_id, self._next_number)
            self.by_id[session_id] = session
            self.by_number[self._next_number] = session
            self._next_number += 1
        return session

    def hold(self, session: MessageSession, consumer: Consumer, locked_until: int) -> None:
        assert session.holder is None, "a session has one holder"
        session.hold(consumer)
        self.free.pop(session.id, None)
        self.renew(session, locked_until)

    def renew(self, session: MessageSession, locked_until: int) -> None:
        session.renew(locked_until)
        self._entries += 1
        heapq.heappush(self._ending, (locked_until, self._entries, session))

    def let_go(self, session: MessageSession, index: Index) -> None:
        """The holder is gone; the session is free again if there is something to read, forgotten if nothing is left."""
        session.hold(None)
        self.refresh(session, index)

    def refresh(self, session: MessageSession, index: Index) -> None:
        """After a change to an unheld session: is it available, empty, or to be forgotten?"""
        if session.holder is not None:
            return
        if session.first(index):
            self.free[session.id] = session
            return
        self.free.pop(session.id, None)
        if session.total == 0 and session.state is None:
            self.by_id.pop(session.id, None)
            self.by_number.pop(session.number, None)

    def next_free(self, index: Index) -> MessageSession | None:
        while self.free:
            session = next(iter(self.free.values()))
            if session.first(index):
                return session
            self.refresh(session, index)
        return None

    def add_waiter(self, waiter: SessionAcceptor) -> None:
        self.waiters[waiter] = None
        self.expect(waiter)

    def expect(self, waiter: SessionAcceptor) -> None:
        """Its deadline is new, or another one than before."""
        patience = self._patience
        if len(patience) > 2 * len(self.waiters) + 64:
            patience = [entry for entry in patience if entry[2] in self.waiters]
            heapq.heapify(patience)
            self._patience = patience
        self._entries += 1
        heapq.heappush(patience, (waiter.deadline, self._entries, waiter))

    def shift(self, by_ms: int) -> None:
        """The clock was set: session locks and patience last as long as before. Locks of messages are shifted with the others."""
        for session in self.by_id.values():
            session.shift(by_ms)
        self._ending = [(until + by_ms, entry, session) for until, entry, session in self._ending]
        self._patience = []
        for waiter in self.waiters:
            waiter.shift(by_ms)
            self.expect(waiter)

    def next_end(self) -> int:
        """The next instant a session lock or a waiter's patience may end; 0 = none."""
        ending = self._ending
        while ending and (ending[0][2].holder is None or ending[0][2].locked_until != ending[0][0]):
            heapq.heappop(ending)
        at = ending[0][0] if ending else 0
        patience = self._patience
        while patience and patience[0][2] not in self.waiters:
            heapq.heappop(patience)
        if patience and (at == 0 or patience[0][0] < at):
            at = patience[0][0]
        return at

    def ended(self, now: int) -> list[MessageSession]:
        over: list[MessageSession] = []
        ending = self._ending
        while ending and ending[0][0] <= now:
            until, _, session = heapq.heappop(ending)
            if session.holder is not None and session.locked_until == until:
                over.append(session)
        return over

    def time_out_waiters(self, now: int) -> None:
        """Tell the waiters whose time has passed."""
        patience = self._patience
        while patience and patience[0][0] <= now:
            _, _, waiter = heapq.heappop(patience)
            if waiter in self.waiters:
                del self.waiters[waiter]
                waiter.timed_out()
