"""The acceptance checks of paired namespaces, against two brokers as processes, with power failures.

The fifth, one entity down and another up, stands in test_paired_faults.py.
"""

from __future__ import annotations

import asyncio
import datetime
import uuid

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusError,
)

from tandem.aio import PairedNamespaces, PathState, SendAvailabilityBacklogError, SendAvailabilityMessagingError
from tandem.client.coupling import SideState
from tandem.client.ping import ping_message
from tests.acceptance.brokers import KEY_NAME, Broker
from tests.acceptance.conftest import administration, create_queue, drain
from tests.waiting import until

BACKLOG = ["contoso/x-servicebus-transfer/0", "contoso/x-servicebus-transfer/1"]


def body(message: ServiceBusReceivedMessage) -> str:
    return b"".join(message.body).decode()


async def healed(pair: PairedNamespaces, path: str) -> None:
    async with asyncio.timeout(30):
        await pair.monitor(path).healed.wait()


async def backlog(east: Broker) -> list[ServiceBusReceivedMessage]:
    return [message for queue in await asyncio.gather(*(drain(east, name, wait=0.3) for name in BACKLOG)) for message in queue]


# -- 0. pairing itself ---------------------------------------------------------------------------------------------------


async def test_pairing_creates_the_documented_queues_and_keeps_what_exists(make_pair, west: Broker, east: Broker):
    await create_queue(east, BACKLOG[1], max_size_in_megabytes=1024)
    await create_queue(east, "contoso/x-servicebus-transfer/7")
    pair = await make_pair(backlog_queue_count=3)
    assert pair.backlog_queue_count == 3
    async with administration(east) as client:
        names = sorted([queue.name async for queue in client.list_queues()])
        assert names == [f"contoso/x-servicebus-transfer/{i}" for i in (0, 1, 2, 7)]
        made = await client.get_queue(BACKLOG[0])
        assert made.max_size_in_megabytes == 5120
        assert made.max_delivery_count == 2147483647
        assert made.lock_duration == datetime.timedelta(minutes=1)
        assert made.dead_lettering_on_message_expiration is True and made.enable_batched_operations is True
        assert made.default_message_time_to_live > datetime.timedelta(days=10_000_000)
        assert made.auto_delete_on_idle > datetime.timedelta(days=10_000_000)
        assert not made.requires_session and not made.requires_duplicate_detection
        assert (await client.get_queue(BACKLOG[1])).max_size_in_megabytes == 1024


async def test_pairing_without_manage_uses_the_queues_that_exist(west: Broker, east: Broker):
    await create_queue(east, BACKLOG[0])
    client = ServiceBusClient.from_connection_string(east.connection_string, retry_total=0)
    async with PairedNamespaces(west.connection_string, client, primary_namespace="contoso", backlog_queue_count=2) as pair:
        assert pair.backlog_queue_count == 1
    await client.close()


async def test_pairing_uses_the_queues_that_exist_where_administration_cannot_be_reached(west: Broker, east: Broker):
    for queue in BACKLOG:
        await create_queue(east, queue)
    # Nothing says which authority to trust, so that its HTTPS cannot be used; AMQP can.
    async with PairedNamespaces(
        west.connection_string, east.connection_string, primary_namespace="contoso", backlog_queue_count=2, enable_syphon=True
    ) as pair:
        assert pair.backlog_confirmed and pair.backlog_queue_count == 2
        assert pair.syphon is not None and pair.syphon.running


async def test_pairing_with_no_queue_or_a_wrong_key_says_so(west: Broker, east: Broker):
    client = ServiceBusClient.from_connection_string(east.connection_string, retry_total=0)
    with pytest.raises(SendAvailabilityBacklogError, match="could not be found"):
        await PairedNamespaces(west.connection_string, client, primary_namespace="contoso", backlog_queue_count=1).pair()
    await client.close()
    await create_queue(east, BACKLOG[0])
    wrong = ServiceBusClient.from_connection_string(east.string_for(KEY_NAME, "wrong"), retry_total=0)
    with pytest.raises(ServiceBusAuthenticationError):
        await PairedNamespaces(west.connection_string, wrong, primary_namespace="contoso", backlog_queue_count=1).pair()
    await wrong.close()


# -- 1. interval 0 -------------------------------------------------------------------------------------------------------


