"""Qpid Proton against a broker: it sends, receives and settles by the AMQP specification alone."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conformance.house import ROOT_KEY, ROOT_NAME, TOPIC, ProcessBroker

QUEUES = {"plain": 20, "sessions": 4, "short": 2}

proton = pytest.importorskip("proton", reason="MISSING: python-qpid-proton, which needs a C compiler; pip install python-qpid-proton")

from proton import SSL, Delivery, Event, Message, SSLDomain, int32, symbol, timestamp, ubyte, ulong  # noqa: E402
from proton.handlers import MessagingHandler  # noqa: E402
from proton.reactor import Backoff, Container, Filter  # noqa: E402
from proton.utils import BlockingConnection, LinkDetached, SendException  # noqa: E402


def connect(address: str, **options: Any) -> Any:
    container = Container()
    container.allow_insecure_mechs = True
    return BlockingConnection(address, timeout=20, container=container, user=ROOT_NAME, password=ROOT_KEY, allowed_mechs="PLAIN", **options)


@pytest.fixture
def connection(broker: ProcessBroker) -> Iterator[Any]:
    opened = connect(f"amqp://localhost:{broker.port}")
    yield opened
    opened.close()


def test_proton_sends_receives_and_settles(connection: Any, broker: ProcessBroker) -> None:
    queue = broker.queue("plain")
    sender = connection.create_sender(queue)
    for number in range(20):
        sender.send(Message(id=ulong(number), body=f"message {number}", durable=True, priority=ubyte(7)))
    receiver = connection.create_receiver(queue, credit=10)
    for number in range(10):
        received = receiver.receive()
        assert (received.id, received.body) == (number, f"message {number}")
        assert (received.durable, received.priority, received.delivery_count) == (True, 7, 0)
        assert received.annotations[symbol("x-opt-sequence-number")] == number + 1
        receiver.accept()
    receiver.close()
    for outcome, count in (("release", 0), ("fail", 0), ("reject", 1)):
        receiver = connection.create_receiver(queue, credit=1)
        received = receiver.receive()
        assert (received.body, received.delivery_count) == ("message 10", count)
        receiver.reject() if outcome == "reject" else receiver.release(delivered=outcome == "fail")
        receiver.close()
    dead = connection.create_receiver(f"{queue}/$DeadLetterQueue", credit=1).receive()
    assert dead.body == "message 10"


def test_proton_bodies_and_properties_of_every_kind_come_back(connection: Any, broker: ProcessBroker) -> None:
    queue = broker.queue("plain")
    sent = Message(
        id=uuid.uuid4(),
        user_id=b"me",
        address="there",
        subject="s",
        reply_to="here",
        correlation_id="c",
        content_type=symbol("application/json"),
        content_encoding=symbol("utf-8"),
        creation_time=1_700_000_000.0,
        group_id="g",
        group_sequence=9,
        reply_to_group_id="rg",
        ttl=60.0,
        properties={"text": "t", "int": int32(5), "float": 2.5, "bool": True, "bytes": b"\x00", "uuid": uuid.uuid4(), "at": timestamp(5)},
        annotations={symbol("x-own"): ["list", {"map": 1}]},
        body={"map": [1, "two", None, b"three"]},
    )
    connection.create_sender(queue).send(sent)
    received = connection.create_receiver(queue, credit=1).receive()
    names = ["id", "user_id", "address", "subject", "reply_to", "correlation_id", "content_type", "content_encoding", "creation_time"]
    for name in [*names, "group_id", "group_sequence", "reply_to_group_id", "ttl", "properties", "body"]:
        assert getattr(received, name) == getattr(sent, name), name
    assert received.annotations[symbol("x-own")] == ["list", {"map": 1}]


def test_proton_large_messages_pass_and_larger_ones_are_refused(connection: Any, broker: ProcessBroker) -> None:
    queue = broker.queue("plain")
    sender = connection.create_sender(queue)
    sender.send(Message(body=b"x" * 250 * 1024))
    with pytest.raises(SendException) as refusal:
        sender.send(Message(body=b"x" * 256 * 1024))
    assert refusal.value.state == Delivery.REJECTED
    sender.send(Message(body=b"after"))
    receiver = connection.create_receiver(queue, credit=2)
    assert [len(receiver.receive().body) for _ in range(2)] == [250 * 1024, 5]


def test_proton_is_told_why_a_link_is_refused(connection: Any, broker: ProcessBroker) -> None:
    with pytest.raises(LinkDetached, match=r"amqp:not-found.*could not be found.*TrackingId:"):
        connection.create_receiver("no-such-queue", credit=1)
    with pytest.raises(
        LinkDetached,
        match=r"amqp:not-allowed.*It is not possible for an entity that requires sessions to create a non-sessionful message receiver\. ",
    ):
        connection.create_receiver(broker.queue("sessions"), credit=1)
    connection.create_sender(broker.queue("plain")).send(Message(body="fine"))


def test_proton_is_told_of_a_stolen_link_and_keeps_its_connection(connection: Any, broker: ProcessBroker) -> None:
    queue = broker.queue("plain")
    connection.create_receiver(queue, name="same", credit=1)
    with pytest.raises(LinkDetached, match="amqp:link:stolen"):
        connection.create_receiver(queue, name="same", credit=1)
    connection.create_sender(broker.queue("plain")).send(Message(body="fine"))


@pytest.mark.skipif(not SSL.present(), reason="MISSING: a Proton with TLS, which is built where libssl-dev and pkg-config are")
def test_proton_verifies_the_broker_over_tls(broker: ProcessBroker) -> None:
    trust = SSLDomain(SSLDomain.MODE_CLIENT)
    trust.set_trusted_ca_db(broker.process.line("CA file:"))
    trust.set_peer_authentication(SSLDomain.VERIFY_PEER_NAME)
    queue = broker.queue("plain")
    connection = connect(f"amqps://localhost:{broker.port}", ssl_domain=trust)
    connection.create_sender(queue).send(Message(body="private"))
    assert connection.create_receiver(queue, credit=1).receive().body == "private"
    connection.close()


def test_proton_takes_a_session_by_id_and_the_next_one(connection: Any, broker: ProcessBroker) -> None:
    queue = broker.queue("sessions")
    sender = connection.create_sender(queue)
    for group in ("blue", "green", "blue"):
        sender.send(Message(body=f"for {group}", group_id=group))

    def take(session: str | None) -> tuple[Any, str]:
        name = symbol("com.microsoft:session-filter")
        receiver = connection.create_receiver(queue, name=f"of {session}", credit=2, options=Filter({name: session}))
        answer = receiver.link.remote_source.filter
        answer.rewind()
        answer.next()
        return receiver, answer.get_dict()[name]

    (blue, by_id), (following, next_one) = take("blue"), take(None)
    assert (by_id, next_one) == ("blue", "green")
    assert [blue.receive().body, blue.receive().body, following.receive().body] == ["for blue", "for blue", "for green"]


def test_proton_sends_to_a_topic_and_receives_what_the_rule_of_a_subscription_lets_through(connection: Any, broker: ProcessBroker) -> None:
    receiver = connection.create_receiver(f"{TOPIC}/Subscriptions/ruled", credit=2)
    sender = connection.create_sender(TOPIC)
    for subject in ("other", "s"):
        sender.send(Message(body=f"about {subject}", subject=subject))
    assert receiver.receive().body == "about s"


class Reconnecting(MessagingHandler):
    """Loses its connection with a message in hand, and receives it again over the next one."""

    def __init__(self, port: int, queue: str) -> None:
        super().__init__(prefetch=1, auto_accept=False)
        self.port, self.queue = port, queue
        self.seen: list[object] = []

    def on_start(self, event: Event) -> None:
        event.container.allow_insecure_mechs = True
        connection = event.container.connect(
            f"amqp://localhost:{self.port}", user=ROOT_NAME, password=ROOT_KEY, allowed_mechs="PLAIN", reconnect=Backoff(max_tries=3)
        )
        event.container.create_receiver(connection, self.queue)

    def on_message(self, event: Event) -> None:
        self.seen.append((event.message.body, event.message.delivery_count))
        if len(self.seen) == 1:
            event.transport.close_tail()
            event.transport.close_head()
        else:
            self.accept(event.delivery)
            event.connection.close()

    def on_transport_error(self, event: Event) -> None:
        self.seen.append(event.transport.condition.description)
        if len(self.seen) > 2:
            event.container.stop()


def test_proton_receives_again_over_the_connection_that_it_made_anew(connection: Any, broker: ProcessBroker) -> None:
    queue = broker.queue("plain")
    connection.create_sender(queue).send(Message(body="kept"))
    handler = Reconnecting(broker.port, queue)
    Container(handler).run()
    assert handler.seen == [("kept", 0), "connection aborted", ("kept", 1)]
