from __future__ import annotations

import asyncio
import datetime

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)

from tandem.amqp import decode_message
from tandem.client.envelope import unwrap_payload
from tandem.client.errors import AliasInUseError, BothNamespacesUnavailableError
from tandem.client.health import PathState
from tandem.client.sdk_codec import payload_from_message
from tests.client.scripted import ScriptedNamespace, delaying, raising
from tests.waiting import until

BACKLOG = [f"contoso/x-servicebus-transfer/{i}" for i in range(3)]


def diverted(secondary: ScriptedNamespace) -> list:
    return [stored for name in BACKLOG for stored in secondary.entity(name).messages]


async def test_while_healthy_messages_reach_the_primary_unchanged(make_pair, primary, secondary):
    pair = await make_pair()
    message = ServiceBusMessage("x", session_id="s", application_properties={"a": 1})
    async with pair.get_queue_sender("orders") as sender:
        await sender.send_messages(message)
    (stored,) = primary.entity("orders").messages
    assert stored.payload == payload_from_message(message)
    assert diverted(secondary) == []


async def test_the_send_that_meets_the_failure_is_diverted_when_the_interval_is_zero(make_pair, primary, secondary):
    pair = await make_pair()
    primary.down()
    sender = pair.get_queue_sender("orders")
    await sender.send_messages(
        ServiceBusMessage(
            "x",
            session_id="s",
            time_to_live=datetime.timedelta(minutes=5),
            scheduled_enqueue_time_utc=datetime.datetime(2031, 1, 1, tzinfo=datetime.UTC),
        )
    )
    (stored,) = diverted(secondary)
    assert set(stored.parts.application_properties) == {
        "x-ms-path",
        "x-ms-sessionid",
        "x-ms-timetolive",
        "x-ms-scheduledenqueuetimeutc",
    }
    assert stored.parts.application_properties["x-ms-path"] == "orders"


async def test_while_suspect_the_caller_hears_the_error_and_after_the_interval_sends_divert(make_pair, primary, secondary):
    pair = await make_pair(failover_interval=0.3)
    primary.down()
    sender = pair.get_queue_sender("orders")
    with pytest.raises(ServiceBusConnectionError):
        await sender.send_messages(ServiceBusMessage("1"))
    assert sender.state is PathState.SUSPECT
    with pytest.raises(ServiceBusConnectionError):
        await sender.send_messages(ServiceBusMessage("2"))
    await until(lambda: sender.state is not PathState.SUSPECT, 5)
    await sender.send_messages(ServiceBusMessage("3"))
    assert len(diverted(secondary)) == 1


async def test_one_failure_and_silence_is_probed_before_the_path_is_left(make_pair, primary):
    pair = await make_pair(failover_interval=0.05)
    sender = pair.get_queue_sender("orders")
    primary.behave("orders", raising(lambda: ServiceBusConnectionError(message="blip")), times=1)
    with pytest.raises(ServiceBusConnectionError):
        await sender.send_messages(ServiceBusMessage("1"))
    await until(lambda: sender.state is not PathState.SUSPECT, 5)
    assert sender.state is PathState.HEALTHY
    assert len(primary.entity("orders").pings) == 1


async def test_a_probe_that_fails_fails_the_path_over(make_pair, primary):
    pair = await make_pair(failover_interval=0.05)
    sender = pair.get_queue_sender("orders")
    primary.down()
    with pytest.raises(ServiceBusConnectionError):
        await sender.send_messages(ServiceBusMessage("1"))
    await until(lambda: sender.state is PathState.FAILED_OVER, 5)


async def test_a_success_within_the_interval_ends_the_suspicion(make_pair, primary):
    pair = await make_pair(failover_interval=60)
    sender = pair.get_queue_sender("orders")
    primary.behave("orders", raising(lambda: ServiceBusConnectionError(message="blip")), times=1)
    with pytest.raises(ServiceBusConnectionError):
        await sender.send_messages(ServiceBusMessage("1"))
    await sender.send_messages(ServiceBusMessage("2"))
    assert sender.state is PathState.HEALTHY


@pytest.mark.parametrize(
    "error",
    [
        ServiceBusAuthorizationError(message="claim"),
        MessagingEntityNotFoundError(message="gone"),
        ServiceBusServerBusyError(message="busy"),
        ServiceBusQuotaExceededError(message="full"),
        MessageSizeExceededError(message="big"),
        ValueError("bad"),
    ],
    ids=lambda e: type(e).__name__,
)
async def test_errors_that_are_not_loss_of_reachability_are_raised_and_never_fail_over(make_pair, primary, secondary, error):
    pair = await make_pair()
    primary.behave("orders", raising(lambda: error))
    sender = pair.get_queue_sender("orders")
    with pytest.raises(type(error)):
        await sender.send_messages(ServiceBusMessage("x"))
    assert sender.state is PathState.HEALTHY
    assert diverted(secondary) == []


