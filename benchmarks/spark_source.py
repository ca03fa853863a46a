"""Source alone: rows a second from a queue of 1 KB messages by batch lease into a sink that does nothing, on local[2].

make bench NAME=spark_source ARGS="--messages 400000"
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
from tests.spark.house import counts, create_queue, messages, send


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=400_000)
    parser.add_argument("--size", type=int, default=1_024)
    parser.add_argument("--batch", type=int, default=100_000)
    parser.add_argument("--task", type=int, default=50_000)
    parser.add_argument("--goal", type=int, default=50_000)
    given = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from tandem.spark import register
    from tandem.spark.session import open_session

    with tempfile.TemporaryDirectory(prefix="tandem-bench-") as name, open_session("bench", "local[2]") as spark:
        register(spark)
        home = Path(name)
        broker = Broker(home, "bench").start()
        try:
            create_queue(broker, "warm", "orders")
            send(broker, "warm", messages(5_000, size=given.size))
            send(broker, "orders", messages(given.messages, size=given.size))
            for queue in ("warm", "orders"):
                batches: list[tuple[int, float]] = []
                stream = spark.readStream.format("servicebus").options(
                    connectionString=broker.connection_string,
                    queue=queue,
                    maxMessagesPerTrigger=str(given.batch),
                    messagesPerTask=str(given.task),
                )
                writer = stream.load().writeStream.format("noop").option("checkpointLocation", str(home / queue))
                started = time.perf_counter()
                query = writer.trigger(availableNow=True).start()
                query.awaitTermination()
                seconds = time.perf_counter() - started
                for progress in query.recentProgress:
                    if progress["numInputRows"]:
                        batches.append((progress["numInputRows"], progress["batchDuration"] / 1000))
            assert counts(broker, "orders")["total"] == 0
        finally:
            broker.stop()
    steady = sorted(rows / took for rows, took in batches[1:] or batches)
    rate = steady[len(steady) // 2]
    print(f"{given.messages} messages of {given.size} bytes: {given.messages / seconds:,.0f} rows/s over all, {seconds:.1f} s")
    print(f"median batch: {rate:,.0f} rows/s (goal {given.goal:,})  {'ok' if rate >= given.goal else 'BELOW THE GOAL'}")


if __name__ == "__main__":
    main()
