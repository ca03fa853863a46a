"""Silence on a connection: when we must say something, and when the peer has said nothing for too long."""

from __future__ import annotations

from typing import Final

_BEAT_MS_MIN: Final = 100
"""A peer that wants to hear from us more often than this asks too much."""


class Idle:
    """The engine has no clock: whether there was traffic since the last tick is turned into instants at whatever pace ticks come."""

    def __init__(self) -> None:
        self.heard_at = 0
        self.spoke_at = 0

    def expired(self, now: int, heard: bool, drop_ms: int) -> bool:
        """Nothing came for so long; 0 = never."""
        if heard:
            self.heard_at = now
            return False
        return drop_ms > 0 and now - self.heard_at >= drop_ms

    def silent_ms(self, now: int) -> int:
        return now - self.heard_at

    def must_speak(self, now: int, spoke: bool, beat_ms: int) -> bool:
        """A quarter of the interval has passed since a tick saw us speak, which was at most a tick's distance before that."""
        if spoke:
            self.spoke_at = now
            return False
        return beat_ms > 0 and now - self.spoke_at >= max(beat_ms // 4, _BEAT_MS_MIN)

    def next_at(self, now: int, drop_ms: int, beat_ms: int) -> int:
        """0 = never."""
        expiry_at = now + max(drop_ms // 4, 1) if drop_ms > 0 else 0
        beat_at = max(now + 1, self.spoke_at + max(beat_ms // 4, _BEAT_MS_MIN)) if beat_ms > 0 else 0
        if expiry_at == 0 or beat_at == 0:
            return expiry_at or beat_at
        return min(expiry_at, beat_at)
