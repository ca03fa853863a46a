"""One sender that waits for each message to be accepted, against a bare fdatasync on the same disk in the same run.

    python benchmarks/latency.py --amqpload PATH [--build LABEL=DIR] [--messages N] [--rounds R] [--json]

Rounds alternate (bare, broker, bare, broker, …), so that a disk that gets slower for a while gets slower for both.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from under_test import Broker, Build, Load, Table, builds, parser, percentile, workplace

CONFIG = '[[queue]]\nname = "bench"\n'
RECORD_BYTES = 1_300
FILE_BYTES = 67_108_864


class BareDisk:
    """What nobody can beat: append to a file that is allocated already, and wait for the disk."""

    def __init__(self, file: Path) -> None:
        self._descriptor = os.open(file, os.O_RDWR | os.O_CREAT)
        zeros = bytes(1 << 20)
        for _ in range(FILE_BYTES >> 20):
            os.write(self._descriptor, zeros)
        os.fsync(self._descriptor)
        self._at = 0

    def sync_times_us(self, count: int) -> list[float]:
        record = os.urandom(RECORD_BYTES)
        found = []
        for _ in range(count):
            began = time.perf_counter_ns()
            os.pwrite(self._descriptor, record, self._at)
            os.fdatasync(self._descriptor)
            found.append((time.perf_counter_ns() - began) / 1000)
            self._at = (self._at + RECORD_BYTES) % (FILE_BYTES - RECORD_BYTES)
        return found

    def close(self) -> None:
        os.close(self._descriptor)


def measure(build: Build, directory: Path, load: Load, messages: int, rounds: int, table: Table) -> None:
    bare: list[float] = []
    sends: list[float] = []
    ratios: list[float] = []
    tails: list[float] = []
    with Broker(build, directory, CONFIG, {"TANDEM_STALLS": ""}) as broker:
        disk = BareDisk(directory / "bare")
        load.run(broker, "send", "bench", n=100, s=1024, w=1)
        cpu = 0.0
        for _ in range(rounds):
            syncs = disk.sync_times_us(messages)
            done = load.run(broker, "send", "bench", n=messages, s=1024, w=1)
            cpu += done["broker_cpu_s"]
            bare.append(percentile(syncs, 50))
            sends.append(done["settle_us"]["p50"])
            ratios.append(sends[-1] / bare[-1])
            tails.append(done["settle_us"]["p99"] / percentile(syncs, 99))
        disk.close()
    table.add(build.label, "bare fdatasync, p50 us (median round)", percentile(bare, 50))
    table.add(build.label, "send to accepted, p50 us (median round)", percentile(sends, 50))
    table.add(build.label, "ratio of p50 (median round)", percentile(ratios, 50), "<= 2")
    table.add(build.label, "ratio of p50 (best, worst round)", f"{min(ratios):.2f}, {max(ratios):.2f}")
    table.add(build.label, "ratio of p99 (median round)", percentile(tails, 50))
    table.add(build.label, "broker CPU us/message", cpu / (messages * rounds) * 1e6)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--messages", type=int, default=1_000, help="per round")
    options.add_argument("--rounds", type=int, default=5)
    arguments = options.parse_args()
    load = Load(arguments)
    table = Table("latency: one synchronous sender, 1 KB messages")
    with workplace(arguments) as directory:
        for number, build in enumerate(builds(arguments)):
            measure(build, directory / str(number), load, arguments.messages, arguments.rounds, table)
    table.show(arguments.json)


if __name__ == "__main__":
    main()
