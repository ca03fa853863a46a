"""Time to live, schedules, duplicate windows: on a clock that the test moves."""

from __future__ import annotations

import datetime
import json
import urllib.request
from typing import Any

import pytest
from azure.servicebus import ServiceBusReceiveMode
from azure.servicebus.exceptions import MessageNotFoundError

from tandem import amqp
from tests.conformance.house import ClockedBroker
from tests.conformance.raw import Raw, Refused, message, token_for
from tests.conformance.sdk import Bus, bodies, text

QUEUES = {"plain": 16, "brief": 6, "last-words": 6, "sessions": 4, "dedup": 6}
DELETE = ServiceBusReceiveMode.RECEIVE_AND_DELETE


def everything(receiver: Any) -> list[Any]:
    found: list[Any] = receiver.peek_messages(100, sequence_number=1)
    return found


def in_seconds(clocked: ClockedBroker, seconds: float) -> datetime.datetime:
    """An instant as the broker's clock will see it."""
    return datetime.datetime.fromtimestamp(clocked.clock.now_ms() / 1000 + seconds, datetime.UTC)


@pytest.mark.compiled_too
def test_a_message_expires_after_its_own_time_to_live(timed: Bus, clocked: ClockedBroker) -> None:
    queue = timed.queue()
    sender = timed.sender(queue)
    sender.send_messages([text("short", time_to_live=datetime.timedelta(seconds=5)), text("long")])
    receiver = timed.receiver(queue)
    short, long = everything(receiver)
    assert short.time_to_live == datetime.timedelta(seconds=5)
    assert long.time_to_live is None
    clocked.jump(5.1)
    assert timed.left(queue) == ["long"]
    assert bodies(receiver.receive_messages(2, max_wait_time=0.5)) == ["long"]
    assert timed.left(f"{queue}/$DeadLetterQueue") == []


def test_the_entitys_time_to_live_is_the_default_and_the_cap(timed: Bus, clocked: ClockedBroker) -> None:
    queue = timed.queue("brief")
    timed.sender(queue).send_messages(
        [text("default"), text("capped", time_to_live=datetime.timedelta(days=1)), text("own", time_to_live=datetime.timedelta(seconds=3))]
    )
    receiver = timed.receiver(queue)
    seen = everything(receiver)
    assert [m.time_to_live.total_seconds() for m in seen] == [10, 10, 3]
    assert [(m.expires_at_utc - m.enqueued_time_utc).total_seconds() for m in seen] == [10, 10, 3]
    clocked.jump(3.1)
    assert timed.left(queue) == ["default", "capped"]
    clocked.jump(7)
    assert timed.left(queue) == []


@pytest.mark.compiled_too
def test_a_time_to_live_longer_than_a_header_can_say_is_kept(raw_timed: Raw, clocked: ClockedBroker) -> None:
    """More than 49 days: clients write the most into the header, and all of it as the time from creation to expiry."""
    queue, day = clocked.queue("plain"), 86_400
    now = clocked.clock.now_ms()
    long = {"creation-time": amqp.Timestamp(now), "absolute-expiry-time": amqp.Timestamp(now + 60 * day * 1000)}
    raw_timed.feed(queue, "amqp", header={"ttl": amqp.UInt(0xFFFFFFFF)}, properties=long)
    raw_timed.feed(queue, "header alone", header={"ttl": amqp.UInt(0xFFFFFFFF)})
    beyond = {"creation-time": amqp.Timestamp(1), "absolute-expiry-time": amqp.Timestamp(2**63 - 1)}
    raw_timed.feed(queue, "for ever", header={"ttl": amqp.UInt(0xFFFFFFFF)}, properties=beyond)
    headers = {"Authorization": token_for(clocked.port, queue), "BrokerProperties": json.dumps({"TimeToLive": 60 * day})}
    with urllib.request.urlopen(urllib.request.Request(f"http://localhost:{clocked.port}/{queue}/messages", b"http", headers)) as answer:
        assert answer.status == 201
    clocked.jump(59 * day)
    assert [one.body for one in raw_timed.peek(queue)] == [[b"amqp"], [b"for ever"], [b"http"]]
    http = raw_timed.peek(queue)[2].properties
    assert http["absolute-expiry-time"] - http["creation-time"] == 60 * day * 1000  # type: ignore[operator]
    clocked.jump(1.1 * day)
    assert [one.body for one in raw_timed.peek(queue)] == [[b"for ever"]]


