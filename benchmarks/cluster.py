"""A node on PostgreSQL against local files, in turns in one run: broker CPU, engine CPU, rates, and how long a takeover takes.

    python benchmarks/cluster.py --amqpload PATH [--build compiled=DIR] [--messages N] [--waiting N] [--standbys N] [--json]

The engine is a PostgreSQL of this machine with synchronous standbys on the same disk, started and thrown away here. On a shared machine
read ratios, not rates. Both are measured while they compact, as in service, and without the meter of stalls, which costs a node 4 % of
a processor whatever it does: whoever takes longer would pay for it more often. The takeover is measured from the death of the owner being
believed until the survivor has read the backlog.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from under_test import ROOT, Broker, Build, Load, Table, builds, parser, workplace

sys.path.insert(0, str(ROOT / "src"))

from tandem.testing.postgres import PostgresEngine

CONFIG = '[[queue]]\nname = "bench"\nmax_size_megabytes = 5120\n'
ROUNDS = 3
UNMETERED = {"TANDEM_STALLS": ""}
WARM_UP = 250_000
"""Messages after which segments are given up as fast as they fill."""


class Node(Broker):
    """One node of a cluster on the engine."""

    def __init__(self, build: Build, directory: Path, engine: PostgresEngine, secret: Path, name: str, lease: str = "5s") -> None:
        environ = {"TANDEM_CLUSTER": engine.dsn(), "TANDEM_CLUSTER_SECRET_FILE": str(secret), "TANDEM_CLUSTER_NODE": name}
        super().__init__(build, directory, CONFIG + f'[cluster]\nlease = "{lease}"\n', UNMETERED | environ)
        self.log = directory / "stderr.txt"


def medians(figures: list[dict[str, float]]) -> dict[str, float]:
    return {key: sorted(figure[key] for figure in figures)[len(figures) // 2] for key in figures[0]}


def pipelined(broker: Broker, load: Load, messages: int, engine: PostgresEngine | None) -> dict[str, float]:
    before = sum(node.cpu_seconds() for node in engine.nodes) if engine is not None else 0.0
    done: dict[str, Any] = load.run(broker, "both", "bench", n=messages, s=1024, w=1000)
    after = sum(node.cpu_seconds() for node in engine.nodes) if engine is not None else 0.0
    if done["recv"]["unique"] != messages or done["recv"]["duplicates"]:
        raise SystemExit(f"{messages} messages were sent, but this came back: {done['recv']}")
    return {
        "rate": done["recv"]["msgs_per_s"],
        "broker": done["broker_cpu_s"] / messages * 1e6,
        "engine": (after - before) / messages * 1e6,
        "p50": done["send"]["settle_us"]["p50"] / 1000,
        "p99": done["send"]["settle_us"]["p99"] / 1000,
    }


def takeover(build: Build, directory: Path, engine: PostgresEngine, secret: Path, load: Load, waiting: int, table: Table) -> None:
    """Fill the queue at one node, kill it, and see when the other has everything."""
    with Node(build, directory / "c", engine, secret, "c") as first, Node(build, directory / "d", engine, secret, "d") as second:
        while len(re.findall(r"store-\d is up", first.log.read_text())) < 4:
            time.sleep(0.1)
        load.run(first, "send", "bench", n=waiting, s=1024, w=2000)
        first.kill()
        died = time.monotonic()
        believed = 0.0
        while "store-0 is up" not in second.log.read_text():
            if not believed and "takes over" in second.log.read_text():
                believed = time.monotonic()
            if time.monotonic() - died > 300:
                raise SystemExit("nobody took over")
            time.sleep(0.02)
        while len(re.findall(r"store-\d is up", second.log.read_text())) < 4:
            time.sleep(0.02)
        up = time.monotonic()
        table.add(build.label, f"takeover with {waiting:,} waiting, from death, s", up - died, "<= lease + 5")
        if believed:
            table.add(build.label, f"takeover with {waiting:,} waiting, from belief, s", up - believed, "<= 3 for 1,000,000")


def measure(build: Build, directory: Path, load: Load, messages: int, waiting: int, standbys: int, table: Table) -> None:
    engine = PostgresEngine(directory / "engine", standbys).start()
    try:
        secret = directory / "secret"
        command = [sys.executable, "-m", "tandem", "cluster", "init", "--engine", engine.dsn(), "--secret-file", str(secret)]
        subprocess.run(
            [*command, "--durability", "quorum" if standbys else "assumed"], env=build.environ(), check=True, capture_output=True
        )
        with Broker(build, directory / "local", CONFIG, UNMETERED) as local, Node(build, directory / "node", engine, secret, "a") as node:
            found: dict[str, list[dict[str, float]]] = {"files": [], "engine": []}
            pipelined(local, load, WARM_UP, None)
            pipelined(node, load, WARM_UP, engine)
            for _ in range(ROUNDS):
                found["files"].append(pipelined(local, load, messages, None))
                found["engine"].append(pipelined(node, load, messages, engine))
        files, kept = medians(found["files"]), medians(found["engine"])
        for name, figures in (("files", files), ("PostgreSQL", kept)):
            table.add(build.label, f"{name}: messages/s sent + received + completed", figures["rate"])
            table.add(build.label, f"{name}: broker CPU us/message", figures["broker"])
            table.add(build.label, f"{name}: send to accepted, p50 ms", figures["p50"])
            table.add(build.label, f"{name}: send to accepted, p99 ms", figures["p99"])
        table.add(build.label, "engine CPU us/message, all its nodes", kept["engine"], "<= 20")
        table.add(build.label, "broker CPU, PostgreSQL / files", kept["broker"] / files["broker"], "<= 1.15")
        rounds = [there["broker"] / here["broker"] for here, there in zip(found["files"], found["engine"], strict=True)]
        table.add(build.label, "… in each round", ", ".join(f"{ratio:.2f}" for ratio in rounds))
        table.add(build.label, "rate, PostgreSQL / files", kept["rate"] / files["rate"], ">= 0.4")
        if waiting:
            takeover(build, directory, engine, secret, load, waiting, table)
    finally:
        engine.stop()


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--messages", type=int, default=100_000)
    options.add_argument("--waiting", type=int, default=200_000, help="messages that wait while the owner dies; 0: no takeover")
    options.add_argument("--standbys", type=int, default=1)
    arguments = options.parse_args()
    load = Load(arguments)
    table = Table("cluster: 1 KB messages, one queue, window 1000, files and PostgreSQL in turns, medians of three")
    with workplace(arguments) as directory:
        for number, build in enumerate(builds(arguments)):
            measure(build, directory / str(number), load, arguments.messages, arguments.waiting, arguments.standbys, table)
    table.show(arguments.json)


if __name__ == "__main__":
    main()
