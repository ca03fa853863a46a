"""Our codec and engine against another: Qpid Proton."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from tandem import amqp
from tests.amqp.peers import Notes, notes_of
from tests.amqp.values import same

proton = pytest.importorskip("proton", reason="MISSING: python-qpid-proton, which needs a C compiler; pip install python-qpid-proton")

UUID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")

PROTON_VALUES: list[tuple[object, object]] = [
    (None, None),
    (True, True),
    (7, 7),
    (2**40, 2**40),
    (1.5, 1.5),
    ("é", "é"),
    (b"x", b"x"),
    (UUID, UUID),
    (amqp.UByte(7), proton.ubyte(7)),
    (amqp.UShort(7), proton.ushort(7)),
    (amqp.UInt(0), proton.uint(0)),
    (amqp.UInt(70000), proton.uint(70000)),
    (amqp.ULong(0), proton.ulong(0)),
    (amqp.ULong(2**63), proton.ulong(2**63)),
    (amqp.Byte(-7), proton.byte(-7)),
    (amqp.Short(-7), proton.short(-7)),
    (amqp.Int(-70000), proton.int32(-70000)),
    (amqp.Float(1.5), proton.float32(1.5)),
    (amqp.Timestamp(1700000000000), proton.timestamp(1700000000000)),
    (amqp.Symbol("s"), proton.symbol("s")),
    (amqp.Char("A"), proton.char("A")),
    (amqp.Decimal128(b"\x01" * 16), proton.decimal128(b"\x01" * 16)),
    ([1, "a", [None]], [1, "a", [None]]),
    ({"a": {amqp.Symbol("b"): [1]}}, {"a": {proton.symbol("b"): [1]}}),
    (amqp.Described(amqp.ULong(0x24), []), proton.Described(proton.ulong(0x24), [])),
    (amqp.Array(0x81, [1, 2]), proton.Array(proton.UNDESCRIBED, proton.Data.LONG, 1, 2)),
]


@pytest.mark.parametrize(("ours", "theirs"), PROTON_VALUES, ids=[repr(v[0])[:30] for v in PROTON_VALUES])
def test_values_travel_between_us_and_proton(ours: object, theirs: object) -> None:
    data = proton.Data()
    data.put_object(theirs)
    encoded = bytes(data.encode())
    decoded, end = amqp.decode_value(encoded, 0)
    assert end == len(encoded)
    assert same(decoded, ours)
    back = proton.Data()
    assert back.decode(amqp.encode_value(ours)) == len(amqp.encode_value(ours))
    back.rewind()
    assert back.next()
    found = back.get_object()
    assert found == theirs
    assert type(found) is (memoryview if type(theirs) is bytes else type(theirs))


def test_messages_travel_between_us_and_proton() -> None:
    theirs = proton.Message(body={"k": 1}, id=UUID, subject="s", ttl=5.0, properties={"p": "q"}, annotations={proton.symbol("x-opt"): 5})
    m = amqp.decode_message(bytes(theirs.encode()))
    assert (m.properties["message-id"], m.properties["subject"], m.header["ttl"]) == (UUID, "s", 5000)
    assert (m.application_properties, m.message_annotations, m.body) == ({"p": "q"}, {"x-opt": 5}, {"k": 1})
    back = proton.Message()
    back.decode(
        amqp.encode_message(
            header={"ttl": 5000, "delivery-count": 3},
            properties={"message-id": UUID, "group-id": "g"},
            message_annotations={"x-opt": 5},
            body=b"data",
        )
    )
    assert (back.id, back.group_id, back.ttl, back.delivery_count, back.body, back.annotations) == (
        UUID,
        "g",
        5.0,
        3,
        b"data",
        {"x-opt": 5},
    )


class ProtonClient:
    """Proton's own sans-IO engine, wired to a server engine of ours."""

    def __init__(self, notes: Notes, config: amqp.ConnectionConfig) -> None:
        self.collector = proton.Collector()
        self.connection = proton.Connection()
        self.connection.container = "proton"
        self.connection.collect(self.collector)
        self.transport = proton.Transport(proton.Transport.CLIENT)
        self.transport.max_frame_size = 1024
        sasl = self.transport.sasl()
        sasl.allowed_mechs("ANONYMOUS")
        self.transport.bind(self.connection)
        self.server = amqp.Connection(notes, config, True)

    def exchange(self) -> None:
        for _ in range(200):
            moved = False
            pending = self.transport.pending()
            if pending > 0:
                self.server.receive_bytes(bytes(self.transport.peek(pending)))
                self.transport.pop(pending)
                moved = True
            said = self.server.bytes_to_send()
            while said:
                taken = min(self.transport.capacity(), len(said))
                assert taken > 0
                self.transport.push(said[:taken])
                said = said[taken:]
                moved = True
            while self.collector.peek():
                self.collector.pop()
            if not moved:
                return
        raise AssertionError("Proton and we never fall silent")


