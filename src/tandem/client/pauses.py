"""Destinations that could not be reached are left alone for a while: longer each time, until one takes something again."""

from __future__ import annotations

import asyncio

from tandem.model.backoff import Backoff


class Pauses:
    """By destination; instants are of the loop's time. With more than `most_kept` destinations the oldest pause ends early."""

    def __init__(self, first: float, most: float, most_kept: int) -> None:
        self._first = first
        self._most = most
        self._most_kept = most_kept
        self._by_path: dict[str, tuple[Backoff, float]] = {}

    def begin(self, path: str, anew: bool = False) -> float:
        """It could not be reached; how long it is left alone. `anew`: it was well until now, whatever was before."""
        known = self._by_path.get(path)
        if known is None and len(self._by_path) >= self._most_kept:
            self._by_path.pop(next(iter(self._by_path)))
        backoff = Backoff(self._first, self._most) if known is None or anew else known[0]
        seconds = backoff.next_pause()
        self._by_path[path] = backoff, asyncio.get_running_loop().time() + seconds
        return seconds

    def end(self, path: str) -> None:
        """It took something, or is known to be back."""
        self._by_path.pop(path, None)

    def until(self, path: str) -> float:
        """When the pause is over, which may have been long ago; 0 if there was none since it last took something."""
        known = self._by_path.get(path)
        return 0.0 if known is None else known[1]
