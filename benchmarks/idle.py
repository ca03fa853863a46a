"""Two thousand idle connections, two hundred queues, ten thousand sessions: does one busy sender notice?

    python benchmarks/idle.py --amqpload PATH [--build LABEL=DIR] [--connections N] [--queues N] [--sessions N] [--json]

Each idle connection has a receiver with credit on one of the queues, and waits. Each session has one message.
"""

from __future__ import annotations

import asyncio
import resource
import time
from pathlib import Path
from typing import Any

from under_test import Broker, Build, Load, Table, builds, parser, workplace

from tandem import amqp
from tandem.simulator.amqp_client import NEXT_SESSION, AmqpClient

IDLE_SECONDS = 5.0


def config(queues: int) -> str:
    lines = ['[[queue]]\nname = "bench"\n', '[[queue]]\nname = "sessions"\nrequires_session = true\nlock_duration = "5m"\n']
    lines += [f'[[queue]]\nname = "idle-{number}"\n' for number in range(queues)]
    return "".join(lines)


async def connect_all(port: int, connections: int, queues: int) -> list[AmqpClient]:
    made: list[AmqpClient] = []
    for start in range(0, connections, 50):
        some = await asyncio.gather(*(AmqpClient.connect(port) for _ in range(min(50, connections - start))))
        await asyncio.gather(*(client.receiver(f"idle-{(start + place) % queues}", credit=10) for place, client in enumerate(some)))
        made += some
    return made


async def fill_sessions(port: int, sessions: int) -> None:
    client = await AmqpClient.connect(port)
    sender = await client.sender("sessions")
    body = [b"." * 1024]
    for start in range(0, sessions, 500):
        await asyncio.gather(
            *(
                sender.send(amqp.encode_message(properties={"message-id": f"m{n}", "group-id": f"session-{n}"}, body=body))
                for n in range(start, min(start + 500, sessions))
            )
        )
    await client.close()


async def accept_sessions_ms(port: int, count: int) -> float:
    """Mean time to take the next free session, and let it go."""
    client = await AmqpClient.connect(port)
    began = time.monotonic()
    for _ in range(count):
        receiver = await client.receiver("sessions", session=NEXT_SESSION)
        await receiver.detach()
    seconds = time.monotonic() - began
    await client.close()
    return seconds / count * 1000


class Sample:
    """One look at the broker: a synchronous sender, a pipelining pair, and doing nothing."""

    def __init__(self, broker: Broker, load: Load, messages: int) -> None:
        self.one: dict[str, Any] = load.run(broker, "send", "bench", n=messages // 10, s=1024, w=1)
        load.run(broker, "recv", "bench", n=messages // 10, s=1024, allow_dup=True)
        self.both: dict[str, Any] = load.run(broker, "both", "bench", n=messages, s=1024, w=1000, run=2)
        cpu, began = broker.cpu_seconds(), time.monotonic()
        time.sleep(IDLE_SECONDS)
        self.idle_cpu = (broker.cpu_seconds() - cpu) / (time.monotonic() - began)
        self.memory_mb = broker.memory_mb()

    def show(self, table: Table, column: str, messages: int) -> None:
        table.add(column, "one synchronous sender, p50 us", self.one["settle_us"]["p50"])
        table.add(column, "one synchronous sender, p99 us", self.one["settle_us"]["p99"])
        table.add(column, "one synchronous sender, broker CPU us/message", self.one["broker_cpu_s"] / (messages // 10) * 1e6)
        table.add(column, "pipelined both ways, broker CPU us/message", self.both["broker_cpu_s"] / messages * 1e6)
        table.add(column, "pipelined both ways, messages/s", self.both["recv"]["msgs_per_s"])
        table.add(column, "CPU while nothing happens, share of a core", self.idle_cpu)
        table.add(column, "resident memory, MB", self.memory_mb)


async def measure(build: Build, directory: Path, load: Load, arguments: Any, table: Table) -> None:
    # Not watched from inside: a timer of one millisecond would be most of what an idle broker does.
    with Broker(build, directory, config(arguments.queues), {"TANDEM_STALLS": ""}) as broker:
        before = await asyncio.to_thread(Sample, broker, load, arguments.messages)
        before.show(table, f"{build.label}, alone", arguments.messages)
        await fill_sessions(broker.port, 20)
        table.add(f"{build.label}, alone", "accept the next session, ms", await accept_sessions_ms(broker.port, 20))
        clients = await connect_all(broker.port, arguments.connections, arguments.queues)
        await fill_sessions(broker.port, arguments.sessions)
        after = await asyncio.to_thread(Sample, broker, load, arguments.messages)
        after.show(table, f"{build.label}, crowded", arguments.messages)
        table.add(f"{build.label}, crowded", "accept the next session, ms", await accept_sessions_ms(broker.port, 200))
        ended = sum(client.ended.done() for client in clients)
        table.add(f"{build.label}, crowded", "idle connections lost", ended, "0")
        for client in clients:
            client.abort()


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--connections", type=int, default=2_000)
    options.add_argument("--queues", type=int, default=200)
    options.add_argument("--sessions", type=int, default=10_000)
    options.add_argument("--messages", type=int, default=20_000, help="per sample")
    arguments = options.parse_args()
    load = Load(arguments)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if most < arguments.connections + 200:
        raise SystemExit(f"only {most} files may be open at once; {arguments.connections} connections need more")
    table = Table(f"idle: {arguments.connections:,} idle connections, {arguments.queues} queues, {arguments.sessions:,} sessions")
    with workplace(arguments) as directory:
        for number, build in enumerate(builds(arguments)):
            asyncio.run(measure(build, directory / str(number), load, arguments, table))
    table.show(arguments.json)


if __name__ == "__main__":
    main()