@pytest.fixture
def proton_client() -> tuple[ProtonClient, Notes]:
    notes = Notes()
    config = amqp.ConnectionConfig(sasl=amqp.SaslServer(), sasl_required=True, max_frame_size=1024, next_outgoing_id=0x40000000)
    return ProtonClient(notes, config), notes


def test_proton_opens_sends_receives_and_settles_with_our_engine(proton_client: tuple[ProtonClient, Notes]) -> None:
    client, notes = proton_client
    client.connection.open()
    session = client.connection.session()
    session.open()
    sender = session.sender("up")
    sender.target.address = "queue"
    sender.open()
    receiver = session.receiver("down")
    receiver.source.address = "queue"
    receiver.open()
    receiver.flow(10)
    client.exchange()
    assert notes.opened == 1 and client.server.remote_container_id == "proton"
    incoming, outgoing = notes.links
    assert isinstance(incoming, amqp.ReceiverLink) and isinstance(outgoing, amqp.SenderLink)
    assert (sender.credit, outgoing.credit) == (100, 10)
    assert receiver.remote_source.address == "queue"

    sizes = [0, 10, 900, 5000, 100_000]
    deliveries = []
    for i, size in enumerate(sizes):
        deliveries.append(sender.delivery(f"tag{i}"))
        sender.send(bytes(size))
        sender.advance()
    client.exchange()
    assert [(t[1], len(t[2])) for t in notes_of(incoming).transfers] == [(b"tag%d" % i, size) for i, size in enumerate(sizes)]
    first = notes_of(incoming).transfers[0][0]
    incoming.session.send_disposition(True, first, first + 3, True, amqp.ACCEPTED)
    incoming.session.send_disposition(True, first + 4, first + 4, True, amqp.encode_rejected(amqp.AmqpError("a:b", "why")))
    client.exchange()
    assert [d.remote_state for d in deliveries] == [proton.Delivery.ACCEPTED] * 4 + [proton.Delivery.REJECTED]
    assert all(d.settled for d in deliveries)
    assert deliveries[4].remote.condition.name == "a:b"

    for i, size in enumerate(sizes):
        outgoing.send(bytes(size), b"%016d" % i, False, i)
    client.exchange()
    for size in sizes:
        delivery = receiver.current
        assert delivery is not None and not delivery.partial
        assert len(receiver.recv(200_000) or b"") == size
        delivery.update(proton.Delivery.ACCEPTED)
        delivery.settle()
    client.exchange()
    settled = [delivery_id for ids, outcome, s in notes_of(outgoing).dispositions for delivery_id in ids if s and outcome.code == 0x24]
    assert len(settled) == len(sizes)
    assert outgoing.session.unsettled == {}

    receiver.drain(0)
    client.exchange()
    assert outgoing.drain
    outgoing.drained()
    client.exchange()
    assert receiver.credit == 0

    sender.close()
    client.exchange()
    assert notes_of(incoming).detached == [None]
    client.connection.close()
    client.exchange()
    assert client.server.closed
    assert client.connection.state & proton.Endpoint.REMOTE_CLOSED


def refuse(link: amqp.Link) -> None:
    link.refuse(amqp.AmqpError("amqp:not-found", "no such queue", {amqp.Symbol("k"): "v"}))


def close(link: amqp.Link) -> None:
    link.session.connection.close(amqp.AmqpError("amqp:connection:forced", "maintenance"))


def end(link: amqp.Link) -> None:
    link.session.end(amqp.AmqpError("amqp:internal-error", "oops"))


@pytest.mark.parametrize(
    ("answer", "endpoint", "condition"),
    [(refuse, "link", "amqp:not-found"), (end, "session", "amqp:internal-error"), (close, "connection", "amqp:connection:forced")],
)
def test_proton_learns_why_a_link_session_or_connection_went(
    proton_client: tuple[ProtonClient, Notes], answer: Callable[[amqp.Link], None], endpoint: str, condition: str
) -> None:
    client, notes = proton_client
    notes.answer = answer
    client.connection.open()
    session = client.connection.session()
    session.open()
    sender = session.sender("up")
    sender.target.address = "queue"
    sender.open()
    client.exchange()
    found = {"link": sender, "session": session, "connection": client.connection}[endpoint]
    assert found.state & proton.Endpoint.REMOTE_CLOSED
    assert found.remote_condition.name == condition
    if endpoint == "link":
        assert sender.remote_target.address is None
