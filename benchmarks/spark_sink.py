"""Sink alone: messages a second from rows that Spark makes up, accepted durably, on local[2].

make bench NAME=spark_sink ARGS="--messages 400000"
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.acceptance.brokers import Broker
from tests.spark.house import counts, create_queue


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--size", type=int, default=1_024)
    parser.add_argument("--goal", type=int, default=30_000)
    given = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from tandem.spark import register
    from tandem.spark.session import open_session

    with tempfile.TemporaryDirectory(prefix="tandem-bench-") as name, open_session("bench", "local[2]") as spark:
        register(spark)
        broker = Broker(Path(name), "bench").start()
        try:
            create_queue(broker, "warm", "orders")
            for queue, count in (("warm", 5_000), ("orders", given.messages)):
                rows = spark.range(count).selectExpr(f"cast(repeat('x', {given.size}) as binary) as body", "concat('m', id) as message_id")
                started = time.perf_counter()
                rows.write.format("servicebus").mode("append").options(connectionString=broker.connection_string, queue=queue).save()
                seconds = time.perf_counter() - started
            assert counts(broker, "orders")["total"] == given.messages
        finally:
            broker.stop()
    rate = given.messages / seconds
    print(f"{given.messages} messages of {given.size} bytes in {seconds:.1f} s")
    print(f"{rate:,.0f} messages/s accepted durably (goal {given.goal:,})  {'ok' if rate >= given.goal else 'BELOW THE GOAL'}")


if __name__ == "__main__":
    main()
