"""Duplicate detection: ids seen within the window, in two generations so that forgetting costs nothing."""

from __future__ import annotations


class DuplicateHistory:
    """Remembers message ids (as encoded, so ids of different types differ) for `window_ms` after they were accepted."""

    __slots__ = ("_current", "_previous", "_turned_at", "window_ms")

    def __init__(self, window_ms: int) -> None:
        self.window_ms: int = window_ms
        self._current: dict[bytes, int] = {}
        self._previous: dict[bytes, int] = {}
        self._turned_at: int = 0

    def __len__(self) -> int:
        return len(self._current) + len(self._previous)

    def seen(self, message_id: bytes, now: int) -> bool:
        at = self._current.get(message_id)
        if at is None:
            at = self._previous.get(message_id)
        return at is not None and at + self.window_ms > now

    def stands(self, message_id: bytes, at: int, now: int) -> bool:
        """It is remembered, and from this instant: an older one of the same id has nothing left to say."""
        known = self._current.get(message_id)
        if known is None:
            known = self._previous.get(message_id)
        return known == at and at + self.window_ms > now

    def remember(self, message_id: bytes, at: int, now: int) -> None:
        if now - self._turned_at >= self.window_ms:
            # All of `_previous` is older than a window; what is in `_current` may still matter for one more.
            self._previous = self._current
            self._current = {}
            self._turned_at = now
        self._current[message_id] = at

    def clear(self) -> None:
        self._current = {}
        self._previous = {}
