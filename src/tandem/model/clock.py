"""The one place that reads the machine's clock; everybody else is handed a Clock.

Two questions, two answers. *When*: instants that clients and operators see follow the machine's clock, also when it is set. *How long*:
locks, silence and patience are measured on a clock that nobody can set. Between two looks (`jumped`) instants are counted on from
that second clock, so an instant never jumps in the middle of something.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

from mypy_extensions import mypyc_attr

JUMP_MS: Final = 500
"""A machine's clock that is farther off than this was set; less is drift, and followed a little at a time."""
_DRIFT_STEP_MS: Final = 10


@mypyc_attr(allow_interpreted_subclasses=True)
class Clock(ABC):
    """Tells instants (milliseconds since the Unix epoch, UTC, as AMQP timestamps count) and durations.

    A class and no protocol: it is asked several times in every turn, and compiled that is a call of a C function.
    """

    @abstractmethod
    def now_ms(self) -> int:
        """The instant; it moves with `steady_ms`, and by a jump only when `jumped` says so."""

    @abstractmethod
    def steady_ms(self) -> int:
        """For durations: goes on evenly, from wherever it began, whatever happens to the machine's clock."""

    @abstractmethod
    def jumped(self) -> int:
        """Asked a few times a second by whoever drives the broker: by how much the machine's clock was set since. `now_ms` follows it from
        here on, and whoever keeps the end of a duration as an instant moves it by as much."""


def boot_ms() -> int:
    """For durations that go on while the machine sleeps: how long others may have gone on without us."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME if hasattr(time, "CLOCK_BOOTTIME") else time.CLOCK_MONOTONIC) // 1_000_000


@mypyc_attr(allow_interpreted_subclasses=True)
class SystemClock(Clock):
    """The machine's."""

    def __init__(self, wall_ns: Callable[[], int] = time.time_ns, steady_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._wall_ns = wall_ns
        self._steady_ns = steady_ns
        self._ahead_ms: int = wall_ns() // 1_000_000 - self.steady_ms()
        """Of the instant over the steady clock."""

    def steady_ms(self) -> int:
        return self._steady_ns() // 1_000_000

    def now_ms(self) -> int:
        return self._steady_ns() // 1_000_000 + self._ahead_ms

    def jumped(self) -> int:
        off = self._wall_ns() // 1_000_000 - self.now_ms()
        if abs(off) >= JUMP_MS:
            self._ahead_ms += off
            return off
        self._ahead_ms += max(-_DRIFT_STEP_MS, min(off, _DRIFT_STEP_MS))
        return 0
