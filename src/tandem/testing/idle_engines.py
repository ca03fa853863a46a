"""Engines that know what they are still busy with, so that a test can wait for the end of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from tandem.broker.ports import FetchEffect, Journal
from tandem.server.server import Engines

LoopCall = Callable[[Callable[[], None]], None]


class WatchedEngines:
    """Stands in front of other engines and hands on whatever it does not watch."""

    def __init__(self, inner: Engines) -> None:
        self._inner = inner
        self.journals: list[WatchedJournal] = []
        """Of the broker that opened them last."""
        self._answered = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def as_engines(self) -> Engines:
        return cast(Engines, self)

    @property
    def reading(self) -> int:
        """Requests for bodies that were not answered yet."""
        return sum(journal.reading for journal in self.journals)

    async def bodies_read(self) -> None:
        """Return when every request for bodies was answered."""
        while self.reading:
            self._answered.clear()
            await self._answered.wait()

    def open_journal(self, namespace: str, index: int, loop_call: LoopCall) -> Journal:
        journal = WatchedJournal(self._inner.open_journal(namespace, index, loop_call), self._answered, self.journals.remove)
        self.journals.append(journal)
        return cast(Journal, journal)


class WatchedJournal:
    """Hands everything on, and counts reads on their way."""

    def __init__(self, inner: Journal, answered: asyncio.Event, closed: Callable[[WatchedJournal], None]) -> None:
        self._inner = inner
        self._answered = answered
        self._closed = closed
        self.reading = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def fetch(self, locations: list[int], effect: FetchEffect) -> None:
        self.reading += 1
        self._inner.fetch(locations, _Counted(self, effect))

    def answered(self) -> None:
        self.reading -= 1
        self._answered.set()

    def close(self) -> None:
        self._inner.close()
        self._closed(self)


class _Counted(FetchEffect):
    __slots__ = ("_effect", "_journal")

    def __init__(self, journal: WatchedJournal, effect: FetchEffect) -> None:
        self._journal = journal
        self._effect = effect

    def fetched(self, bodies: list[bytes], error: BaseException | None) -> None:
        self._journal.answered()
        self._effect.fetched(bodies, error)
