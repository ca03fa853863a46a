"""Sending with the official SDK: what goes in comes out, whole, in order, with its types and its annotations."""

from __future__ import annotations

import datetime
import decimal
import uuid
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode, TransportType
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType, AmqpMessageHeader, AmqpMessageProperties
from azure.servicebus.exceptions import MessageSizeExceededError, ServiceBusQuotaExceededError

from tandem import amqp
from tests.conformance.house import TOPIC
from tests.conformance.raw import Raw, Refused, message
from tests.conformance.sdk import Bus, bodies, text

QUEUES = {
    "plain": 48,
    "dedup": 1,
    "partitioned": 2,
    "short-sessions": 2,
    "sessions": 10,
    "disabled": 1,
    "small": 2,
    "mebibyte": 2,
    "roomy": 2,
}
KIB = 1024


@pytest.mark.compiled_too
def test_one_message_a_list_and_a_batch_arrive_in_order(bus: Bus) -> None:
    queue = bus.queue()
    sender = bus.sender(queue)
    sender.send_messages(text("one"))
    sender.send_messages([text("two"), text("three")])
    batch = sender.create_message_batch()
    batch.add_message(text("four"))
    batch.add_message(text("five"))
    sender.send_messages(batch)
    receiver = bus.receiver(queue)
    received = receiver.receive_messages(5, max_wait_time=10)
    assert bodies(received) == ["one", "two", "three", "four", "five"]
    assert [m.sequence_number for m in received] == [1, 2, 3, 4, 5]
    for m in received:
        receiver.complete_message(m)
    assert bus.left(queue) == []


@pytest.mark.compiled_too
def test_everything_a_sender_can_set_comes_back_as_it_was(bus: Bus) -> None:
    queue = bus.queue()
    sent = ServiceBusMessage(
        "body",
        application_properties={
            "s": "text",
            "i": 7,
            "f": 1.5,
            "b": True,
            "bytes": b"taken as text",
            "uuid": uuid.UUID(int=5),
            "none": None,
        },
        time_to_live=datetime.timedelta(hours=1),
        content_type="application/json",
        correlation_id="correlated",
        subject="a subject",
        message_id="an id",
        partition_key="p",
        to="someone",
        reply_to="me",
        reply_to_session_id="my session",
    )
    bus.sender(queue).send_messages(sent)
    received = bus.receiver(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE).receive_messages(1, max_wait_time=10)[0]
    assert str(received) == "body"
    assert received.application_properties == {
        b"s": b"text",
        b"i": 7,
        b"f": 1.5,
        b"b": True,
        b"bytes": b"taken as text",
        b"uuid": uuid.UUID(int=5),
        b"none": None,
    }
    assert received.time_to_live == datetime.timedelta(hours=1)
    assert received.expires_at_utc == received.enqueued_time_utc + datetime.timedelta(hours=1)
    for name in ("content_type", "correlation_id", "subject", "message_id", "partition_key", "to", "reply_to", "reply_to_session_id"):
        assert getattr(received, name) == getattr(sent, name), name


def test_header_footer_and_annotations_of_the_sender_survive(bus: Bus) -> None:
    queue = bus.queue()
    bus.sender(queue).send_messages(
        AmqpAnnotatedMessage(
            data_body=b"body",
            header=AmqpMessageHeader(durable=True, priority=5),
            footer={"checksum": 12},
            annotations={"mine": "kept", "number": 3},
            delivery_annotations={"hop": "by hop"},
            properties=AmqpMessageProperties(message_id="id", user_id=b"user", group_sequence=4, creation_time=1_700_000_000_000),
        )
    )
    raw = bus.receiver(queue).receive_messages(1, max_wait_time=10)[0].raw_amqp_message
    assert raw.header.durable is True
    assert raw.header.priority == 5
    assert raw.header.delivery_count == 0
    assert raw.header.time_to_live is None
    assert raw.header.first_acquirer is None
    assert raw.footer == {b"checksum": 12}
    assert raw.properties.user_id == b"user"
    assert raw.properties.group_sequence == 4
    assert set(raw.annotations) == {b"mine", b"number", b"x-opt-enqueued-time", b"x-opt-sequence-number", b"x-opt-locked-until"}
    assert raw.annotations[b"mine"] == b"kept"
    assert set(raw.delivery_annotations) == {b"hop", b"x-opt-lock-token"}


