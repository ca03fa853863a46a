"""What happened when: throughput, backlog depth and waiting times over the time of a story, small enough to be drawn."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from tandem.spark.ledgers import BACKLOG_ROW, PRIMARY, RECEIVED, SENT, Evidence

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_STEPS_MS: Final = (250, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 300_000, 900_000, 3_600_000, 86_400_000)
_POINTS_MAX: Final = 240
_LATENCY_EDGES_MS: Final = (10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000)


@dataclass(frozen=True, slots=True)
class Series:
    """All lists run from `start_ms` in steps of `step_ms`; rates are per second."""

    start_ms: int = 0
    step_ms: int = 1_000
    sent: list[float] = field(default_factory=list)
    """Accepted by the entities themselves, without what the syphon brought home."""
    diverted: list[float] = field(default_factory=list)
    brought_home: list[float] = field(default_factory=list)
    delivered: list[float] = field(default_factory=list)
    backlog: list[int] = field(default_factory=list)
    """Messages in all backlog queues at the end of each step."""
    latency: list[tuple[int, int]] = field(default_factory=list)
    """(upper edge in milliseconds, messages) from sending to delivery."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def draw_series(evidence: Evidence, messages: DataFrame) -> Series:
    """`messages` is what `reconcile.judge` made of the evidence."""
    rows = evidence.rows
    span = rows.agg(F.min("at").alias("first"), F.greatest(F.max("at"), F.max("done_at")).alias("last")).first()
    if span is None or span["first"] is None:
        return Series()
    first, last = int(span["first"]), int(span["last"])
    step = next((one for one in _STEPS_MS if (last - first) / one <= _POINTS_MAX), _STEPS_MS[-1])
    start = first // step * step
    count = (last - start) // step + 1
    counted = _count(rows, evidence, start, step)
    per_second = 1000 / step

    def rate(what: str) -> list[float]:
        found = counted.get(what, {})
        return [found.get(number, 0) * per_second for number in range(count)]

    primary, home = rate("primary"), rate("backlog-left")
    depth, depths = 0, []
    for number in range(count):
        depth += counted.get("backlog", {}).get(number, 0) - counted.get("backlog-left", {}).get(number, 0)
        depths.append(depth)
    return Series(
        start,
        step,
        [max(0.0, accepted - moved) for accepted, moved in zip(primary, home, strict=True)],
        rate("backlog"),
        home,
        rate("delivered"),
        depths,
        _latency(messages),
    )


def _count(rows: DataFrame, evidence: Evidence, start: int, step: int) -> dict[str, dict[int, int]]:
    """what -> step number -> how many."""
    accepted = SENT if evidence.has_sent and not evidence.has_topics else PRIMARY
    origin = F.col("origin")
    at, done = F.col("at"), F.col("done_at")
    kinds = [
        ("primary", origin == accepted, at),
        ("backlog", origin == BACKLOG_ROW, at),
        ("backlog-left", (origin == BACKLOG_ROW) & done.isNotNull(), done),
        ("delivered", origin == RECEIVED, at)
        if evidence.has_received
        else ("delivered", (origin == PRIMARY) & F.col("reason").isin("completed", "received"), done),
    ]
    told = F.explode(
        F.array_compact(F.array(*[F.when(which, F.struct(F.lit(name).alias("what"), when.alias("at"))) for name, which, when in kinds]))
    )
    found = (
        rows.select(told.alias("one"))
        .groupBy("one.what", F.floor((F.col("one.at") - start) / step).cast("int").alias("number"))
        .count()
        .collect()
    )
    counted: dict[str, dict[int, int]] = {}
    for row in found:
        counted.setdefault(row["what"], {})[row["number"]] = row["count"]
    return counted


def _latency(messages: DataFrame) -> list[tuple[int, int]]:
    waited = F.col("delivered_at") - F.col("sent_at")
    edge = F.lit(_LATENCY_EDGES_MS[-1])
    for one in reversed(_LATENCY_EDGES_MS[:-1]):
        edge = F.when(waited <= one, F.lit(one)).otherwise(edge)
    rows = messages.filter(F.col("delivered_at").isNotNull()).groupBy(edge.alias("edge")).count().collect()
    found = {row["edge"]: row["count"] for row in rows}
    last = max(found, default=0)
    return [(one, found.get(one, 0)) for one in _LATENCY_EDGES_MS if one <= last]
