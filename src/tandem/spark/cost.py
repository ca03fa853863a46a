"""The bill: what was counted, and what pairing, failover and replication cost beside each other.

The figures everybody quotes come from here: ten idle backlog queues polled every 15 minutes are 40 operations an hour, and a diverted
message takes four operations instead of two.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc
from pyspark.sql import functions as F

from tandem.model.errors import ConfigurationError
from tandem.spark.journal_rows import BACKLOG
from tandem.spark.meter_files import NAMES, Totals, add_up_files, merged
from tandem.spark.prices import Prices, load_prices

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DIVERTED_OPERATIONS: Final = ("send to backlog", "receive from backlog", "send to primary", "receive from primary")
DAYS: Final = 30
_HOURS_PER_MONTH: Final = 24 * DAYS


@dataclass(frozen=True, slots=True)
class Operations:
    """One line of the bill."""

    namespace: str
    entity: str
    operation: str
    outcome: str
    count: int
    billed: int
    """Started 64 KB units, by the weight in the price table."""
    bytes: int


@dataclass(frozen=True, slots=True)
class Idle:
    """Backlog queues that nobody writes to, each polled by one receive at a time."""

    queues: int
    per_hour: float
    per_day: float
    per_month: float


@dataclass(frozen=True, slots=True)
class Scenario:
    """What the same messages would take in 30 days."""

    name: str
    operations: float
    price: float
    words: str


@dataclass(frozen=True, slots=True)
class Cost:
    lines: tuple[Operations, ...]
    minutes: int
    """From the first counted minute to the last."""
    broken_lines: int
    """In meter files, not counted: damaged, or just being written."""
    billed: int
    messages: int
    """Accepted by the entities themselves, not by backlog queues; each message once."""
    diverted: int
    measured_per_diverted: float | None
    """Operations that diverted messages took, as counted: those on the backlog queues, and two in the primary."""
    idle: Idle
    idle_measured_per_hour: float | None
    """Empty receives from backlog queues, as counted."""
    scenarios: tuple[Scenario, ...]
    currency: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"operations_per_diverted_message": len(DIVERTED_OPERATIONS)}


def add_up(spark: SparkSession, meters: list[str] | DataFrame) -> Totals:
    """Counts and bytes per namespace, entity, operation, outcome and unit, from files or from a table with the columns of meter files.

    Files in the file system are read with Arrow, in parallel; Parquet elsewhere (`s3a://…`) through Spark's own reader.
    """
    if not isinstance(meters, list):
        return _grouped(meters)
    local = [path for path in meters if "://" not in path]
    elsewhere = [path for path in meters if "://" in path]
    tables = [add_up_files(spark, local)] if local else []
    if elsewhere:
        tables.append(_grouped(spark.read.parquet(*elsewhere)))
    return merged(tables)


def _grouped(rows: DataFrame) -> Totals:
    sums = (F.sum("count").alias("count"), F.sum("bytes").alias("bytes"))
    span = (F.min("minute_ms").alias("first_ms"), F.max("minute_ms").alias("last_ms"))
    table = rows.groupBy(*NAMES, F.col("unit").cast("long").alias("unit")).agg(*sums, *span).toArrow()
    totals = table.select([*NAMES, "unit", "count", "bytes"])
    return merged([Totals(totals, pc.min(table["first_ms"]).as_py(), pc.max(table["last_ms"]).as_py())])


def roll_up(totals: Totals, prices: Prices) -> tuple[Operations, ...]:
    """The lines of the bill, in order."""
    lines: dict[tuple[str, str, str, str], tuple[int, int, int]] = {}
    for row in totals.rows.to_pylist():
        names = (row["namespace"], row["entity"], row["operation"], row["outcome"])
        count, billed, size = lines.get(names, (0, 0, 0))
        units = row["count"] * row["unit"] * prices.billable.get(row["operation"], 1)
        lines[names] = (count + row["count"], billed + units, size + row["bytes"])
    return tuple(Operations(*names, count, billed, size) for names, (count, billed, size) in sorted(lines.items()))


def idle_cost(queues: int, poll_minutes: float) -> Idle:
    """One receive per queue and poll, whether it finds something or not."""
    per_hour = queues * 60 / poll_minutes
    return Idle(queues, per_hour, per_hour * 24, per_hour * 24 * DAYS)


def cost(
    spark: SparkSession,
    *,
    meters: list[str] | DataFrame | None = None,
    prices: str | None = None,
    backlog_queues: int = 10,
    poll_minutes: float = 15.0,
    messages_per_month: int | None = None,
    outage_minutes_per_month: float = 60.0,
) -> Cost:
    """Price what was counted, and compare what other set-ups would cost for the same messages.

    Without `messages_per_month` the counted messages are scaled to 30 days; the share that was diverted stays the same.
    """
    if backlog_queues < 1 or poll_minutes <= 0:
        raise ConfigurationError("backlog queues must be at least 1, and the poll longer than 0 minutes")
    table = load_prices(prices)
    totals = merged([]) if meters is None else add_up(spark, meters)
    lines = roll_up(totals, table)
    diverted = _sum(lines, "send", "ok", True)
    # what the syphon brought home arrived in the primary as a send, so that every message is there once, and in the backlog besides
    messages = _sum(lines, "send", "ok", False)
    polls = _sum(lines, "receive", "empty", True)
    idle = idle_cost(backlog_queues, poll_minutes)
    monthly = float(messages_per_month) if messages_per_month is not None else _scaled(messages, totals.minutes)
    share = diverted / messages if messages else 0.0
    return Cost(
        lines=lines,
        minutes=totals.minutes,
        broken_lines=totals.broken,
        billed=sum(line.billed for line in lines),
        messages=messages,
        diverted=diverted,
        measured_per_diverted=(diverted + _sum(lines, "receive", "ok", True)) / diverted + 2 if diverted else None,
        idle=idle,
        idle_measured_per_hour=polls * 60 / totals.minutes if polls else None,
        scenarios=_scenarios(table, monthly, share, idle, poll_minutes, outage_minutes_per_month),
        currency=table.currency,
    )


def _sum(lines: tuple[Operations, ...], operation: str, outcome: str, backlog: bool) -> int:
    return sum(
        line.count
        for line in lines
        if line.operation == operation and line.outcome == outcome and (BACKLOG in line.entity.casefold()) == backlog
    )


def _scaled(messages: int, minutes: int) -> float:
    return messages * _HOURS_PER_MONTH * 60 / minutes if minutes else 0.0


def _scenarios(
    prices: Prices, messages: float, share: float, idle: Idle, poll_minutes: float, outage_minutes: float
) -> tuple[Scenario, ...]:
    diverted = messages * share
    second = _HOURS_PER_MONTH * 60 / poll_minutes
    wishes = (
        ("one namespace", 2 * messages, "send and receive, and nothing else when it is down"),
        ("paired, idle", 2 * messages + idle.per_month, f"and {idle.queues} backlog queues polled every {poll_minutes:g} minutes"),
        (
            "paired, with failover",
            2 * (messages - diverted) + len(DIVERTED_OPERATIONS) * diverted + outage_minutes + idle.per_month,
            f"{share:.1%} of the messages diverted at four operations each, one ping a minute for {outage_minutes:g} minutes",
        ),
        ("active replication", 4 * messages, "every message sent to both namespaces and received from both"),
        ("passive replication", 2 * messages + second, "sent once; receivers listen on both, the second one idle"),
    )
    return tuple(Scenario(name, operations, prices.of_month(operations), words) for name, operations, words in wishes)
