"""Sessions kept in order while planner and tasks of the Spark syphon carry the backlog home, through outages of the primary."""

from __future__ import annotations

import asyncio
import collections
import itertools
import os
import threading

import pytest
from azure.servicebus import ServiceBusMessage

from tandem.aio import PairedNamespaces
from tests.acceptance.brokers import Broker
from tests.spark.house import counts, create_queue, ids, take_all
from tests.spark.syphon.test_source import Drain

OUTAGES = int(os.environ.get("TANDEM_ORDER_OUTAGES", "2"))
SESSIONS = 3
QUEUES = [f"contoso/x-servicebus-transfer/{number}" for number in range(2)]


def carry(drain: Drain, stop: threading.Event) -> None:
    """What Spark does: plan, run the tasks, plan again."""
    while not stop.is_set():
        if drain.plan():
            drain.run()
    drain.die()


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_every_session_stays_in_order_through_outages(mortal: Broker, mortal_too: Broker) -> None:
    create_queue(mortal, "orders", requires_duplicate_detection=True)
    stop = threading.Event()
    sent: list[str] = []
    async with PairedNamespaces(
        mortal.connection_string, mortal_too.connection_string, sdk_options={"connection_verify": mortal_too.ca},
        primary_namespace="contoso", backlog_queue_count=2, failover_interval=0, ping_primary_interval=1, keep_session_order=True,
    ) as pair, pair.get_queue_sender("orders") as sender:  # fmt: skip
        syphon = threading.Thread(target=carry, args=(Drain(mortal, mortal_too, *QUEUES), stop))
        syphon.start()

        async def send(count: int) -> None:
            for _ in range(count):
                name = f"{len(sent) % SESSIONS}-{len(sent):06d}"
                await sender.send_messages(ServiceBusMessage("x", message_id=name, session_id=name[0]))
                sent.append(name)

        for _ in range(OUTAGES):
            await send(10)
            await asyncio.to_thread(mortal.kill)
            await send(60)
            await asyncio.to_thread(mortal.start)
            async with asyncio.timeout(60):
                await pair.monitor("orders").healed.wait()
                while pair.state("orders").held_sessions:
                    await send(1)
        await send(10)
        stop.set()
        await asyncio.to_thread(syphon.join, 60)
    arrived = collections.defaultdict(list)
    for message_id in ids(take_all(mortal, "orders")):
        arrived[message_id[0]].append(message_id)
    assert sorted(itertools.chain(*arrived.values()), key=lambda one: one[2:]) == sent
    assert all(names == sorted(names) for names in arrived.values())
    left = [counts(mortal_too, queue) for queue in QUEUES]
    assert not any(count["active"] + count["leased"] for count in left), "fences are gone too"
