"""Takes what the stores have counted to files, minute by minute, and shows it. What is counted where: broker/meters.py."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Final, Protocol

from tandem.broker.meters import MINUTE_MS, MeterBook, Row, describe
from tandem.model.errors import StoreUnavailable
from tandem.model.meter_line import MeterLine

if TYPE_CHECKING:
    from tandem.broker.entities.namespace import Namespace

_FILE_BYTES_MAX: Final = 16_777_216
_RETRY_MS: Final = 5_000
_LOOK_EVERY_MS: Final = 1_000


class MeterFiles(Protocol):
    """Where one store's rows go. Blocks: called from a thread."""

    def append(self, number: int, length: int, lines: list[MeterLine]) -> int:
        """Make file `number` end at `length`, add the lines, and return its new length once all is durable."""
        ...


def lines_of(book: MeterBook, rows: Iterable[Row]) -> list[MeterLine]:
    """With names in place of numbers."""
    return [(minute * MINUTE_MS, *describe(slot, book.paths), count, size) for minute, slot, count, size in rows]


class MeterRoller:
    """One per namespace. `look_after` is called often, looks once a second and does something once a minute."""

    def __init__(
        self,
        namespace: Namespace,
        files: list[MeterFiles],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        log: Callable[[str], None],
    ) -> None:
        self._namespace = namespace
        self._files = files
        self._spawn = spawn
        self._log = log
        self._busy: set[int] = set()
        self._retry_at: dict[int, int] = {}
        self._told: dict[int, str] = {}
        """Why meters cannot be written, as the operator was told last."""
        self._looked_at = 0

    def clock_jumped(self, by_ms: int) -> None:
        self._retry_at.clear()
        self._looked_at = 0

    def look_after(self, now: int) -> None:
        if 0 <= now - self._looked_at < _LOOK_EVERY_MS:
            return
        self._looked_at = now
        minute = now // MINUTE_MS
        for index, tenant in enumerate(self._namespace.stores):
            pending = tenant.meters.pending
            if not pending or index in self._busy or not tenant.available or now < self._retry_at.get(index, 0):
                continue
            if min(pending) < minute:
                self._busy.add(index)
                self._spawn(self._roll(index, minute))

    async def close(self) -> None:
        """All that was counted goes to the files, the minute under way too; what an engine cannot take now stays in the journal. All
        stores at once: each may have to be waited for."""
        ready = [
            index
            for index, tenant in enumerate(self._namespace.stores)
            if tenant.available and not tenant.backing.suspended and index not in self._busy
        ]
        await asyncio.gather(*(self._roll(index, 1 << 32) for index in ready))

    async def _roll(self, index: int, before_minute: int) -> None:
        book = self._namespace.stores[index].meters
        rows = book.take(before_minute)
        number, length = book.file_number, book.file_bytes
        if length >= _FILE_BYTES_MAX:
            number, length = number + 1, 0
        try:
            if rows:
                written = await asyncio.to_thread(self._files[index].append, number, length, lines_of(book, rows))
                self._told.pop(index, None)
                book.rolled(rows, number, written, self._namespace.turn.begin())
                self._namespace.turn.schedule()
        except OSError as error:
            self._retry_at[index] = self._namespace.turn.now + _RETRY_MS
            if str(error) != self._told.get(index):  # once: it may go on for days
                self._told[index] = str(error)
                self._log(f"{self._namespace.name} store-{index}: meters cannot be written ({error}); they stay in the journal")
        except StoreUnavailable:
            return  # the store went down meanwhile: it will find the rows in its journal, and the file as long as it was
        finally:
            self._busy.discard(index)

    def rows(self, since_minute: int) -> list[dict[str, object]]:
        """What was counted in and after this minute, as far back as it is kept in memory, equal rows of all stores added up."""
        found: dict[tuple[int, str, str, str, int], list[int]] = {}
        for tenant in self._namespace.stores:
            book = tenant.meters
            for minute, slot, count, size in [*book.recent, *book.take(1 << 32)]:
                if minute >= since_minute:
                    entry = found.setdefault((minute, *describe(slot, book.paths)), [0, 0])
                    entry[0] += count
                    entry[1] += size
        return [
            {
                "minute_ms": minute * MINUTE_MS,
                "entity": path,
                "operation": operation,
                "outcome": outcome,
                "unit": unit,
                "count": count,
                "bytes": size,
            }
            for (minute, path, operation, outcome, unit), (count, size) in sorted(found.items())
        ]

    def totals(self) -> dict[tuple[str, str, str], int]:
        """Since the broker began, by path, operation and outcome."""
        totals: dict[tuple[str, str, str], int] = {}
        for tenant in self._namespace.stores:
            for slot, tally in tenant.meters.totals.items():
                path, operation, outcome, _ = describe(slot, tenant.meters.paths)
                totals[path, operation, outcome] = totals.get((path, operation, outcome), 0) + tally.count
        return totals
