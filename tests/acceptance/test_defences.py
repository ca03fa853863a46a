"""Replication, outbox, pipelined sending and tokens against real brokers."""

from __future__ import annotations

import asyncio
import collections
import signal
import sys

import pytest
from aiohttp import web
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

import tandem
from tandem.aio import (
    ActiveReplication,
    BothNamespacesUnavailableError,
    HttpIssuer,
    IssuerCredential,
    Outbox,
    PassiveReplication,
    PipelinedSender,
    SasCredential,
    SqliteSeenIds,
)
from tests.acceptance.brokers import KEY, KEY_NAME, Broker
from tests.acceptance.conftest import create_queue, drain
from tests.acceptance.proxy import SlowNetwork

DETECTING = {"requires_duplicate_detection": True, "duplicate_detection_history_time_window": "PT1H"}


async def process(receiver) -> list[str]:
    ids = []
    async for message in receiver:
        ids.append(message.message_id)
        await receiver.complete_message(message)
    return ids


# -- replication ---------------------------------------------------------------------------------------------------------


async def test_active_replication_delivers_each_message_once_through_the_loss_of_either_namespace(west: Broker, east: Broker, tmp_path):
    for broker in (west, east):
        await create_queue(broker, "sales")
    seen = SqliteSeenIds(tmp_path / "seen.db")
    async with ActiveReplication(west.connection_string, east.connection_string) as replication:
        async with replication.get_queue_sender("sales") as sender:
            assert (await sender.send_messages(ServiceBusMessage("0", message_id="0"))).by_both
            west.kill()
            acceptance = await sender.send_messages(ServiceBusMessage("1", message_id="1"))
            assert acceptance.accepted == (f"localhost:{east.port}",)
            west.start()
            assert (await sender.send_messages(ServiceBusMessage("2", message_id="2"))).by_both
            east.kill()
            assert (await sender.send_messages(ServiceBusMessage("3", message_id="3"))).accepted == (f"localhost:{west.port}",)
            west.kill()
            with pytest.raises(BothNamespacesUnavailableError):
                await sender.send_messages(ServiceBusMessage("4", message_id="4"))
            west.start()
            east.start()
        async with replication.get_queue_receiver("sales", max_wait_time=3, seen=seen) as receiver:
            assert sorted(await process(receiver)) == ["0", "1", "2", "3"]
        async with replication.get_queue_receiver("sales", max_wait_time=1, seen=seen) as receiver:
            assert await process(receiver) == []
    await seen.close()
    assert await drain(west, "sales") == await drain(east, "sales") == []


async def test_passive_replication_switches_and_the_receiver_meets_both_anomalies(west: Broker, east: Broker):
    for broker in (west, east):
        await create_queue(broker, "sales")
    async with PassiveReplication(west.connection_string, east.connection_string) as replication:
        sender = replication.get_queue_sender("sales")
        assert await sender.send_messages(ServiceBusMessage("m1", message_id="m1")) == f"localhost:{west.port}"
        west.freeze()
        # Frozen, the west has the bytes of m2 and cannot answer: m2 goes to the east as well and exists twice in the end.
        assert await sender.send_messages(ServiceBusMessage("m2", message_id="m2"), timeout=4) == f"localhost:{east.port}"
        assert replication.active_host("sales") == f"localhost:{east.port}"
        async with replication.get_queue_receiver("sales", max_wait_time=4) as receiver:
            (message,) = await receiver.receive_messages(10)
            assert message.message_id == "m2"
            await receiver.complete_message(message)
            west.thaw()
            rest = []
            async with asyncio.timeout(60):
                while not rest:
                    rest = await receiver.receive_messages(10)
            assert [m.message_id for m in rest] == ["m1"]
            await receiver.complete_message(rest[0])
            assert await receiver.receive_messages(10, max_wait_time=2) == []
    assert await drain(west, "sales") == []


async def test_a_redelivery_after_abandon_or_a_lost_lock_is_processed_and_then_suppressed(west: Broker, east: Broker):
    for broker in (west, east):
        await create_queue(broker, "sales", lock_duration="PT5S")
    async with ActiveReplication(west.connection_string, east.connection_string) as replication:
        await replication.get_queue_sender("sales").send_messages([ServiceBusMessage(i, message_id=i) for i in "ab"])
        async with replication.get_queue_receiver("sales", max_wait_time=2) as receiver:
            (first,) = await receiver.receive_messages()
            await receiver.abandon_message(first)
            (second,) = await receiver.receive_messages()
            await asyncio.sleep(5.5)
            with pytest.raises(Exception, match="lock"):
                await receiver.complete_message(second)
            done = await process(receiver)
            assert sorted({second.message_id, *done}) == ["a", "b"]
            assert max(collections.Counter(done).values()) == 1
    assert await drain(west, "sales", wait=6) == await drain(east, "sales") == []


# -- outbox --------------------------------------------------------------------------------------------------------------

SENDER = """
import asyncio, sys
from azure.servicebus import ServiceBusMessage
from tandem.aio import Outbox

async def main():
    path, target, first = sys.argv[1:4]
    async with Outbox(path, target) as outbox:
        for i in range(int(first), 100_000):
            await outbox.send("orders", ServiceBusMessage(str(i), message_id=str(i), session_id="s"))
            sys.stdout.write(f"{i}\\n")
            sys.stdout.flush()
            await asyncio.sleep(0.002)

asyncio.run(main())
"""


