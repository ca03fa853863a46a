"""The clock of a node that takes stores over: never below the last instant that their last owner wrote down."""

from __future__ import annotations

from typing import Final

from tandem.model.clock import Clock

LEAD_MS_MAX: Final = 60_000
"""A node further from the engine's clock does not start, so nobody should have written an instant further ahead than this."""
_STEP_MS: Final = 10
"""Given back at each look, a few times a second."""


class OwnersClock(Clock):
    """The machine's, and as far ahead of it as it has to be; the lead is given back a little at a time, and no instant comes twice."""

    def __init__(self, machine: Clock) -> None:
        self._machine = machine
        self._floor_ms = 0
        self._not_before_ms = 0
        """An instant to be reached with the next look, which may find that the machine has been set right meanwhile."""
        self.lead_ms = 0
        """Over the machine's clock."""

    def steady_ms(self) -> int:
        return self._machine.steady_ms()

    def now_ms(self) -> int:
        return max(self._machine.now_ms() + self.lead_ms, self._floor_ms)

    def not_before(self, instant: int) -> bool:
        """From the next look on nothing happens before this instant. False if that is further ahead than clocks that are looked after
        can be: it is not followed."""
        lack = instant - self.now_ms()
        if self.lead_ms + lack > LEAD_MS_MAX:
            return False
        self._not_before_ms = max(self._not_before_ms, instant)
        return True

    def jumped(self) -> int:
        by_ms = self._machine.jumped()
        if by_ms < 0:
            self._floor_ms += by_ms  # it was set back, and everybody is told
        elif by_ms:
            # it was set right: what we were ahead of it by is that much less
            caught_up = min(by_ms, self.lead_ms)
            self.lead_ms -= caught_up
            by_ms -= caught_up
        lack = max(0, self._not_before_ms - self.now_ms())
        self._not_before_ms = 0
        if lack:
            self.lead_ms += lack
            self._floor_ms = max(self._floor_ms, self.now_ms())
        elif self.lead_ms:
            self._floor_ms = max(self._floor_ms, self.now_ms())
            self.lead_ms -= min(self.lead_ms, _STEP_MS)
        return by_ms + lack