async def test_the_predicate_is_replaceable(make_pair, primary, secondary):
    pair = await make_pair(unreachable=lambda error: isinstance(error, ServiceBusServerBusyError))
    primary.behave("orders", raising(lambda: ServiceBusServerBusyError(message="busy")))
    await pair.get_queue_sender("orders").send_messages(ServiceBusMessage("x"))
    assert len(diverted(secondary)) == 1


async def test_only_the_path_that_fails_is_diverted(make_pair, primary, secondary):
    pair = await make_pair()
    primary.behave("down", raising(lambda: ServiceBusConnectionError(message="store")))
    await pair.get_queue_sender("down").send_messages(ServiceBusMessage("1"))
    await pair.get_queue_sender("up").send_messages(ServiceBusMessage("2"))
    assert len(diverted(secondary)) == 1
    assert len(primary.entity("up").messages) == 1


async def test_a_sender_stays_with_its_backlog_queue_and_leaves_it_when_it_fails(make_pair, primary, secondary):
    pair = await make_pair()
    primary.down()
    sender = pair.get_queue_sender("orders")
    for body in "12":
        await sender.send_messages(ServiceBusMessage(body))
    assert len(secondary.entity(BACKLOG[0]).messages) == 2
    secondary.behave(BACKLOG[0], raising(lambda: ServiceBusConnectionError(message="store")))
    await sender.send_messages(ServiceBusMessage("3"))
    assert len(secondary.entity(BACKLOG[1]).messages) == 1
    other = pair.get_queue_sender("orders")
    await other.send_messages(ServiceBusMessage("4"))
    assert len(secondary.entity(BACKLOG[1]).messages) == 2
    assert secondary.operations["send", BACKLOG[0]] == 3


async def test_a_full_or_deleted_backlog_queue_is_passed_over(make_pair, primary, secondary):
    pair = await make_pair()
    primary.down()
    secondary.behave(BACKLOG[0], raising(lambda: ServiceBusQuotaExceededError(message="5 GB")))
    secondary.behave(BACKLOG[1], raising(lambda: MessagingEntityNotFoundError(message="deleted")))
    await pair.get_queue_sender("orders").send_messages(ServiceBusMessage("x"))
    assert len(secondary.entity(BACKLOG[2]).messages) == 1


async def test_with_both_namespaces_down_the_error_names_every_cause_and_nothing_is_stored(make_pair, primary, secondary):
    pair = await make_pair()
    primary.down()
    secondary.down()
    with pytest.raises(BothNamespacesUnavailableError) as caught:
        await pair.get_queue_sender("orders").send_messages(ServiceBusMessage("x"))
    assert len(caught.value.causes) == 4
    assert diverted(secondary) == []
    assert pair.counters.failed == 1


async def test_a_black_holed_primary_leaves_half_the_time_for_the_diversion(make_pair, primary, secondary):
    pair = await make_pair()
    primary.hang()
    await pair.get_queue_sender("orders").send_messages(ServiceBusMessage("x"), timeout=0.4)
    assert len(diverted(secondary)) == 1


async def test_sends_hanging_in_a_black_hole_are_diverted_when_the_path_fails_over(make_pair, primary, secondary):
    pair = await make_pair(failover_interval=60)
    primary.hang()
    sender = pair.get_queue_sender("orders")
    hanging = [asyncio.ensure_future(sender.send_messages(ServiceBusMessage(str(i)), timeout=60)) for i in range(5)]
    await asyncio.sleep(0.05)
    await pair.fail_over("orders")
    async with asyncio.timeout(5):
        await asyncio.gather(*hanging)
    assert len(diverted(secondary)) == 5


async def test_a_black_holed_backlog_queue_does_not_eat_the_whole_timeout(make_pair, primary, secondary):
    pair = await make_pair()
    primary.down()

    async def hang(operation: str) -> None:
        await asyncio.get_running_loop().create_future()

    secondary.behave(BACKLOG[0], hang)
    await pair.get_queue_sender("orders").send_messages(ServiceBusMessage("x"), timeout=0.4)
    assert len(secondary.entity(BACKLOG[1]).messages) == 1


async def test_latency_is_not_failure(make_pair, primary, secondary):
    pair = await make_pair()
    primary.behave("orders", delaying(0.05))
    sender = pair.get_queue_sender("orders")
    await asyncio.gather(*(sender.send_messages(ServiceBusMessage(str(i))) for i in range(10)))
    assert len(primary.entity("orders").messages) == 10
    assert sender.state is PathState.HEALTHY


