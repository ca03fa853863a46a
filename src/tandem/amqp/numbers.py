"""Handles and channels: numbers from 0 up, the one asked for when it is free, else a free one, however many are in use."""

from __future__ import annotations

import heapq


class Numbers:
    """Taking and giving back cost a heap's step: a search from 0 would make the n-th link cost n."""

    def __init__(self) -> None:
        self._used: set[int] = set()
        self._spare: list[int] = []
        """Given back, lowest first; some may have been asked for by name since."""
        self._spare_known: set[int] = set()
        self._fresh: int = 0
        """Nothing from here on was ever handed out unasked."""

    def take(self, wanted: int, largest: int) -> int:
        """`wanted` if it is free and not above `largest`; else the lowest free one, which may lie above it: the caller looks."""
        number = wanted
        if wanted < 0 or wanted > largest or wanted in self._used:
            number = self._lowest()
        self._used.add(number)
        return number

    def give_back(self, number: int) -> None:
        self._used.discard(number)
        if number < self._fresh and number not in self._spare_known:
            self._spare_known.add(number)
            heapq.heappush(self._spare, number)

    def _lowest(self) -> int:
        spare = self._spare
        while spare:
            number = heapq.heappop(spare)
            self._spare_known.discard(number)
            if number not in self._used:
                return number
        while self._fresh in self._used:
            self._fresh += 1
        number = self._fresh
        self._fresh += 1
        return number
