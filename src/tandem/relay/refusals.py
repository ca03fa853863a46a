"""Clients that are refused and come again at once are answered late: one of them alone can make a thousand attempts a second."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_FREE: Final = 10
"""Refusals in a row that are answered at once."""
_FORGET_MS: Final = 10_000
_DELAY_SECONDS: Final = 1.0
_DELAYED_MAX: Final = 1_000
_SOURCES_MAX: Final = 10_000


class Refusals:
    """Counts refusals of each source; `delay` says how long the next answer waits."""

    def __init__(self, steady_ms: Callable[[], int]) -> None:
        self._steady_ms = steady_ms
        self._recent: dict[str, tuple[int, int]] = {}
        """source -> (count, instant of the last)."""
        self.delayed = 0

    def delay(self, source: str) -> float:
        now = self._steady_ms()
        count, last = self._recent.pop(source, (0, now))
        count = 1 if now - last > _FORGET_MS else count + 1
        self._recent[source] = (count, now)
        if len(self._recent) > _SOURCES_MAX:
            del self._recent[next(iter(self._recent))]  # the one that was quiet longest
        return _DELAY_SECONDS if count > _FREE and self.delayed < _DELAYED_MAX else 0.0
