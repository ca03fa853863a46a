"""A clock that stands still until a test moves it."""

from __future__ import annotations

from tandem.model.clock import Clock, SystemClock


class ManualClock(Clock):
    """Starts now, or at the instant given, and moves only when told."""

    def __init__(self, now_ms: int | None = None) -> None:
        self._now_ms = SystemClock().now_ms() if now_ms is None else now_ms
        self._steady_ms = self._now_ms
        self._set_by_ms = 0

    def now_ms(self) -> int:
        return self._now_ms

    def steady_ms(self) -> int:
        return self._steady_ms

    def jumped(self) -> int:
        by_ms, self._set_by_ms = self._set_by_ms, 0
        self._now_ms += by_ms
        return by_ms

    def set_by(self, seconds: float) -> None:
        """As if somebody set the machine's clock, ahead or back; no time passes by that."""
        self._set_by_ms += round(seconds * 1000)

    def advance(self, seconds: float) -> int:
        """Move forwards by so much, to the millisecond; returns the new instant."""
        if seconds < 0:
            raise ValueError(f"a clock is moved forwards; {seconds} seconds would move it back")
        self.move_to(self._now_ms + round(seconds * 1000))
        return self._now_ms

    def move_to(self, now_ms: int) -> None:
        """To an instant."""
        self._steady_ms += now_ms - self._now_ms
        self._now_ms = now_ms


class ShiftedClock(Clock):
    """The system's clock, ahead by as much as it was told: it goes on by itself."""

    def __init__(self) -> None:
        self._system = SystemClock()
        self._ahead_ms = 0

    def now_ms(self) -> int:
        return self._system.now_ms() + self._ahead_ms

    def steady_ms(self) -> int:
        return self._system.steady_ms() + self._ahead_ms

    def jumped(self) -> int:
        return self._system.jumped()

    def advance(self, seconds: float) -> int:
        if seconds < 0:
            raise ValueError(f"a clock is moved forwards; {seconds} seconds would move it back")
        self._ahead_ms += round(seconds * 1000)
        return self.now_ms()
