"""Message locks: one holder each, a token to show, an end in time. Volatile by design: a restart releases them."""

from __future__ import annotations

from collections import deque
from struct import Struct
from typing import Final

from tandem.broker.ports import Lock as Lock
from tandem.broker.ports import MessageSession

_TOKEN: Final = Struct(">QQ")


class LockTable:
    """Locks of one queue, by token, and in the order in which they end."""

    __slots__ = ("_ending", "_nonce", "_number", "by_token")

    def __init__(self, nonce: int) -> None:
        self.by_token: dict[bytes, Lock] = {}
        self._ending: deque[tuple[int, Lock]] = deque()
        self._nonce: int = nonce
        self._number: int = 0

    def take(self, seq: int, locked_until: int, count: int, session: MessageSession | None, deferred: bool) -> Lock:
        """A fresh lock. `count` is how often the message was delivered before."""
        self._number += 1
        token = _TOKEN.pack(self._nonce ^ self._number, seq)
        lock = Lock(seq, token, locked_until, count, session, deferred)
        self.by_token[token] = lock
        if session is None:
            self._ending.append((locked_until, lock))
        return lock

    def find(self, token: bytes) -> Lock | None:
        return self.by_token.get(token)

    def drop(self, lock: Lock) -> None:
        lock.held = False
        del self.by_token[lock.token]

    def drop_all(self, locks: list[Lock]) -> None:
        by_token = self.by_token
        for lock in locks:
            lock.held = False
            del by_token[lock.token]

    def forfeit(self) -> None:
        """The store went on without this queue: nobody holds anything any more."""
        for lock in self.by_token.values():
            lock.held = False

    def renew(self, lock: Lock, locked_until: int) -> None:
        if lock.locked_until == locked_until:
            return  # twice in one millisecond: it ends once
        lock.locked_until = locked_until
        if lock.session is None:
            self._ending.append((locked_until, lock))

    def shift(self, by_ms: int) -> None:
        """The clock was set: every lock lasts as long as before."""
        for lock in self.by_token.values():
            lock.locked_until += by_ms
        self._ending = deque([(until + by_ms, lock) for until, lock in self._ending])

    def next_end(self) -> int:
        """The instant the next lock may end; 0 when nothing is locked."""
        ending = self._ending
        while ending:
            until, lock = ending[0]
            if lock.held and lock.locked_until == until:
                return until
            ending.popleft()
        return 0

    def ended(self, now: int) -> list[Lock]:
        """Locks whose time is over. They are still held: the queue decides what happens to each message."""
        over: list[Lock] = []
        ending = self._ending
        while ending and ending[0][0] <= now:
            until, lock = ending.popleft()
            if lock.held and lock.locked_until == until:
                over.append(lock)
        return over
