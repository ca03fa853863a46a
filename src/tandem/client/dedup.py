"""Which message ids have been processed: remembered only afterwards, bounded by time and by count, in memory or on disk."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import os
import sqlite3
from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")

WINDOW_SECONDS = 86_400.0
COUNT_MAX = 1_000_000


class SeenIds(Protocol):
    """A memory of processed ids. `scope` keeps entities apart; instants are UTC milliseconds."""

    async def seen(self, scope: str, message_id: str, now_ms: int) -> bool: ...
    async def remember(self, scope: str, message_id: str, now_ms: int) -> None: ...
    async def close(self) -> None: ...


class MemorySeenIds:
    """Forgets with the process; enough where a second copy is harmless after a restart."""

    def __init__(self, *, window: float = WINDOW_SECONDS, count_max: int = COUNT_MAX) -> None:
        if count_max < 1 or window <= 0:
            raise ValueError("window and count_max must be greater than 0")
        self._window_ms = int(window * 1000)
        self._count_max = count_max
        self._ids: collections.OrderedDict[tuple[str, str], int] = collections.OrderedDict()

    def __len__(self) -> int:
        return len(self._ids)

    async def seen(self, scope: str, message_id: str, now_ms: int) -> bool:
        self._forget(now_ms)
        return (scope, message_id) in self._ids

    async def remember(self, scope: str, message_id: str, now_ms: int) -> None:
        key = (scope, message_id)
        self._ids[key] = now_ms
        self._ids.move_to_end(key)
        self._forget(now_ms)

    def _forget(self, now_ms: int) -> None:
        while self._ids:
            oldest = next(iter(self._ids))
            if len(self._ids) <= self._count_max and self._ids[oldest] > now_ms - self._window_ms:
                return
            del self._ids[oldest]

    async def close(self) -> None:
        self._ids.clear()


class SqliteSeenIds:
    """Survives restarts and crashes: an id is on disk before `remember` returns."""

    _FORGET_EVERY = 1_000

    def __init__(self, path: str | os.PathLike[str], *, window: float = WINDOW_SECONDS, count_max: int = COUNT_MAX) -> None:
        if count_max < 1 or window <= 0:
            raise ValueError("window and count_max must be greater than 0")
        self._window_ms = int(window * 1000)
        self._count_max = count_max
        self._remembered = 0
        # One thread owns the connection, so the loop never waits for the disk and SQLite never meets a second thread.
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "tandem-seen-ids")
        self._database: sqlite3.Connection = self._thread.submit(self._open, os.fspath(path)).result()

    def _open(self, path: str) -> sqlite3.Connection:
        database = sqlite3.connect(path, isolation_level=None)
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=FULL")
        database.execute("PRAGMA busy_timeout=5000")
        database.execute(
            "CREATE TABLE IF NOT EXISTS seen (scope TEXT NOT NULL, id TEXT NOT NULL, at INTEGER NOT NULL, PRIMARY KEY (scope, id))"
            " WITHOUT ROWID"
        )
        database.execute("CREATE INDEX IF NOT EXISTS seen_at ON seen (at)")
        return database

    async def _on_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def seen(self, scope: str, message_id: str, now_ms: int) -> bool:
        def look() -> bool:
            row = self._database.execute("SELECT at FROM seen WHERE scope = ? AND id = ?", (scope, message_id)).fetchone()
            return row is not None and row[0] > now_ms - self._window_ms

        return await self._on_thread(look)

    async def remember(self, scope: str, message_id: str, now_ms: int) -> None:
        def write() -> None:
            self._database.execute("INSERT OR REPLACE INTO seen VALUES (?, ?, ?)", (scope, message_id, now_ms))
            self._remembered += 1
            if self._remembered % self._FORGET_EVERY == 1:
                self._forget(now_ms)

        await self._on_thread(write)

    def _forget(self, now_ms: int) -> None:
        self._database.execute("DELETE FROM seen WHERE at <= ?", (now_ms - self._window_ms,))
        (count,) = self._database.execute("SELECT count(*) FROM seen").fetchone()
        if count > self._count_max:
            self._database.execute(
                "DELETE FROM seen WHERE (scope, id) IN (SELECT scope, id FROM seen ORDER BY at LIMIT ?)", (count - self._count_max,)
            )

    async def close(self) -> None:
        await self._on_thread(self._database.close)
        self._thread.shutdown(wait=False)
