"""The last hour of one namespace, a sample each second: what the console's overview shows. Looking at many queues is spread over ticks."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tandem.broker.meters import COMPLETED, OK, RECEIVE, SCHEDULE, SEND, SETTLE
from tandem.broker.queue.index import READY

if TYPE_CHECKING:
    from tandem.broker.queue.queue import Queue
    from tandem.model.clock import Clock
    from tandem.model.histogram import Histogram
    from tandem.server.context import NamespaceContext

SAMPLES_MAX: Final = 3_600
"""An hour, if one comes each second."""
KEPT_MS: Final = 3_600_000
SAMPLE_MS: Final = 1_000
_BUSY_SHARE: Final = 50
"""With very many queues samples come less often: looking takes one part in so many."""
_OLD_AT_ONCE: Final = 60
_QUEUES_PER_TICK: Final = 2_000
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
BACKLOG_MARK: Final = "/x-servicebus-transfer/"
"""In the path of every backlog queue of a pair, in lower case."""
COLUMNS: Final = (
    "at_ms",
    "sent_per_second",
    "received_per_second",
    "completed_per_second",
    "sent_bytes_per_second",
    "received_bytes_per_second",
    "active",
    "locked",
    "scheduled",
    "deferred",
    "leased",
    "dead_letters",
    "size_bytes",
    "oldest_ms",
    "backlog",
    "connections",
    "memory_bytes",
    "disk_free_bytes",
    "disk_bytes",
    "loop_lag_ms",
)


class NamespaceHistory:
    """A chore of the turn driver. What is kept is bounded: numbers only, an hour of them."""

    def __init__(self, context: NamespaceContext, data_dir: Path | None, loop_lag: Histogram) -> None:
        self._context = context
        self._data_dir = data_dir
        self._loop_lag = loop_lag
        self._clock: Clock = context.connection_clock
        self._columns: dict[str, array[float]] = {name: array("d") for name in COLUMNS}
        self._queues: Iterator[Queue] | None = None
        self._sums: dict[str, float] = {}
        self._next_at = 0
        self._busy_ms = 0
        self._before: tuple[int, list[int], int, float] = (0, [0] * 5, 0, 0.0)
        self._waiting: set[asyncio.Future[None]] = set()
        self.closed = False

    def clock_jumped(self, by_ms: int) -> None:
        """Samples are taken by the steady clock."""

    def look_after(self, now: int) -> None:
        if self._queues is None:
            if self._clock.steady_ms() < self._next_at:
                return
            self._next_at = self._clock.steady_ms() + SAMPLE_MS
            self._busy_ms = 0
            self._sums = dict.fromkeys(COLUMNS, 0.0)
            self._queues = iter([queue for tenant in self._context.namespace.stores for queue in tenant.queues.values()])
        began = self._clock.steady_ms()
        for queue in itertools.islice(self._queues, _QUEUES_PER_TICK):
            if queue.index.total:
                self._add(queue, now)
        self._busy_ms += self._clock.steady_ms() - began
        following = next(self._queues, None)
        if following is not None:
            self._queues = itertools.chain((following,), self._queues)
            return
        self._queues = None
        self._next_at = max(self._next_at, began + _BUSY_SHARE * self._busy_ms)
        self._finish()

    def _add(self, queue: Queue, now: int) -> None:
        sums, counts = self._sums, queue.counts()
        sums["size_bytes"] += counts.size_bytes
        if queue.terms.is_dead_letter:
            sums["dead_letters"] += counts.total
            return
        sums["active"] += counts.active
        sums["locked"] += counts.locked
        sums["scheduled"] += counts.scheduled
        sums["deferred"] += counts.deferred
        sums["leased"] += counts.leased
        if BACKLOG_MARK in queue.path.casefold():
            sums["backlog"] += counts.total
        oldest = queue.index.first_in_state(READY)
        if oldest >= 0:
            sums["oldest_ms"] = max(sums["oldest_ms"], now - queue.index.enqueued_at(oldest))

    def _finish(self) -> None:
        sums = self._sums
        steady = self._clock.steady_ms()
        totals = self._totals()
        ticks, lag_ms = sum(self._loop_lag.counts), self._loop_lag.sum_ms
        before, earlier, ticks_before, lag_before = self._before
        seconds = max(steady - before, 1) / 1000
        if before:
            names = ("sent", "received", "completed", "sent_bytes", "received_bytes")
            for name, count, count_before in zip(names, totals, earlier, strict=True):
                sums[f"{name}_per_second"] = round(max(0, count - count_before) / seconds, 2)
            sums["loop_lag_ms"] = round((lag_ms - lag_before) / max(ticks - ticks_before, 1), 3)
        self._before = (steady, totals, ticks, lag_ms)
        sums["at_ms"] = self._clock.now_ms()
        sums["connections"] = self._context.client_count()
        sums["memory_bytes"] = memory_bytes()
        sums["disk_free_bytes"], sums["disk_bytes"] = disk_bytes(self._data_dir)
        old = sum(at < sums["at_ms"] - KEPT_MS for at in self._columns["at_ms"][:_OLD_AT_ONCE])
        for name, column in self._columns.items():
            column.append(sums[name])
            del column[: max(old, len(column) - SAMPLES_MAX)]
        self._wake()

    def _totals(self) -> list[int]:
        """Messages sent, received and completed; bytes sent and received. A store that was opened again counts from 0."""
        sent = received = completed = sent_bytes = received_bytes = 0
        for tenant in self._context.namespace.stores:
            for key, tally in tenant.meters.operations.items():
                count, size = tally.count, tally.bytes
                if key in (SEND << 8 | OK, SCHEDULE << 8 | OK):
                    sent += count
                    sent_bytes += size
                elif key == RECEIVE << 8 | OK:
                    received += count
                    received_bytes += size
                elif key == SETTLE << 8 | COMPLETED:
                    completed += count
        return [sent, received, completed, sent_bytes, received_bytes]

    # -- shown -------------------------------------------------------------------------------

    def columns(self) -> dict[str, list[float]]:
        """All that is kept, oldest first."""
        return {name: column.tolist() for name, column in self._columns.items()}

    def latest(self) -> dict[str, float]:
        return {name: column[-1] for name, column in self._columns.items() if column}

    @property
    def watchers(self) -> int:
        return len(self._waiting)

    async def next_sample(self) -> dict[str, float]:
        """Waits for it; an empty one when there will be no more."""
        if self.closed:
            return {}
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiting)
        try:
            await waiting
        finally:
            self._waiting.discard(waiting)
        return {} if self.closed else self.latest()

    def close(self) -> None:
        self.closed = True
        self._wake()

    def _wake(self) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)


def disk_bytes(directory: Path | None) -> tuple[int, int]:
    """Free, and in all; 0 where there is none, or it is gone."""
    if directory is None:
        return 0, 0
    try:
        usage = shutil.disk_usage(directory)
    except OSError:
        return 0, 0
    return usage.free, usage.total


def memory_bytes() -> int:
    """Of this process, as the system counts it; 0 where it does not say."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:
            return int(file.read(200).split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0
