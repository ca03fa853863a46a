"""A primary that hangs, kind by kind: when the first send is diverted, and when the path heals after the cure."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from tandem.aio import BothNamespacesUnavailableError, PairedNamespaces
from tests.acceptance.brokers import Broker
from tests.acceptance.conftest import create_queue
from tests.acceptance.proxy import SlowNetwork
from tests.acceptance.test_paired import healed

INTERVAL = 2.0
HEALING_SECONDS = 6.0
"""A ping interval of one second, and what a machine with other things to do takes for a connection."""

Act = Callable[[], Awaitable[object]]


def kinds(west: Broker, network: SlowNetwork) -> dict[str, tuple[Act, Act]]:
    """For each kind what makes the primary hang, and the cure."""

    def fault(kind: str, **fields: object) -> tuple[Act, Act]:
        return lambda: asyncio.to_thread(west.inject, kind, **fields), lambda: asyncio.to_thread(west.heal)

    async def swallow() -> None:
        network.flowing.clear()

    async def flow() -> None:
        network.flowing.set()

    async def narrow() -> None:
        network.bytes_per_second = 20

    async def widen() -> None:
        network.bytes_per_second = None

    return {
        "stopped process": (lambda: asyncio.to_thread(west.freeze), lambda: asyncio.to_thread(west.thaw)),
        "black hole": (swallow, flow),
        "slow line": (narrow, widen),
        "store down": fault("store-down", store=0),
        "silent entity": fault("entity-unreachable", entity="orders"),
    }


async def diverted(pair: PairedNamespaces) -> None:
    """Send as an application does that tries again, until a send was diverted."""
    async with pair.get_queue_sender("orders") as sender:
        while not pair.counters.diverted:
            try:
                await sender.send_messages(ServiceBusMessage("x"))
            except BothNamespacesUnavailableError:
                raise
            except ServiceBusError:
                await asyncio.sleep(0.1)


@pytest.mark.parametrize("kind", ["stopped process", "black hole", "slow line", "store down", "silent entity"])
async def test_whatever_its_kind_a_hang_costs_the_interval_and_5_seconds_and_heals_with_the_next_ping(
    west: Broker, east: Broker, kind: str
):
    await create_queue(west, "orders")
    loop = asyncio.get_running_loop()
    async with SlowNetwork(west.port) as network:
        string = west.connection_string.replace(str(west.port), str(network.port))
        hang, cure = kinds(west, network)[kind]
        async with PairedNamespaces(
            string, east.connection_string, primary_namespace="contoso", backlog_queue_count=2, failover_interval=INTERVAL,
            ping_primary_interval=1, sdk_options={"connection_verify": east.ca},
        ) as pair:  # fmt: skip
            async with pair.get_queue_sender("orders") as sender:
                await sender.send_messages(ServiceBusMessage("before"))
            await hang()
            try:
                hung = loop.time()
                await diverted(pair)
                took = loop.time() - hung
                assert INTERVAL <= took <= INTERVAL + 5
                await asyncio.sleep(3)  # pings that nobody answers pile up
            finally:
                await cure()
            cured = loop.time()
            await healed(pair, "orders")
            assert loop.time() - cured <= HEALING_SECONDS
