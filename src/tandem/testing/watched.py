"""Engines that know what they are still busy with, so that a test can wait for the end of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tandem.broker.journal import Effect, FetchEffect, Journal, StoreHealth, Tenant
from tandem.gateway.admin import Catalog
from tandem.gateway.server import Engines

LoopCall = Callable[[Callable[[], None]], None]


class WatchedEngines:
    """Implements `Engines` over others."""

    def __init__(self, inner: Engines) -> None:
        self._inner = inner
        self.journals: list[WatchedJournal] = []
        """Of the broker that opened them last."""

        self._answered = asyncio.Event()

    @property
    def reading(self) -> int:
        """Requests for bodies that were not answered yet."""
        return sum(journal.reading for journal in self.journals)

    async def bodies_read(self) -> None:
        """Return when every request for bodies was answered."""
        while self.reading:
            self._answered.clear()
            await self._answered.wait()

    def open_catalog(self, namespace: str) -> Catalog:
        return self._inner.open_catalog(namespace)

    def open_journal(self, namespace: str, index: int, loop_call: LoopCall) -> Journal:
        journal = WatchedJournal(self._inner.open_journal(namespace, index, loop_call), self._answered, self._closed)
        self.journals.append(journal)
        return journal

    def _closed(self, journal: WatchedJournal) -> None:
        self.journals.remove(journal)


class WatchedJournal:
    """Implements `Journal` by handing on, and counts reads on their way."""

    def __init__(self, inner: Journal, answered: asyncio.Event, closed: Callable[[WatchedJournal], None]) -> None:
        self._inner = inner
        self._answered = answered
        self._closed = closed
        self.reading = 0
        # Handed on as they are: these are called per message.
        self.append = inner.append
        self.when_durable = inner.when_durable
        self.forget = inner.forget
        self.flush = inner.flush

    append: Callable[[int, int, int, int, int, int, bytes, bytes], int]
    when_durable: Callable[[Effect], None]
    forget: Callable[[int], None]
    flush: Callable[[], None]

    @property
    def pending_bytes(self) -> int:
        return self._inner.pending_bytes

    @property
    def health(self) -> StoreHealth:
        return self._inner.health

    def fetch(self, locations: list[int], effect: FetchEffect) -> None:
        self.reading += 1
        self._inner.fetch(locations, _Counted(self, effect))

    def answered(self) -> None:
        self.reading -= 1
        self._answered.set()

    def replay(self, tenant: Tenant) -> None:
        self._inner.replay(tenant)

    def step_compaction(self) -> bool:
        return self._inner.step_compaction()

    def reopen(self, tenant: Tenant) -> None:
        self._inner.reopen(tenant)

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
