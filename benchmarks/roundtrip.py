"""A hundred messages over a line with a round trip of 70 ms: one after the other, at most ten in flight, all at once.

    python benchmarks/roundtrip.py [--build LABEL=DIR] [--messages N] [--milliseconds MS] [--json]

Over such a line the time is made of waiting, so pipelining is everything. Our own engine pipelines on one link, sends and
settlements; the official asynchronous SDK needs a sender for each message in flight.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from under_test import Broker, Build, Table, builds, parser, workplace

from tandem import amqp
from tandem.simulator.amqp_client import AmqpClient

CONFIG = '[[queue]]\nname = "bench"\nlock_duration = "5m"\n'
IN_FLIGHT = 10


class SlowLine:
    """A proxy that hands every byte on half a round trip later, however many there are."""

    def __init__(self, port: int, round_trip_seconds: float) -> None:
        self._port = port
        self._delay = round_trip_seconds / 2
        self._server: asyncio.Server | None = None
        self._pumps: set[asyncio.Task[None]] = set()
        self.port = 0

    async def __aenter__(self) -> SlowLine:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for pump in self._pumps:
            pump.cancel()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        for source, target in ((reader, far_writer), (far_reader, writer)):
            pump = asyncio.create_task(self._pump(source, target))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        while data := await source.read(65_536):
            loop.call_later(self._delay, target.write, data)
        loop.call_later(self._delay, target.close)


Send = Callable[[int], Awaitable[None]]


async def in_turn(send: Send, count: int) -> float:
    began = time.monotonic()
    for number in range(count):
        await send(number)
    return time.monotonic() - began


async def at_most(send: Send, count: int, in_flight: int) -> float:
    free = asyncio.Semaphore(in_flight)

    async def one(number: int) -> None:
        async with free:
            await send(number)

    began = time.monotonic()
    await asyncio.gather(*(one(number) for number in range(count)))
    return time.monotonic() - began


def show(table: Table, column: str, what: str, seconds: tuple[float, float, float]) -> None:
    sequential, some, pipelined = seconds
    table.add(column, f"{what}, one after the other, s", sequential, ">= 7 for 100 sends")
    table.add(column, f"{what}, at most {IN_FLIGHT} in flight, s", some, "in between")
    table.add(column, f"{what}, all at once, s", pipelined, "well under 1")


async def three_ways(send: Send, count: int) -> tuple[float, float, float]:
    await send(0)
    return await in_turn(send, count), await at_most(send, count, IN_FLIGHT), await at_most(send, count, count)


async def with_the_sdk(broker: Broker, line: SlowLine, count: int) -> tuple[float, float, float]:
    """Its sender is not made for concurrent use (sends get stuck), so as many senders as there are messages in flight."""
    connection = broker.connection_string.replace(f":{broker.port};", f":{line.port};")
    async with ServiceBusClient.from_connection_string(connection) as client, AsyncExitStack() as stack:
        senders = await asyncio.gather(*(stack.enter_async_context(client.get_queue_sender("bench")) for _ in range(count)))

        async def send(number: int) -> None:
            sender = senders.pop()
            await sender.send_messages(ServiceBusMessage(f"{number}"))
            senders.append(sender)

        return await three_ways(send, count)


async def with_our_engine(line: SlowLine, count: int) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    client = await AmqpClient.connect(line.port)
    sender = await client.sender("bench")

    async def send(number: int) -> None:
        await sender.send(amqp.encode_message(properties={"message-id": f"{number}"}, body=[b"." * 1024]))

    sends = await three_ways(send, count)
    receiver = await client.receiver("bench", credit=1_000)
    waiting = [await receiver.get() for _ in range(3 * count + 1)]

    async def complete(number: int) -> None:
        await receiver.settle(waiting.pop())  # the youngest first: settlements need not come in order

    completes = await three_ways(complete, count)
    await client.close()
    return sends, completes


async def measure(build: Build, directory: Path, count: int, milliseconds: float, table: Table) -> None:
    with Broker(build, directory, CONFIG) as broker:
        async with SlowLine(broker.port, milliseconds / 1000) as line:
            sends, completes = await with_our_engine(line, count)
            show(table, f"{build.label}, our engine", "send", sends)
            show(table, f"{build.label}, our engine", "complete", completes)
            show(table, f"{build.label}, async SDK", "send", await with_the_sdk(broker, line, count))


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--messages", type=int, default=100)
    options.add_argument("--milliseconds", type=float, default=70.0, help="of a round trip")
    arguments = options.parse_args()
    table = Table(f"round trip of {arguments.milliseconds:g} ms, {arguments.messages} messages")
    with workplace(arguments) as directory:
        build = builds(arguments)[-1]
        asyncio.run(measure(build, directory, arguments.messages, arguments.milliseconds, table))
    table.show(arguments.json)


if __name__ == "__main__":
    main()
