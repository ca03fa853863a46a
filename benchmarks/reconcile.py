"""Reconcile and cost roll-up in Spark against DuckDB on the same Parquet files.

    python benchmarks/reconcile.py [--rows 10000000] [--directory DIR] [--repeat 3] [--json]

Both get two threads and 4 GB. Spark's session is started before, and warmed with a small run; the time to start it is said apart.
The aim is at most three times DuckDB's time. Needs the extra `bench`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb

from tandem.spark.analytics.cost import cost
from tandem.spark.analytics.reconcile import reconcile
from tandem.spark.session import open_session

MEMORY = "4g"
DELAYED_AFTER_MS = 60_000

LEDGERS = """
COPY (
    SELECT md5(n::VARCHAR) AS message_id, 'queue-' || (n % 20)::VARCHAR AS path, 1750000000000 + n // 10 AS at_ms, n AS number
    FROM range({rows}) t(n)
) TO '{sent}' (FORMAT parquet, ROW_GROUP_SIZE 500000);
COPY (
    SELECT md5(n::VARCHAR) AS message_id, 'queue-' || (n % 20)::VARCHAR AS path,
           1750000000000 + n // 10 + CASE WHEN n % 1000 = 7 THEN 90000 ELSE hash(n) % 400 END AS at_ms, n AS number
    FROM (SELECT n FROM range({rows}) t(n) WHERE n % 100003 <> 5
          UNION ALL SELECT n FROM range({rows}) t(n) WHERE n % 250007 = 11)
    ORDER BY n // 50000, hash(n)
) TO '{received}' (FORMAT parquet, ROW_GROUP_SIZE 500000);
"""
METERS = """
COPY (
    SELECT 1750000000000 + (n // 200) * 60000 AS minute_ms, 'contoso' AS namespace, 'store-' || (n % 4)::VARCHAR AS store,
           'queue-' || (n % 50)::VARCHAR AS entity, ['send', 'receive', 'settle', 'renew'][1 + n // 50 % 4] AS operation,
           ['ok', 'ok', 'completed', 'ok'][1 + n // 50 % 4] AS outcome, (1 + n % 3)::INTEGER AS unit,
           (hash(n) % 1000)::BIGINT AS count, (hash(n + 1) % 1000000)::BIGINT AS bytes
    FROM range({rows}) t(n)
) TO '{meters}' (FORMAT parquet, ROW_GROUP_SIZE 500000);
"""
RECONCILE = f"""
CREATE OR REPLACE TEMP TABLE messages AS
SELECT home, message_id, sent, received, sent_at, delivered_at,
       sent > 0 AND received = 0 AS lost, received > 1 AS duplicated, received > 0 AND sent = 0 AS unexpected,
       delivered_at - sent_at > {DELAYED_AFTER_MS} AS delayed
FROM (
    SELECT home, message_id, sum(s) AS sent, sum(r) AS received, min(at_s) AS sent_at, min(at_r) AS delivered_at
    FROM (
        SELECT lower(path) AS home, message_id, 1 AS s, 0 AS r, at_ms AS at_s, NULL AS at_r FROM '{{sent}}'
        UNION ALL SELECT lower(path), message_id, 0, 1, NULL, at_ms FROM '{{received}}'
    ) GROUP BY home, message_id
);
"""
COUNT = (
    "SELECT home, sum(sent), sum((received > 0)::INT), sum(lost::INT), sum(duplicated::INT), sum(delayed::INT), sum(unexpected::INT) "
    "FROM messages GROUP BY home ORDER BY home"
)
FIND = (
    "SELECT home, message_id, lost, duplicated FROM messages WHERE lost OR duplicated OR unexpected OR delayed "
    "ORDER BY lost DESC, duplicated DESC, home, sent_at LIMIT 1000"
)
LATENCY = "SELECT approx_quantile(delivered_at - sent_at, [0.5, 0.9, 0.99]), max(delivered_at - sent_at) FROM messages"
BILL = (
    "SELECT namespace, entity, operation, outcome, sum(count), sum(count * unit), sum(bytes), min(minute_ms), max(minute_ms) "
    "FROM '{meters}' GROUP BY ALL"
)


def timed(work: Callable[[], Any], repeat: int, cpu: Callable[[], float]) -> tuple[float, float, Any]:
    """Median seconds, median seconds of CPU (which other load on the machine does not change), and the last result."""
    times: list[float] = []
    spent: list[float] = []
    result = None
    for _ in range(repeat):
        began, used = time.perf_counter(), cpu()
        result = work()
        times.append(time.perf_counter() - began)
        spent.append(cpu() - used)
    return statistics.median(times), statistics.median(spent), result


def duck(files: dict[str, str], repeat: int) -> dict[str, Any]:
    connection = duckdb.connect(config={"threads": 2, "memory_limit": "4GB"})

    def both() -> tuple[int, int]:
        connection.execute(RECONCILE.format(**files))
        counted = connection.execute(COUNT).fetchall()
        connection.execute(FIND).fetchall()
        connection.execute(LATENCY).fetchall()
        return int(sum(row[3] for row in counted)), int(sum(row[4] for row in counted))

    reconcile_seconds, reconcile_cpu, found = timed(both, repeat, time.process_time)
    cost_seconds, cost_cpu, lines = timed(lambda: connection.execute(BILL.format(**files)).fetchall(), repeat, time.process_time)
    return {
        "reconcile": reconcile_seconds,
        "reconcile_cpu": reconcile_cpu,
        "cost": cost_seconds,
        "cost_cpu": cost_cpu,
        "lost": found[0],
        "duplicated": found[1],
        "lines": len(lines),
    }


def cpu_of_tree(root: int) -> float:
    """Seconds of CPU of a process and all below it, those that have ended included: Spark's tasks in Python run beside its JVM."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        parents[int(stat.parent.name)] = int(fields[1])
        ticks[int(stat.parent.name)] = sum(map(int, fields[11:15]))
    family = {root}
    while more := {one for one, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(ticks[one] for one in family if one in ticks) / os.sysconf("SC_CLK_TCK")


def spark_side(files: dict[str, str], small: dict[str, str], repeat: int) -> dict[str, Any]:
    began = time.perf_counter()
    conf = {"spark.driver.memory": MEMORY, "spark.sql.shuffle.partitions": "8", "spark.sql.execution.arrow.pyspark.enabled": "true"}
    with open_session("tandem bench", "local[2]", conf) as spark:
        started = time.perf_counter() - began
        reconcile(spark, sent=small["sent"], received=small["received"], delayed_after_ms=DELAYED_AFTER_MS)
        cost(spark, meters=[small["meters"]])
        wish: dict[str, Any] = {"sent": files["sent"], "received": files["received"], "delayed_after_ms": DELAYED_AFTER_MS}
        java = spark.sparkContext._jvm.java.lang.ProcessHandle.current()

        def cpu() -> float:
            return cpu_of_tree(int(java.pid())) + time.process_time()

        reconcile_seconds, reconcile_cpu, result = timed(lambda: reconcile(spark, **wish), repeat, cpu)
        cost_seconds, cost_cpu, bill = timed(lambda: cost(spark, meters=[files["meters"]]), repeat, cpu)
        peak = next(line for line in Path(f"/proc/{java.pid()}/status").read_text().splitlines() if line.startswith("VmHWM"))
    return {
        "start": started,
        "reconcile": reconcile_seconds,
        "reconcile_cpu": reconcile_cpu,
        "cost": cost_seconds,
        "cost_cpu": cost_cpu,
        "lost": result.total.lost,
        "duplicated": result.total.duplicated,
        "lines": len(bill.lines),
        "peak_mb": int(peak.split()[1]) // 1024,
    }


def make(directory: Path, rows: int) -> dict[str, str]:
    files = {name: str(directory / f"{name}-{rows}.parquet") for name in ("sent", "received", "meters")}
    if not all(Path(file).exists() for file in files.values()):
        with duckdb.connect(config={"threads": 2}) as connection:
            connection.execute((LEDGERS + METERS).format(rows=rows, **files))
    return files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000, help="a side, and of meters")
    parser.add_argument("--directory", type=Path, help="where the Parquet files are made, or were")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    wish = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tandem-bench-") as temporary:
        directory = wish.directory or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        files, small = make(directory, wish.rows), make(directory, 10_000)
        theirs = duck(files, wish.repeat)
        ours = spark_side(files, small, wish.repeat)
    same = all(theirs[name] == ours[name] for name in ("lost", "duplicated", "lines"))
    result = {"rows": wish.rows, "duckdb": theirs, "spark": ours, "agree": same}
    if wish.json:
        print(json.dumps(result))
    else:
        for name in ("reconcile", "cost"):
            ratio, of_cpu = ours[name] / theirs[name], ours[f"{name}_cpu"] / theirs[f"{name}_cpu"]
            print(f"{name}: DuckDB {theirs[name]:.2f} s, Spark {ours[name]:.2f} s: {ratio:.1f} times, {of_cpu:.1f} by CPU (aim: 3)")
        print(f"Spark: session {ours['start']:.1f} s, peak {ours['peak_mb']:,} MB")
        print(f"both found {theirs['lost']} lost and {theirs['duplicated']} doubled")
    if not same:
        sys.exit(f"they disagree: {theirs} {ours}")


if __name__ == "__main__":
    main()
