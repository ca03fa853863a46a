"""Duplicate detection: ids seen within the window, in two generations so that forgetting costs nothing."""

from __future__ import annotations


class DuplicateHistory:
    """Remembers message ids (as encoded, so ids of different types differ) for `window_ms` after they were accepted."""

    __slots__ = ("_current", "_previous", "_shifts", "_turned_at", "window_ms")

    def __init__(self, window_ms: int) -> None:
        self.window_ms: int = window_ms
        self._current: dict[bytes, int] = {}
        self._previous: dict[bytes, int] = {}
        self._turned_at: int = 0
        self._shifts: set[int] = {0}
        """By how much instants kept here may differ from those on disk: the clock was set since."""

    def look_back(self, window_ms: int) -> None:
        """For so long, from now on."""
        self.window_ms = window_ms

    def __len__(self) -> int:
        return len(self._current) + len(self._previous)

    def seen(self, message_id: bytes, now: int) -> bool:
        at = self._current.get(message_id)
        if at is None:
            at = self._previous.get(message_id)
        return at is not None and at + self.window_ms > now

    def is_current(self, message_id: bytes, at: int, now: int) -> int:
        """Is it remembered, and from this instant? Returns that instant, moved if the clock was set since; 0: no, or from another one."""
        known = self._current.get(message_id)
        if known is None:
            known = self._previous.get(message_id)
        return known if known is not None and known - at in self._shifts and known + self.window_ms > now else 0

    def remember(self, message_id: bytes, at: int, now: int) -> None:
        if now - self._turned_at >= self.window_ms:
            # All of `_previous` is older than a window; what is in `_current` may still matter for one more.
            if not self._current:
                self._shifts = {0}
            self._previous = self._current
            self._current = {}
            self._turned_at = now
        self._current[message_id] = at

    def shift(self, by_ms: int) -> None:
        """The clock was set: every id is remembered as long as before."""
        self._current = {message_id: at + by_ms for message_id, at in self._current.items()}
        self._previous = {message_id: at + by_ms for message_id, at in self._previous.items()}
        self._turned_at += by_ms
        self._shifts = {0} | {shift + by_ms for shift in self._shifts}

    def ids(self, now: int) -> set[bytes]:
        """All that are remembered."""
        return {message_id for message_id in (*self._previous, *self._current) if self.seen(message_id, now)}