@pytest.mark.compiled_too
def test_expired_messages_are_dead_lettered_when_the_entity_says_so(timed: Bus, clocked: ClockedBroker) -> None:
    queue = timed.queue("last-words")
    timed.feed(queue, "a", "b", application_properties={"own": 1})
    clocked.jump(11.1)
    dead = timed.receiver(queue, sub_queue="deadletter")
    received = dead.receive_messages(2, max_wait_time=10)
    assert bodies(received) == ["a", "b"]
    assert {m.dead_letter_reason for m in received} == {"TTLExpiredException"}
    assert {m.dead_letter_error_description for m in received} == {"The message expired and was dead lettered."}
    assert {m.application_properties[b"own"] for m in received} == {1}
    clocked.jump(60)
    assert len(timed.left(f"{queue}/$DeadLetterQueue")) == 2


def test_a_dead_lettered_message_still_shows_the_time_to_live_it_was_sent_with(timed: Bus, clocked: ClockedBroker) -> None:
    queue = timed.queue("last-words")
    timed.sender(queue).send_messages(text("a", time_to_live=datetime.timedelta(seconds=4)))
    clocked.jump(5.1)
    [dead] = timed.receiver(queue, sub_queue="deadletter").receive_messages(1, max_wait_time=10)
    assert dead.time_to_live == datetime.timedelta(seconds=4)


def test_locked_and_deferred_messages_do_not_expire_in_their_holders_hands(raw_timed: Raw, clocked: ClockedBroker) -> None:
    queue = clocked.queue("brief")
    raw_timed.feed(queue, "held", "deferred")
    receiver = raw_timed.receiver(queue)
    held, deferred = receiver.receive(2)
    receiver.settle(deferred, amqp.encode_modified(True, True))
    clocked.jump(12)
    assert receiver.settle(held, amqp.ACCEPTED).code == 0x24  # type: ignore[union-attr]
    status, reply = raw_timed.request(
        queue,
        "com.microsoft:receive-by-sequence-number",
        {"sequence-numbers": amqp.Array(0x81, [2]), "receiver-settle-mode": amqp.UInt(1)},
    )
    assert status == 200
    answer: Any = reply.body
    back = amqp.decode_message(answer["messages"][0]["message"])
    assert (back.body, back.header["ttl"]) == ([b"deferred"], 10_000)


def test_a_lock_that_ends_after_the_message_expired_does_not_bring_it_back(raw_timed: Raw, clocked: ClockedBroker) -> None:
    queue = clocked.queue("brief")
    raw_timed.feed(queue, "a")
    receiver = raw_timed.receiver(queue)
    receiver.receive()
    clocked.jump(61)
    clocked.jump(2)
    assert receiver.drain(1) == []
    assert clocked.on_loop(lambda server: server.contexts[0].namespace.find(queue).main.index.total) == 0


@pytest.mark.compiled_too
def test_scheduled_messages_come_at_their_time_and_can_be_cancelled(timed: Bus, clocked: ClockedBroker) -> None:
    queue = timed.queue()
    at = in_seconds(clocked, 60)
    sender = timed.sender(queue)
    numbers = sender.schedule_messages([text("one"), text("two"), text("three")], at)
    assert numbers == [1, 2, 3]
    assert sender.schedule_messages(text("four"), at) == [4]
    receiver = timed.receiver(queue)
    assert receiver.receive_messages(1, max_wait_time=0.3) == []
    seen = everything(receiver)
    assert [(str(m), m.state.name) for m in seen] == [(one, "SCHEDULED") for one in ("one", "two", "three", "four")]
    assert all(abs((m.scheduled_enqueue_time_utc - at).total_seconds()) < 0.002 for m in seen)
    sender.cancel_scheduled_messages(2)
    sender.cancel_scheduled_messages([4])
    with pytest.raises(MessageNotFoundError, match="TrackingId:"):
        sender.cancel_scheduled_messages([1, 2])
    clocked.jump(60.1)
    received = receiver.receive_messages(4, max_wait_time=1)
    assert bodies(received) == ["one", "three"]
    assert all(m.enqueued_time_utc >= m.scheduled_enqueue_time_utc for m in received)
    assert all(b"x-opt-message-state" not in m.raw_amqp_message.annotations for m in received)
    with pytest.raises(MessageNotFoundError):
        sender.cancel_scheduled_messages(1)