@pytest.mark.slow
async def test_an_outbox_survives_sigkill_again_and_again_without_loss_doubles_or_disorder(west: Broker, tmp_path):
    await create_queue(west, "orders", requires_session=True, **DETECTING)
    acknowledged: list[int] = []
    for round_number in range(4):
        sender = await asyncio.create_subprocess_exec(
            sys.executable, "-c", SENDER, str(tmp_path / "outbox.db"), west.connection_string, str(round_number * 1_000),
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        for _ in range(60 + 37 * round_number):
            acknowledged.append(int(await asyncio.wait_for(sender.stdout.readline(), 20)))
        if round_number == 1:
            west.kill()
        sender.send_signal(signal.SIGKILL)
        acknowledged += [int(line) for line in (await sender.stdout.read()).split()]
        await sender.wait()
        if round_number == 2:
            west.start()
    async with Outbox(tmp_path / "outbox.db", west.connection_string) as outbox:
        await outbox.flush(60)
        assert await outbox.dead_letters() == []
    delivered = [int(m.message_id) for m in await drain(west, "orders", session_id="s")]
    assert delivered == sorted(set(delivered))
    assert set(acknowledged) <= set(delivered)
    assert len(delivered) - len(acknowledged) <= 4


# -- pipelined sending ---------------------------------------------------------------------------------------------------


async def test_a_hundred_messages_over_a_round_trip_of_70_ms_take_well_under_a_second(west: Broker):
    await create_queue(west, "orders")
    loop = asyncio.get_running_loop()
    async with SlowNetwork(west.port, 0.035) as network:
        string = west.connection_string.replace(str(west.port), str(network.port))
        async with ServiceBusClient.from_connection_string(string) as client, client.get_queue_sender("orders") as sender:
            async with PipelinedSender(sender, max_in_flight=100) as pipeline:
                started = loop.time()
                report = await pipeline.send_all(ServiceBusMessage(str(i), message_id=str(i)) for i in range(100))
                took = loop.time() - started
            started = loop.time()
            for _ in range(3):
                await sender.send_messages(ServiceBusMessage("one at a time"))
            singly = (loop.time() - started) / 3
    assert report.accepted == 100 and report.failures == []
    assert singly >= 0.07
    assert took < 25 * singly, "a hundred sends, one at a time, take a hundred round trips"
    received = collections.Counter(m.message_id for m in await drain(west, "orders") if m.message_id.isdigit())
    assert received == collections.Counter(map(str, range(100)))


async def test_a_pipeline_reports_refused_messages_one_by_one_and_goes_on_after_a_power_failure(west: Broker):
    await create_queue(west, "orders")
    async with ServiceBusClient.from_connection_string(west.connection_string, retry_total=0) as client:
        pipeline = PipelinedSender(client.get_queue_sender("orders"), max_in_flight=10, timeout=10)
        messages = [ServiceBusMessage(b"x" * (400_000 if i % 10 == 5 else 10), message_id=str(i)) for i in range(40)]
        report = await pipeline.send_all(messages)
        assert report.accepted == 36
        assert [failure.message.message_id for failure in report.failures] == ["5", "15", "25", "35"]
        west.kill()
        report = await pipeline.send_all(ServiceBusMessage("lost") for _ in range(10))
        assert len(report.failures) == 10
        west.start()
        assert (await pipeline.send_all(ServiceBusMessage("again", message_id=f"again-{i}") for i in range(10))).accepted == 10
        await pipeline.close()
    assert len(await drain(west, "orders")) == 46


# -- tokens --------------------------------------------------------------------------------------------------------------


async def test_sends_go_on_while_the_token_issuer_is_down(west: Broker):
    await create_queue(west, "orders")
    signer = SasCredential(KEY_NAME, KEY, lifetime=30)
    asked = []

    async def issue(request: web.Request) -> web.Response:
        form = await request.post()
        asked.append(form["scope"])
        token = await signer.get_token(str(form["scope"]))
        return web.json_response({"access_token": token.token, "expires_on": token.expires_on})

    application = web.Application()
    application.router.add_post("/token", issue)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    issuer = HttpIssuer(f"http://127.0.0.1:{runner.addresses[0][1]}/token", "me", "secret")
    credential = IssuerCredential(issuer, fallback=SasCredential(KEY_NAME, KEY))
    host = f"localhost:{west.port}"
    async with ServiceBusClient(host, credential, use_tls=False, retry_total=0) as client:
        async with client.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("issued"))
        assert asked == [f"sb://{host}/orders"] and credential.issued == 1
        await runner.cleanup()
        async with client.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("held"))
        assert credential.signed_by_fallback == 0
        credential._held.clear()
        async with client.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("signed by ourselves"))
        assert credential.signed_by_fallback == 1
    await credential.close()
    assert len(await drain(west, "orders")) == 3


# -- without await -------------------------------------------------------------------------------------------------------


def test_the_synchronous_names_ride_over_a_power_failure_too(west: Broker, east: Broker):
    asyncio.run(create_queue(west, "orders"))
    with tandem.PairedNamespaces(
        west.connection_string, east.connection_string, primary_namespace="contoso", backlog_queue_count=1, failover_interval=0,
        ping_primary_interval=1, enable_syphon=True, sdk_options={"connection_verify": east.ca},
    ) as pair:  # fmt: skip
        with pair.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("before"))
            west.kill()
            sender.send_messages(ServiceBusMessage("during"))
            assert pair.state("orders").state is tandem.PathState.FAILED_OVER
            west.start()
            pair.mark_path_healthy("orders")
            sender.send_messages(ServiceBusMessage("after"))
        home = asyncio.run(drain(west, "orders", wait=4))
    assert sorted(b"".join(m.body) for m in home) == [b"after", b"before", b"during"]
