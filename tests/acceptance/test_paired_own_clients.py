"""Clients the application made and closes itself: noticed at once, the partner faulted after the grace, no error of ours."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.exceptions import ServiceBusError

from tandem.aio import NamespaceClosedError, PairedNamespaceFaultedError, PairedNamespaces
from tandem.client.coupling import SideState
from tests.acceptance.brokers import Broker
from tests.acceptance.conftest import administration, create_queue
from tests.waiting import until


@contextlib.asynccontextmanager
async def own_pair(west: Broker, east: Broker, **options) -> AsyncIterator[tuple[ServiceBusClient, ServiceBusClient, PairedNamespaces]]:
    primary = ServiceBusClient.from_connection_string(west.connection_string, retry_total=0)
    secondary = ServiceBusClient.from_connection_string(east.connection_string, retry_total=0)
    manager: ServiceBusAdministrationClient
    async with administration(east) as manager:
        pair = PairedNamespaces(
            primary, secondary, secondary_administration=manager, primary_namespace="contoso", failover_interval=0,
            ping_primary_interval=1, **options,
        )  # fmt: skip
        await pair.pair()
        yield primary, secondary, pair
        await pair.close()
        await primary.close()
        await secondary.close()


async def faulted(side, seconds: float) -> None:
    await until(lambda: side.state is SideState.FAULTED, seconds)


@pytest.mark.parametrize("which", ["primary", "secondary"])
async def test_a_client_the_application_closes_is_noticed_and_its_partner_faulted(west: Broker, east: Broker, which: str):
    await create_queue(west, "orders")
    async with own_pair(west, east, enable_syphon=True) as (primary, secondary, pair):
        async with pair.get_queue_sender("orders") as sender:
            await pair.fail_over("orders", hold=True)
            for n in range(20):
                await sender.send_messages(ServiceBusMessage(str(n)))
            await pair.mark_path_healthy("orders")  # the syphon works while the client is closed under it
            closed, other = (primary, pair.secondary) if which == "primary" else (secondary, pair.primary)
            await closed.close()
            told = [event.kind for event in pair.events.recent]
            assert "namespace-closed" in told
            assert pair.primary.state is not pair.secondary.state
            await faulted(other, 5.5)
            with pytest.raises(NamespaceClosedError if which == "primary" else PairedNamespaceFaultedError):
                await sender.send_messages(ServiceBusMessage("x"))
        assert not pair.syphon.running


async def test_without_a_syphon_a_closed_primary_is_told_to_senders_and_the_secondary_is_left_alone(west: Broker, east: Broker):
    await create_queue(west, "orders")
    async with own_pair(west, east, backlog_queue_count=1) as (primary, _, pair):
        sender = pair.get_queue_sender("orders")
        await sender.send_messages(ServiceBusMessage("before"))
        async with primary:
            pass
        with pytest.raises(NamespaceClosedError):
            await sender.send_messages(ServiceBusMessage("after"))
        assert pair.secondary.state is SideState.OPEN and pair.counters.diverted == 0


async def test_closing_a_client_under_load_is_no_outage_and_no_error(west: Broker, east: Broker):
    await create_queue(west, "orders")
    async with own_pair(west, east, backlog_queue_count=2) as (primary, _, pair):
        senders = [pair.get_queue_sender("orders") for _ in range(10)]
        started = asyncio.Event()

        async def send(sender) -> None:
            with pytest.raises(ServiceBusError):
                while True:
                    await sender.send_messages(ServiceBusMessage("x"))
                    started.set()

        sending = [asyncio.ensure_future(send(sender)) for sender in senders]
        await started.wait()
        await primary.close()
        await asyncio.gather(*sending)
        assert pair.counters.diverted == 0 and pair.counters.failovers == 0


async def test_both_clients_closed_in_turn_is_an_ordinary_end_and_after_the_pair_they_are_as_before(west: Broker, east: Broker):
    async with own_pair(west, east, enable_syphon=True, backlog_queue_count=2) as (primary, secondary, pair):
        await primary.close()
        await secondary.close()
        assert "namespace-faulted" not in [event.kind for event in pair.events.recent]
    assert "close" not in vars(primary) and "close" not in vars(secondary)
