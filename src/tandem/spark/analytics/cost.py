"""What meters counted, added up by Spark and put on the bill."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.compute as pc
from pyspark.sql import functions as F

from tandem.spark.analytics.bill import Cost, Counted, Month, Operations, bill
from tandem.spark.analytics.engines import counted_in, every_engine, is_engine
from tandem.spark.analytics.meter_files import NAMES, Totals, add_up_files, merged
from tandem.spark.analytics.prices import Prices, load_prices

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def add_up(spark: SparkSession, meters: list[str] | DataFrame) -> Totals:
    """Counts and bytes per namespace, entity, operation, outcome and unit, from files or from a table with the columns of meter files.

    Files in the file system are read with Arrow, in parallel; Parquet elsewhere (`s3a://…`) through Spark's own reader; of a cluster
    (`postgresql://…`) its engine adds them up.
    """
    if not isinstance(meters, list):
        return _grouped(meters)
    local = [path for path in meters if "://" not in path]
    elsewhere = [path for path in meters if "://" in path and not is_engine(path)]
    tables = [add_up_files(spark, local)] if local else []
    tables += [counted_in(path) for path in every_engine([one for one in meters if is_engine(one)])]
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


def cost(
    spark: SparkSession,
    *,
    meters: list[str] | DataFrame,
    prices: str | None = None,
    backlog_queues: int = 10,
    poll_minutes: float = 15.0,
    messages_per_month: int | None = None,
    outage_minutes_per_month: float = 60.0,
    paths: int | None = None,
) -> Cost:
    """Price what was counted, and compare what other set-ups would cost for the same messages.

    Without `messages_per_month` the messages counted in a day or more are scaled to 30 days; those of a shorter time are taken as they are.
    """
    month = Month(
        backlog_queues=backlog_queues,
        poll_minutes=poll_minutes,
        messages=messages_per_month,
        outage_minutes=outage_minutes_per_month,
        paths=paths,
    )
    totals = add_up(spark, meters)
    return bill(Counted(roll_up(totals, load_prices(prices)), totals.minutes, totals.broken), month, prices)