async def test_1_with_interval_0_the_send_that_meets_a_dead_primary_succeeds_with_all_four_aliases(make_pair, west, east):
    await create_queue(west, "orders", requires_session=True)
    pair = await make_pair()
    async with pair.get_queue_sender("orders") as sender:
        await sender.send_messages(ServiceBusMessage("warm", session_id="s"))
        west.kill()
        await sender.send_messages(
            ServiceBusMessage(
                "x",
                session_id="s-1",
                time_to_live=datetime.timedelta(minutes=5),
                scheduled_enqueue_time_utc=datetime.datetime(2041, 1, 1, tzinfo=datetime.UTC),
            )
        )
    (message,) = await backlog(east)
    assert {key for key in message.application_properties if key.startswith(b"x-ms-")} == {
        b"x-ms-path", b"x-ms-sessionid", b"x-ms-timetolive", b"x-ms-scheduledenqueuetimeutc",
    }  # fmt: skip
    assert message.application_properties[b"x-ms-path"] == b"orders"
    assert message.session_id is None and message.time_to_live is None and message.scheduled_enqueue_time_utc is None


# -- 2. interval 2 s -----------------------------------------------------------------------------------------------------


async def test_2_with_an_interval_the_first_send_raises_later_ones_divert_and_a_ping_heals(make_pair, west, east):
    await create_queue(west, "orders")
    pair = await make_pair(failover_interval=2)
    loop = asyncio.get_running_loop()
    async with pair.get_queue_sender("orders") as sender:
        await sender.send_messages(ServiceBusMessage("before"))
        west.kill()
        suspected = loop.time()
        with pytest.raises(ServiceBusError):
            await sender.send_messages(ServiceBusMessage("lost to the caller"))
        await until(lambda: sender.state is PathState.FAILED_OVER, 20)
        switched = loop.time()
        assert switched - suspected >= 1.9
        await sender.send_messages(ServiceBusMessage("diverted"))
        pings = pair.counters.pings_sent
        west.start()
        await healed(pair, "orders")
        assert loop.time() - switched >= 1.0 and pair.counters.pings_sent > pings
        await sender.send_messages(ServiceBusMessage("after"))
    assert sorted(body(m) for m in await drain(west, "orders")) == ["after", "before"]
    assert [body(m) for m in await backlog(east)] == ["diverted"]


# -- 3. round trip -------------------------------------------------------------------------------------------------------


def visible(message: ServiceBusReceivedMessage) -> dict:
    raw = message.raw_amqp_message
    annotations = {k: v for k, v in (raw.annotations or {}).items() if not k.startswith((b"x-opt-enq", b"x-opt-seq", b"x-opt-lock"))}
    properties = dict(raw.properties.items())
    return {
        "ttl": message.time_to_live,
        "scheduled": message.scheduled_enqueue_time_utc,
        "annotations": annotations,
        "properties": {k: v for k, v in properties.items() if k not in ("creation_time", "absolute_expiry_time")},
        "application": {k: (type(v).__name__, v) for k, v in (raw.application_properties or {}).items()},
        "body": list(raw.body) if raw.body_type.value != "value" else raw.body,
        "body_type": raw.body_type,
        "footer": raw.footer,
    }


def everything(message_id: str) -> AmqpAnnotatedMessage:
    soon = datetime.datetime.now(datetime.UTC).replace(microsecond=0) + datetime.timedelta(seconds=3)
    return AmqpAnnotatedMessage(
        data_body=[b"\x00\x01", b"second section"],
        header={"time_to_live": 3_600_000, "priority": 7, "durable": True},
        properties={
            "message_id": message_id, "group_id": "s-1", "subject": "label", "correlation_id": "c", "to": "t", "reply_to": "r",
            "reply_to_group_id": "rs", "content_type": "text/plain", "content_encoding": "utf-8", "group_sequence": 4, "user_id": b"u",
        },
        annotations={"x-opt-scheduled-enqueue-time": soon, "x-opt-partition-key": "s-1", "x-opt-mine": "kept"},
        application_properties={
            "int": 5, "long": {"TYPE": "LONG", "VALUE": 2**40}, "float": 1.5, "true": True, "none": None, "text": "é",
            "when": datetime.datetime(2020, 1, 2), "id": uuid.UUID(int=7), "uint": {"TYPE": "UINT", "VALUE": 9},
        },
        footer={"x-opt-foot": "note"},
    )  # fmt: skip


