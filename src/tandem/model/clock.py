"""The one place that reads the machine's clock; everybody else is handed a Clock."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Tells instants. Milliseconds since the Unix epoch, UTC, as AMQP timestamps count."""

    def now_ms(self) -> int: ...


class SystemClock:
    """Wall-clock instants that never run backwards: a clock set back holds still instead."""

    def __init__(self) -> None:
        self._last_ms = 0

    def now_ms(self) -> int:
        now = time.time_ns() // 1_000_000
        if now > self._last_ms:
            self._last_ms = now
        return self._last_ms
