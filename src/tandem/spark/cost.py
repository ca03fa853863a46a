"""The bill: what was counted, and what pairing, failover and replication cost beside each other.

The figures everybody quotes come from here: ten idle backlog queues polled every 15 minutes are 40 operations an hour, and a diverted
message takes four operations instead of two.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from tandem.model.errors import ConfigurationError
from tandem.spark.journal_rows import BACKLOG
from tandem.spark.prices import Prices, load_prices

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA: Final = (
    "minute_ms long, namespace string, store string, entity string, operation string, outcome string, unit int, count long, bytes long, "
    "check long"
)
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


def read_meters(spark: SparkSession, paths: list[str]) -> DataFrame:
    """Rows of meter files: CSV as a broker writes them, below data directories, or Parquet with the same columns."""
    frames: list[DataFrame] = []
    lines: list[str] = []
    for given in paths:
        root = Path(given)
        if given.endswith(".parquet") or (root.is_dir() and next(root.glob("*.parquet"), None) is not None):
            frames.append(spark.read.parquet(given))
            continue
        found = [root] if root.is_file() else sorted({*root.glob("*.csv"), *root.glob("meters/*.csv"), *root.glob("*/meters/*.csv")})
        if not found:
            raise ConfigurationError(
                f"meters: no meter files below {given}; give a broker's data directory (a broker writes them every minute)"
            )
        lines.extend(str(file.resolve()) for file in found)
    if lines:
        rows = spark.read.csv(lines, schema=SCHEMA, header=True)
        # A line that is being written right now does not add up yet.
        frames.append(rows.filter(F.col("check") == F.col("unit") + F.col("count") + F.col("bytes")))
    rows = frames[0].drop("check")
    for frame in frames[1:]:
        rows = rows.unionByName(frame.drop("check"))
    return rows


def roll_up(meters: DataFrame, prices: Prices) -> DataFrame:
    """Counts, billed operations and bytes per namespace, entity, operation and outcome."""
    weight = F.lit(1)
    for operation, number in prices.billable.items():
        weight = F.when(F.col("operation") == operation, F.lit(number)).otherwise(weight)
    names = ("namespace", "entity", "operation", "outcome")
    by_unit = meters.groupBy(*names, "unit").agg(
        F.sum("count").alias("count"),
        F.sum("bytes").alias("bytes"),
        F.min("minute_ms").alias("first_ms"),
        F.max("minute_ms").alias("last_ms"),
    )
    return by_unit.groupBy(*names).agg(  # what an operation weighs is asked of few rows, not of all
        F.sum("count").alias("count"),
        F.sum(F.col("count") * F.col("unit") * weight).alias("billed"),
        F.sum("bytes").alias("bytes"),
        F.min("first_ms").alias("first_ms"),
        F.max("last_ms").alias("last_ms"),
    )


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
    frame = read_meters(spark, meters) if isinstance(meters, list) else meters
    collected = [] if frame is None else roll_up(frame, table).orderBy("namespace", "entity", "operation", "outcome").collect()
    lines = tuple(
        Operations(r["namespace"], r["entity"], r["operation"], r["outcome"], r["count"], r["billed"], r["bytes"]) for r in collected
    )
    minutes = (max(r["last_ms"] for r in collected) - min(r["first_ms"] for r in collected)) // 60_000 + 1 if collected else 0
    diverted = _sum(lines, "send", "ok", True)
    # what the syphon brought home arrived in the primary as a send, so that every message is there once, and in the backlog besides
    messages = _sum(lines, "send", "ok", False)
    polls = _sum(lines, "receive", "empty", True)
    idle = idle_cost(backlog_queues, poll_minutes)
    monthly = float(messages_per_month) if messages_per_month is not None else _scaled(messages, minutes)
    share = diverted / messages if messages else 0.0
    return Cost(
        lines=lines,
        minutes=minutes,
        billed=sum(line.billed for line in lines),
        messages=messages,
        diverted=diverted,
        measured_per_diverted=(diverted + _sum(lines, "receive", "ok", True)) / diverted + 2 if diverted else None,
        idle=idle,
        idle_measured_per_hour=polls * 60 / minutes if polls else None,
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
