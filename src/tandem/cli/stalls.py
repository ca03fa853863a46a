"""How long the event loop kept anybody waiting, and how long the garbage collector did: measured from inside, when asked for."""

from __future__ import annotations

import asyncio
import gc
import time
from typing import Any, Final

TICK_SECONDS: Final = 0.001
_STEPS: Final = 8
"""Buckets per doubling: a percentile is read back to within a tenth."""
_BUCKETS: Final = 40 * _STEPS


class StallHistogram:
    """Durations in nanoseconds, in buckets that grow; its size does not depend on how much was counted."""

    __slots__ = ("_counts", "count", "max_ns", "total_ns")

    def __init__(self) -> None:
        self._counts = [0] * _BUCKETS
        self.count = 0
        self.max_ns = 0
        self.total_ns = 0

    def add(self, ns: int) -> None:
        doublings = max(ns.bit_length() - 4, 0)
        self._counts[min(doublings * _STEPS + (ns >> doublings) % _STEPS, _BUCKETS - 1)] += 1
        self.count += 1
        self.total_ns += ns
        if ns > self.max_ns:
            self.max_ns = ns

    def percentile(self, percent: float) -> float:
        """In milliseconds; the upper edge of the bucket it falls in."""
        wanted = self.count * percent / 100
        seen = 0
        for place, count in enumerate(self._counts):
            seen += count
            if count and seen >= wanted:
                doublings, step = divmod(place, _STEPS)
                return min((step + 1 + (_STEPS if doublings else 0)) << doublings, self.max_ns) / 1e6
        return 0.0

    def summary(self) -> dict[str, float]:
        return {
            "count": self.count,
            "p50_ms": round(self.percentile(50), 3),
            "p99_ms": round(self.percentile(99), 3),
            "p99.9_ms": round(self.percentile(99.9), 3),
            "max_ms": round(self.max_ns / 1e6, 3),
            "total_ms": round(self.total_ns / 1e6, 1),
        }


class StallMonitor:
    """A timer that should fire every millisecond and notes how late it does. Costs a few percent of a core, so only when asked for.

    `late` is what a client feels, so it also counts what other processes took from us. `busy` is the processor time that the
    loop's thread used between two ticks: ours alone.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._busy_from = 0
        self._gc_from = 0
        self._reset()

    def _reset(self) -> None:
        self._late = StallHistogram()
        self._busy = StallHistogram()
        self._pauses = StallHistogram()
        self._from = self._loop.time()

    def start(self) -> None:
        gc.callbacks.append(self._collecting)
        self._busy_from = time.thread_time_ns()
        self._plan()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            gc.callbacks.remove(self._collecting)

    def report(self) -> dict[str, Any]:
        """What was measured since the last report, in milliseconds."""
        found = {
            "seconds": round(self._loop.time() - self._from, 3),
            "late": self._late.summary(),
            "busy": self._busy.summary(),
            "gc": self._pauses.summary(),
        }
        self._reset()
        return found

    def _plan(self) -> None:
        self._due = self._loop.time() + TICK_SECONDS
        self._timer = self._loop.call_later(TICK_SECONDS, self._tick)

    def _tick(self) -> None:
        self._late.add(max(round((self._loop.time() - self._due) * 1e9), 0))
        busy = time.thread_time_ns()
        self._busy.add(busy - self._busy_from)
        self._busy_from = busy
        self._plan()

    def _collecting(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._gc_from = time.perf_counter_ns()
        else:
            self._pauses.add(time.perf_counter_ns() - self._gc_from)
