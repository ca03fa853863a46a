"""Every refusal: the SDK's exception, the AMQP condition behind it, and a text with a tracking id."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageProperties
from azure.servicebus.exceptions import (
    MessageNotFoundError,
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusServerBusyError,
)

from tandem import amqp
from tandem.model.entity import EntityStatus
from tests.conformance.house import TOPIC, ClockedBroker, ProcessBroker
from tests.conformance.raw import Raw, Refused, message
from tests.conformance.sdk import Bus, Flavour, bodies, text
from tests.gateway.amqp.coordinator import Coordinator, send_in

QUEUES = {"plain": 34, "sessions": 8, "disabled": 4, "send-disabled": 4, "receive-disabled": 4}

TAIL = re.compile(
    r"TrackingId:[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}_G0(_B\d+)?, SystemTracker:[^,]+, "
    r"Timestamp:\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d$"
)


def condition_of(failure: pytest.ExceptionInfo[Any]) -> str:
    """As the SDK prints it."""
    found = re.search(r"Error condition: ([a-z.:-]+[a-z])", str(failure.value))
    assert found, str(failure.value)
    return found.group(1)


def refused(raw: Raw, address: str, receiving: bool = True, **options: Any) -> Refused:
    with pytest.raises(Refused) as refusal:
        raw.receiver(address, **options) if receiving else raw.sender(address)
    assert TAIL.search(refusal.value.description), refusal.value.description
    return refusal.value


@pytest.fixture
def flavour(either: Flavour) -> Flavour:
    return either


# -- entities that are not there, or not open --------------------------------------------------------------------------


def test_an_entity_deleted_under_its_clients_is_not_found(timed: Bus, clocked: ClockedBroker) -> None:
    queue = timed.queue()
    sender, receiver = timed.sender(queue), timed.receiver(queue)
    sender.send_messages(text("x"))
    clocked.on_loop(lambda server: server.contexts[0].namespace.remove(queue))
    with pytest.raises(MessagingEntityNotFoundError) as failure:
        receiver.receive_messages(1, max_wait_time=5)
    assert condition_of(failure) == "amqp:not-found"
    assert "has been deleted" in str(failure.value)
    with pytest.raises(MessagingEntityNotFoundError, match=r"could not be found.*TrackingId:"):
        sender.send_messages(text("y"))


@pytest.mark.parametrize("kind", ["plain", "sessions"])
def test_an_entity_deleted_with_messages_in_hand_leaves_the_broker_well(raw_timed: Raw, clocked: ClockedBroker, kind: str) -> None:
    queue, other = clocked.queue(kind), clocked.queue("plain")
    session: dict[str, Any] = {"session": "s"} if kind == "sessions" else {}
    raw_timed.feed(queue, "held", "deferred", "waiting", session_id="s")
    receiver = raw_timed.receiver(queue, **session)
    _, deferred = receiver.receive(2)
    receiver.settle(deferred, amqp.encode_modified(True, True))
    clocked.on_loop(lambda server: server.contexts[0].namespace.remove(queue))
    raw_timed.until(lambda: receiver.end.gone)
    assert receiver.end.error is not None
    assert receiver.end.error.condition == "amqp:not-found"
    clocked.jump(61)
    raw_timed.feed(other, "x")
    assert [a.text for a in raw_timed.receiver(other).receive()] == ["x"]


@pytest.mark.parametrize("kind", ["disabled", "send-disabled"])
def test_sending_to_a_disabled_entity_is_refused(bus: Bus, kind: str) -> None:
    with pytest.raises(MessagingEntityDisabledError, match=r"disabled for sending.*TrackingId:") as failure:
        bus.sender(bus.queue(kind)).send_messages(text("x"))
    assert condition_of(failure) == "com.microsoft:entity-disabled"


@pytest.mark.parametrize("kind", ["disabled", "receive-disabled"])
def test_receiving_from_a_disabled_entity_is_refused(bus: Bus, kind: str) -> None:
    with pytest.raises(MessagingEntityDisabledError, match=r"disabled for receiving.*TrackingId:"):
        bus.receiver(bus.queue(kind))


def test_the_other_direction_of_a_half_disabled_entity_works(raw: Raw, broker: ProcessBroker) -> None:
    raw.feed(broker.queue("receive-disabled"), "x")
    assert raw.receiver(broker.queue("send-disabled")).drain(1) == []


def test_a_status_that_changes_holds_for_links_that_are_open(timed: Bus, clocked: ClockedBroker) -> None:
    queue = timed.queue()
    sender, receiver = timed.sender(queue), timed.receiver(queue)
    sender.send_messages([text("held"), text("kept")])
    held = receiver.receive_messages(1, max_wait_time=10)[0]

    def become(status: EntityStatus) -> None:
        def change(server: Any) -> None:
            entity = server.contexts[0].namespace.find(queue)
            entity.configure(dataclasses.replace(entity.description, status=status))

        clocked.on_loop(change)

    become(EntityStatus.DISABLED)
    with pytest.raises(MessagingEntityDisabledError):
        sender.send_messages(text("refused"))
    assert receiver.receive_messages(1, max_wait_time=0.3) == []
    receiver.complete_message(held)
    become(EntityStatus.ACTIVE)
    sender.send_messages(text("taken"))
    assert bodies(receiver.receive_messages(2, max_wait_time=10)) == ["kept", "taken"]


def test_addresses_that_lead_nowhere_are_told_so(raw: Raw, broker: ProcessBroker) -> None:
    for receiving in (True, False):
        refusal = refused(raw, "no-such-queue", receiving)
        assert refusal.condition == "amqp:not-found"
        assert "no-such-queue' could not be found" in refusal.description
    assert refused(raw, "no-such-queue/$management").condition == "amqp:not-found"
    assert refused(raw, "").condition == "amqp:not-found"
    queue = broker.queue("plain")
    sub_queue = refused(raw, f"{queue}/$DeadLetterQueue", receiving=False)
    assert (sub_queue.condition, "sub-queue" in sub_queue.description) == ("amqp:not-allowed", True)
    raw.feed(queue, "this session and connection still work")


def test_an_attach_without_an_address_is_refused(raw: Raw, broker: ProcessBroker) -> None:
    from tests.conformance.raw import End

    end = End()
    raw.session.attach_sender("nowhere", amqp.Terminus("here"), amqp.Terminus(None), end)
    raw.until(lambda: end.gone)
    assert end.error is not None
    assert end.error.condition == "amqp:invalid-field"
    raw.feed(broker.queue("plain"), "fine")


# -- messages that cannot be taken -------------------------------------------------------------------------------------


def test_ids_have_a_length(bus: Bus) -> None:
    queue = bus.queue()
    sender = bus.sender(queue)
    with pytest.raises(ServiceBusError, match=r"MessageId has 129 characters.*TrackingId:") as failure:
        sender.send_messages(AmqpAnnotatedMessage(data_body=b"x", properties=AmqpMessageProperties(message_id="i" * 129)))
    assert condition_of(failure) == "com.microsoft:argument-error"
    with pytest.raises(ServiceBusError, match="SessionId has 129 characters"):
        sender.send_messages(AmqpAnnotatedMessage(data_body=b"x", properties=AmqpMessageProperties(group_id="s" * 129)))
    sender.send_messages(AmqpAnnotatedMessage(data_body=b"x", properties=AmqpMessageProperties(message_id="i" * 128, group_id="s" * 128)))
    assert len(bus.receiver(queue).peek_messages(9)) == 1


def test_partition_key_and_session_id_must_agree(raw: Raw, broker: ProcessBroker) -> None:
    sender = raw.sender(broker.queue("sessions"))
    sender.send(message("x", session_id="s", message_annotations={"x-opt-partition-key": "s"}))
    with pytest.raises(Refused) as refusal:
        sender.send(message("x", session_id="s", message_annotations={"x-opt-partition-key": "t"}))
    assert refusal.value.condition == "amqp:not-allowed"
    with pytest.raises(Refused) as refusal:
        sender.send(message("x", session_id="s", message_annotations={"x-opt-partition-key": amqp.Int(5)}))
    assert refusal.value.condition == "amqp:invalid-field"
    assert "x-opt-partition-key" in refusal.value.description


@pytest.mark.parametrize("group", [amqp.Int(7), b"bytes", amqp.Symbol("symbol"), ["list"]], ids=lambda v: type(v).__name__)
def test_a_session_id_that_is_no_string_is_refused(raw: Raw, broker: ProcessBroker, group: object) -> None:
    sender = raw.sender(broker.queue("sessions"))
    fields = [b"\x40"] * 10 + [amqp.encode_value(group)]
    content = b"".join(fields)
    payload = b"\x00\x53\x73\xc0" + bytes((len(content) + 1, len(fields))) + content + b"\x00\x53\x75\xa0\x01x"
    with pytest.raises(Refused) as refusal:
        sender.send(payload)
    assert refusal.value.condition == "amqp:invalid-field"
    assert "group-id (SessionId) must be a string" in refusal.value.description
    sender.send(message("x", session_id="s"))


PROPERTIES = b"\x00\x53\x73\xc0\x06\x01\xa1\x03abc"
DATA, VALUE, SEQUENCE, FOOTER = b"\x00\x53\x75\xa0\x01a", b"\x00\x53\x77\xa1\x01a", b"\x00\x53\x76\x45", b"\x00\x53\x78\xc1\x01\x00"
TORN = {
    "two properties": PROPERTIES + DATA + PROPERTIES,
    "two application properties": PROPERTIES + 2 * b"\x00\x53\x74\xc1\x01\x00" + DATA,
    "two headers": 2 * b"\x00\x53\x70\x45" + PROPERTIES + DATA,
    "two footers": PROPERTIES + DATA + 2 * FOOTER,
    "data and value": PROPERTIES + DATA + VALUE,
    "sequence and data": PROPERTIES + SEQUENCE + DATA,
    "two values": PROPERTIES + VALUE + VALUE,
    "a footer inside the body": PROPERTIES + DATA + FOOTER + DATA,
    "application properties as list": PROPERTIES + b"\x00\x53\x74\x45" + DATA,
    "a message id that is no text": b"\x00\x53\x73\xc0\x07\x01\xb1\x00\x00\x00\x01\xff" + DATA,
    "properties with too many fields": b"\x00\x53\x73\xc0\x06\x02\xa1\x03abc" + DATA,
    "properties with too few fields": b"\x00\x53\x73\xc0\x07\x01\xa1\x03abc\x40" + DATA,
}
"""Each section can be read; together they are no message."""


@pytest.mark.parametrize(
    "payload",
    [
        b"\x00\x53\x75\xa0\x05abc",
        b"\x00\x53\x99\xa0\x01a",
        b"garbage",
        b"\x00",
        b"\x00\x53\x73\xa1\x01a",
        b"\x00\x53\x70\xc0\x04\x03\x40\x40\xa1",
        b"\x00\x53\x70\xc0\x06\x03\x40\x40\xa1\x01x",
        b"\x00\x53\x72\xc1\x04\x01\xa3\x01a",
        b"\x00\x53\x72\xc1\x07\x02\xa1\x02\xc3\xa4\xa1\x00",
        b"\x00\x53\x72\xc1\x05\x02\x55\x01\xa1\x00",
        b"\x00\x53\x74\xd1\xff\xff\xff\xff\x00\x00\x00\x02",
        b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x01\x40",
        *TORN.values(),
    ],
    ids=[
        "body cut short",
        "unknown section",
        "no section at all",
        "one byte",
        "properties as string",
        "header cut short",
        "ttl as string",
        "odd annotations",
        "annotation key as string that is no symbol",
        "annotation key as number",
        "map larger than the message",
        "descriptor of another domain",
        *TORN,
    ],
)
def test_a_message_that_cannot_be_read_is_refused_alone(raw: Raw, broker: ProcessBroker, payload: bytes) -> None:
    queue = broker.queue("plain")
    sender = raw.sender(queue)
    with pytest.raises(Refused) as refusal:
        sender.send(payload)
    assert refusal.value.condition == "amqp:decode-error"
    assert TAIL.search(refusal.value.description)
    sender.send(payload, settled=True)
    with pytest.raises(Refused) as refusal:
        sender.send(amqp.encode_message(body=[message("fine"), payload]), message_format=0x80013700)
    assert refusal.value.condition == "amqp:decode-error"
    sender.send(message("after"))
    assert [a.text for a in raw.receiver(queue).drain(9)] == ["after"]


@pytest.mark.compiled_too
@pytest.mark.parametrize("payload", [TORN["two properties"], TORN["data and value"]], ids=["two properties", "data and value"])
def test_a_message_that_no_reader_could_read_is_refused_at_every_door(raw: Raw, broker: ProcessBroker, payload: bytes) -> None:
    queue = broker.queue("plain")
    status, reply = raw.request(queue, "com.microsoft:schedule-message", {"messages": [{"message-id": "m", "message": payload}]})
    assert (status, reply.application_properties["errorCondition"]) == (400, "amqp:decode-error")
    coordinator = Coordinator(raw)
    sender = raw.sender(queue)
    with pytest.raises(Refused) as refusal:
        send_in(sender, coordinator.declare(), payload)
    assert refusal.value.condition == "amqp:decode-error"
    topic = raw.sender(TOPIC)
    with pytest.raises(Refused) as refusal:
        topic.send(payload)
    assert refusal.value.condition == "amqp:decode-error"
    topic.send(message("fine", properties={"subject": "s"}))
    assert [a.text for a in raw.receiver(f"{TOPIC}/Subscriptions/ruled", delete=True).receive()] == ["fine"]
    assert raw.peek(queue) == []


@pytest.mark.parametrize(
    "section", [b"\x00\x53\x74\xc1\x07\x02\xa1\x01a", b"\x00\x53\x72\xc1\x07\x02\xa3\x01a"], ids=["property", "annotation"]
)
def test_a_value_that_is_no_text_harms_nobody(raw: Raw, broker: ProcessBroker, section: bytes) -> None:
    """Values are not decoded on the way in; a rule that looks does not see them."""
    sender = raw.sender(TOPIC)
    sender.send(section + b"\xa1\x01\xff" + PROPERTIES + DATA)
    sender.send(message("fine", properties={"subject": "s"}))
    assert [a.text for a in raw.receiver(f"{TOPIC}/Subscriptions/ruled", delete=True).receive()] == ["fine"]


def test_an_oversize_message_costs_its_sender_a_rejection_and_not_the_link(raw: Raw, broker: ProcessBroker) -> None:
    queue = broker.queue("plain")
    sender = raw.sender(queue)
    assert sender.link.remote_max_message_size == 262_144
    for size in (262_144, 400_000, 3_000_000):
        with pytest.raises(Refused) as refusal:
            sender.send(message("x" * size))
        assert refusal.value.condition == "amqp:link:message-size-exceeded"
        assert TAIL.search(refusal.value.description)
    sender.send(message("small"))
    assert not sender.end.gone


def test_an_oversize_request_is_answered(raw: Raw, broker: ProcessBroker) -> None:
    queue = broker.queue("plain")
    raw.request(queue, "com.microsoft:peek-message", {"from-sequence-number": 0, "message-count": amqp.Int(1)})
    sender, _ = raw._management[f"{queue}/$management"]
    limit = sender.link.remote_max_message_size
    assert limit == 16 * 262_144
    with pytest.raises(Refused) as refusal:
        sender.send(b"\x00\x53\x77\xb0" + (limit + 1).to_bytes(4, "big") + bytes(limit + 1))
    assert refusal.value.condition == "amqp:link:message-size-exceeded"


# -- busy, and going away ----------------------------------------------------------------------------------------------


def test_a_busy_broker_says_so(timed: Bus, clocked: ClockedBroker) -> None:
    receiver = timed.receiver(timed.queue())
    usual = clocked.on_loop(lambda server: server.contexts[0].limits)
    clocked.on_loop(lambda server: setattr(server.contexts[0], "limits", dataclasses.replace(usual, management_requests_in_flight_max=0)))
    try:
        with pytest.raises(ServiceBusServerBusyError, match=r"TrackingId:") as failure:
            receiver.peek_messages(1)
        assert condition_of(failure) == "com.microsoft:server-busy"
    finally:
        clocked.on_loop(lambda server: setattr(server.contexts[0], "limits", usual))
    assert receiver.peek_messages(1) == []


def test_clients_of_a_broker_that_stops_lose_their_connection_and_nothing_else(tmp_path: Path, flavour: Any) -> None:
    with ClockedBroker(tmp_path, {"plain": 1}) as leaving, Raw(leaving.port) as feeder:
        bus = Bus(flavour, leaving, feeder)
        receiver = bus.receiver(bus.queue())
    with pytest.raises(ServiceBusConnectionError):
        receiver.receive_messages(1, max_wait_time=2)
    bus.close()


def test_not_found_and_size_are_not_retried_but_message_not_found_is_told_apart(bus: Bus) -> None:
    receiver = bus.receiver(bus.queue())
    with pytest.raises(MessageNotFoundError) as failure:
        receiver.receive_deferred_messages([12])
    assert condition_of(failure) == "com.microsoft:message-not-found"
    with pytest.raises(MessageSizeExceededError) as too_large:
        bus.sender(bus.queue()).send_messages(text("x" * 300_000))
    assert condition_of(too_large) == "amqp:link:message-size-exceeded"