async def test_3_a_message_with_session_ttl_and_schedule_comes_home_through_the_syphon_equal(make_pair, west, east):
    await create_queue(west, "orders", requires_session=True)
    pair = await make_pair(enable_syphon=True)
    direct, diverted = everything("direct"), everything("diverted")
    async with pair.get_queue_sender("orders") as sender:
        await sender.send_messages(direct)
        west.kill()
        await sender.send_messages(diverted)
        west.start()
        await healed(pair, "orders")
    await until(lambda: pair.counters.syphon_moved >= 1, 30)
    first, second = await drain(west, "orders", wait=6, session_id="s-1")
    a, b = visible(first), visible(second)
    for view in (a, b):
        view["properties"].pop("message_id")
        view.pop("scheduled")
        view["annotations"].pop(b"x-opt-scheduled-enqueue-time")
    assert a == b
    sent = diverted.annotations["x-opt-scheduled-enqueue-time"]
    mine = first if first.message_id == "diverted" else second
    assert mine.scheduled_enqueue_time_utc == sent and mine.enqueued_time_utc >= sent


# -- 4. dead letters -----------------------------------------------------------------------------------------------------


async def test_4_what_cannot_go_home_is_dead_lettered_with_the_documented_reasons(make_pair, west, east):
    pair = await make_pair(backlog_queue_count=1, destination_wait=0)
    async with ServiceBusClient.from_connection_string(east.connection_string) as client, client.get_queue_sender(BACKLOG[0]) as sender:
        await sender.send_messages(ServiceBusMessage("1", application_properties={"x-ms-path": "q", "x-ms-timetolive": "never"}))
        await sender.send_messages(ServiceBusMessage("2", application_properties={"other": 1}))
        await sender.send_messages(ServiceBusMessage("3", application_properties={"x-ms-path": "no-such-queue"}))
        await sender.send_messages(ServiceBusMessage("4", application_properties={"x-ms-path": 5}))
    pair._make_syphon(None)
    pair.syphon.start([BACKLOG[0]])
    await until(lambda: pair.counters.syphon_dead_lettered >= 4, 30)
    dead = await drain(east, BACKLOG[0] + "/$DeadLetterQueue")
    reasons = {body(m): (m.dead_letter_reason, m.dead_letter_error_description) for m in dead}
    assert {k: v[0] for k, v in reasons.items()} == {
        "1": "property extraction", "2": "no queue path", "3": "not retryable", "4": "no queue path",
    }  # fmt: skip
    assert "x-ms-timetolive" in reasons["1"][1]
    assert "no-such-queue" in reasons["3"][1] and "MessagingEntityNotFoundError" in reasons["3"][1]


# -- 6. pings ------------------------------------------------------------------------------------------------------------


async def test_6_a_ping_is_accepted_everywhere_and_seen_nowhere(west: Broker):
    async with administration(west) as admin:
        await admin.create_queue("plain")
        await admin.create_queue("sessions", requires_session=True)
        await admin.create_topic("news")
        await admin.create_subscription("news", "all")
    async with ServiceBusClient.from_connection_string(west.connection_string) as client:
        for path in ("plain", "sessions", "news"):
            async with client.get_queue_sender(path) as sender:
                await sender.send_messages(ping_message(lambda: str(uuid.uuid4())))
        for receiver in (client.get_queue_receiver("plain"), client.get_subscription_receiver("news", "all")):
            async with receiver:
                assert await receiver.peek_messages(10) == []
                assert await receiver.receive_messages(max_wait_time=0.5) == []
    async with administration(west) as admin:
        for queue in ("plain", "sessions"):
            counts = await admin.get_queue_runtime_properties(queue)
            assert (counts.total_message_count, counts.dead_letter_message_count) == (0, 0)
        assert (await admin.get_subscription_runtime_properties("news", "all")).total_message_count == 0


# -- 7. sizes ------------------------------------------------------------------------------------------------------------


async def test_7_a_message_of_256_kb_and_a_packed_batch_divert(make_pair, west, east):
    await create_queue(west, "orders")
    pair = await make_pair(enable_syphon=True)
    # The whole message is as large as a paired send may be: the limit of both entities less the head-room.
    limit = min(262_144, pair.backlog_message_bytes_max - 1_024)
    big = ServiceBusMessage(b"x" * (limit - 200), message_id="big", session_id="s" * 100)
    async with pair.get_queue_sender("orders") as sender:
        batch = await sender.create_message_batch()
        count = 0
        while True:
            try:
                batch.add_message(ServiceBusMessage(b"y" * 1_000, message_id=f"m{count}", session_id="s"))
            except MessageSizeExceededError:
                break
            count += 1
        west.kill()
        await sender.send_messages(big)
        await sender.send_messages(batch)
        assert pair.counters.diverted == count + 1
        west.start()
        await healed(pair, "orders")
    await until(lambda: pair.counters.syphon_moved >= count + 1, 60)
    home = await drain(west, "orders")
    assert sorted(m.message_id for m in home) == sorted(["big", *(f"m{i}" for i in range(count))])
    assert len(b"".join(next(m for m in home if m.message_id == "big").body)) == limit - 200


