from __future__ import annotations

import asyncio
import datetime

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusQuotaExceededError,
)

import tandem.client.syphon
from tandem.amqp import DecodedMessage, decode_message
from tandem.client.batch_budget import BatchBudget
from tandem.client.coupling import PairSide
from tandem.client.envelope import wrap_payload
from tandem.client.events import Counters, EventHub
from tandem.client.sdk_codec import payload_from_message
from tandem.client.syphon import ClientSyphonSettings, Syphon
from tests.client.scripted import ScriptedAdministration, ScriptedNamespace, raising
from tests.waiting import until

QUEUES = ["contoso/x-servicebus-transfer/0", "contoso/x-servicebus-transfer/1"]


@pytest.fixture
def make_syphon(primary: ScriptedNamespace, secondary: ScriptedNamespace, clock):
    def make(**extra) -> Syphon:
        settings = extra.pop("settings", ClientSyphonSettings(retry_pause=0.01, retry_pause_max=0.05))
        events = EventHub(clock)
        syphon = Syphon(
            PairSide("primary", primary), PairSide("secondary", secondary), QUEUES,
            settings=settings, events=events, counters=Counters(), now_ms=clock, **extra,
        )  # fmt: skip
        return syphon

    for queue in QUEUES:
        secondary.entity(queue)
    return make


def put(secondary: ScriptedNamespace, path: str, body: str, queue: int = 0, **properties) -> ServiceBusMessage:
    message = ServiceBusMessage(body, **properties)
    secondary.store(secondary.entity(QUEUES[queue]), wrap_payload(payload_from_message(message), path, secondary.now_ms()))
    return message


def bodies(namespace: ScriptedNamespace, path: str) -> list[str]:
    return [stored.parts.body_sections[5:].decode() for stored in namespace.entity(path).messages]


def empty(secondary: ScriptedNamespace) -> bool:
    return not any(secondary.entity(queue).messages for queue in QUEUES)


async def test_messages_come_home_from_every_queue_as_they_were(make_syphon, primary, secondary):
    message = put(
        secondary, "orders", "a", 0, session_id="s", time_to_live=datetime.timedelta(minutes=1),
        application_properties={"when": datetime.datetime(2020, 1, 1)},
    )  # fmt: skip
    put(secondary, "topic", "b", 1)
    syphon = make_syphon()
    assert await syphon.drain(0.01) == 2
    (stored,) = primary.entity("orders").messages
    assert decode_message(stored.payload).application_properties == decode_message(payload_from_message(message)).application_properties
    assert stored.parts.properties["group-id"] == "s" and stored.parts.header["ttl"] == 60_000
    assert bodies(primary, "topic") == ["b"]
    assert empty(secondary)


async def test_a_message_is_completed_only_after_the_primary_accepted_it(make_syphon, primary, secondary):
    put(secondary, "orders", "a")
    primary.down()
    syphon = make_syphon()
    assert await syphon.drain(0.01) == 0
    assert len(secondary.entity(QUEUES[0]).messages) == 1
    primary.up()
    await asyncio.sleep(0.02)
    assert await syphon.drain(0.01) == 1


async def test_order_is_kept_within_a_path_and_session(make_syphon, primary, secondary):
    for i in range(250):
        put(secondary, "orders", str(i), session_id=f"s{i % 3}")
    await make_syphon().drain(0.01)
    for s in range(3):
        got = [x.parts.body_sections[5:].decode() for x in primary.entity("orders").messages if x.parts.properties["group-id"] == f"s{s}"]
        assert got == [str(i) for i in range(250) if i % 3 == s]


async def test_once_one_has_to_wait_all_behind_it_wait_too(make_syphon, primary, secondary):
    for i in range(5):
        put(secondary, "orders", str(i), session_id="s")
    put(secondary, "other", "x")
    primary.behave("orders", raising(lambda: ServiceBusConnectionError(message="down")), times=1)
    syphon = make_syphon()
    await syphon.drain(0.01)
    assert bodies(primary, "other") == ["x"]
    assert bodies(primary, "orders") == []
    await asyncio.sleep(0.02)
    await syphon.drain(0.01)
    assert bodies(primary, "orders") == list("01234")


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({}, "no queue path"),
        ({"x-ms-path": 5}, "no queue path"),
        ({"x-ms-path": "q", "x-ms-timetolive": "never"}, "property extraction"),
        ({"x-ms-path": "q", "x-ms-sessionid": 1.5}, "property extraction"),
    ],
)
async def test_messages_that_cannot_be_translated_are_dead_lettered_with_the_documented_reason(make_syphon, secondary, properties, reason):
    entity = secondary.entity(QUEUES[0])
    secondary.store(
        entity,
        DecodedMessage(properties={"message-id": "m"}, application_properties=properties, body_sections=b"\x00\x53\x75\xa0\x00").encode(),
    )
    syphon = make_syphon()
    await syphon.drain(0.01)
    ((_, found, description),) = entity.dead
    assert found == reason and description
    assert syphon._counters.syphon_dead_lettered == 1


