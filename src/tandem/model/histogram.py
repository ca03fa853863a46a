"""How long things took, counted in buckets: cheap to add to, and what monitoring systems read."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

BOUNDS_MS: Final = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000)
"""Upper ends, inclusive; what took longer is counted behind the last."""
AGE_BOUNDS_MS: Final = (10, 100, 1_000, 10_000, 60_000, 600_000, 3_600_000, 86_400_000)
"""For what may wait for days."""


class Histogram:
    """Durations in milliseconds."""

    __slots__ = ("bounds", "counts", "sum_ms")

    def __init__(self, bounds: tuple[int, ...] = BOUNDS_MS) -> None:
        self.bounds: tuple[int, ...] = bounds
        self.counts: list[int] = [0] * (len(bounds) + 1)
        self.sum_ms: float = 0.0

    def observe(self, duration_ms: float, count: int = 1) -> None:
        """So many that took as long."""
        self.counts[bisect_left(self.bounds, duration_ms)] += count
        self.sum_ms += duration_ms * count

    def add(self, other: Histogram) -> None:
        """What was counted elsewhere, with the same bounds."""
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.sum_ms += other.sum_ms


class AgeHistogram:
    """For what comes in runs of about the same age: a run in one bucket is counted with two additions each, and put down at its end."""

    __slots__ = ("_count", "_first", "_last", "_place", "_put_down", "_sum_ms")

    def __init__(self) -> None:
        self._put_down = Histogram(AGE_BOUNDS_MS)
        self._place: int = 0
        self._first: int = 0
        self._last: int = -1
        """The ages that belong to the bucket of the run."""
        self._count: int = 0
        self._sum_ms: int = 0

    def observe(self, age_ms: int) -> None:
        if age_ms < self._first or age_ms > self._last:
            self._begin(age_ms if age_ms > 0 else 0)
        self._count += 1
        self._sum_ms += age_ms

    def _begin(self, age_ms: int) -> None:
        self.histogram()
        bounds = self._put_down.bounds
        self._place = bisect_left(bounds, age_ms)
        self._first = bounds[self._place - 1] + 1 if self._place else 0
        self._last = bounds[self._place] if self._place < len(bounds) else 1 << 62

    def histogram(self) -> Histogram:
        """Everything observed so far."""
        found = self._put_down
        found.counts[self._place] += self._count
        found.sum_ms += self._sum_ms
        self._count = 0
        self._sum_ms = 0
        return found
