"""Messages that are read back to be written again, of one store: a few megabytes of them at a time, however many are due at one instant."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from tandem.broker.ports import Effect
from tandem.model.errors import StoreUnavailable

if TYPE_CHECKING:
    from tandem.broker.ports import Journal

_BYTES_MAX: Final = 4_194_304
"""Being read, or written and not on disk yet; the last one that is let in may be as large as a message can be."""
_LOOK_AGAIN_MS: Final = 20


class Crossing:
    """Some messages that wait for their turn."""

    __slots__ = ()

    def begin(self) -> int:
        """How many bytes they have; then `read` is called."""
        return 0

    def read(self) -> None:
        """In the end tells the passage that they have `arrived`."""


class Passage:
    """First come, first served."""

    __slots__ = ("_bytes", "_letting_in", "_waiting")

    def __init__(self) -> None:
        self._bytes: int = 0
        self._waiting: deque[Crossing] = deque()
        self._letting_in: bool = False

    def room(self) -> int:
        """In bytes; nothing while others wait."""
        return 0 if self._waiting else max(_BYTES_MAX - self._bytes, 0)

    def next_look(self, now: int) -> int:
        """When whoever has something due may ask again."""
        return now + (1 if self.room() else _LOOK_AGAIN_MS)

    def enter(self, one: Crossing) -> None:
        self._waiting.append(one)
        self._let_in()

    def arrived(self, size: int, journal: Journal) -> None:
        """What was made of them is in the journal, if anything was: their room is free once it is on disk."""
        try:
            journal.when_durable(_OnDisk(self, size))
        except StoreUnavailable:
            self.leave(size)

    def leave(self, size: int) -> None:
        self._bytes -= size
        self._let_in()

    def _let_in(self) -> None:
        if self._letting_in:
            return  # whoever left was read at once: the loop below goes on
        self._letting_in = True
        try:
            while self._waiting and self._bytes < _BYTES_MAX:
                one = self._waiting.popleft()
                self._bytes += one.begin()
                one.read()
        finally:
            self._letting_in = False


class _OnDisk(Effect):
    __slots__ = ("passage", "size")

    def __init__(self, passage: Passage, size: int) -> None:
        self.passage = passage
        self.size: int = size

    def done(self, error: BaseException | None) -> None:
        self.passage.leave(self.size)
