"""What happened when: throughput, backlog depth and waiting times over the time of a story, small enough to be drawn."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from tandem.spark.analytics.ledgers import BACKLOG_ROW, Evidence
from tandem.spark.analytics.reconcile import says

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_STEPS_MS: Final = (250, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 300_000, 900_000, 3_600_000, 86_400_000)
_POINTS_MAX: Final = 240
_LATENCY_EDGES_MS: Final = (10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000)


@dataclass(frozen=True, slots=True)
class Series:
    """All lists run from `start_ms` in steps of `step_ms`; rates are per second."""

    start_ms: int = 0
    step_ms: int = 1_000
    sent: list[float] = field(default_factory=list)
    """Accepted by the entity itself at once."""
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
    span = messages.agg(
        F.min("sent_at").alias("first"), F.greatest(F.max("sent_at"), F.max("arrived_at"), F.max("delivered_at")).alias("last")
    )
    found = span.first()
    if found is None or found["first"] is None:
        return Series()
    first, last = int(found["first"]), int(found["last"])
    step = step_of(last - first)
    start = first // step * step
    count = (last - start) // step + 1
    diverted = says("diverted")
    counted = _count(
        messages,
        start,
        step,
        sent=F.when(says("sent") & ~diverted, F.col("sent_at")),
        diverted=F.when(diverted, F.col("sent_at")),
        home=F.when(diverted, F.col("arrived_at")),
        delivered=F.col("delivered_at"),
    )
    stayed = evidence.rows.filter(F.col("origin") == BACKLOG_ROW)
    counted |= _count(stayed, start, step, came=F.col("at"), left=F.col("done_at"))

    def rate(what: str) -> list[float]:
        return [counted[what].get(number, 0) * 1000 / step for number in range(count)]

    depth, depths = 0, []
    for number in range(count):
        depth += counted["came"].get(number, 0) - counted["left"].get(number, 0)
        depths.append(depth)
    return Series(start, step, rate("sent"), rate("diverted"), rate("home"), rate("delivered"), depths, _latency(messages))


def step_of(span_ms: int) -> int:
    """Days, or as many of them as keep the number of points in bounds: a ledger may be in other units than it should."""
    days = -(-span_ms // (_POINTS_MAX * _STEPS_MS[-1]))
    return next((one for one in _STEPS_MS if span_ms / one <= _POINTS_MAX), days * _STEPS_MS[-1])


def _count(rows: DataFrame, start: int, step: int, **instants: Column) -> dict[str, dict[int, int]]:
    """what -> step number -> how many; a row without the instant does not count."""
    told = [F.struct(F.lit(name).alias("what"), F.floor((at - start) / step).alias("number")) for name, at in instants.items()]
    exploded = rows.select(F.explode(F.array(*told)).alias("one")).filter(F.col("one.number").isNotNull())
    counted: dict[str, dict[int, int]] = {name: {} for name in instants}
    for row in exploded.groupBy("one.what", "one.number").count().collect():
        counted[row["what"]][row["number"]] = row["count"]
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