def test_annotations_are_exactly_those_the_contract_names(bus: Bus) -> None:
    queue = bus.queue()
    bus.feed(queue, "locked", "deleted")
    locked = bus.receiver(queue).receive_messages(1, max_wait_time=10)[0].raw_amqp_message
    assert set(locked.annotations) == {b"x-opt-enqueued-time", b"x-opt-sequence-number", b"x-opt-locked-until"}
    assert set(locked.delivery_annotations) == {b"x-opt-lock-token"}
    receiver = bus.receiver(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    deleted = receiver.receive_messages(1, max_wait_time=10)[0]
    assert set(deleted.raw_amqp_message.annotations) == {b"x-opt-enqueued-time", b"x-opt-sequence-number"}
    assert deleted.raw_amqp_message.delivery_annotations == {}
    assert deleted.lock_token is None
    assert deleted.locked_until_utc is None
    assert deleted.delivery_count == 0


def test_a_received_message_sent_again_gets_new_broker_annotations(bus: Bus) -> None:
    first, second = bus.queue(), bus.queue()
    bus.feed(first, "a", "b")
    received = bus.receiver(first).receive_messages(2, max_wait_time=10)[1]
    assert received.sequence_number == 2
    bus.sender(second).send_messages(received)
    again = bus.receiver(second).receive_messages(1, max_wait_time=10)[0]
    assert (str(again), again.sequence_number, again.message_id) == ("b", 1, received.message_id)
    assert len(again.raw_amqp_message.annotations) == 3
    assert again.lock_token != received.lock_token


@pytest.mark.compiled_too
@pytest.mark.parametrize("how", ["send", "batch", "schedule"])
def test_a_received_message_may_be_sent_again_with_everything_it_carries(bus: Bus, raw: Raw, how: str) -> None:
    """The SDK reads texts of annotations and ids as bytes, and writes them as binary when it sends them again."""
    queue = bus.queue("sessions")
    sender = bus.sender(queue)
    sent = text("x", message_id="m", session_id="s", partition_key="s", correlation_id="c", reply_to_session_id="r", subject="l", to="t")
    sent.raw_amqp_message.annotations["x-opt-via-partition-key"] = "via"
    sent.application_properties = {"text": "t", "number": 1, "uuid": uuid.uuid4(), "yes": True}
    sender.send_messages(sent)
    receiver = bus.receiver(queue, session_id="s")
    received = receiver.receive_messages(1, max_wait_time=10)[0]
    receiver.complete_message(received)
    receiver.close()
    if how == "schedule":
        sender.schedule_messages(received, datetime.datetime.now(datetime.UTC))
    else:
        sender.send_messages(received if how == "send" else [received])
    again = raw.receiver(queue, session="s").receive()[0].message
    assert again.message_annotations["x-opt-partition-key"] == "s"
    assert again.message_annotations["x-opt-via-partition-key"] == "via"
    assert (again.properties["group-id"], again.properties["reply-to-group-id"]) == ("s", "r")
    assert again.application_properties == sent.application_properties


def test_an_id_that_came_back_as_binary_is_the_same_id(raw: Raw, broker: Any) -> None:
    """For duplicate detection and rules; its next reader still gets it as it was sent."""
    queue = broker.queue("dedup")
    sender = raw.sender(queue)
    for identity in ("abc", b"abc", b"\xff", b"\xff", amqp.ULong(5), amqp.ULong(5), ["odd"], ["odd"]):
        sender.send(message("x", message_id=identity))
    sender.send(message("x", properties={"message-id": b"def"}))
    assert [entry.properties["message-id"] for entry in raw.peek(queue)] == ["abc", b"\xff", 5, ["odd"], b"def"]
    raw.sender(TOPIC).send(message("to the topic", properties={"subject": "s", "message-id": b"abc"}))
    assert [a.text for a in raw.receiver(f"{TOPIC}/Subscriptions/by-id", delete=True).receive()] == ["to the topic"]


@pytest.mark.parametrize("kind", [amqp.Timestamp, amqp.ULong, int, amqp.UInt], ids=lambda kind: kind.__name__)
def test_a_schedule_that_came_back_as_a_number_is_an_instant(raw: Raw, broker: Any, kind: Any) -> None:
    queue = broker.queue("plain")
    raw.sender(queue).send(message("x", message_annotations={"x-opt-scheduled-enqueue-time": kind(4_000_000_000)}))
    received = raw.receiver(queue).receive()[0].message.message_annotations["x-opt-scheduled-enqueue-time"]
    assert (type(received), received) == (amqp.Timestamp, 4_000_000_000)


@pytest.mark.parametrize("value", ["tomorrow", True], ids=["text", "boolean"])
def test_a_schedule_that_is_no_instant_is_refused(raw: Raw, broker: Any, value: object) -> None:
    with pytest.raises(Refused, match=r"amqp:invalid-field.*x-opt-scheduled-enqueue-time must be a timestamp"):
        raw.sender(broker.queue("plain")).send(message("x", message_annotations={"x-opt-scheduled-enqueue-time": value}))


@pytest.mark.parametrize("key", [b"\xff", amqp.Symbol("symbol")], ids=["bytes", "symbol"])
def test_a_partition_key_that_is_no_text_is_refused(raw: Raw, broker: Any, key: object) -> None:
    with pytest.raises(Refused, match=r"amqp:invalid-field.*x-opt-partition-key must be a string"):
        raw.sender(broker.queue("plain")).send(message("x", message_annotations={"x-opt-partition-key": key}))


def test_data_sequence_and_value_bodies_keep_their_kind(bus: Bus) -> None:
    queue = bus.queue()
    sender = bus.sender(queue)
    sender.send_messages(
        [
            AmqpAnnotatedMessage(data_body=[b"one", b"two"]),
            AmqpAnnotatedMessage(sequence_body=[[1, "two"], [None]]),
            AmqpAnnotatedMessage(value_body={"key": [1, 2.5, True]}),
            AmqpAnnotatedMessage(value_body=None),
        ]
    )
    received = bus.receiver(queue).receive_messages(4, max_wait_time=10)
    kinds = [m.body_type for m in received]
    assert kinds == [AmqpMessageBodyType.DATA, AmqpMessageBodyType.SEQUENCE, AmqpMessageBodyType.VALUE, AmqpMessageBodyType.VALUE]
    assert list(received[0].body) == [b"one", b"two"]
    assert list(received[1].body) == [[1, b"two"], [None]]
    assert received[2].body == {b"key": [1, 2.5, True]}
    assert received[3].body is None


def test_a_message_id_of_type_uuid_stays_a_uuid(bus: Bus, raw: Raw) -> None:
    queue = bus.queue()
    identity = uuid.uuid4()
    bus.sender(queue).send_messages(AmqpAnnotatedMessage(data_body=b"x", properties=AmqpMessageProperties(message_id=identity)))
    assert raw.receiver(queue).receive()[0].message.properties["message-id"] == identity


def test_a_message_without_an_id_is_given_one(raw: Raw, broker: Any) -> None:
    queue = broker.queue("plain")
    raw.sender(queue).send(amqp.encode_message(body=b"anonymous"))
    raw.sender(queue).send(b"")
    first, second = raw.receiver(queue).receive(2)
    assert uuid.UUID(str(first.message.properties["message-id"])).version == 4
    assert second.message.body is None
    assert second.message.properties["message-id"] != first.message.properties["message-id"]


def test_every_amqp_type_travels_through_application_properties(raw: Raw, broker: Any) -> None:
    queue = broker.queue("plain")
    properties: dict[object, object] = {
        "null": None,
        "bool": False,
        "ubyte": amqp.UByte(200),
        "ushort": amqp.UShort(60_000),
        "uint": amqp.UInt(4_000_000_000),
        "ulong": amqp.ULong(2**63),
        "byte": amqp.Byte(-100),
        "short": amqp.Short(-30_000),
        "int": amqp.Int(-2_000_000_000),
        "long": -(2**62),
        "float": amqp.Float(0.5),
        "double": 1e300,
        "decimal": amqp.Decimal128(bytes(range(16))),
        "char": amqp.Char("ä"),
        "timestamp": amqp.Timestamp(1_700_000_000_000),
        "uuid": uuid.uuid4(),
        "binary": b"\x00\x01",
        "string": "ünï",
        "symbol": amqp.Symbol("sym"),
    }
    payload = message("x", application_properties=properties)
    raw.sender(queue).send(payload)
    received = raw.receiver(queue).receive()[0].message.application_properties
    assert received == properties
    assert {k: type(v) for k, v in received.items()} == {k: type(v) for k, v in properties.items()}


def test_a_decimal_property_reaches_the_sdk(bus: Bus) -> None:
    queue = bus.queue()
    bus.sender(queue).send_messages(text("x", application_properties={"price": decimal.Decimal("12.50")}))
    received = bus.receiver(queue).receive_messages(1, max_wait_time=10)
    assert received[0].application_properties == {b"price": decimal.Decimal("12.50")}


def test_sections_in_any_order_are_accepted(raw: Raw, broker: Any) -> None:
    queue = broker.queue("plain")
    body = amqp.encode_message(body=b"first the body")
    rest = amqp.encode_message(properties={"message-id": "m"}, application_properties={"a": 1}, body_kind=0)
    notes = amqp.encode_message(delivery_annotations={"last": 1}, message_annotations={"own": 2}, header={"ttl": 60_000}, body_kind=0)
    raw.sender(queue).send(body + rest + notes)
    received = raw.receiver(queue).receive()[0]
    assert received.text == "first the body"
    assert received.message.properties["message-id"] == "m"
    assert received.message.application_properties == {"a": 1}
    assert received.message.message_annotations["own"] == 2
    assert received.message.delivery_annotations["last"] == 1
    assert received.message.header["ttl"] == 60_000


@pytest.mark.parametrize("kib", [1, 60, 64, 130, 250])
def test_messages_up_to_250_kib_pass_whole(raw: Raw, broker: Any, kib: int) -> None:
    queue = broker.queue("plain")
    body = "".join(chr(97 + i % 26) for i in range(kib * KIB))
    raw.feed(queue, body)
    assert raw.receiver(queue).receive()[0].text == body


def test_250_kib_pass_and_256_kib_are_refused(bus: Bus) -> None:
    queue = bus.queue()
    sender = bus.sender(queue)
    sender.send_messages(text("a" * 250 * KIB))
    with pytest.raises(MessageSizeExceededError, match="TrackingId:"):
        sender.send_messages(text("b" * 256 * KIB))
    sender.send_messages(text("c"))
    received = bus.receiver(queue).receive_messages(2, max_wait_time=10)
    assert [len(str(m)) for m in received] == [250 * KIB, 1]


def test_an_entity_may_allow_more_than_the_default(bus: Bus) -> None:
    small, large = bus.queue("mebibyte"), bus.queue("roomy")
    with pytest.raises(MessageSizeExceededError, match="1048576"):
        bus.sender(small).send_messages(text("a" * KIB * KIB))
    sender = bus.sender(large)
    sender.send_messages(text("b" * 3 * KIB * KIB))
    assert sender.create_message_batch().max_size_in_bytes == KIB * KIB
    received = bus.receiver(large).receive_messages(1, max_wait_time=10)
    assert [len(str(m)) for m in received] == [3 * KIB * KIB]


def test_a_batch_is_taken_whole_or_not_at_all(raw: Raw, broker: Any) -> None:
    queue = broker.queue("sessions")
    parts = [message("fine", session_id="s"), message("no session")]
    envelope = amqp.encode_message(properties={"message-id": "envelope"}, body=parts)
    with pytest.raises(Refused) as refusal:
        raw.sender(queue).send(envelope, message_format=0x80013700)
    assert refusal.value.condition == "amqp:not-allowed"
    status, _ = raw.request(queue, "com.microsoft:peek-message", {"from-sequence-number": 0, "message-count": amqp.Int(9)})
    assert status == 204


@pytest.mark.parametrize("how", ["batch", "schedule"])
def test_several_for_one_partition_that_is_nearly_full_are_taken_whole_or_not_at_all(raw_timed: Raw, clocked: Any, how: str) -> None:
    queue = clocked.queue("partitioned")

    def shrink(server: Any) -> None:
        for fragment in server.contexts[0].namespace.find(queue).main.parts():
            fragment.terms.quota_bytes = 20_000

    clocked.on_loop(shrink)
    several = [message("x" * 6000, message_annotations={"x-opt-partition-key": "k"}) for _ in range(4)]
    sender = raw_timed.sender(queue)
    for some in (several, several[:3]):
        if how == "schedule":
            wish = {"messages": [{"message-id": str(n), "message": one} for n, one in enumerate(some)]}
            assert raw_timed.request(queue, "com.microsoft:schedule-message", wish)[0] == (403 if len(some) == 4 else 200)
        elif len(some) == 4:
            with pytest.raises(Refused, match="amqp:resource-limit-exceeded"):
                sender.send(amqp.encode_message(body=some), message_format=0x80013700)
        else:
            sender.send(amqp.encode_message(body=some), message_format=0x80013700)
        assert len(raw_timed.peek(queue)) == (0 if len(some) == 4 else 3)


def test_the_envelope_of_a_batch_is_not_a_message(raw: Raw, broker: Any) -> None:
    queue = broker.queue("plain")
    parts = [message("one", message_id="1", application_properties={"n": 1}), message("two", message_id="2")]
    envelope = amqp.encode_message(
        properties={"message-id": "1"}, application_properties={"n": 1}, message_annotations={"x": 1}, body=parts
    )
    raw.sender(queue).send(envelope, message_format=0x80013700)
    received = raw.receiver(queue).receive(2)
    assert [(a.text, a.message.properties["message-id"], a.message.application_properties) for a in received] == [
        ("one", "1", {"n": 1}),
        ("two", "2", {}),
    ]
    assert all("x" not in a.message.message_annotations for a in received)


@pytest.mark.compiled_too
def test_pre_settled_messages_are_kept_and_not_answered(raw: Raw, broker: Any) -> None:
    queue = broker.queue("plain")
    sender = raw.sender(queue)
    for number in range(20):
        sender.send(message(str(number)), settled=True)
    assert [a.text for a in raw.receiver(queue).receive(20)] == [str(n) for n in range(20)]
    assert sender.end.outcomes == {}


def test_pings_are_accepted_and_never_seen_again(bus: Bus, raw: Raw) -> None:
    queue = bus.queue("short-sessions")
    ping = text("", content_type="application/vnd.ms-servicebus-ping", session_id="any", time_to_live=datetime.timedelta(seconds=1))
    sender = bus.sender(queue)
    sender.send_messages([ping, text("real", session_id="s")])
    loud = text("", content_type="Application/Vnd.MS-ServiceBus-Ping", session_id="any")
    sender.send_messages(loud)
    receiver = bus.receiver(queue, session_id="s")
    peeked = raw.request(queue, "com.microsoft:peek-message", {"from-sequence-number": 0, "message-count": amqp.Int(9)})[1]
    assert len(peeked.body["messages"]) == 1  # type: ignore[index]
    assert bodies(receiver.receive_messages(5, max_wait_time=1)) == ["real"]
    listed = raw.request(
        queue,
        "com.microsoft:get-message-sessions",
        {"last-updated-time": amqp.Timestamp(253_402_300_800_000), "skip": amqp.Int(0), "top": amqp.Int(9)},
    )[1]
    assert listed.body["sessions-ids"].values == ["s"]  # type: ignore[index]


def test_a_ping_meets_the_checks_a_real_send_would_meet(raw: Raw, broker: Any) -> None:
    ping = message("", properties={"content-type": "application/vnd.ms-servicebus-ping"})
    with pytest.raises(Refused) as refusal:
        raw.sender(broker.queue("sessions")).send(ping)
    assert refusal.value.condition == "amqp:not-allowed"
    with pytest.raises(Refused) as refusal:
        raw.sender(broker.queue("disabled"))
    assert refusal.value.condition == "com.microsoft:entity-disabled"


def test_a_full_queue_refuses_and_takes_again_when_there_is_room(timed: Bus, clocked: Any) -> None:
    queue = timed.queue("small")
    clocked.on_loop(lambda server: setattr(server.contexts[0].namespace.find(queue).main.terms, "quota_bytes", 20_000))
    sender = timed.sender(queue)
    for _ in range(3):
        sender.send_messages(text("a" * 6000))
    with pytest.raises(ServiceBusQuotaExceededError, match=r"maximum entity size.*TrackingId:"):
        sender.send_messages(text("b" * 6000))
    with pytest.raises(ServiceBusQuotaExceededError):
        sender.send_messages([text("c" * 900), text("d" * 900), text("e" * 900)])
    receiver = timed.receiver(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    assert len(receiver.receive_messages(2, max_wait_time=10)) == 2
    sender.send_messages(text("f" * 6000))
    assert [body[0] for body in timed.left(queue)] == ["a", "f"]


def test_amqp_over_websocket_carries_250_kib_both_ways(bus: Bus) -> None:
    queue = bus.queue()
    client = bus.client(transport_type=TransportType.AmqpOverWebsocket, custom_endpoint_address=f"sb://localhost:{bus.broker.port}")
    bus.sender(queue, client).send_messages(text("w" * 250 * KIB))
    received = bus.receiver(queue, client).receive_messages(1, max_wait_time=10)
    assert [len(str(m)) for m in received] == [250 * KIB]
    with pytest.raises(MessageSizeExceededError):
        bus.sender(queue, client).send_messages(text("w" * 256 * KIB))
