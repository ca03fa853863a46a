"""The transport over the official SDK, against a broker in this process and real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import datetime

import pytest
from azure.servicebus import ServiceBusMessage, TransportType
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusError,
)

from tandem.amqp import decode_message
from tandem.client.errors import NamespaceClosedError, classify, is_unreachable
from tandem.client.outbox import Outbox
from tandem.client.sdk import SdkNamespace, as_namespace
from tandem.client.sdk_codec import payload_from_message
from tandem.client.sdk_pump import supports_pipelining
from tandem.client.sdk_sender import new_batch
from tandem.client.verdicts import Verdict
from tandem.testing.bus import Bus
from tandem.testing.ports import free_port
from tests.waiting import until


@pytest.fixture
def bus():
    with Bus(real_time=True) as bus:
        bus.create_queue("q")
        yield bus


@pytest.fixture
async def namespace(bus: Bus):
    namespace = SdkNamespace(bus.connection_string)
    yield namespace
    await namespace.close()


async def receive(namespace: SdkNamespace, count: int, path: str = "q") -> list:
    receiver = namespace.receiver(path)
    got: list = []
    while len(got) < count:
        deliveries = await receiver.receive(count, 5)
        assert deliveries, f"only {len(got)} of {count} arrived"
        for delivery in deliveries:
            await receiver.complete(delivery)
        got += deliveries
    await receiver.close()
    return got


async def test_a_sender_learns_the_limits_of_its_link(namespace):
    sender = namespace.sender("q")
    assert sender.message_bytes_max == 0
    await sender.open(10)
    assert sender.message_bytes_max == sender.batch_bytes_max == 262_144


@pytest.mark.slow
async def test_concurrent_sends_share_the_link_and_each_arrives_once(namespace, bus):
    sender = namespace.sender("q")
    await asyncio.gather(*(sender.send(ServiceBusMessage("x", message_id=str(i)), 10) for i in range(300)))
    assert bus.counts("q").active == 300
    assert sorted(int(d.message_id) for d in await receive(namespace, 300)) == list(range(300))


async def test_one_refused_message_among_concurrent_ones_fails_alone(namespace, bus):
    sender = namespace.sender("q")
    sizes = [400_000 if i == 7 else 10 for i in range(20)]
    outcomes = await asyncio.gather(*(sender.send(ServiceBusMessage(b"x" * size), 10) for size in sizes), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes if outcome is not None] == [MessageSizeExceededError]
    assert isinstance(outcomes[7], MessageSizeExceededError)
    assert bus.counts("q").active == 19


async def test_lists_batches_and_encoded_messages_can_be_sent_concurrently_too(namespace, bus):
    sender = namespace.sender("q")
    batch = new_batch()
    for _ in range(3):
        batch.add_message(ServiceBusMessage("b"))
    payloads = [payload_from_message(ServiceBusMessage("p")) for _ in range(4)]
    await asyncio.gather(
        sender.send(ServiceBusMessage("1"), 10),
        sender.send([ServiceBusMessage("l"), AmqpAnnotatedMessage(data_body=b"l")], 10),
        sender.send(batch, 10),
        sender.send_payloads(payloads, 10),
    )
    assert bus.counts("q").active == 1 + 2 + 3 + 4


async def test_the_bytes_of_a_received_message_keep_every_wire_type(namespace):
    sender = namespace.sender("q")
    message = AmqpAnnotatedMessage(
        data_body=b"x" * 200_000,  # several frames
        properties={"message_id": "m"},
        application_properties={"when": datetime.datetime(2020, 1, 1), "uint": {"TYPE": "UINT", "VALUE": 5}, "text": "t"},
    )
    await sender.send(message, 10)
    (delivery,) = await receive(namespace, 1)
    sent, received = decode_message(payload_from_message(message)), decode_message(delivery.payload)
    assert received.body_sections == sent.body_sections
    assert {k: (type(v), v) for k, v in received.application_properties.items()} == {
        k: (type(v), v) for k, v in sent.application_properties.items()
    }


async def test_a_link_that_went_stale_is_replaced_within_the_send(namespace, bus):
    sender = namespace.sender("q")
    await sender.send(ServiceBusMessage("1"), 10)
    bus.restart()
    await sender.send(ServiceBusMessage("2"), 10)
    assert bus.counts("q").active >= 1


async def test_a_dead_broker_is_unreachable_and_the_sender_recovers_by_itself(namespace, bus):
    sender = namespace.sender("q")
    await sender.send(ServiceBusMessage("1"), 10)
    bus.stop()
    for _ in range(2):
        with pytest.raises(Exception) as caught:
            await sender.send(ServiceBusMessage("x"), 5)
        assert classify(caught.value) is Verdict.UNREACHABLE
    outcomes = await asyncio.gather(*(sender.send(ServiceBusMessage("x"), 5) for _ in range(5)), return_exceptions=True)
    assert {classify(outcome) for outcome in outcomes} == {Verdict.UNREACHABLE}
    bus.start()
    await sender.send(ServiceBusMessage("2"), 10)


async def test_an_endpoint_of_ones_own_that_is_down_is_unreachable_to_all_of_many_senders(bus):
    """Over WebSocket the SDK calls that an authentication error at first."""
    namespace = SdkNamespace(
        bus.connection_string, transport_type=TransportType.AmqpOverWebsocket, custom_endpoint_address=f"sb://localhost:{free_port()}"
    )
    sender = namespace.sender("q")
    first = asyncio.ensure_future(sender.send(ServiceBusMessage("x"), 10))
    await asyncio.sleep(0)  # it has the link, and the others wait for it
    errors = await asyncio.gather(first, *(sender.send(ServiceBusMessage("x"), 10) for _ in range(4)), return_exceptions=True)
    await namespace.close()
    assert [(type(error), classify(error)) for error in errors] == [(ServiceBusConnectionError, Verdict.UNREACHABLE)] * 5


async def test_an_interruption_ends_what_waits_for_a_silent_broker_and_later_sends_go_on(namespace, bus):
    sender = namespace.sender("q")
    await sender.send(ServiceBusMessage("0"), 10)
    await asyncio.to_thread(bus.inject, "black-hole")
    lone = asyncio.ensure_future(sender.send(ServiceBusMessage("1"), 60))
    await asyncio.sleep(0)
    queued = asyncio.ensure_future(sender.send(ServiceBusMessage("2"), 60))
    await asyncio.sleep(0.1)
    assert not lone.done() and not queued.done()
    sender.interrupt()
    async with asyncio.timeout(10):
        for waiting in (lone, queued):
            with pytest.raises(OperationTimeoutError):
                await waiting
    await asyncio.to_thread(bus.heal)
    await sender.send(ServiceBusMessage("3"), 10)
    assert bus.counts("q").active >= 2


@pytest.mark.slow
async def test_a_missing_entity_is_named_as_such(namespace):
    for attempt in (namespace.sender("missing").send(ServiceBusMessage("x"), 10), namespace.sender("missing").open(10)):
        with pytest.raises(MessagingEntityNotFoundError, match="missing"):
            await attempt
    with pytest.raises(MessagingEntityNotFoundError, match="missing"):
        await namespace.receiver("missing").receive(1, 10)


async def test_a_silent_peer_is_given_up_within_the_timeout():
    async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silence, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    string = f"Endpoint=sb://localhost:{port};SharedAccessKeyName=n;SharedAccessKey=k;UseDevelopmentEmulator=true"
    namespace = SdkNamespace(string)
    loop = asyncio.get_running_loop()
    started = loop.time()
    with pytest.raises(OperationTimeoutError):
        await namespace.sender("q").send(ServiceBusMessage("x"), 0.5)
    assert loop.time() - started < 5
    await namespace.close()
    server.close()


async def test_a_cancelled_send_leaves_a_sender_that_works(namespace, bus):
    sender = namespace.sender("q")
    await sender.send(ServiceBusMessage("1"), 10)
    sending = asyncio.ensure_future(sender.send(ServiceBusMessage("2"), 10))
    await asyncio.sleep(0)
    sending.cancel()
    await asyncio.wait((sending,))
    await sender.send(ServiceBusMessage("3"), 10)
    assert bus.counts("q").active in (2, 3)


@pytest.fixture
async def silent():
    """A namespace that takes connections and says nothing, and what counts them."""
    met: asyncio.Queue[None] = asyncio.Queue()

    async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        met.put_nowait(None)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silence, "localhost", 0)
    port = server.sockets[0].getsockname()[1]
    namespace = SdkNamespace(f"Endpoint=sb://localhost:{port};SharedAccessKeyName=n;SharedAccessKey=k;UseDevelopmentEmulator=true")
    yield namespace, met
    await namespace.close()
    server.close()


async def test_sends_that_wait_for_their_turn_are_told_when_the_sender_is_closed(silent):
    namespace, met = silent
    sender = namespace.sender("q")

    async def first() -> None:
        with pytest.raises(OperationTimeoutError):
            await sender.send(ServiceBusMessage("x"), 1.5)
        await sender.close()  # in the very step in which the others' turn begins

    opening = asyncio.ensure_future(first())
    await met.get()
    sends = [asyncio.ensure_future(sender.send(ServiceBusMessage("x"), 60)) for _ in range(2)]
    await asyncio.wait([opening, *sends], timeout=20)
    assert [send.done() and type(send.exception()) for send in sends] == [ServiceBusConnectionError] * 2
    await opening
    with pytest.raises(NamespaceClosedError):
        await sender.send(ServiceBusMessage("x"), 1)


async def test_sends_that_were_all_cancelled_are_not_made_up_for_with_another_link(silent):
    namespace, met = silent
    sender = namespace.sender("q")
    sends = [asyncio.ensure_future(sender.send(ServiceBusMessage("x"), 10))]
    await met.get()
    sends += [asyncio.ensure_future(sender.send(ServiceBusMessage("x"), 10)) for _ in range(3)]
    await asyncio.sleep(0)
    for send in sends:
        send.cancel()
    await asyncio.wait(sends)
    assert sender._pump is None and met.empty()


async def test_settling_works_from_a_receiver_whose_link_was_replaced(namespace, bus):
    await namespace.sender("q").send([ServiceBusMessage(str(i)) for i in range(4)], 10)
    receiver = namespace.receiver("q")
    deliveries = []
    while len(deliveries) < 4:
        deliveries += await receiver.receive(4 - len(deliveries), 5)
    receiver._discard()
    await receiver.complete(deliveries[0])
    await receiver.abandon(deliveries[1])
    await receiver.dead_letter(deliveries[2], "why", "because")
    await receiver.renew(deliveries[3])
    counts = bus.counts("q")
    assert (counts.active, counts.dead_lettered) == (2, 1)
    await receiver.close()


async def test_a_receiver_is_given_nothing_between_two_calls(namespace):
    sender = namespace.sender("q")
    await sender.send(ServiceBusMessage("x"), 10)
    resting, other = namespace.receiver("q"), namespace.receiver("q")
    (delivery,) = await resting.receive(100, 5)
    await resting.abandon(delivery)
    (again,) = await other.receive(1, 10)
    assert not resting._payloads, "it came to the one that asked, and to nobody else before"
    await other.complete(again)
    await sender.send(ServiceBusMessage("y"), 10)
    assert len(await resting.receive(100, 5)) == 1, "its next call goes on"


async def test_a_link_that_the_sdk_gave_up_is_an_error_and_the_next_call_has_another(namespace, monkeypatch):
    receiver = namespace.receiver("q")
    await receiver.open(10)

    async def unreadable(*args, **options):
        raise ValueError("cannot be decoded")

    monkeypatch.setattr(receiver._receiver._handler._connection, "listen", unreadable)
    with pytest.raises(ServiceBusConnectionError, match="q: the SDK gave its link up"):
        await receiver.receive(1, 5)
    await namespace.sender("q").send(ServiceBusMessage("m"), 10)  # not before: the lost link could hold its lock
    (delivery,) = await receiver.receive(1, 30)
    await receiver.complete(delivery)
    await receiver.close()


async def test_scheduling_returns_numbers_that_can_be_cancelled(namespace, bus):
    sender = namespace.sender("q")
    at = datetime.datetime(2041, 1, 1, tzinfo=datetime.UTC)
    numbers = await sender.schedule([ServiceBusMessage("1"), ServiceBusMessage("2")], at, 10)
    assert len(numbers) == 2 and bus.counts("q").scheduled == 2
    await sender.cancel_scheduled(numbers, 10)
    assert bus.counts("q").scheduled == 0


async def test_closed_things_say_so(namespace):
    sender, receiver = namespace.sender("q"), namespace.receiver("q")
    await sender.close()
    await receiver.close()
    with pytest.raises(NamespaceClosedError):
        await sender.send(ServiceBusMessage("x"), 5)
    with pytest.raises(NamespaceClosedError):
        await receiver.receive(1, 5)
    await namespace.close()
    with pytest.raises(NamespaceClosedError):
        namespace.sender("q")


async def test_what_is_no_namespace_is_refused_with_a_hint():
    with pytest.raises(TypeError, match=r"azure\.servicebus\.aio"):
        as_namespace(object())


async def test_the_installed_sdk_can_be_pipelined(namespace):
    assert supports_pipelining(namespace.client.get_queue_sender("q"))


async def test_options_belong_to_a_connection_string(namespace):
    with pytest.raises(ValueError, match="retry_total"):
        SdkNamespace(namespace.client, retry_total=1)


NO_AMQP = {
    "HTTP": b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n",
    "HTML": b"<html>bad gateway</html>",
    "SMTP": b"220 mail ESMTP\r\n",
    "AMQP 0-9-1": b"AMQP\x00\x00\x09\x01",
    "zeros": bytes(64),
    "no SASL": b"AMQP\x03\x01\x00\x00" + bytes(64),
}


@pytest.mark.parametrize("answer", NO_AMQP.values(), ids=NO_AMQP)
async def test_a_proxy_that_answers_in_place_of_the_namespace_is_an_outage(answer, tmp_path):
    """Sends are diverted, or wait in an outbox, and nobody takes the messages for refused."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await reader.readexactly(8)
            writer.write(answer)
            await reader.read()
        writer.close()

    proxy = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = f"sb://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
    namespace = SdkNamespace(f"Endpoint={address};SharedAccessKeyName=n;SharedAccessKey=k;UseDevelopmentEmulator=true")
    try:
        alone, *together = [ServiceBusMessage("x") for _ in range(4)]
        sender = namespace.sender("q")
        with pytest.raises(ServiceBusError) as caught:
            await sender.send(alone, 5)
        assert is_unreachable(caught.value)
        outcomes = await asyncio.gather(*(sender.send(message, 5) for message in together), return_exceptions=True)
        assert [is_unreachable(outcome) for outcome in outcomes] == [True] * 3
        async with Outbox(tmp_path / "outbox.db", namespace) as outbox:
            await outbox.send("q", ServiceBusMessage("x"))
            await until(lambda: outbox.counters.retries > 1, what="it is tried again")
            assert await outbox.pending() == 1 and await outbox.dead_letters() == []
    finally:
        await namespace.close()
        proxy.close()


async def test_a_message_that_cannot_be_encoded_is_refused_and_is_no_outage(namespace):
    sender = namespace.sender("q")
    await sender.open(10)
    messages = [ServiceBusMessage("x", application_properties={"n": 2**80}) for _ in range(3)]
    outcomes = [*await asyncio.gather(sender.send(messages[0], 10), return_exceptions=True)]
    outcomes += await asyncio.gather(*(sender.send(message, 10) for message in messages[1:]), return_exceptions=True)
    assert [classify(outcome) for outcome in outcomes] == [Verdict.REFUSED] * 3
    await sender.send(ServiceBusMessage("y"), 10)