def test_a_message_can_be_sent_with_a_scheduled_time_set(timed: Bus, clocked: ClockedBroker) -> None:
    queue = timed.queue()
    soon, past = in_seconds(clocked, 30), in_seconds(clocked, -30)
    timed.sender(queue).send_messages(
        [
            text("later", scheduled_enqueue_time_utc=soon, time_to_live=datetime.timedelta(seconds=20)),
            text("at once", scheduled_enqueue_time_utc=past),
        ]
    )
    receiver = timed.receiver(queue)
    later, _ = everything(receiver)
    assert (later.state.name, later.time_to_live) == ("SCHEDULED", datetime.timedelta(seconds=20))
    assert bodies(receiver.receive_messages(2, max_wait_time=0.5)) == ["at once"]
    clocked.jump(30.1)
    later = receiver.receive_messages(1, max_wait_time=10)[0]
    assert (str(later), later.time_to_live) == ("later", datetime.timedelta(seconds=20))
    assert (later.expires_at_utc - later.scheduled_enqueue_time_utc).total_seconds() >= 20


def test_a_session_receiver_gets_a_scheduled_message_at_its_time(timed: Bus, clocked: ClockedBroker) -> None:
    queue = timed.queue("sessions")
    sender = timed.sender(queue)
    sender.schedule_messages([text("later", session_id="s")], in_seconds(clocked, 20))
    receiver = timed.receiver(queue, session_id="s")
    assert receiver.receive_messages(1, max_wait_time=0.5) == []
    clocked.jump(20.1)
    assert bodies(receiver.receive_messages(1, max_wait_time=10)) == ["later"]


def test_scheduling_needs_what_sending_needs(timed: Bus, clocked: ClockedBroker) -> None:
    from azure.servicebus.exceptions import MessageSizeExceededError, ServiceBusError

    sender = timed.sender(timed.queue("sessions"))
    with pytest.raises(ServiceBusError, match="SessionId"):
        sender.schedule_messages(text("without a session"), in_seconds(clocked, 60))
    with pytest.raises(MessageSizeExceededError):
        timed.sender(timed.queue()).schedule_messages(text("b" * 262_144), in_seconds(clocked, 60))


@pytest.mark.compiled_too
def test_duplicates_are_accepted_and_dropped_within_the_window(timed: Bus, clocked: ClockedBroker) -> None:
    queue = timed.queue("dedup")
    sender = timed.sender(queue)
    sender.send_messages(text("first", message_id="same"))
    sender.send_messages([text("second", message_id="same"), text("other", message_id="other"), text("third", message_id="other")])
    receiver = timed.receiver(queue, receive_mode=DELETE)
    assert timed.left(queue) == ["first", "other"]
    assert bodies(receiver.receive_messages(2, max_wait_time=10)) == ["first", "other"]
    clocked.jump(19)
    sender.send_messages(text("still known", message_id="same"))
    assert timed.left(queue) == []
    clocked.jump(1.5)
    sender.send_messages(text("forgotten", message_id="same"))
    assert timed.left(queue) == ["forgotten"]


def test_ids_of_different_types_are_different_ids(raw_timed: Raw, clocked: ClockedBroker) -> None:
    import uuid

    queue = clocked.queue("dedup")
    identity = uuid.uuid4()
    raw_timed.feed(queue, "as text", message_id=str(identity))
    raw_timed.feed(queue, "as uuid", message_id=identity)
    raw_timed.feed(queue, "as uuid again", message_id=identity)
    assert [a.text for a in raw_timed.receiver(queue).drain(5)] == ["as text", "as uuid"]


def test_a_scheduled_message_is_remembered_from_its_scheduling(raw_timed: Raw, clocked: ClockedBroker) -> None:
    queue = clocked.queue("dedup")
    at = amqp.Timestamp(clocked.clock.now_ms() + 10_000)
    raw_timed.feed(queue, "planned", message_id="m", message_annotations={"x-opt-scheduled-enqueue-time": at})
    raw_timed.feed(queue, "twice", message_id="m")
    clocked.jump(10.1)
    assert [a.text for a in raw_timed.receiver(queue).drain(5)] == ["planned"]


def test_a_schedule_of_the_wrong_type_is_refused(raw_timed: Raw, clocked: ClockedBroker) -> None:
    queue = clocked.queue("plain")
    with pytest.raises(Refused) as refusal:
        raw_timed.sender(queue).send(message("x", message_annotations={"x-opt-scheduled-enqueue-time": "tomorrow"}))
    assert refusal.value.condition == "amqp:invalid-field"
    assert "x-opt-scheduled-enqueue-time" in refusal.value.description
