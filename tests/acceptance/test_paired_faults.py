"""Faults injected into a broker that keeps running: one entity of many, lost answers, a busy server, a store gone."""

from __future__ import annotations

import asyncio

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusQuotaExceededError, ServiceBusServerBusyError

from tandem.aio import PassiveReplication, PathState
from tests.acceptance.brokers import Broker
from tests.acceptance.conftest import create_queue, drain
from tests.acceptance.test_paired import backlog, body, healed


@pytest.fixture(autouse=True)
def healed_afterwards(west: Broker, east: Broker):
    yield
    for broker in (west, east):
        broker.thaw()
        if broker.running:
            broker.heal()


async def inject(broker: Broker, kind: str, **fields: object) -> None:
    await asyncio.to_thread(broker.inject, kind, **fields)


async def test_5_one_entity_down_another_up_in_one_process(make_pair, west: Broker, east: Broker):
    for name in ("down", "up"):
        await create_queue(west, name)
    pair = await make_pair()
    down, up = pair.get_queue_sender("down"), pair.get_queue_sender("up")
    await down.send_messages(ServiceBusMessage("before"))
    await inject(west, "entity-error", entity="down", condition="amqp:internal-error")
    await down.send_messages(ServiceBusMessage("d"))
    await up.send_messages(ServiceBusMessage("u"))
    assert (down.state, up.state) == (PathState.FAILED_OVER, PathState.HEALTHY)
    assert [body(m) for m in await backlog(east)] == ["d"]
    await asyncio.to_thread(west.heal)
    await healed(pair, "down")
    await down.send_messages(ServiceBusMessage("after"))
    assert [body(m) for m in await drain(west, "down")] == ["before", "after"]
    assert [body(m) for m in await drain(west, "up")] == ["u"]


async def test_an_entity_that_never_answers_is_left_while_its_neighbour_is_not(make_pair, west: Broker, east: Broker):
    for name in ("silent", "up"):
        await create_queue(west, name)
    pair = await make_pair()
    silent, up = pair.get_queue_sender("silent"), pair.get_queue_sender("up")
    await silent.send_messages(ServiceBusMessage("before"))
    await inject(west, "entity-unreachable", entity="silent")
    await silent.send_messages(ServiceBusMessage("s"), timeout=4)
    await up.send_messages(ServiceBusMessage("u"))
    assert (silent.state, up.state) == (PathState.FAILED_OVER, PathState.HEALTHY)
    assert [body(m) for m in await backlog(east)] == ["s"]


@pytest.mark.parametrize(
    ("condition", "error"),
    [("com.microsoft:server-busy", ServiceBusServerBusyError), ("amqp:resource-limit-exceeded", ServiceBusQuotaExceededError)],
)
async def test_10_a_busy_or_full_entity_never_causes_failover(make_pair, west: Broker, east: Broker, condition, error):
    await create_queue(west, "orders")
    pair = await make_pair()
    sender = pair.get_queue_sender("orders")
    await sender.send_messages(ServiceBusMessage("before"))
    await inject(west, "entity-error", entity="orders", condition=condition)
    for _ in range(3):
        with pytest.raises(error):
            await sender.send_messages(ServiceBusMessage("x"))
    assert sender.state is PathState.HEALTHY
    await asyncio.to_thread(west.heal)
    await sender.send_messages(ServiceBusMessage("after"))
    assert [body(m) for m in await drain(west, "orders")] == ["before", "after"]
    assert await backlog(east) == []


async def test_a_lost_answer_is_repeated_under_the_same_id_and_detected(make_pair, west: Broker, east: Broker):
    await create_queue(west, "orders", requires_duplicate_detection=True, duplicate_detection_history_time_window="PT10M")
    pair = await make_pair()
    sender = pair.get_queue_sender("orders")
    await sender.send_messages(ServiceBusMessage("before", message_id="before"))
    await inject(west, "lose-acknowledgement", entity="orders", count=1)
    await sender.send_messages(ServiceBusMessage("x", message_id="x"))
    assert [m.message_id for m in await drain(west, "orders")] == ["before", "x"]


async def test_anomaly_two_of_passive_replication_two_copies_one_delivery(west: Broker, east: Broker):
    for broker in (west, east):
        await create_queue(broker, "sales")
    async with PassiveReplication(west.connection_string, east.connection_string) as replication:
        await inject(west, "lose-acknowledgement", entity="sales", count=1)
        async with replication.get_queue_sender("sales") as sender:
            assert await sender.send_messages(ServiceBusMessage("m", message_id="m")) == f"localhost:{east.port}"
        async with replication.get_queue_receiver("sales", max_wait_time=2) as receiver:
            ids = []
            async for message in receiver:
                ids.append(message.message_id)
                await receiver.complete_message(message)
            assert ids == ["m"] and receiver.counters.suppressed == 1
    assert await drain(west, "sales") == await drain(east, "sales") == []
