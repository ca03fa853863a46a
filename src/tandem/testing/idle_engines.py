"""Engines that know what they are still busy with, so that a test can wait for the end of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from tandem.broker.ports import Effect, FetchEffect, Journal, StoreHealth, Tenant
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
        return journal


class WatchedJournal(Journal):
    """Hands everything on, and counts reads on their way."""

    def __init__(self, inner: Journal, answered: asyncio.Event, closed: Callable[[WatchedJournal], None]) -> None:
        self._inner = inner
        self._answered = answered
        self._closed = closed
        self.reading = 0

    def __getattr__(self, name: str) -> Any:
        """What only some stores have."""
        return getattr(self._inner, name)

    @property
    def pending_bytes(self) -> int:
        return self._inner.pending_bytes

    @property
    def health(self) -> StoreHealth:
        return self._inner.health

    @property
    def short_of_room(self) -> str:
        return self._inner.short_of_room

    def when_room_changes(self, tell: Callable[[], None]) -> None:
        self._inner.when_room_changes(tell)

    def append(self, kind: int, flags: int, entity: int, seq: int, at: int, aux: int, key: bytes, body: bytes) -> int:
        return self._inner.append(kind, flags, entity, seq, at, aux, key, body)

    def append_run(self, kind: int, flags: int, entity: int, seqs: list[int], at: int) -> int:
        return self._inner.append_run(kind, flags, entity, seqs, at)

    def when_durable(self, effect: Effect) -> None:
        self._inner.when_durable(effect)

    def flush(self) -> None:
        self._inner.flush()

    def forget(self, location: int) -> None:
        self._inner.forget(location)

    def replay(self, tenant: Tenant) -> None:
        self._inner.replay(tenant)

    def step_compaction(self) -> bool:
        return self._inner.step_compaction()

    def reopen(self, tenant: Tenant) -> None:
        self._inner.reopen(tenant)

    def fail(self, cause: str) -> None:
        self._inner.fail(cause)

    def check_stalled(self, stall_ms_max: int) -> None:
        self._inner.check_stalled(stall_ms_max)

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
