"""Fifty senders with one message in flight each: do they share the syncs?

python benchmarks/fanin.py --amqpload PATH [--build LABEL=DIR] [--senders N] [--messages N] [--json]
"""

from __future__ import annotations

from pathlib import Path

from latency import BareDisk
from under_test import Broker, Build, Load, Table, builds, parser, percentile, workplace

CONFIG = '[[queue]]\nname = "bench"\nmax_size_megabytes = 5120\n'


def measure(build: Build, directory: Path, load: Load, senders: int, messages: int, table: Table) -> None:
    with Broker(build, directory, CONFIG) as broker:
        disk = BareDisk(directory / "bare", "overwriting")
        bare = percentile(disk.sync_times_us(1_000), 50)
        disk.close()
        one = load.run(broker, "send", "bench", n=1_000, s=1024, w=1)
        load.run(broker, "send", "bench", n=senders * 20, s=1024, w=1, conns=senders)
        broker.stalls()
        done = load.run(broker, "send", "bench", n=messages, s=1024, w=1, conns=senders)
        stalls = broker.stalls()
    table.add(build.label, "messages/s accepted", done["msgs_per_s"], ">= 10,000")
    table.add(build.label, "times the rate of one sender", done["msgs_per_s"] / one["msgs_per_s"])
    table.add(build.label, "times what a sync per message would allow", done["msgs_per_s"] * bare / 1e6)
    table.add(build.label, "send to accepted, p50 ms", done["settle_us"]["p50"] / 1000)
    table.add(build.label, "send to accepted, p99 ms", done["settle_us"]["p99"] / 1000)
    table.add(build.label, "broker CPU us/message", done["broker_cpu_s"] / messages * 1e6, "<= 100 allows the rate")
    table.add(build.label, "broker CPU, share of the time", done["broker_cpu_s"] / done["wall_s"])
    table.add(build.label, "loop busy between ticks (CPU), p99.9 ms", stalls["busy"]["p99.9_ms"])


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--senders", type=int, default=50)
    options.add_argument("--messages", type=int, default=50_000)
    arguments = options.parse_args()
    load = Load(arguments)
    table = Table(f"fan-in: {arguments.senders} synchronous senders, 1 KB messages, one queue")
    with workplace(arguments) as directory:
        for number, build in enumerate(builds(arguments)):
            measure(build, directory / str(number), load, arguments.senders, arguments.messages, table)
    table.show(arguments.json)


if __name__ == "__main__":
    main()
