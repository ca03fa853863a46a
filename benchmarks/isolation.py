"""A process per store: what it costs, and what the other stores notice while one of them does not answer.

    python benchmarks/isolation.py --amqpload PATH [--build LABEL=DIR] [--messages N] [--rounds R] [--json]

Cost: CPU of the broker and of all its store processes per message, with and without isolation, in alternating rounds. Calm: time from send
to accepted at a moderate rate on a queue of one store, alone, and while another store, which has messages to write, is stopped (SIGSTOP of
its process; without isolation, a disk whose every sync takes two seconds).
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from partitions import fault, store_processes
from under_test import Broker, Build, Load, Table, builds, parser, workplace

QUEUES = """
[[queue]]
name = "first"
max_size_megabytes = 5120

[[queue]]
name = "second"
max_size_megabytes = 5120
"""
APART = '[stores]\ncount = 2\nisolation = "process"\nstall_deadline = "60s"\n'
TOGETHER = '[stores]\ncount = 2\nstall_deadline = "60s"\n'
_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def cost(build: Build, directory: Path, load: Load, messages: int, rounds: int, table: Table) -> None:
    costs: dict[str, list[float]] = {"together": [], "apart": []}
    rates: dict[str, list[float]] = {"together": [], "apart": []}
    with Broker(build, directory / "together", TOGETHER + QUEUES) as together, Broker(build, directory / "apart", APART + QUEUES) as apart:
        for number in range(rounds + 1):
            for name, broker in (("together", together), ("apart", apart)):
                pids = store_processes(broker)
                before = sum(map(cpu_seconds, pids))
                done = load.run(broker, "both", "first", n=messages, s=1024, w=1000, run=number + 1)
                if number:  # the first is to warm up
                    helpers = sum(map(cpu_seconds, pids)) - before
                    costs[name].append((done["broker_cpu_s"] + helpers) / messages * 1e6)
                    rates[name].append(done["recv"]["msgs_per_s"])
    more = [there - here for there, here in zip(costs["apart"], costs["together"], strict=True)]
    table.add(build.label, "together: CPU us/message (median round)", statistics.median(costs["together"]))
    table.add(build.label, "apart: CPU us/message, all processes (median round)", statistics.median(costs["apart"]))
    table.add(build.label, "isolation costs, CPU us/message (median of pairs)", statistics.median(more), "<= 6")
    table.add(build.label, "apart: messages/s (median round)", statistics.median(rates["apart"]))
    table.add(build.label, "together: messages/s (median round)", statistics.median(rates["together"]))


@contextlib.contextmanager
def stalled(broker: Broker, load: Load, apart: bool) -> Iterator[None]:
    """The store of the first queue does not answer, while somebody keeps sending to it."""
    pids = store_processes(broker)
    if apart:
        os.kill(pids[0], signal.SIGSTOP)
    else:
        fault(broker, "POST", {"kind": "store-slow", "store": 0, "delay_ms": 2_000})
    sender = load.start(broker, "send", "first", n=100_000, s=1024, w=200, seconds=3600)
    time.sleep(0.5)
    try:
        yield
    finally:
        sender.kill()
        sender.wait()
        if apart:
            os.kill(pids[0], signal.SIGCONT)
        else:
            fault(broker, "DELETE")


def calm(build: Build, directory: Path, load: Load, rounds: int, table: Table) -> None:
    for apart, shown in ((False, "in the broker"), (True, "apart")):
        ratios, middles, usual = [], [], []
        with Broker(build, directory / shown, (APART if apart else TOGETHER) + QUEUES) as broker:
            load.run(broker, "send", "second", n=2_000, s=1024, w=10)
            for _ in range(rounds):
                before = load.run(broker, "send", "second", n=4_000, s=1024, w=10)["settle_us"]
                with stalled(broker, load, apart):
                    during = load.run(broker, "send", "second", n=4_000, s=1024, w=10)["settle_us"]
                ratios.append(during["p99"] / before["p99"])
                middles.append(during["p50"] / before["p50"])
                usual.append(before["p99"] / 1000)
        table.add(build.label, f"stores {shown}: p99 of another store's queue, ms", statistics.median(usual))
        table.add(build.label, f"stores {shown}: the same while a store is stalled, times (median)", statistics.median(ratios), "<= 2")
        table.add(build.label, f"stores {shown}: p50 while a store is stalled, times (median)", statistics.median(middles))


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--messages", type=int, default=100_000)
    options.add_argument("--rounds", type=int, default=5)
    arguments = options.parse_args()
    load = Load(arguments)
    table = Table("isolation: 1 KB messages, 2 stores")
    with workplace(arguments) as directory:
        for number, build in enumerate(builds(arguments)):
            cost(build, directory / f"{number}-cost", load, arguments.messages, arguments.rounds, table)
            calm(build, directory / f"{number}-calm", load, arguments.rounds, table)
    table.show(arguments.json)


if __name__ == "__main__":
    main()
