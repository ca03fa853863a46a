"""Machine instructions of the broker per message, as valgrind counts them: the same figure on a busy machine and on an idle one.

    python benchmarks/instructions.py --amqpload PATH --build before=DIR --build after=DIR [--only NAME] [--keep DIR] [--json]

Counts what runs outside of the kernel, in all threads. Seconds mean nothing under valgrind, so nothing here is a rate. What is kept with
`--keep` is read with `callgrind_annotate`.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from topics import config as topic_config
from topics import publish
from under_test import Broker, Build, Load, Table, builds, parser, workplace

from tandem.amqp import encode_message
from tandem.engine_client.blocking import BlockingClient, Endpoint

QUEUES = """
[[queue]]
name = "plain"
max_size_megabytes = 5120

[[queue]]
name = "spread"
max_size_megabytes = 5120
enable_partitioning = true

"""
MANY = 10_000
FEW = 2_000
IDLE_SECONDS = 4.0
LOOKS = 15
TOTALS = re.compile(r"^totals: (\d+)", re.MULTILINE)

Work = Callable[[Broker, Load, int, int], None]
"""(broker, load, messages, number of the run)."""


def both(queue: str) -> Work:
    def work(broker: Broker, load: Load, messages: int, run: int) -> None:
        load.run(broker, "both", queue, n=messages, s=1024, w=1000, idle=120, run=run)

    return work


def lone(broker: Broker, load: Load, messages: int, run: int) -> None:
    load.run(broker, "send", "plain", n=messages, s=1024, w=1, idle=120, run=run)


def topic(broker: Broker, load: Load, messages: int, run: int) -> None:
    properties: dict[object, object] = {"region": "eu", "total": 100, "kind": "order"}
    payload = encode_message(properties={"message-id": "m"}, application_properties=properties, body=b"x" * 1024)
    with BlockingClient(Endpoint.parse(broker.connection_string)) as client:
        publish(client, payload, messages)


def drain(broker: Broker, load: Load, messages: int, run: int) -> None:
    load.run(broker, "recv", "plain", n=messages, s=1024, idle=120, run=run)


WORK: dict[str, tuple[Work, int]] = {
    "sent + received + completed": (both("plain"), MANY),
    "sent + received + completed, partitioned": (both("spread"), MANY),
    "sent by a sender who waits for each": (lone, FEW),
    "published to ten subscriptions with SQL rules": (topic, MANY // 5),
    "backlog received + completed after a restart": (drain, MANY),
}


class Counted:
    """Valgrind around one broker."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "callgrind"
        self._began = self._per_second = 0.0
        self.command = ["valgrind", "--quiet", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={self.file}"]

    def begin(self, broker: Broker) -> None:
        """When it has done all that it does after a start. What it does all the time is counted first: it is nobody's message."""
        while sum(self._looks(broker)) > LOOKS * 0.3:  # what it has used says nothing where others use all there is
            continue
        self._control(broker, "--instr=on")
        time.sleep(IDLE_SECONDS)
        self._per_second = self._count(broker, 1) / IDLE_SECONDS
        self._began = time.monotonic()

    def _looks(self, broker: Broker) -> Iterator[bool]:
        """Does any of its threads run, or want to?"""
        for _ in range(LOOKS):
            time.sleep(0.2)
            yield broker.wants_processor()

    def end(self, broker: Broker) -> float:
        """Instructions since `begin`."""
        return self._count(broker, 2) - (time.monotonic() - self._began) * self._per_second

    def _count(self, broker: Broker, number: int) -> int:
        self._control(broker, "--dump")
        found = TOTALS.search(Path(f"{self.file}.{number}").read_text())
        if found is None:
            raise SystemExit("valgrind counted nothing")
        return int(found[1])

    def _control(self, broker: Broker, what: str) -> None:
        subprocess.run(["callgrind_control", what, str(broker.pid)], check=True, capture_output=True)


def measure(build: Build, directory: Path, load: Load, only: str, table: Table) -> None:
    for number, (name, (work, messages)) in enumerate(WORK.items()):
        if only not in name:
            continue
        place = directory / str(number)
        place.mkdir(parents=True)
        counted = Counted(place)
        with Broker(build, place, QUEUES + topic_config(10, 10), {"PYTHONHASHSEED": "0", "TANDEM_STALLS": ""}) as broker:
            if work is drain:
                load.run(broker, "send", "plain", n=messages, s=1024, w=1000, run=2)
            broker.kill()
            broker.under = counted.command
            broker.start()
            warm_up = both("spread") if work is drain else work
            warm_up(broker, load, messages // 5, 1)
            counted.begin(broker)
            work(broker, load, messages, 2)
            spent = counted.end(broker)
        table.add(build.label, name, spent / messages)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--only", default="", help="what has this in its name")
    options.add_argument("--keep", type=Path, help="where valgrind's files stay")
    arguments = options.parse_args()
    load = Load(arguments)
    table = Table("instructions per message of 1 KB, outside of the kernel")
    with workplace(arguments) as directory:
        for build in builds(arguments):
            measure(build, (arguments.keep or directory) / build.label.split()[0], load, arguments.only, table)
    table.show(arguments.json)


if __name__ == "__main__":
    main()