# -- 8. the syphon dies between send and complete ------------------------------------------------------------------------


@pytest.mark.parametrize("detection", [True, False], ids=["with detection", "without"])
async def test_8_a_syphon_killed_between_send_and_complete_doubles_unless_duplicates_are_detected(make_pair, west, east, detection):
    properties = {"requires_duplicate_detection": True, "duplicate_detection_history_time_window": "PT10M"} if detection else {}
    await create_queue(west, "orders", **properties)
    await create_queue(east, BACKLOG[0], lock_duration="PT5S")
    pair = await make_pair(backlog_queue_count=1)
    await pair.fail_over("orders", hold=True)
    await pair.get_queue_sender("orders").send_messages(ServiceBusMessage("x", message_id="m"))
    await pair.mark_path_healthy("orders")
    first = await make_pair(backlog_queue_count=1)
    first._make_syphon(None)
    first.syphon.start([BACKLOG[0]])
    moved = asyncio.Event()

    async def die(*_: object) -> None:
        moved.set()
        await asyncio.get_running_loop().create_future()

    first.syphon._complete = die
    async with asyncio.timeout(20):
        await moved.wait()
    for task in first.syphon._tasks:
        task.cancel()
    second = await make_pair(backlog_queue_count=1, enable_syphon=True)
    await until(lambda: second.counters.syphon_moved >= 1, 30)
    assert [m.message_id for m in await drain(west, "orders")] == (["m"] if detection else ["m", "m"])


# -- 9. closing ----------------------------------------------------------------------------------------------------------


async def test_9_closing_the_primary_closes_the_secondary_where_a_syphon_runs_and_not_elsewhere(make_pair):
    hosting, plain = await make_pair(enable_syphon=True), await make_pair()
    await hosting.primary.close()
    await plain.primary.close()
    await until(lambda: hosting.secondary.state is not SideState.OPEN, 5)
    assert not hosting.syphon.running
    assert plain.secondary.state is SideState.OPEN


# -- 10. what never fails over -------------------------------------------------------------------------------------------


async def test_10_authorization_not_found_and_disabled_never_cause_failover(make_pair, west, east):
    await create_queue(west, "disabled")
    async with administration(west) as client:
        properties = await client.get_queue("disabled")
        properties.status = "Disabled"
        await client.update_queue(properties)
    pair = await make_pair()
    with pytest.raises(MessagingEntityNotFoundError):
        await pair.get_queue_sender("missing").send_messages(ServiceBusMessage("x"))
    with pytest.raises(MessagingEntityDisabledError):
        await pair.get_queue_sender("disabled").send_messages(ServiceBusMessage("x"))
    wrong = PairedNamespaces(
        west.string_for(KEY_NAME, "wrong"), east.connection_string, primary_namespace="contoso", backlog_queue_count=1,
        failover_interval=0, sdk_options={"connection_verify": east.ca},
    )  # fmt: skip
    async with wrong:
        with pytest.raises(ServiceBusAuthenticationError):
            await wrong.get_queue_sender("orders").send_messages(ServiceBusMessage("x"))
        assert wrong.state("orders").state is PathState.HEALTHY
    assert [s.state for s in pair.states()] == [PathState.HEALTHY, PathState.HEALTHY]
    assert await backlog(east) == []


# -- poisoned ------------------------------------------------------------------------------------------------------------


async def test_a_path_whose_entity_was_deleted_during_the_outage_is_poisoned_until_it_exists_again(make_pair, west, east):
    await create_queue(west, "orders")
    pair = await make_pair()
    async with pair.get_queue_sender("orders") as sender:
        await pair.fail_over("orders", hold=True)
        await sender.send_messages(ServiceBusMessage("diverted"))
        async with administration(west) as client:
            await client.delete_queue("orders")
        pair.monitor("orders").health.held = False
        await until(lambda: sender.state is PathState.POISONED, 20)
        with pytest.raises(SendAvailabilityMessagingError):
            await sender.send_messages(ServiceBusMessage("x"))
        await create_queue(west, "orders")
        await healed(pair, "orders")
        await sender.send_messages(ServiceBusMessage("again"))
    assert [body(m) for m in await drain(west, "orders")] == ["again"]
