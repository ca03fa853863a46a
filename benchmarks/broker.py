"""One queue, 1 KB messages, a pipelining sender and a pipelining receiver at once: what a message costs the broker.

    python benchmarks/broker.py --amqpload PATH [--build compiled=DIR --build source=src] [--messages N] [--json]

Sent, accepted after the disk's sync, received, completed, confirmed after the disk's sync. The event loop is watched from inside the
broker (TANDEM_STALLS), and a shorter run under strace counts the syncs. On a shared machine trust CPU per message more than rates.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from under_test import Broker, Build, Load, PeakMemory, Table, Yardstick, builds, parser, workplace

CONFIG = '[[queue]]\nname = "bench"\nmax_size_megabytes = 5120\n'


def count_syncs(broker: Broker, load: Load, messages: int) -> tuple[int, float] | None:
    """(calls, messages per call), as the kernel saw them; None without strace."""
    if shutil.which("strace") is None:
        return None
    with tempfile.TemporaryDirectory() as directory:
        summary = Path(directory) / "summary"
        strace = subprocess.Popen(
            ["strace", "-c", "-f", "-e", "trace=fdatasync", "-o", str(summary), "-p", str(broker.pid)],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert strace.stderr is not None
        strace.stderr.readline()  # "attached"
        load.run(broker, "both", "bench", n=messages, s=1024, w=1000, run=2)
        strace.terminate()
        strace.wait()
        for line in summary.read_text().splitlines():
            fields = line.split()
            if fields and fields[-1] == "fdatasync":
                return int(fields[3]), messages / int(fields[3])
    return None


def measure(build: Build, directory: Path, load: Load, messages: int, table: Table) -> None:
    with Broker(build, directory, CONFIG) as broker:
        load.run(broker, "both", "bench", n=min(messages, 20_000), s=1024, w=1000, run=1)
        broker.stalls()
        with PeakMemory(broker) as memory, Yardstick() as yardstick:
            done = load.run(broker, "both", "bench", n=messages, s=1024, w=1000, run=3)
        stalls = broker.stalls()
        if done["recv"]["unique"] != messages or done["recv"]["duplicates"]:
            raise SystemExit(f"{messages} messages were sent, but this came back: {done['recv']}")
        table.add(build.label, "messages/s sent + received + completed", done["recv"]["msgs_per_s"], ">= 40,000 compiled")
        table.add(build.label, "broker CPU us/message", done["broker_cpu_s"] / messages * 1e6, "<= 18 compiled, 35 not")
        table.add(build.label, "yardstick, CPU us (rises with what neighbours take)", yardstick.us)
        table.add(build.label, "broker CPU, share of the time", done["broker_cpu_s"] / done["wall_s"])
        table.add(build.label, "time from send to accepted, p50 ms", done["send"]["settle_us"]["p50"] / 1000)
        table.add(build.label, "time from send to accepted, p99 ms", done["send"]["settle_us"]["p99"] / 1000)
        table.add(build.label, "loop busy between ticks (CPU), p99.9 ms", stalls["busy"]["p99.9_ms"], "< 10")
        table.add(build.label, "loop busy between ticks (CPU), max ms", stalls["busy"]["max_ms"])
        table.add(build.label, "loop late (wall, with the machine's noise), p99.9 ms", stalls["late"]["p99.9_ms"])
        table.add(build.label, "loop late (wall, with the machine's noise), max ms", stalls["late"]["max_ms"])
        table.add(build.label, "longest garbage-collection pause, ms", stalls["gc"]["max_ms"], "< 20")
        table.add(build.label, "resident memory at most, MB", memory.peak_mb)
        syncs = count_syncs(broker, load, min(messages, 20_000))
        if syncs is not None:
            table.add(build.label, "fdatasync calls under strace", syncs[0])
            table.add(build.label, "messages per fdatasync", syncs[1])


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--messages", type=int, default=200_000)
    arguments = options.parse_args()
    load = Load(arguments)
    table = Table("broker: 1 KB messages, one queue, window 1000, sender and receiver at once")
    with workplace(arguments) as directory:
        for number, build in enumerate(builds(arguments)):
            measure(build, directory / str(number), load, arguments.messages, table)
    table.show(arguments.json)


if __name__ == "__main__":
    main()