async def test_a_send_without_answer_in_time_raises_a_timeout_while_suspect(make_pair, primary):
    pair = await make_pair(failover_interval=60)
    primary.hang()
    with pytest.raises(OperationTimeoutError):
        await pair.get_queue_sender("orders").send_messages(ServiceBusMessage("x"), timeout=0.05)


@pytest.mark.parametrize("broken", [False, True], ids=["sunny", "outage"])
async def test_a_message_that_carries_an_alias_is_refused_in_any_weather(make_pair, primary, broken):
    pair = await make_pair()
    if broken:
        primary.down()
    with pytest.raises(AliasInUseError, match="x-ms-path"):
        await pair.get_queue_sender("q").send_messages(ServiceBusMessage("x", application_properties={"x-ms-path": "mine"}))


async def test_a_message_that_would_not_fit_diverted_is_refused_on_sunny_days(make_pair, primary, secondary):
    for name in BACKLOG:
        secondary.entity(name).message_bytes_max = 262_144
    pair = await make_pair()
    sender = pair.get_queue_sender("q")
    with pytest.raises(MessageSizeExceededError, match="1024"):
        await sender.send_messages(ServiceBusMessage(b"x" * 261_900))
    await sender.send_messages(ServiceBusMessage(b"x" * 260_000))


async def test_with_room_in_the_backlog_a_message_of_full_size_diverts(make_pair, primary, secondary):
    pair = await make_pair()
    assert pair.backlog_message_bytes_max == 102_400 * 1024
    primary.down()
    message = ServiceBusMessage(b"x" * 262_000, session_id="s")
    await pair.get_queue_sender("q").send_messages(message)
    (stored,) = diverted(secondary)
    assert decode_message(unwrap_payload(stored.payload).payload) == decode_message(payload_from_message(message))


async def test_a_batch_packed_to_the_limit_is_packed_anew_when_diverted(make_pair, primary, secondary):
    pair = await make_pair()
    sender = pair.get_queue_sender("q")
    batch = await sender.create_message_batch()
    count = 0
    while True:
        try:
            batch.add_message(ServiceBusMessage(b"x" * 400, session_id="s", message_id=f"m{count}"))
        except ValueError:
            break
        count += 1
    primary.down()
    await sender.send_messages(batch)
    stored = diverted(secondary)
    assert [s.message_id for s in stored] == [f"m{i}" for i in range(count)]
    assert secondary.operations["send", BACKLOG[0]] == 2


async def test_a_batch_can_be_made_during_an_outage(make_pair, primary, secondary):
    pair = await make_pair()
    primary.down()
    sender = pair.get_queue_sender("q")
    batch = await sender.create_message_batch()
    batch.add_message(ServiceBusMessage("x"))
    await sender.send_messages(batch)
    assert len(diverted(secondary)) == 1
    with pytest.raises(ValueError, match="too large"):
        await sender.create_message_batch(10_000_000)


async def test_generators_mappings_and_annotated_messages_survive_the_second_attempt(make_pair, primary, secondary):
    pair = await make_pair()
    primary.down()
    sender = pair.get_queue_sender("q")
    await sender.send_messages(ServiceBusMessage(body) for body in ("a", "b"))
    await sender.send_messages({"body": "c"})
    await sender.send_messages(AmqpAnnotatedMessage(data_body=b"d"))
    await sender.send_messages([])
    stored = diverted(secondary)
    assert [s.parts.body_sections[5:] for s in stored] == [b"a", b"b", b"c", b"d"]
    assert all(s.message_id != "None" for s in stored)
    with pytest.raises(TypeError):
        await sender.send_messages(5)


async def test_a_copy_diverted_after_a_lost_answer_has_the_same_id(make_pair, primary, secondary):
    pair = await make_pair()
    sender = pair.get_queue_sender("q")
    sender._primary.lose_answers = 1
    await sender.send_messages(AmqpAnnotatedMessage(data_body=b"x"))
    (first,), (second,) = primary.entity("q").messages, diverted(secondary)
    assert first.message_id == second.message_id


async def test_scheduling_returns_numbers_when_healthy_and_none_when_diverted(make_pair, primary, secondary):
    pair = await make_pair()
    sender = pair.get_queue_sender("q")
    at = datetime.datetime(2031, 1, 1, tzinfo=datetime.UTC)
    assert await sender.schedule_messages(ServiceBusMessage("1"), at) == [1]
    await sender.cancel_scheduled_messages(1)
    assert primary.entity("q").messages == []
    primary.down()
    assert await sender.schedule_messages([ServiceBusMessage("2"), ServiceBusMessage("3")], at) == []
    stored = diverted(secondary)
    assert [s.parts.application_properties["x-ms-scheduledenqueuetimeutc"] for s in stored] == [1_924_992_000_000] * 2
    assert pair.events.recent[-1].kind == "scheduled-diverted"
    assert (
        decode_message(unwrap_payload(stored[0].payload).payload).message_annotations["x-opt-scheduled-enqueue-time"] == 1_924_992_000_000
    )


