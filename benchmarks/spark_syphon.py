"""Syphon end to end: messages a second from backlog queues of one broker to a queue of another, both on this machine, on local[2].

make bench NAME=spark_syphon ARGS="--messages 200000"
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
from tests.spark.house import BACKLOG, counts, create_queue, diverted, send


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--size", type=int, default=1_024)
    parser.add_argument("--queues", type=int, default=4)
    parser.add_argument("--batch", type=int, default=20_000)
    parser.add_argument("--goal", type=int, default=15_000)
    given = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from tandem.spark.session import open_session
    from tandem.spark.syphon.job import SyphonSettings, run
    from tandem.spark.syphon.progress import Progress

    settings = SyphonSettings(primary_namespace="contoso", max_messages_per_trigger=given.batch)
    seen: list[tuple[float, int]] = []

    def note(progress: Progress) -> None:
        seen.append((time.perf_counter(), progress.moved))

    with tempfile.TemporaryDirectory(prefix="tandem-bench-") as name, open_session("bench", "local[2,4]") as spark:
        primary, secondary = Broker(Path(name), "west").start(), Broker(Path(name), "east").start()
        try:
            create_queue(primary, "orders", requires_duplicate_detection=True)
            create_queue(secondary, *(f"{BACKLOG}/{n}" for n in range(given.queues)))
            send(secondary, f"{BACKLOG}/0", diverted(1_000, "orders", "warm", size=given.size))
            run(primary.connection_string, secondary.connection_string, once=True, spark=spark, settings=settings)
            each = given.messages // given.queues
            for queue in range(given.queues):
                send(secondary, f"{BACKLOG}/{queue}", diverted(each, "orders", f"q{queue}-", size=given.size))
            started = time.perf_counter()
            last = run(primary.connection_string, secondary.connection_string, once=True, spark=spark, settings=settings, on_progress=note)
            assert (last.moved, last.remaining) == (each * given.queues, 0)
            assert counts(primary, "orders")["total"] == each * given.queues + 1_000
        finally:
            primary.stop()
            secondary.stop()
    moved_at = next(at for at, moved in seen if moved == last.moved)
    rate = last.moved / (moved_at - started)
    print(f"{last.moved} messages of {given.size} bytes in {given.queues} queues, {last.batches} batches, {moved_at - started:.1f} s")
    print(f"{rate:,.0f} messages/s end to end (goal {given.goal:,})  {'ok' if rate >= given.goal else 'BELOW THE GOAL'}")


if __name__ == "__main__":
    main()
