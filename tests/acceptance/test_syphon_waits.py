"""The syphon waits for destinations that are not there for a moment, bridges a flapping primary, and carries dead letters home."""

from __future__ import annotations

import asyncio
import dataclasses
import subprocess
import sys

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import EntityStatus

from tandem.aio import PairedNamespaces
from tests.acceptance.brokers import Broker
from tests.acceptance.conftest import administration, create_queue, drain
from tests.acceptance.test_paired import BACKLOG, body
from tests.acceptance.test_paired_outages import moved
from tests.waiting import until


async def divert(pair: PairedNamespaces, path: str, count: int) -> None:
    async with pair.get_queue_sender(path) as sender:
        await pair.fail_over(path, hold=True)
        await sender.send_messages([ServiceBusMessage(str(n), message_id=f"{path}-{n}") for n in range(count)])
        await pair.mark_path_healthy(path)


async def set_status(broker: Broker, name: str, status: EntityStatus) -> None:
    async with administration(broker) as client:
        queue = await client.get_queue(name)
        queue.status = status
        await client.update_queue(queue)


@pytest.mark.parametrize("how", ["disabled", "missing"])
async def test_a_destination_that_is_not_there_for_a_moment_gets_everything_once_it_is(make_pair, west: Broker, east: Broker, how: str):
    await create_queue(west, "orders")
    sender = await make_pair()
    await divert(sender, "orders", 57)
    if how == "disabled":
        await set_status(west, "orders", EntityStatus.SEND_DISABLED)
    else:
        async with administration(west) as client:
            await client.delete_queue("orders")
    waiting, back = asyncio.Event(), asyncio.Event()
    kinds = {"destination-waiting": waiting, "destination-back": back}
    syphon = await make_pair(enable_syphon=True, on_event=lambda event: kinds[event.kind].set() if event.kind in kinds else None)
    async with asyncio.timeout(30):
        await waiting.wait()
        assert syphon.counters.destinations_waiting == 1
        if how == "disabled":
            await set_status(west, "orders", EntityStatus.ACTIVE)
        else:
            await create_queue(west, "orders")
        await back.wait()
    await moved(syphon, 57)
    assert syphon.counters.syphon_dead_lettered == 0 and syphon.counters.destinations_waiting == 0
    assert sorted(int(body(m)) for m in await drain(west, "orders")) == list(range(57))


async def test_a_flapping_primary_does_not_make_the_syphon_start_over(make_pair, west: Broker, east: Broker):
    await create_queue(west, "orders", requires_duplicate_detection=True)
    sender = await make_pair()
    for _ in range(8):
        async with sender.get_queue_sender("orders") as one:
            await sender.fail_over("orders", hold=True)
            await one.send_messages([ServiceBusMessage("x" * 100) for _ in range(100)])
    await sender.mark_path_healthy("orders")
    syphon = await make_pair(enable_syphon=True)
    # On a busy machine a broker takes longer to start than a batch is kept in hand, which would be an outage and no flap.
    syphon.syphon.settings = dataclasses.replace(syphon.syphon.settings, hold=30.0)
    for _ in range(3):
        enough = min(800, syphon.counters.syphon_moved + 50)
        await until(lambda enough=enough: syphon.counters.syphon_moved >= enough, 30)
        west.kill()
        await asyncio.to_thread(west.start)
    await moved(syphon, 800)
    # Two queues with a batch of a hundred in hand each: given back once at most, instead of ever larger ones with every flap.
    assert syphon.counters.syphon_returned <= 200
    assert len(await drain(west, "orders")) == 800


def carry(west: Broker, east: Broker) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tandem", "syphon", "--dead-letters", "--name", "contoso", "--queues", "3", "--ca", east.ca]
    sides = ["--primary", west.connection_string, "--secondary", east.connection_string]
    return subprocess.run([*command, *sides], capture_output=True, text=True, timeout=60, check=False)


async def test_dead_letters_come_home_when_told_to_and_what_is_refused_again_stays(make_pair, west: Broker, east: Broker):
    await create_queue(west, "orders")
    sender = await make_pair(backlog_queue_count=1)
    await divert(sender, "orders", 40)
    await divert(sender, "never", 2)
    await set_status(west, "orders", EntityStatus.SEND_DISABLED)
    syphon = await make_pair(enable_syphon=True, backlog_queue_count=1, destination_wait=0)
    await until(lambda: syphon.counters.syphon_dead_lettered >= 42, 30)
    await syphon.close()
    await set_status(west, "orders", EntityStatus.ACTIVE)
    done = await asyncio.to_thread(carry, west, east)
    assert (done.returncode, done.stdout) == (1, "carried home 40  left 2\n"), done.stderr
    assert "2 x never: MessagingEntityNotFoundError" in done.stderr
    home = await drain(west, "orders")
    assert [body(m) for m in home] == [str(n) for n in range(40)]
    assert all(not m.application_properties for m in home)
    await create_queue(west, "never")
    done = await asyncio.to_thread(carry, west, east)
    assert (done.returncode, done.stdout, done.stderr) == (0, "carried home 2  left 0\n", "")
    assert await drain(east, f"{BACKLOG[0]}/$DeadLetterQueue") == []
