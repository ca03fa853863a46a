"""One process against several (`tandem serve --workers`): four plain queues, one partitioned one, what a carried link costs and adds.

    python benchmarks/workers.py --amqpload PATH [--build LABEL=DIR] [--messages N] [--rounds R] [--workers N] [--json]

Rounds alternate between the brokers, all running. Clients of one queue are moved to the worker that has it; a third broker leaves them
where they came (`TANDEM_CONNECTIONS_STAY=1`) to show what carrying a link costs. The load generator runs on the same machine, so its own
CPU per message is told too: on as many cores as there are workers the rate cannot rise by more than what the generator leaves of them.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any

from under_test import Broker, Build, Load, Table, builds, parser, workplace

NAMES = ("a", "b", "c", "d")
WIDE = ("wide",)
QUEUES = "".join(f'[[queue]]\nname = "{name}"\nmax_size_megabytes = 5120\n' for name in (*NAMES, "paced"))
QUEUES += '[[queue]]\nname = "wide"\nenable_partitioning = true\nmax_size_megabytes = 5120\n'
_TICKS = os.sysconf("SC_CLK_TCK")


class Processes(Broker):
    """A broker of several processes: its CPU is that of all of them."""

    def __enter__(self) -> Processes:
        self.start()
        return self

    def pids(self) -> list[int]:
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [self.pid, *map(int, children)]

    def cpu_of(self, pid: int) -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def cpu_seconds(self) -> float:
        return sum(self.cpu_of(pid) for pid in self.pids())


def four_pairs(broker: Processes, load: Load, queues: tuple[str, ...], messages: int, number: int) -> dict[str, float]:
    """Four times a sender and a receiver, all at once: a pair per queue, or all on one."""
    conns = len(NAMES) // len(queues)
    before, began = broker.cpu_seconds(), time.monotonic()
    generator = resource.getrusage(resource.RUSAGE_CHILDREN)
    count = messages * conns
    running = [load.start(broker, "both", name, n=count, s=1024, w=1000, run=number, conns=conns) for name in queues]
    for process in running:
        out, error = process.communicate()
        if process.returncode:
            raise SystemExit(f"the load generator failed: {error[-1000:] or out[-1000:]}")
    ended, after = time.monotonic(), broker.cpu_seconds()
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = count * len(queues)
    used = spent.ru_utime + spent.ru_stime - generator.ru_utime - generator.ru_stime
    return {"rate": total / (ended - began), "cpu_us": (after - before) / total * 1e6, "generator_us": used / total * 1e6}


def one_queue(broker: Processes, load: Load, messages: int, number: int) -> tuple[float, float]:
    """CPU us/message of the worker that has the queue and of the one that carries one of the two links."""
    workers = broker.pids()[1:]
    before = [broker.cpu_of(pid) for pid in workers]
    load.run(broker, "both", "a", n=messages, s=1024, w=1000, run=number)
    used = sorted((broker.cpu_of(pid) - had) / messages * 1e6 for pid, had in zip(workers, before, strict=True))
    return used[-1], used[-2]


def latency(broker: Processes, load: Load, messages: int) -> tuple[float, float]:
    """p50 in ms of a sender with one message in flight: connections go to the workers in turn, so one of two is carried."""
    found: list[dict[str, Any]] = [load.run(broker, "send", "paced", n=messages, s=1024, w=1) for _ in range(2)]
    first, second = sorted(run["settle_us"]["p50"] / 1000 for run in found)
    return first, second


def measure(build: Build, directory: Path, load: Load, messages: int, rounds: int, workers: int, table: Table) -> None:
    rows: dict[tuple[str, str], list[dict[str, float]]] = {}
    costs: list[tuple[float, float]] = []
    paced: list[tuple[float, float]] = []
    with (
        Processes(build, directory / "one", QUEUES) as one,
        Processes(build, directory / "several", f"workers = {workers}\n{QUEUES}") as many,
        Processes(build, directory / "carried", f"workers = {workers}\n{QUEUES}", {"TANDEM_CONNECTIONS_STAY": "1"}) as staying,
    ):
        both = {"one process": one, f"{workers} workers": many}
        for broker in (one, many, staying):
            four_pairs(broker, load, NAMES, 2_000, 1)
            four_pairs(broker, load, WIDE, 2_000, 2)
        for number in range(rounds):
            for what, queues in (("four queues", NAMES), ("one partitioned queue", WIDE)):
                for who in list(both) if number % 2 else list(reversed(both)):
                    found = four_pairs(both[who], load, queues, messages, 10 + number)
                    rows.setdefault((what, who), []).append(found)
            costs.append(one_queue(staying, load, messages, 50 + number))
            paced.append(latency(staying, load, 500))
    for (what, who), kept in sorted(rows.items()):
        table.add(build.label, f"{what}, {who}: messages/s", statistics.median(row["rate"] for row in kept))
        table.add(build.label, f"{what}, {who}: broker CPU us/message", statistics.median(row["cpu_us"] for row in kept))
        table.add(build.label, f"{what}, {who}: generator CPU us/message", statistics.median(row["generator_us"] for row in kept))
    for what in ("four queues", "one partitioned queue"):
        pairs = zip(rows[what, "one process"], rows[what, f"{workers} workers"], strict=True)
        ratio = statistics.median(there["rate"] / here["rate"] for here, there in pairs)
        table.add(build.label, f"{what}: times the rate of one process", ratio, ">= 1.5")
    table.add(build.label, "cores at hand", len(os.sched_getaffinity(0)))
    table.add(build.label, "one queue: CPU us/message of the worker that has it", statistics.median(cost[0] for cost in costs))
    table.add(build.label, "one queue: CPU us/message of the one that carries a link", statistics.median(cost[1] for cost in costs), "<= 5")
    table.add(build.label, "one in flight, p50 ms", statistics.median(pair[0] for pair in paced))
    table.add(build.label, "one in flight, carried: p50 ms more", statistics.median(pair[1] - pair[0] for pair in paced), "<= 0.3")


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--messages", type=int, default=50_000, help="per queue and round")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--workers", type=int, default=2)
    arguments = options.parse_args()
    load = Load(arguments)
    table = Table(f"workers: {arguments.workers} processes against one, 1 KB messages")
    with workplace(arguments) as directory:
        for number, build in enumerate(builds(arguments)):
            try:
                measure(build, directory / str(number), load, arguments.messages, arguments.rounds, arguments.workers, table)
            except subprocess.SubprocessError as error:
                raise SystemExit(str(error)) from error
    table.show(arguments.json)


if __name__ == "__main__":
    main()
