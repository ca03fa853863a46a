"""What the paired layer costs while healthy, how it sends while failed over, how fast it switches, and how fast the syphon is.

    python benchmarks/paired.py [--sends N] [--outages N] [--syphon N] [--json]

Two brokers as processes of their own on this machine. Rates are compared in alternating rounds over the same brokers, so that both
sides meet the same noise; the control, a second bare sender, shows how large that noise is: a difference that is not well above it
says nothing. Neighbours on the machine make everything slower, the layer as well, so the tenth of the sends that were disturbed least
is told beside the median. The layer's own cost is measured apart, with the SDK's send replaced by one that returns at once: a lower
bound, since code that ran a moment ago is cheaper. `paired over bare` is what a send costs.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.aio.management import ServiceBusAdministrationClient

from tandem.aio import PairedNamespaces
from tests.acceptance.brokers import Broker
from tests.client.scripted import ScriptedAdministration, ScriptedNamespace

BODY = b"x" * 1_024
ROUNDS = 5
SENDS_PER_ROUND = 100
"""For rates. For what a send costs, senders take turns with every send: only so does the control agree with the bare one to within a
few microseconds. Rates would suffer from that, because a broker that waits for its turn is slower than one at work."""


async def administrate(broker: Broker, names: list[str]) -> None:
    async with ServiceBusAdministrationClient.from_connection_string(broker.connection_string, connection_verify=broker.ca) as client:
        for name in names:
            await client.create_queue(name)


def paired(primary: Broker, secondary: Broker, **options: Any) -> PairedNamespaces:
    return PairedNamespaces(
        primary.connection_string, secondary.connection_string, primary_namespace="bench", backlog_queue_count=1, failover_interval=0,
        ping_primary_interval=1, sdk_options={"connection_verify": secondary.ca}, **options,
    )  # fmt: skip


async def timed(send: Callable[[ServiceBusMessage], Awaitable[None]], count: int) -> tuple[float, float]:
    """(sends per second, client CPU microseconds per send)."""
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(count):
        await send(ServiceBusMessage(BODY))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return count / wall, cpu / count * 1e6


async def overhead(west: Broker, east: Broker, sends: int) -> dict[str, float]:
    async with ServiceBusClient.from_connection_string(west.connection_string) as client, paired(west, east) as pair:
        await pair.fail_over("diverted", hold=True)
        senders: dict[str, Any] = {
            "bare": client.get_queue_sender("bare"),
            "control": client.get_queue_sender("control"),
            "paired": pair.get_queue_sender("paired"),
            "failed over": pair.get_queue_sender("diverted"),
        }
        results: dict[str, list[float]] = {name: [] for name in senders}
        rates: dict[str, list[float]] = {name: [] for name in senders}
        for sender in senders.values():
            await sender.send_messages(ServiceBusMessage(BODY))
        gc.collect()
        names = list(senders)
        dice = Random(0)  # never in the same order: what one send leaves to do is paid by the next
        for _ in range(sends):
            for name in dice.sample(names, len(names)):
                results[name].append((await timed(senders[name].send_messages, 1))[1])
        for _ in range(max(ROUNDS, sends // SENDS_PER_ROUND)):
            for name in dice.sample(names, len(names)):
                rates[name].append((await timed(senders[name].send_messages, SENDS_PER_ROUND))[0])
        for name in ("bare", "control"):
            await senders[name].close()
    rate = {name: statistics.median(found) for name, found in rates.items()}
    cpu = {name: statistics.median(found) for name, found in results.items()}
    quiet = {name: statistics.quantiles(found, n=10)[0] for name, found in results.items()}
    return {
        "bare sends/s": rate["bare"],
        "paired sends/s": rate["paired"],
        "failed-over sends/s": rate["failed over"],
        "paired throughput, % of bare": 100 * rate["paired"] / rate["bare"],
        "failed-over throughput, % of healthy": 100 * rate["failed over"] / rate["paired"],
        "bare cost, client CPU us/send": cpu["bare"],
        "paired over bare, client CPU us/send": cpu["paired"] - cpu["bare"],
        "control (bare over bare), client CPU us/send": cpu["control"] - cpu["bare"],
        "bare cost, quietest tenth, client CPU us/send": quiet["bare"],
        "paired over bare, quietest tenth, client CPU us/send": quiet["paired"] - quiet["bare"],
        "control (bare over bare), quietest tenth, client CPU us/send": quiet["control"] - quiet["bare"],
    }


async def layer_cost(sends: int) -> dict[str, float]:
    """The layer by itself: the SDK's send is replaced by one that returns at once, so what is left is what pairing adds."""
    backup = ScriptedNamespace("backup")
    string = "Endpoint=sb://localhost:1;SharedAccessKeyName=n;SharedAccessKey=k;UseDevelopmentEmulator=true"
    pair = PairedNamespaces(string, backup, secondary_administration=ScriptedAdministration(backup), backlog_queue_count=1)
    await pair.pair()
    guarded = pair.get_queue_sender("q")
    primary: Any = guarded._primary  # the SDK's, behind the seam
    sdk = primary._current()
    sdk._running = True

    async def at_once(message: ServiceBusMessage, *, timeout: float | None = None) -> None:
        return

    sdk.send_messages = at_once
    gc.collect()
    with_layer, without = [], []
    for _ in range(ROUNDS):
        with_layer.append((await timed(guarded.send_messages, sends))[1])
        without.append((await timed(at_once, sends))[1])
    await pair.close()
    # The least of each, not the least difference: that one would only be the luckiest pair of rounds.
    return {"paired layer alone, us/send": min(with_layer) - min(without)}


