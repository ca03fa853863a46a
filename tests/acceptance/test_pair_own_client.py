"""`tandem.pair`: the application's own client gives out protected senders, and is as before once it is unpaired."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSender
from azure.servicebus.aio import ServiceBusClient as AsyncClient
from azure.servicebus.aio import ServiceBusSender as AsyncSender
from azure.servicebus.management import ServiceBusAdministrationClient

import tandem
from tandem import aio
from tests.acceptance.brokers import Broker
from tests.acceptance.conftest import administration, create_queue, drain
from tests.acceptance.test_paired import body, healed
from tests.waiting import until

SETTINGS = {"primary_namespace": "contoso", "backlog_queue_count": 2, "failover_interval": 0, "ping_primary_interval": 1}


async def entities(west: Broker) -> None:
    async with administration(west) as client:
        await client.create_queue("orders")
        await client.create_topic("news")
        await client.create_subscription("news", "all")


async def everything(west: Broker) -> dict[str, list[str]]:
    paths = ("orders", "news/Subscriptions/all")
    return {path: sorted(body(message) for message in await drain(west, path)) for path in paths}


@pytest.mark.parametrize("front", ["tandem", "tandem.aio"])
async def test_an_asynchronous_client_gives_out_protected_senders_until_it_is_unpaired(west: Broker, east: Broker, front: str):
    await entities(west)
    door = tandem if front == "tandem" else aio
    async with AsyncClient.from_connection_string(west.connection_string, retry_total=0) as client:
        before = client.get_queue_sender("orders")
        pair = await door.pair(client, east.connection_string, enable_syphon=True, sdk_options={"connection_verify": east.ca}, **SETTINGS)
        with pytest.raises(RuntimeError, match="paired already"):
            await door.pair(client, east.connection_string, **SETTINGS)
        assert isinstance(before, AsyncSender)
        async with client.get_queue_sender("orders", client_identifier="me") as orders, client.get_topic_sender("news") as news:
            assert orders.client_identifier == "me"
            for sender in (orders, news):
                await sender.send_messages(ServiceBusMessage("healthy"))
            west.kill()
            batch = await orders.create_message_batch()
            batch.add_message(ServiceBusMessage("in a batch"))
            await orders.send_messages(batch)
            await news.send_messages([ServiceBusMessage("in a list")])
            assert pair.counters.diverted == 2
            await asyncio.to_thread(west.start)
            for path in ("orders", "news"):
                await healed(pair, path)
            await until(lambda: pair.counters.syphon_moved >= 2, 30)
        given = client.get_queue_sender("orders")
        await door.unpair(client)
        await door.unpair(client)
        with pytest.raises(tandem.NamespaceClosedError):
            await given.send_messages(ServiceBusMessage("too late"))
        assert not {"get_queue_sender", "get_topic_sender", "close"} & set(vars(client))
        async with client.get_queue_sender("orders") as plain:
            assert isinstance(plain, AsyncSender)
            await plain.send_messages(ServiceBusMessage("plain"))
    assert await everything(west) == {"orders": ["healthy", "in a batch", "plain"], "news/Subscriptions/all": ["healthy", "in a list"]}


def test_a_synchronous_client_gives_out_protected_senders_until_it_is_unpaired(west: Broker, east: Broker):
    asyncio.run(entities(west))
    with (
        ServiceBusClient.from_connection_string(west.connection_string, retry_total=0) as client,
        ServiceBusClient.from_connection_string(east.connection_string, retry_total=0) as secondary,
        ServiceBusAdministrationClient.from_connection_string(east.connection_string, connection_verify=east.ca) as administration,
    ):
        pair = tandem.pair(client, secondary, secondary_administration=administration, **SETTINGS)
        with pytest.raises(RuntimeError, match="paired already"):
            tandem.pair(client, secondary, **SETTINGS)
        with client.get_queue_sender("orders") as orders, client.get_topic_sender("news") as news:
            orders.send_messages(ServiceBusMessage("healthy"))
            pair.fail_over("orders", hold=True)
            batch = orders.create_message_batch()
            batch.add_message(ServiceBusMessage("in a batch"))
            orders.send_messages(batch)
            news.send_messages(ServiceBusMessage("not diverted"))
            assert pair.counters.diverted == 1
        tandem.unpair(client)
        assert not {"get_queue_sender", "get_topic_sender", "close"} & set(vars(client))
        with client.get_queue_sender("orders") as plain:
            assert isinstance(plain, ServiceBusSender)
            plain.send_messages(ServiceBusMessage("plain"))
    assert asyncio.run(everything(west)) == {"orders": ["healthy", "plain"], "news/Subscriptions/all": ["not diverted"]}


def test_a_synchronous_client_may_have_a_credential_of_this_package(west: Broker, east: Broker):
    asyncio.run(create_queue(west, "orders"))
    fields = dict(part.split("=", 1) for part in west.connection_string.split(";") if part)
    host = fields["Endpoint"].removeprefix("sb://").strip("/")
    credential = tandem.SasCredential.from_connection_string(west.connection_string)
    with ServiceBusClient(host, credential, use_tls=False, retry_total=0) as client:
        tandem.pair(client, east.connection_string, sdk_options={"connection_verify": east.ca}, **SETTINGS)
        with client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("x"))
        tandem.unpair(client)
    assert [body(message) for message in asyncio.run(drain(west, "orders"))] == ["x"]


async def test_closing_a_paired_client_ends_the_pair(west: Broker, east: Broker):
    await create_queue(west, "orders")
    client = AsyncClient.from_connection_string(west.connection_string, retry_total=0)
    pair = await aio.pair(client, east.connection_string, enable_syphon=True, sdk_options={"connection_verify": east.ca}, **SETTINGS)
    sender = client.get_queue_sender("orders")
    await sender.send_messages(ServiceBusMessage("x"))
    await client.close()
    with pytest.raises(tandem.NamespaceClosedError):
        await sender.send_messages(ServiceBusMessage("y"))
    assert not pair.syphon.running and not {"get_queue_sender", "close"} & set(vars(client))


def test_closing_a_synchronous_paired_client_ends_the_pair(west: Broker, east: Broker):
    asyncio.run(create_queue(west, "orders"))
    client = ServiceBusClient.from_connection_string(west.connection_string)
    tandem.pair(client, east.connection_string, sdk_options={"connection_verify": east.ca}, **SETTINGS)
    sender = client.get_queue_sender("orders")
    sender.send_messages(ServiceBusMessage("x"))
    client.close()
    with pytest.raises(tandem.NamespaceClosedError):
        sender.send_messages(ServiceBusMessage("y"))
    assert not {"get_queue_sender", "close"} & set(vars(client))


def test_what_is_no_client_is_refused():
    with pytest.raises(TypeError, match="ServiceBusClient"):
        tandem.pair("Endpoint=sb://a", "Endpoint=sb://b")


def test_the_program_in_the_guide_runs_and_prints_what_it_should(west: Broker, east: Broker):
    page = Path(__file__).resolve().parent.parent.parent / "docs" / "guide" / "paired-client.md"
    (program,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    asyncio.run(create_queue(west, "orders"))
    environment = {**os.environ, "PRIMARY": west.connection_string, "SECONDARY": east.connection_string, "CA": east.ca}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1 diverted\nagain a ServiceBusSender\n"
