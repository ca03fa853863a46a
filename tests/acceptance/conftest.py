"""Two data centres: two brokers that the tests kill and start at will, and entities made through the administration client."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

import pytest
from azure.servicebus import ServiceBusReceivedMessage, ServiceBusReceiveMode
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.aio.management import ServiceBusAdministrationClient

from tandem.aio import PairedNamespaces
from tests.acceptance.brokers import Broker


@pytest.fixture(scope="session")
def running_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, Broker]]:
    home = tmp_path_factory.mktemp("data-centres")
    brokers = (Broker(home, "west"), Broker(home, "east"))
    for broker in brokers:
        broker.launch()
    for broker in brokers:
        broker.wait_ready()
    yield brokers
    for broker in brokers:
        broker.stop()


@pytest.fixture
def data_centres(running_brokers: tuple[Broker, Broker]) -> Iterator[tuple[Broker, Broker]]:
    """Both brokers up and without entities, whatever the test before has done to them."""
    for broker in running_brokers:
        if not broker.running:
            broker.start()
        broker.thaw()
    asyncio.run(_clear_both(running_brokers))
    yield running_brokers


async def _clear(broker: Broker) -> None:
    async with administration(broker) as client:
        for queue in [queue.name async for queue in client.list_queues()]:
            await client.delete_queue(queue)
        for topic in [topic.name async for topic in client.list_topics()]:
            await client.delete_topic(topic)


async def _clear_both(brokers: tuple[Broker, Broker]) -> None:
    await asyncio.gather(*map(_clear, brokers))


@pytest.fixture
def west(data_centres: tuple[Broker, Broker]) -> Broker:
    return data_centres[0]


@pytest.fixture
def east(data_centres: tuple[Broker, Broker]) -> Broker:
    return data_centres[1]


@contextlib.asynccontextmanager
async def administration(broker: Broker) -> AsyncIterator[ServiceBusAdministrationClient]:
    async with ServiceBusAdministrationClient.from_connection_string(broker.connection_string, connection_verify=broker.ca) as client:
        yield client


async def create_queue(broker: Broker, name: str, **properties) -> None:
    async with administration(broker) as client:
        await client.create_queue(name, **properties)


async def drain(broker: Broker, path: str, wait: float = 0.6, **options) -> list[ServiceBusReceivedMessage]:
    """Every message of a queue, taken out of it in order."""
    received: list[ServiceBusReceivedMessage] = []
    topic, _, subscription = path.partition("/Subscriptions/")
    async with ServiceBusClient.from_connection_string(broker.connection_string) as client:
        options.setdefault("receive_mode", ServiceBusReceiveMode.RECEIVE_AND_DELETE)
        if subscription:
            receiver = client.get_subscription_receiver(topic, subscription, **options)
        else:
            receiver = client.get_queue_receiver(path, **options)
        async with receiver:
            while True:
                batch = await receiver.receive_messages(max_message_count=500, max_wait_time=wait)
                if not batch:
                    return received
                received.extend(batch)


@pytest.fixture
async def make_pair(west: Broker, east: Broker):
    pairs: list[PairedNamespaces] = []

    async def make(primary: Broker = west, secondary: Broker = east, **options) -> PairedNamespaces:
        options.setdefault("primary_namespace", "contoso")
        options.setdefault("backlog_queue_count", 2)
        options.setdefault("failover_interval", 0)
        options.setdefault("ping_primary_interval", 1)
        options.setdefault("operation_timeout", 20)
        pair = PairedNamespaces(
            primary.connection_string, secondary.connection_string, sdk_options={"connection_verify": secondary.ca}, **options
        )
        pairs.append(pair)
        await pair.pair()
        return pair

    yield make
    await asyncio.gather(*(pair.close() for pair in pairs))
