"""A partitioned queue over four stores against a plain one, and what senders notice when one of the stores fails under load.

    python benchmarks/partitions.py --amqpload PATH [--build LABEL=DIR] [--messages N] [--rounds R] [--outages N] [--json]

Rates are compared in alternating rounds over the same broker. The outage is told by a sender of our own that keeps a window full and
writes down when each message was accepted: the longest silence around the moment the store fails is the gap.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import itertools
import json
import os
import signal
import statistics
import time
import urllib.request
from pathlib import Path
from typing import Any

from under_test import KEY, KEY_NAME, Broker, Build, Load, Table, builds, parser, workplace

from tandem import amqp
from tandem.model.sas_token import make_token
from tandem.simulator.amqp_client import AmqpClient

QUEUES = """
[[queue]]
name = "plain"
max_size_megabytes = 5120

[[queue]]
name = "spread"
max_size_megabytes = 5120
enable_partitioning = true
"""
WINDOW = 200
BODY = b"x" * 1_024


def compare(build: Build, directory: Path, load: Load, messages: int, rounds: int, table: Table) -> None:
    rates: dict[str, list[float]] = {"plain": [], "spread": []}
    costs: dict[str, list[float]] = {"plain": [], "spread": []}
    with Broker(build, directory, QUEUES) as broker:
        for name in rates:
            load.run(broker, "both", name, n=20_000, s=1024, w=1000, run=1)
        for number in range(rounds):
            for name in ("plain", "spread") if number % 2 else ("spread", "plain"):
                done = load.run(broker, "both", name, n=messages, s=1024, w=1000, run=10 + number)
                if done["recv"]["unique"] != messages or done["recv"]["duplicates"]:
                    raise SystemExit(f"{messages} messages were sent to {name}, but this came back: {done['recv']}")
                rates[name].append(done["recv"]["msgs_per_s"])
                costs[name].append(done["broker_cpu_s"] / messages * 1e6)
    for name, shown in (("plain", "plain"), ("spread", "partitioned")):
        table.add(build.label, f"{shown}: messages/s (median round)", statistics.median(rates[name]))
        table.add(build.label, f"{shown}: broker CPU us/message (median round)", statistics.median(costs[name]))
    share = [spread / plain for spread, plain in zip(rates["spread"], rates["plain"], strict=True)]
    table.add(build.label, "partitioned, % of plain (median of pairs)", 100 * statistics.median(share), ">= 95")


@dataclasses.dataclass(slots=True)
class Story:
    """One outage as a sender saw it."""

    gap_ms: float
    failed: int
    lost: int
    doubled: int


def fault(broker: Broker, method: str, body: dict[str, Any] | None = None) -> None:
    base = f"http://localhost:{broker.port}/"
    token = make_token(base, KEY_NAME, KEY, int(time.time() * 1000) + 600_000)
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{base}$tandem/faults", data, {"Authorization": token}, method=method)
    with urllib.request.urlopen(request, timeout=10) as reply:
        reply.read()


def store_processes(broker: Broker) -> list[int]:
    """In the order of the stores."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                parent = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
                command = Path(f"/proc/{name}/cmdline").read_bytes()
            except OSError:
                continue  # it ended meanwhile
            if parent == broker.pid and b"disk_process" in command:
                found.append(int(name))
    return sorted(found)


async def outage(broker: Broker, by_kill: bool) -> Story:
    client = await AmqpClient.connect(broker.port, user=KEY_NAME, password=KEY)
    sender = await client.sender("spread")
    accepted: list[tuple[float, int]] = []
    failures: list[BaseException] = []
    room = asyncio.Semaphore(WINDOW)

    def answered(number: int, answer: asyncio.Future[None]) -> None:
        room.release()
        error = answer.exception()
        if error is None:
            accepted.append((time.monotonic(), number))
        else:
            failures.append(error)

    sent = 0
    broken_at = 0.0
    began = time.monotonic()
    while (now := time.monotonic()) < began + 3:
        if not broken_at and now > began + 1:
            broken_at = now
            if by_kill:
                os.kill(store_processes(broker)[1], signal.SIGKILL)
            else:
                await asyncio.to_thread(fault, broker, "POST", {"kind": "store-down", "store": 1})
        await room.acquire()
        payload = amqp.encode_message(properties={"message-id": str(sent)}, body=[BODY])
        sender.send(payload).add_done_callback(functools.partial(answered, sent))
        sent += 1
    for _ in range(WINDOW):
        await room.acquire()
    if not by_kill:
        await asyncio.to_thread(fault, broker, "DELETE")
    instants = [at for at, _ in accepted if at > broken_at - 0.05]
    gap = max(later - earlier for earlier, later in itertools.pairwise(instants))
    seen = await receive(client, len(accepted))
    wanted = {number for _, number in accepted}
    await client.close()
    return Story(gap * 1000, len(failures), len(wanted - seen.keys()), sum(count - 1 for count in seen.values()))


async def receive(client: AmqpClient, count: int) -> dict[int, int]:
    """How often each number came, until all are there and nothing more comes for two seconds."""
    seen: dict[int, int] = {}
    receiver = await client.receiver("spread", credit=500)
    while True:
        try:
            incoming = await asyncio.wait_for(receiver.get(), 15 if len(seen) < count else 2)
        except TimeoutError:
            return seen
        number = int(str(amqp.decode_message(incoming.payload).properties["message-id"]))
        seen[number] = seen.get(number, 0) + 1
        await receiver.settle(incoming) if len(seen) == count else receiver.settle(incoming)


def fail(build: Build, directory: Path, outages: int, table: Table) -> None:
    for by_kill, shown in ((False, "store made to fail"), (True, "store's process killed")):
        isolation = '[stores]\nisolation = "process"\n' if by_kill else ""
        with Broker(build, directory / str(by_kill), isolation + QUEUES) as broker:
            stories = [asyncio.run(outage(broker, by_kill)) for _ in range(outages)]
        table.add(build.label, f"{shown}: longest gap in accepted messages, ms (median)", statistics.median(s.gap_ms for s in stories))
        table.add(build.label, f"{shown}: longest gap in accepted messages, ms (worst)", max(s.gap_ms for s in stories), "< 250")
        table.add(build.label, f"{shown}: sends refused", sum(s.failed for s in stories), "0")
        table.add(build.label, f"{shown}: accepted messages lost", sum(s.lost for s in stories), "0")
        table.add(build.label, f"{shown}: delivered twice", sum(s.doubled for s in stories), "0")


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--messages", type=int, default=100_000)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--outages", type=int, default=10)
    arguments = options.parse_args()
    load = Load(arguments)
    table = Table("partitions: 1 KB messages, 4 stores, 16 fragments")
    with workplace(arguments) as directory:
        for number, build in enumerate(builds(arguments)):
            compare(build, directory / f"{number}-rates", load, arguments.messages, arguments.rounds, table)
            fail(build, directory / f"{number}-outages", arguments.outages, table)
    table.show(arguments.json)


if __name__ == "__main__":
    main()
