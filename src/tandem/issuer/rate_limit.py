"""How often somebody may ask: a bucket for each, refilled evenly, and never more buckets than fit."""

from __future__ import annotations

from typing import Final

_BUCKETS_MAX: Final = 10_000
_MINUTE_MS: Final = 60_000


class RateLimit:
    def __init__(self, per_minute: int) -> None:
        self._size = float(per_minute)
        self._buckets: dict[str, tuple[float, int]] = {}
        """Who -> what was left, and when; those seen last at the end."""

    def wait_ms(self, who: str, now: int) -> int:
        """Takes one; 0, or how long until there is one again. `now` is on a clock that nobody sets."""
        left, at = self._buckets.pop(who, (self._size, now))
        left = min(self._size, left + (now - at) * self._size / _MINUTE_MS)
        while len(self._buckets) >= _BUCKETS_MAX:
            del self._buckets[next(iter(self._buckets))]
        taken = left >= 1
        self._buckets[who] = (left - 1 if taken else left, now)
        return 0 if taken else int((1 - left) * _MINUTE_MS / self._size) + 1