async def outages(west: Broker, east: Broker, count: int) -> dict[str, float]:
    over: list[float] = []
    back: list[float] = []
    async with paired(west, east) as pair, pair.get_queue_sender("paired") as sender:
        for _ in range(count):
            await sender.send_messages(ServiceBusMessage(BODY))
            west.kill()
            started = time.perf_counter()
            await sender.send_messages(ServiceBusMessage(BODY))
            over.append(time.perf_counter() - started)
            await asyncio.to_thread(west.start)
            started = time.perf_counter()
            await pair.monitor("paired").healed.wait()
            back.append(time.perf_counter() - started)
    return {
        "outages": count,
        **spread("failover, first send after the kill, s", over),
        **spread("failback after the broker is ready, s", back),
    }


def spread(name: str, values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    at = {"min": 0.0, "p50": 0.5, "p90": 0.9, "max": 1.0}
    return {f"{name}: {label}": ordered[min(len(ordered) - 1, int(share * len(ordered)))] for label, share in at.items()}


async def syphon(west: Broker, east: Broker, count: int) -> dict[str, float]:
    """The same messages moved by hand with the bare SDK (receive a hundred, send each, complete each), then by the syphon."""
    async with paired(west, east) as pair, pair.get_queue_sender("home") as sender:
        await pair.fail_over("home", hold=True)
        for _ in range(2):
            for _ in range(count // 50):
                await sender.send_messages([ServiceBusMessage(BODY) for _ in range(50)])
        queue = pair.rotation.names[0]
    bare = await move_by_hand(west, east, queue, count)
    async with paired(west, east, enable_syphon=True) as pair:
        first, started = await moved(pair, 1), time.perf_counter()
        await moved(pair, count)
        ours = (pair.counters.syphon_moved - first) / (time.perf_counter() - started)
    return {"bare receive+send+complete, messages/s": bare, "syphon, messages/s": ours, "syphon, % of bare": 100 * ours / bare}


async def moved(pair: PairedNamespaces, count: int) -> int:
    while pair.counters.syphon_moved < count:  # noqa: ASYNC110 - the counter is all there is to look at
        await asyncio.sleep(0.001)
    return pair.counters.syphon_moved


async def move_by_hand(west: Broker, east: Broker, queue: str, count: int) -> float:
    async with (
        ServiceBusClient.from_connection_string(east.connection_string) as there,
        ServiceBusClient.from_connection_string(west.connection_string) as home,
        there.get_queue_receiver(queue) as receiver,
        home.get_queue_sender("home") as sender,
    ):
        moved = 0
        started = time.perf_counter()
        while moved < count:
            for message in await receiver.receive_messages(max_message_count=100, max_wait_time=5):
                await sender.send_messages(ServiceBusMessage(b"".join(message.body), message_id=message.message_id))
                await receiver.complete_message(message)
                moved += 1
        return moved / (time.perf_counter() - started)


async def run(sends: int, outage_count: int, syphon_count: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as home:
        west, east = Broker(Path(home), "west"), Broker(Path(home), "east")
        try:
            west.start()
            east.start()
            await administrate(west, ["bare", "control", "paired", "diverted", "home"])
            figures = await layer_cost(sends)
            figures |= await overhead(west, east, sends)
            figures |= await syphon(west, east, syphon_count)
            figures |= await outages(west, east, outage_count)
            return figures
        finally:
            west.stop()
            east.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sends", type=int, default=5_000)
    parser.add_argument("--outages", type=int, default=50)
    parser.add_argument("--syphon", type=int, default=2_000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    figures = asyncio.run(run(arguments.sends, arguments.outages, arguments.syphon))
    if arguments.json:
        print(json.dumps(figures, indent=2))
        return
    for name, value in figures.items():
        print(f"{name:55} {value:12.3f}")


if __name__ == "__main__":
    main()
