"""How long to wait before trying again: twice as long after each failure, up to a most; a success begins anew."""

from __future__ import annotations

import os
from collections.abc import Callable


class Backoff:
    """Pauses of one unit, whichever it is. With `chance` each is drawn between half of it and all of it: many do not come at once."""

    __slots__ = ("_chance", "_first", "_most", "last")

    def __init__(self, first: float, most: float, chance: Callable[[], float] | None = None) -> None:
        self._first = first
        self._most = most
        self._chance = chance
        self.last = 0.0
        """The pause after the last failure; 0 if there was none since the last success."""

    def next_pause(self) -> float:
        """It has failed: wait so long."""
        self.last = min(self._most, self.last * 2 or self._first)
        return self.last if self._chance is None else self.last * (0.5 + self._chance() / 2)

    def reset(self) -> None:
        """It has succeeded."""
        self.last = 0.0


def unforeseeable() -> float:
    """A chance from 0 to 1."""
    return int.from_bytes(os.urandom(4), "big") / 0xFFFF_FFFF
