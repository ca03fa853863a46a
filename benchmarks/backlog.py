"""A million messages waiting in one queue: memory, the cost of adding more, a SIGKILL, the restart, and the way out, in order.

    python benchmarks/backlog.py --amqpload PATH [--build LABEL=DIR] [--messages N] [--json]

The drain is done by a client in Python that looks at every sequence number, so its rate says little; the broker's CPU per message does.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from under_test import Broker, Build, Load, PeakMemory, Table, builds, parser, workplace

from tandem import amqp
from tandem.simulator.amqp_client import AmqpClient

CONFIG = '[[queue]]\nname = "bench"\nmax_size_megabytes = 5120\nlock_duration = "5m"\n'
SEQUENCE_NUMBER = amqp.Symbol("x-opt-sequence-number")


async def drain(port: int, count: int) -> float:
    """Receive and complete so many; raises unless each is there once and in order. Returns seconds."""
    client = await AmqpClient.connect(port)
    receiver = await client.receiver("bench", credit=1_000)
    began = time.monotonic()
    for expected in range(1, count + 1):
        incoming = await receiver.get()
        sections = amqp.scan(incoming.payload)
        annotations, _ = amqp.decode_value(incoming.payload, sections.ma_value)
        assert isinstance(annotations, dict)
        number = annotations[SEQUENCE_NUMBER]
        if number != expected:
            raise SystemExit(f"message {expected} was expected, {number} came")
        last = receiver.settle(incoming)
    await last
    seconds = time.monotonic() - began
    _, left = await client.request("bench", "com.microsoft:peek-message", {"from-sequence-number": 1, "message-count": amqp.Int(1)})
    if left:
        raise SystemExit("the queue should be empty, and is not")
    await client.close()
    return seconds


def measure(build: Build, directory: Path, load: Load, messages: int, table: Table) -> None:
    part = max(messages // 20, 1)
    with Broker(build, directory, CONFIG) as broker:
        empty_mb = broker.memory_mb()
        with PeakMemory(broker) as memory:
            first = load.run(broker, "send", "bench", n=part, s=1024, w=1000, run=1)
            middle = load.run(broker, "send", "bench", n=messages - 2 * part, s=1024, w=1000, run=2)
            last = load.run(broker, "send", "bench", n=part, s=1024, w=1000, run=3)
        full_mb = broker.memory_mb()
        stalls = broker.stalls()
        broker.kill()
        ready = broker.start()
        cpu = broker.cpu_seconds()
        again_mb = broker.memory_mb()
        with PeakMemory(broker) as draining:
            seconds = asyncio.run(drain(broker.port, messages))
        drained_cpu = broker.cpu_seconds() - cpu
        drain_stalls = broker.stalls()
    label = build.label
    table.add(label, "resident memory empty, MB", empty_mb)
    table.add(label, "resident memory full, MB", full_mb, "<= 300")
    table.add(label, "resident memory at most while filling, MB", memory.peak_mb, "<= 300")
    table.add(label, "bytes of memory per waiting message", (full_mb - empty_mb) * (1 << 20) / messages)
    table.add(label, "send rate full / empty", last["msgs_per_s"] / first["msgs_per_s"], ">= 0.5")
    table.add(label, "send CPU us/message, queue empty", first["broker_cpu_s"] / part * 1e6)
    table.add(label, "send CPU us/message, between", middle["broker_cpu_s"] / (messages - 2 * part) * 1e6)
    table.add(label, "send CPU us/message, queue full", last["broker_cpu_s"] / part * 1e6)
    table.add(label, "longest garbage-collection pause while filling, ms", stalls["gc"]["max_ms"], "<= 20")
    table.add(label, "loop busy between ticks (CPU) while filling, p99.9 ms", stalls["busy"]["p99.9_ms"])
    table.add(label, "ready after SIGKILL, seconds", ready, "<= 5")
    table.add(label, "CPU until ready, seconds", cpu)
    table.add(label, "resident memory after the restart, MB", again_mb)
    table.add(label, "resident memory at most while draining, MB", draining.peak_mb, "<= 300")
    table.add(label, "drained in order, seconds", seconds)
    table.add(label, "drain CPU us/message", drained_cpu / messages * 1e6)
    table.add(label, "longest garbage-collection pause while draining, ms", drain_stalls["gc"]["max_ms"], "<= 20")
    table.add(label, "loop busy between ticks (CPU) while draining, p99.9 ms", drain_stalls["busy"]["p99.9_ms"])


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--messages", type=int, default=1_000_000)
    arguments = options.parse_args()
    load = Load(arguments)
    table = Table(f"backlog: {arguments.messages:,} waiting messages of 1 KB in one queue")
    with workplace(arguments) as directory:
        for number, build in enumerate(builds(arguments)):
            measure(build, directory / str(number), load, arguments.messages, table)
    table.show(arguments.json)


if __name__ == "__main__":
    main()
