"""How far the syphon is: moved, remaining, rate, age of the oldest; for the terminal, for a callback, for a metrics file."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tandem.engine_client.blocking import BlockingClient, TransportError
from tandem.engine_client.message_rows import MessageRows
from tandem.model.clock import Clock, SystemClock
from tandem.spark.connector.options import Where

_MEASURE_SECONDS = 1.0
_RATE_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A moment of a run. Counts are of this run; a task killed half way has moved more than it could say."""

    moved: int = 0
    dead_lettered: int = 0
    waiting: int = 0
    """Tried in the last batch and not deliverable yet."""
    destinations_waiting: int = 0
    """Destinations that are missing, disabled or full, and waited for."""
    remaining: int = 0
    """In the backlog queues, whoever holds them."""
    oldest_age_seconds: float | None = None
    rate: float = 0.0
    """Messages a second over the last ten seconds."""
    size_bytes: int = 0
    batches: int = 0
    restarts: int = 0
    seconds: float = 0.0
    """From the start of the run until the secondary was last asked."""
    by_path: Mapping[str, int] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Per destination, why its messages wait."""
    finished: bool = False


class ProgressMeter:
    """Adds up the rows of batches and asks the secondary what is left."""

    def __init__(self, secondary: Where, queues: Sequence[str], clock: Clock | None = None) -> None:
        self._secondary = secondary
        self._queues = queues
        self._clock = clock or SystemClock()
        self._client: BlockingClient | None = None
        self._started = time.monotonic()
        self._measured_at = 0.0
        self._recent: list[tuple[float, int]] = []

    @property
    def stale(self) -> bool:
        """The secondary was last asked long ago."""
        return time.monotonic() - self._measured_at >= _MEASURE_SECONDS

    def begin(self) -> Progress:
        return self.measured(Progress())

    def add(self, before: Progress, rows: Sequence[Mapping[str, Any]]) -> Progress:
        """One batch further."""
        now = time.monotonic()
        moved = sum(int(row["moved"]) for row in rows)
        by_path = dict(before.by_path)
        for row in rows:
            if row["moved"]:
                by_path[str(row["path"])] = by_path.get(str(row["path"]), 0) + int(row["moved"])
        self._recent = [(at, count) for at, count in self._recent if now - at < _RATE_SECONDS] + [(now, moved)]
        span = min(_RATE_SECONDS, max(0.5, now - self._started))
        progress = replace(
            before,
            moved=before.moved + moved,
            dead_lettered=before.dead_lettered + sum(int(row["dead_lettered"]) for row in rows),
            waiting=sum(int(row["waiting"]) for row in rows),
            size_bytes=before.size_bytes + sum(int(row["size_bytes"]) for row in rows),
            batches=before.batches + 1,
            rate=sum(count for _, count in self._recent) / span,
            by_path=by_path,
            reasons={str(row["path"]) or str(row["queue"]): str(row["reason"]) for row in rows if row["reason"]},
        )
        return self.measured(progress) if self.stale else progress

    def measured(self, progress: Progress) -> Progress:
        """With what the secondary says now; as it was when the secondary cannot be asked."""
        self._measured_at = time.monotonic()
        progress = replace(progress, seconds=self._measured_at - self._started)
        try:
            if self._client is None:
                self._client = BlockingClient(self._secondary.endpoint, timeout=min(10, self._secondary.timeout_seconds))
            remaining, oldest = self._ask(self._client)
        except TransportError:
            if self._client is not None:
                self._client.close()
            self._client = None
            return progress
        age = None if oldest is None else max(0.0, (self._clock.now_ms() - oldest) / 1000)
        return replace(progress, remaining=remaining, oldest_age_seconds=age)

    def _ask(self, client: BlockingClient) -> tuple[int, int | None]:
        remaining = 0
        oldest: int | None = None
        for queue in self._queues:
            counts = client.request(queue, "com.tandem:message-counts", {}) or {}
            here = int(counts.get("active", 0)) + int(counts.get("leased", 0))
            remaining += here
            if here:
                answer = client.request(queue, "com.microsoft:peek-message", {"from-sequence-number": 0, "message-count": client.int32(1)})
                rows = MessageRows()
                for entry in answer["messages"] if answer is not None else []:
                    rows.add(entry["message"])
                for at in rows.column("enqueued_time") or []:
                    oldest = at if oldest is None else min(oldest, at)
        return remaining, oldest


def write_metrics(path: Path, progress: Progress) -> None:
    """In Prometheus' text format, replaced as a whole: readers never see half of it."""
    lines = []
    for name, kind, value in (
        ("moved_total", "counter", progress.moved),
        ("dead_lettered_total", "counter", progress.dead_lettered),
        ("bytes_total", "counter", progress.size_bytes),
        ("batches_total", "counter", progress.batches),
        ("restarts_total", "counter", progress.restarts),
        ("waiting", "gauge", progress.waiting),
        ("destinations_waiting", "gauge", progress.destinations_waiting),
        ("remaining", "gauge", progress.remaining),
        ("oldest_age_seconds", "gauge", progress.oldest_age_seconds or 0.0),
        ("rate", "gauge", progress.rate),
        ("finished", "gauge", int(progress.finished)),
    ):
        lines.append(f"# TYPE tandem_syphon_{name} {kind}\ntandem_syphon_{name} {value:.17g}\n")
    for destination, moved in list(progress.by_path.items())[:1_000]:
        label = destination.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        lines.append(f'tandem_syphon_moved_by_path_total{{path="{label}"}} {moved}\n')
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text("".join(lines), encoding="utf-8")
    os.replace(draft, path)
