"""How long to wait before trying again: longer each time, and never all at once."""

from __future__ import annotations

import secrets
from collections.abc import Callable


class BackOff:
    """Doubles from `first` to `most` seconds, each pause drawn between half of it and all of it."""

    def __init__(self, first: float = 0.5, most: float = 30.0, chance: Callable[[], float] | None = None) -> None:
        self._first = first
        self._most = most
        self._chance = chance or (lambda: secrets.randbits(32) / 2**32)
        self._failures = 0

    def succeeded(self) -> None:
        self._failures = 0

    def next_pause(self) -> float:
        pause = min(self._most, self._first * 2.0 ** min(self._failures, 30))
        self._failures += 1
        return pause * (0.5 + self._chance() / 2)