async def test_an_unknown_destination_is_dead_lettered_with_path_error_type_and_text(make_syphon, primary, secondary):
    put(secondary, "gone", "x")
    primary.behave("gone", raising(lambda: MessagingEntityNotFoundError(message="no such queue")))
    await make_syphon(settings=ClientSyphonSettings(destination_wait=0)).drain(0.01)
    ((_, reason, description),) = secondary.entity(QUEUES[0]).dead
    assert reason == "not retryable"
    assert "gone" in description and "MessagingEntityNotFoundError" in description and "no such queue" in description


@pytest.mark.parametrize(
    "error",
    [
        MessagingEntityNotFoundError(message="gone"),
        MessagingEntityDisabledError(message="disabled"),
        ServiceBusQuotaExceededError(message="full"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_a_destination_that_is_missing_disabled_or_full_is_waited_for_and_told(make_syphon, primary, secondary, clock, error):
    for body in "abc":
        put(secondary, "orders", body)
    put(secondary, "other", "x")
    primary.behave("orders", raising(lambda: error))
    syphon = make_syphon(settings=ClientSyphonSettings(retry_pause=0.01, destination_wait=3_600))
    for _ in range(3):
        await syphon.drain(0.01)
        await asyncio.sleep(0.05)
        clock.ms += 1_000_000
    assert secondary.entity(QUEUES[0]).dead == [] and len(secondary.entity(QUEUES[0]).messages) == 3
    assert bodies(primary, "other") == ["x"]
    assert syphon._counters.destinations_waiting == 1
    primary.recover("orders")
    await asyncio.sleep(0.1)
    await syphon.drain(0.01)
    assert bodies(primary, "orders") == list("abc") and syphon._counters.destinations_waiting == 0
    told = [(event.kind, event.path) for event in syphon._events.recent if event.kind.startswith("destination-")]
    assert told == [("destination-waiting", "orders"), ("destination-back", "orders")]


async def test_what_waited_for_its_destination_too_long_is_dead_lettered_and_comes_home_when_told_to(
    make_syphon, primary, secondary, clock
):
    for body in "abc":
        put(secondary, "orders", body)
    primary.behave("orders", raising(lambda: MessagingEntityDisabledError(message="disabled")))
    syphon = make_syphon(settings=ClientSyphonSettings(retry_pause=0.01, destination_wait=60))
    await syphon.drain(0.01)
    assert secondary.entity(QUEUES[0]).dead == []
    clock.ms += 60_000
    await asyncio.sleep(0.02)
    await syphon.drain(0.01)
    assert [reason for _, reason, _ in secondary.entity(QUEUES[0]).dead] == ["not retryable"] * 3
    assert empty(secondary)


async def test_an_outage_that_is_over_soon_is_bridged_with_the_batch_in_hand(make_syphon, primary, secondary):
    for n in range(30):
        put(secondary, "orders", f"{n:02d}", session_id=str(n % 10))
    flaps = 0

    async def flap(operation: str) -> None:
        nonlocal flaps
        flaps += 1
        if flaps % 3:
            raise ServiceBusConnectionError(message="away for a moment")

    primary.behave("orders", flap)
    primary.entity("orders")
    syphon = make_syphon()
    syphon._took_lately["orders"] = None
    syphon.start()
    await until(lambda: empty(secondary), 5)
    await syphon.stop()
    assert sorted(bodies(primary, "orders")) == [f"{n:02d}" for n in range(30)]
    assert secondary.operations["abandon", QUEUES[0]] == 0 and secondary.operations["receive", QUEUES[0]] <= 3


async def test_what_is_under_way_to_a_path_that_fails_over_is_cut_short(make_syphon, primary, secondary):
    put(secondary, "orders", "x")
    primary.hang()
    syphon = make_syphon()
    syphon.start()
    await until(lambda: primary.operations["send", "orders"], 5)
    primary.up()
    syphon.interrupt("Orders")
    await until(lambda: empty(secondary), 5)
    await syphon.stop()


async def test_a_path_that_comes_back_while_a_send_to_it_fails_is_tried_again_at_once(make_syphon, primary, secondary):
    put(secondary, "orders", "x")
    syphon = make_syphon(settings=ClientSyphonSettings(retry_pause=3_600, retry_pause_max=3_600))

    async def back_meanwhile(operation: str) -> None:
        syphon.wake("orders")
        raise ServiceBusConnectionError(message="the connection that was begun before")

    primary.behave("orders", back_meanwhile, times=1)
    syphon.start()
    await until(lambda: empty(secondary), 5)
    await syphon.stop()


async def test_a_path_that_comes_back_while_its_messages_are_given_back_is_tried_again_at_once(make_syphon, primary, secondary):
    put(secondary, "orders", "x")
    away = True
    syphon = make_syphon(
        settings=ClientSyphonSettings(retry_pause=3_600, retry_pause_max=3_600), failed_over=lambda path: away and path == "orders"
    )

    async def back_meanwhile(operation: str) -> None:
        nonlocal away
        if operation == "abandon":
            away = False
            syphon.wake("orders")

    secondary.behave(QUEUES[0], back_meanwhile)
    syphon.start()
    await until(lambda: empty(secondary), 5)
    await syphon.stop()


async def test_one_refused_message_does_not_take_its_neighbours_with_it(make_syphon, primary, secondary):
    for body in "abc":
        put(secondary, "orders", body * (1 if body != "b" else 300_000))
    primary.entity("orders").message_bytes_max = 262_144
    await make_syphon().drain(0.01)
    assert bodies(primary, "orders") == ["a", "c"]
    ((_, reason, _),) = secondary.entity(QUEUES[0]).dead
    assert reason == "not retryable"


@pytest.mark.parametrize(
    "error",
    [
        ServiceBusQuotaExceededError(message="full"),
        ServiceBusAuthorizationError(message="claim"),
        ServiceBusConnectionError(message="down"),
    ],
    ids=lambda e: type(e).__name__,
)
async def test_quota_authorization_and_outages_leave_the_message_for_ever(make_syphon, primary, secondary, error):
    put(secondary, "orders", "x")
    primary.behave("orders", raising(lambda: error))
    syphon = make_syphon()
    for _ in range(3):
        await syphon.drain(0.01)
        await asyncio.sleep(0.06)
    entity = secondary.entity(QUEUES[0])
    assert entity.dead == [] and len(entity.messages) == 1
    primary.recover("orders")
    await syphon.drain(0.01)
    assert bodies(primary, "orders") == ["x"]


async def test_a_message_moved_whose_lock_was_lost_arrives_once_with_duplicate_detection(make_syphon, primary, secondary):
    primary.entity("orders").duplicate_detection = True
    put(secondary, "orders", "x")
    secondary.behave(QUEUES[0], raising(lambda: MessageLockLostError(message="lost"), on="complete"), times=3)
    syphon = make_syphon()
    await syphon.drain(0.01)
    secondary.recover(QUEUES[0])
    secondary.now_ms.ms += 61_000
    await syphon.drain(0.01)
    assert bodies(primary, "orders") == ["x"]
    assert empty(secondary)
    assert any(event.kind == "syphon-lock-lost" for event in syphon._events.recent)


async def test_a_path_failed_over_in_this_process_is_not_even_tried(make_syphon, primary, secondary):
    put(secondary, "orders", "x")
    await make_syphon(failed_over=lambda path: True).drain(0.01)
    assert primary.operations["send", "orders"] == 0


async def test_locks_that_are_about_to_end_are_renewed(make_syphon, secondary):
    secondary.lock_ms = 10_000
    put(secondary, "a", "1")
    put(secondary, "b", "2")
    await make_syphon().drain(0.01)
    assert secondary.operations["renew", QUEUES[0]] == 3
    assert empty(secondary)


async def test_time_in_the_backlog_can_count_against_the_time_to_live(make_syphon, primary, secondary, clock):
    put(secondary, "orders", "short", time_to_live=datetime.timedelta(seconds=5))
    put(secondary, "orders", "long", time_to_live=datetime.timedelta(seconds=50))
    clock.ms += 10_000
    await make_syphon(settings=ClientSyphonSettings(subtract_time_in_backlog=True)).drain(0.01)
    (stored,) = primary.entity("orders").messages
    assert stored.parts.header["ttl"] == 40_000
    assert [reason for _, reason, _ in secondary.entity(QUEUES[0]).dead] == ["TTLExpiredException"]


async def test_running_pumps_move_what_arrives_and_rest_in_long_polls(make_syphon, primary, secondary):
    syphon = make_syphon()
    syphon.start()
    put(secondary, "orders", "a")
    put(secondary, "orders", "b", 1)
    await until(lambda: len(primary.entity("orders").messages) >= 2, 5)
    await syphon.stop()
    assert not syphon.running
    assert syphon._counters.syphon_receives <= 4


async def test_pumps_outlive_an_outage_of_either_side(make_syphon, primary, secondary):
    syphon = make_syphon()
    primary.down()
    secondary.down()
    syphon.start()
    await asyncio.sleep(0.05)
    secondary.up()
    put(secondary, "orders", "a")
    await asyncio.sleep(0.05)
    primary.up()
    await until(lambda: primary.entity("orders").messages, 5)
    await syphon.stop()


async def test_messages_of_a_healthy_path_get_past_many_of_a_path_that_waits(make_syphon, primary, secondary):
    for i in range(150):
        put(secondary, "down", str(i))
    put(secondary, "up", "x")
    primary.behave("down", raising(lambda: ServiceBusConnectionError(message="down")))
    syphon = make_syphon()
    syphon.start()
    await until(lambda: primary.entity("up").messages, 5)
    await syphon.stop()
    assert len(secondary.entity(QUEUES[0]).messages) == 150


async def test_depth_and_age_can_be_asked_for(make_syphon, secondary, clock):
    put(secondary, "orders", "x")
    clock.ms += 30_000
    first, second = await make_syphon(administration=ScriptedAdministration(secondary)).measure()
    assert (first.queue, first.depth, first.oldest_age_seconds) == (QUEUES[0], 1, 30.0)
    assert (second.depth, second.oldest_age_seconds) == (0, None)


async def test_a_batch_of_large_messages_stays_within_its_bytes(make_syphon, primary, secondary, monkeypatch):
    batches: list[int] = []

    class Watched(BatchBudget):
        def seen(self, sizes) -> None:
            found = list(sizes)
            batches.append(sum(found))
            super().seen(found)

    monkeypatch.setattr(tandem.client.syphon, "BatchBudget", Watched)
    for number in range(30):
        put(secondary, "orders", f"{number:03}" * 10_000)
    assert await make_syphon(settings=ClientSyphonSettings(batch_bytes_max=150_000)).drain(0.01) == 30
    assert max(batches) <= 150_000
    assert len(batches) < 30
    assert empty(secondary)


def slowly(clock, seconds: int):
    async def behave(operation: str) -> None:
        if operation == "send":
            clock.ms += seconds * 1000

    return behave


@pytest.mark.parametrize("session", [None, "s"])
async def test_a_primary_that_is_slow_with_large_messages_gets_each_once(make_syphon, primary, secondary, clock, session):
    """Together they take far longer than a lock lasts."""
    for number in range(10):
        put(secondary, "orders", f"{number}" * 200_000, session_id=session)
        put(secondary, "news", f"{number}")
    primary.behave("orders", slowly(clock, 15))
    syphon = make_syphon()
    await syphon.drain(0.01)
    assert empty(secondary)
    assert [chr(stored.payload[-1]) for stored in primary.entity("orders").messages] == list("0123456789")
    assert len(primary.entity("news").messages) == 10 and not syphon._events.recent


async def test_what_has_lost_its_lock_in_the_syphons_hands_is_not_sent(make_syphon, primary, secondary, clock):
    for number in range(3):
        put(secondary, "orders", f"{number}" * 200_000)
    primary.behave("orders", slowly(clock, 61), times=1)  # longer than a lock, all at once
    syphon = make_syphon()
    await syphon.drain(0.01)
    await syphon.drain(0.01)
    assert empty(secondary)
    # The first one was on its way when its lock ended.
    assert [chr(stored.payload[-1]) for stored in primary.entity("orders").messages] == list("0012")