async def test_an_annotated_message_is_scheduled_as_the_sdk_does_it(make_pair, primary, secondary):
    pair = await make_pair()
    sender = pair.get_queue_sender("orders")
    at = datetime.datetime(2031, 1, 1, tzinfo=datetime.UTC)
    assert await sender.schedule_messages(AmqpAnnotatedMessage(data_body=b"1"), at) == [1]
    primary.down()
    assert await sender.schedule_messages([AmqpAnnotatedMessage(data_body=b"2")], at) == []
    (stored,) = diverted(secondary)
    home = decode_message(unwrap_payload(stored.payload).payload)
    assert home.message_annotations["x-opt-scheduled-enqueue-time"] == 1_924_992_000_000 and home.body == [b"2"]


@pytest.mark.parametrize("nonsense", ["hello", ["hello"], [ServiceBusMessage("x"), "hello"], b"hello", None])
async def test_what_is_no_message_is_a_type_error(make_pair, nonsense):
    pair = await make_pair()
    with pytest.raises(TypeError, match="Only AmqpAnnotatedMessage, ServiceBusMessage instances"):
        await pair.get_queue_sender("orders").send_messages(nonsense)


async def test_messages_of_a_batch_have_their_ids_on_the_wire_whichever_namespace_takes_it(make_pair, primary, secondary):
    pair = await make_pair()
    sender = pair.get_queue_sender("orders")
    batch = await sender.create_message_batch()
    for message in (ServiceBusMessage("1"), {"body": "2"}, AmqpAnnotatedMessage(data_body=b"3"), ServiceBusMessage("4", message_id="mine")):
        batch.add_message(message)
    await sender.send_messages(batch)
    primary.down()
    await sender.send_messages(batch)
    at_home = [decode_message(stored.payload).properties["message-id"] for stored in primary.entity("orders").messages]
    assert [decode_message(stored.payload).properties["message-id"] for stored in diverted(secondary)] == at_home
    assert at_home[-1] == "mine" and len(set(at_home)) == 4


async def test_a_jump_of_the_wall_clock_changes_nobodys_health(make_pair, primary, clock):
    pair = await make_pair(failover_interval=60)
    sender = pair.get_queue_sender("q")
    primary.behave("q", raising(lambda: ServiceBusConnectionError(message="blip")), times=1)
    with pytest.raises(ServiceBusConnectionError):
        await sender.send_messages(ServiceBusMessage("1"))
    clock.ms += 86_400_000
    await asyncio.sleep(0)
    assert sender.state is PathState.SUSPECT
    clock.ms -= 2 * 86_400_000
    await sender.send_messages(ServiceBusMessage("2"))
    assert sender.state is PathState.HEALTHY


@pytest.mark.parametrize("body", [None, 5, False, 0, "text", [1, 2], {"a": 1}, b"bytes"])
async def test_a_value_as_body_is_diverted_though_the_primary_was_never_reached(make_pair, primary, secondary, body):
    pair = await make_pair()
    primary.down()
    message = AmqpAnnotatedMessage(value_body=body)
    await pair.get_queue_sender("orders").send_messages(message)
    (stored,) = diverted(secondary)
    assert unwrap_payload(stored.payload).payload == payload_from_message(message)


@pytest.mark.parametrize("body", [[], [[1, 2], ["a"]]])
async def test_sequences_as_body_are_diverted_though_the_primary_was_never_reached(make_pair, primary, secondary, body):
    pair = await make_pair()
    primary.down()
    message = AmqpAnnotatedMessage(sequence_body=body)
    await pair.get_queue_sender("orders").send_messages(message)
    (stored,) = diverted(secondary)
    assert unwrap_payload(stored.payload).payload == payload_from_message(message)


async def test_a_message_that_says_why_it_was_dead_lettered_once_says_so_at_home(make_pair, primary, secondary):
    """As one that the application took from a dead-letter queue of its own and sends again."""
    pair = await make_pair()
    primary.down()
    words = {"DeadLetterReason": "mine", "DeadLetterErrorDescription": "in my words"}
    for ttl in (None, datetime.timedelta(hours=1)):
        await pair.get_queue_sender("orders").send_messages(ServiceBusMessage("x", application_properties=words, time_to_live=ttl))
    for stored in diverted(secondary):
        assert decode_message(unwrap_payload(stored.payload).payload).application_properties == words
        assert decode_message(unwrap_payload(stored.payload, dead_lettered=True).payload).application_properties == {}
