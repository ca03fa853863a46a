"""Message locks: one holder each, a token to show, an end in time. Volatile by design: a restart releases them."""

from __future__ import annotations

from bisect import bisect_right
from struct import Struct
from typing import Final

from tandem.broker.ports import Lock as Lock
from tandem.broker.ports import MessageSession

_pack_token: Final = Struct(">QQ").pack


class LockTable:
    """Locks of one queue, by the number of their message, and in the order in which they end."""

    __slots__ = ("_ending", "_ends", "_first", "_nonce", "_number", "by_seq")

    def __init__(self, nonce: int) -> None:
        self.by_seq: dict[int, Lock] = {}
        self._ending: list[Lock] = []
        self._ends: list[int] = []
        """When the lock at the same place ends, unless it was renewed: then it stands here once more."""
        self._first: int = 0
        """Everything before this place has ended, or is held no longer."""
        self._nonce: int = nonce >> 2
        """62 bits: with more every token would cost two objects, compiled."""
        self._number: int = 0

    def take(self, seq: int, locked_until: int, count: int, session: MessageSession | None, deferred: bool) -> Lock:
        """A fresh lock. `count` is how often the message was delivered before."""
        self._number += 1
        lock = Lock(seq, _pack_token(self._nonce ^ self._number, seq), locked_until, count, session, deferred)
        self.by_seq[seq] = lock
        if session is None:
            ends = self._ends
            if ends and locked_until < ends[-1]:
                self._line_up(lock, locked_until)
            else:
                self._ending.append(lock)
                ends.append(locked_until)
        return lock

    def find(self, token: bytes) -> Lock | None:
        lock = self.by_seq.get(int.from_bytes(token[8:16], "big"))
        return lock if lock is not None and lock.token == token else None

    def drop(self, lock: Lock) -> None:
        lock.lose()
        del self.by_seq[lock.seq]

    def drop_all(self, locks: list[Lock]) -> None:
        by_seq = self.by_seq
        for lock in locks:
            lock.lose()
            del by_seq[lock.seq]

    def forfeit(self) -> None:
        """The store went on without this queue: nobody holds anything any more."""
        for lock in self.by_seq.values():
            lock.lose()

    def renew(self, lock: Lock, locked_until: int) -> None:
        if lock.locked_until == locked_until:
            return  # twice in one millisecond: it ends once
        lock.renew(locked_until)
        if lock.session is None:
            self._line_up(lock, locked_until)

    def shift(self, by_ms: int) -> None:
        """The clock was set: every lock lasts as long as before."""
        for lock in self.by_seq.values():
            lock.renew(lock.locked_until + by_ms)
        self._ends = [until + by_ms for until in self._ends]

    def next_end(self) -> int:
        """The instant the next lock may end; 0 when nothing is locked."""
        ending = self._ending
        ends = self._ends
        first = self._first
        while first < len(ending):
            lock = ending[first]
            if lock.held and lock.locked_until == ends[first]:
                break
            first += 1
        self._first = first
        self._tidy()
        return self._ends[self._first] if self._first < len(self._ends) else 0

    def ended(self, now: int) -> list[Lock]:
        """Locks whose time is over. They are still held: the queue decides what happens to each message."""
        over: list[Lock] = []
        while self._first < len(self._ending) and self._ends[self._first] <= now:
            if self._stands():
                over.append(self._ending[self._first])
            self._first += 1
        self._tidy()
        return over

    def _line_up(self, lock: Lock, locked_until: int) -> None:
        """Behind all that end no later: not always the last place, since the lock duration may have become shorter."""
        place = bisect_right(self._ends, locked_until, self._first)
        self._ending.insert(place, lock)
        self._ends.insert(place, locked_until)

    def _stands(self) -> bool:
        """The first one is held, and was not renewed since."""
        lock = self._ending[self._first]
        return lock.held and lock.locked_until == self._ends[self._first]

    def _tidy(self) -> None:
        """Half of the line at a time: moving all for each that leaves would make the n-th cost n."""
        if self._first * 2 > len(self._ending):
            del self._ending[: self._first]
            del self._ends[: self._first]
            self._first = 0
