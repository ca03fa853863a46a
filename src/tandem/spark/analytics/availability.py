"""Outages as clients and stores saw them: when each began, how long until sends were diverted, how long until it healed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from tandem.model.errors import ConfigurationError
from tandem.spark.analytics.engines import events_in, is_engine
from tandem.spark.analytics.ledgers import in_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA: Final = (
    "at_ms long, source string, who string, namespace string, kind string, path string, detail string, "
    "run string, attempted long, diverted long, failed long"
)
_BAD_STORE: Final = ("store-down", "store-corrupt", "store-suspended", "store-lost", "broker-lost")
_GOOD_STORE: Final = ("store-up", "store-degraded", "store-elsewhere", "broker-started")


@dataclass(frozen=True, slots=True)
class Outage:
    """One path in one process, or one store: from the first sign of trouble until it was well again."""

    who: str
    path: str
    began_ms: int
    failed_over_ms: int | None
    """None: it healed within the failover interval, or it is a store."""
    healed_ms: int | None
    """None: it lasts."""
    pings_failed: int

    @property
    def seconds_to_failover(self) -> float | None:
        return None if self.failed_over_ms is None else (self.failed_over_ms - self.began_ms) / 1000

    @property
    def seconds_to_heal(self) -> float | None:
        return None if self.healed_ms is None else (self.healed_ms - self.began_ms) / 1000


@dataclass(frozen=True, slots=True)
class PathAvailability:
    """Sends of all processes to one entity."""

    path: str
    attempted: int
    diverted: int
    failed: int
    achieved: float
    """Share of attempted sends that were accepted somewhere."""
    primary_only: float
    """What it would have been without the pair."""
    target: float

    @property
    def met(self) -> bool:
        return self.achieved >= self.target


@dataclass(frozen=True, slots=True)
class Availability:
    outages: tuple[Outage, ...]
    stores: tuple[Outage, ...]
    paths: tuple[PathAvailability, ...]

    @property
    def met(self) -> bool:
        return all(one.met for one in self.paths)

    def as_dict(self) -> dict[str, Any]:
        def told(one: Outage) -> dict[str, Any]:
            return asdict(one) | {"seconds_to_failover": one.seconds_to_failover, "seconds_to_heal": one.seconds_to_heal}

        return {
            "met": self.met,
            "outages": [told(one) for one in self.outages],
            "stores": [told(one) for one in self.stores],
            "paths": [asdict(one) | {"met": one.met} for one in self.paths],
        }


def read_events(spark: SparkSession, paths: list[str]) -> DataFrame:
    """JSON lines of clients (`tandem.client.event_log`) and brokers (`<data>/events.jsonl`); of a cluster, the table in its engine."""
    files: list[str] = []
    engines = [given for given in paths if is_engine(given)]
    for given in (path for path in paths if path not in engines):
        root = Path(given)
        found = [root] if root.is_file() else sorted(root.glob("**/*events*.jsonl"))
        if not found:
            raise ConfigurationError(f"events: nothing below {given}; give files of events, or directories with files named *events*.jsonl")
        files.extend(in_spark(file) for file in found)
    frames = [spark.read.json(files, schema=SCHEMA)] if files else []
    if engines:
        frames.append(spark.createDataFrame([row for dsn in engines for row in events_in(dsn)], SCHEMA))
    return frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])


def availability(spark: SparkSession, *, events: list[str] | DataFrame, target: float = 0.999) -> Availability:
    """`target` is the share of sends that have to be accepted, here or there."""
    if not 0 < target <= 1:
        raise ConfigurationError(f"target: {target} is no share; give for example 0.999")
    rows = (read_events(spark, events) if isinstance(events, list) else events).persist()
    try:
        client = _incidents(
            rows.filter(F.col("source") == "client"), ("path-suspect", "path-failed-over", "path-poisoned"), ("path-healthy",)
        )
        stores = _incidents(rows.filter(F.col("source") == "broker"), _BAD_STORE, _GOOD_STORE)
        return Availability(client, stores, _paths(rows, target))
    finally:
        rows.unpersist()


def _incidents(rows: DataFrame, bad: tuple[str, ...], good: tuple[str, ...]) -> tuple[Outage, ...]:
    """Everything between two good events belongs to one outage, which begins with the first bad one."""
    told = rows.filter(F.col("kind").isin(*bad, *good, "ping-failed"))
    before = Window.partitionBy("who", "path").orderBy("at_ms").rowsBetween(Window.unboundedPreceding, -1)
    numbered = told.withColumn("incident", F.coalesce(F.sum(F.col("kind").isin(*good).cast("int")).over(before), F.lit(0)))
    found = (
        numbered.groupBy("who", "path", "incident")
        .agg(
            F.min(F.when(F.col("kind").isin(*bad), F.col("at_ms"))).alias("began"),
            F.min(F.when(F.col("kind").isin("path-failed-over", "path-poisoned"), F.col("at_ms"))).alias("over"),
            F.max(F.when(F.col("kind").isin(*good), F.col("at_ms"))).alias("healed"),
            F.count(F.when(F.col("kind") == "ping-failed", 1)).alias("pings"),
        )
        .filter(F.col("began").isNotNull())
        .orderBy("began", "who", "path")
    )
    return tuple(Outage(r["who"] or "", r["path"] or "", r["began"], r["over"], r["healed"], r["pings"]) for r in found.collect())


def _paths(rows: DataFrame, target: float) -> tuple[PathAvailability, ...]:
    """Counts only grow within a run of a process: its last ones are its sum."""
    told = rows.filter((F.col("kind") == "counters") & F.col("path").isNotNull())
    whole = told.na.fill(0, ["attempted", "diverted", "failed"])
    counted = whole.groupBy("who", "run", F.lower("path").alias("path"))
    last = counted.agg(*[F.max(name).alias(name) for name in ("attempted", "diverted", "failed")])
    summed = last.groupBy("path").agg(*[F.sum(name).alias(name) for name in ("attempted", "diverted", "failed")]).orderBy("path")
    return tuple(
        PathAvailability(
            r["path"],
            r["attempted"],
            r["diverted"],
            r["failed"],
            1 - r["failed"] / r["attempted"] if r["attempted"] else 1.0,
            1 - (r["failed"] + r["diverted"]) / r["attempted"] if r["attempted"] else 1.0,
            target,
        )
        for r in summed.collect()
    )
