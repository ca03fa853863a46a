"""Which message comes next: for receivers, leases and forwarding alike."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from tandem.broker.queue.index import READY
from tandem.broker.queue.rows import Rows
from tandem.broker.queue.sessions import MessageSession, SessionEvents

if TYPE_CHECKING:
    from tandem.broker.ports import Consumer
    from tandem.broker.turn import TurnSlot


class Line:
    """Messages that may be delivered, in order."""

    def first(self) -> int:
        """The number of the next one, left in place; 0 = none."""
        return 0

    def take(self, seq: int) -> None:
        """Remove what `first` has just shown."""

    def cold(self, rows_max: int, bytes_max: int) -> list[int]:
        """The next ones whose bodies are not in memory, about so many."""
        return []


class SessionLine(Line):
    """Those of one session."""

    def __init__(self, rows: Rows, session: MessageSession) -> None:
        self._rows: Rows = rows
        self._session: MessageSession = session

    def first(self) -> int:
        return self._session.first(self._rows.index)

    def take(self, seq: int) -> None:
        self._session.take_first()

    def cold(self, rows_max: int, bytes_max: int) -> list[int]:
        rows = self._rows
        session = self._session
        wanted = [seq for seq in session.returned[:rows_max] if rows.index.state(seq) == READY and seq not in rows.hot]
        for seq in session.ready:
            if len(wanted) >= rows_max:
                break
            if rows.index.state(seq) == READY and seq not in rows.hot:
                wanted.append(seq)
        return wanted


class Seekers:
    """Receivers that want only some messages (`queue.selective`)."""

    def add(self, consumer: Consumer) -> None: ...

    def remove(self, consumer: Consumer) -> None: ...

    def returned(self, ready: Ready, seq: int) -> None:
        """This one may be delivered (again)."""

    def unseen(self, consumer: Consumer) -> bool:
        """Is there something that it has not looked at?"""
        return False

    def pump(self, now: int) -> None: ...


class Ready(Line):
    """Those of a queue. Given back ones come at their old place, so in front of everything younger."""

    def __init__(self, rows: Rows, slot: TurnSlot) -> None:
        self.rows: Rows = rows
        self.slot: TurnSlot = slot
        self.cursor: int = rows.base + 1
        """Everything below was delivered once or passed over; what came back since is in `returned`."""
        self.returned: list[int] = []
        self.sessions: SessionEvents = SessionEvents()
        """Told of what comes back to a session."""
        self.seekers: Seekers | None = None

    def tell_sessions(self, sessions: SessionEvents) -> None:
        self.sessions = sessions

    def tell_seekers(self, seekers: Seekers | None) -> None:
        self.seekers = seekers

    def first(self) -> int:
        rows = self.rows
        index = rows.index
        returned = self.returned
        while returned:
            if index.state(returned[0]) == READY:
                return returned[0]
            heapq.heappop(returned)
        cursor = self.cursor
        if cursor > rows.durable_seq:
            return 0
        if index.state(cursor) == READY:
            return cursor
        end = rows.durable_seq + 1
        seq = index.next_in_state(READY, cursor, end)
        self.cursor = seq
        return seq if seq < end else 0

    def take(self, seq: int) -> None:
        if seq >= self.cursor:
            self.cursor = seq + 1
        else:
            heapq.heappop(self.returned)

    def cold(self, rows_max: int, bytes_max: int) -> list[int]:
        rows = self.rows
        first = self.first()
        if first == 0:
            return []
        wanted: list[int] = [first]
        size = 0
        at = max(first + 1, self.cursor)
        end = rows.durable_seq + 1
        while len(wanted) < rows_max and size < bytes_max:
            at = rows.index.next_in_state(READY, at, end)
            if at >= end:
                break
            if at not in rows.hot:
                wanted.append(at)
                size += rows.index.size(at)
            at += 1
        return wanted

    def give_back(self, seq: int) -> None:
        """An existing row may be delivered (again)."""
        rows = self.rows
        rows.index.set_state(seq, READY)
        session = rows.session_of(seq)
        if session is not None:
            session.give_back(seq)
            self.sessions.has_more(session)
        else:
            if seq < self.cursor:
                heapq.heappush(self.returned, seq)
            if self.seekers is not None:
                self.seekers.returned(self, seq)
        self.slot.touch()

    def tidy(self, spare: int) -> None:
        """Forget those that left from behind the cursor without being taken from here, once there are many."""
        index = self.rows.index
        if len(self.returned) > spare + 2 * index.by_state[READY]:
            self.returned = sorted({one for one in self.returned if index.state(one) == READY})
