"""Counterparts for the engine under test: one that writes down what it hears, two engines face to face, and a peer made of raw frames."""

from __future__ import annotations

from collections.abc import Callable

from tandem import amqp
from tandem.amqp.encoder import compound
from tandem.amqp.fields import Fields, read_descriptor
from tandem.amqp.performatives import Attach, Begin, Detach, Disposition, Ending, Open, Transfer, read_flow

SASL_HEADER = b"AMQP\x03\x01\x00\x00"
AMQP_HEADER = b"AMQP\x00\x01\x00\x00"


class LinkNotes(amqp.LinkHandler):
    """Writes down every call, and answers none."""

    def __init__(self) -> None:
        self.attached: list[amqp.Link] = []
        self.transfers: list[tuple[int, bytes, bytes, bool, int, bytes | None]] = []
        self.oversized: list[tuple[int, bytes, bool]] = []
        self.dispositions: list[tuple[list[int], amqp.Outcome, bool]] = []
        self.settled_incoming: list[tuple[int, int, int, bool]] = []
        self.flows: list[tuple[int, bool]] = []
        self.detached: list[amqp.AmqpError | None] = []

    def on_attached(self, link: amqp.Link) -> None:
        self.attached.append(link)

    def on_transfer(
        self,
        link: amqp.ReceiverLink,
        delivery_id: int,
        tag: bytes,
        payload: bytes,
        settled: bool,
        message_format: int,
        state: bytes | None,
    ) -> None:
        self.transfers.append((delivery_id, tag, payload, settled, message_format, state))

    def on_oversize(self, link: amqp.ReceiverLink, delivery_id: int, tag: bytes, settled: bool) -> None:
        self.oversized.append((delivery_id, tag, settled))

    def on_disposition(self, link: amqp.SenderLink, deliveries: list[amqp.Delivery], outcome: amqp.Outcome, settled: bool) -> None:
        self.dispositions.append(([d.delivery_id for d in deliveries], outcome, settled))

    def on_settled_incoming(self, link: amqp.ReceiverLink, first: int, last: int, outcome: amqp.Outcome, settled: bool) -> None:
        self.settled_incoming.append((first, last, outcome.code, settled))

    def on_flow(self, link: amqp.Link) -> None:
        self.flows.append((link.credit, link.drain))

    def on_detach(self, link: amqp.Link, error: amqp.AmqpError | None) -> None:
        self.detached.append(error)


class Notes(amqp.ConnectionHandler):
    """Accepts every link with a `LinkNotes`, unless told otherwise."""

    def __init__(self) -> None:
        self.opened = 0
        self.sessions: list[amqp.Session] = []
        self.ended: list[amqp.Session] = []
        self.links: list[amqp.Link] = []
        self.closed: list[amqp.AmqpError | None] = []
        self.credentials: list[tuple[str, str]] = []
        self.mechanisms: list[tuple[str, str]] = []
        self.users: dict[str, str] = {}
        self.anonymous = True
        self.auto_credit = 100
        self.max_message_size = 0
        self.answer: Callable[[amqp.Link], None] | None = None

    def on_sasl_plain(self, user: str, password: str) -> bool:
        self.credentials.append((user, password))
        return self.users.get(user) == password

    def on_sasl(self, mechanism: str, hostname: str) -> bool:
        self.mechanisms.append((mechanism, hostname))
        return self.anonymous

    def on_open(self, connection: amqp.Connection) -> None:
        self.opened += 1

    def on_begin(self, session: amqp.Session) -> None:
        self.sessions.append(session)

    def on_attach(self, link: amqp.Link) -> None:
        self.links.append(link)
        link.handler = LinkNotes()
        if self.answer is not None:
            self.answer(link)
            return
        if isinstance(link, amqp.ReceiverLink):
            link.auto_credit = self.auto_credit
        link.accept(max_message_size=self.max_message_size)

    def on_end(self, session: amqp.Session) -> None:
        self.ended.append(session)

    def on_close(self, connection: amqp.Connection, error: amqp.AmqpError | None) -> None:
        self.closed.append(error)


def notes_of(link: amqp.Link) -> LinkNotes:
    assert isinstance(link.handler, LinkNotes)
    return link.handler


class Pair:
    """A client engine and a server engine, connected by nothing but this."""

    def __init__(
        self,
        client_config: amqp.ConnectionConfig | None = None,
        server_config: amqp.ConnectionConfig | None = None,
    ) -> None:
        self.client_notes = Notes()
        self.server_notes = Notes()
        self.client = amqp.Connection(self.client_notes, client_config or amqp.ConnectionConfig(container_id="client"), False)
        self.server = amqp.Connection(
            self.server_notes,
            server_config or amqp.ConnectionConfig(container_id="server", next_outgoing_id=0x40000000),
            True,
        )

    def exchange(self) -> None:
        """Until neither has anything to say."""
        for _ in range(1000):
            upward = self.client.bytes_to_send()
            self.server.receive_bytes(upward)
            downward = self.server.bytes_to_send()
            self.client.receive_bytes(downward)
            if not upward and not downward:
                return
        raise AssertionError("the two engines never fall silent")

    def session(self) -> amqp.Session:
        self.client.open()
        session = self.client.begin()
        self.exchange()
        return session

    def sender(self, rcv_settle_mode: int = 0) -> tuple[amqp.SenderLink, amqp.ReceiverLink]:
        """(client's sender, server's receiver)."""
        session = self.client_notes.sessions[0] if self.client_notes.sessions else self.session()
        ours = session.attach_sender("s", amqp.Terminus("here"), amqp.Terminus("queue"), LinkNotes(), 0, rcv_settle_mode)
        self.exchange()
        theirs = self.server_notes.links[-1]
        assert isinstance(theirs, amqp.ReceiverLink)
        return ours, theirs

    def receiver(self, credit: int = 10, rcv_settle_mode: int = 1) -> tuple[amqp.ReceiverLink, amqp.SenderLink]:
        """(client's receiver, server's sender)."""
        session = self.client_notes.sessions[0] if self.client_notes.sessions else self.session()
        ours = session.attach_receiver("r", amqp.Terminus("queue"), amqp.Terminus("here"), LinkNotes(), 0, rcv_settle_mode)
        if credit:
            ours.grant(credit)
        self.exchange()
        theirs = self.server_notes.links[-1]
        assert isinstance(theirs, amqp.SenderLink)
        return ours, theirs


def performative(code: int, *fields: object) -> bytes:
    """A composite of plain values: ints become uints, the rest what `encode_value` makes of it; bytes of type Raw pass as they are."""
    encoded = [
        value.data if isinstance(value, Raw) else amqp.encode_value(amqp.UInt(value) if type(value) is int else value) for value in fields
    ]
    return b"\x00\x53" + bytes((code,)) + compound(0xC0, b"".join(encoded), len(encoded)) if encoded else bytes((0, 0x53, code, 0x45))


class Raw:
    def __init__(self, data: bytes) -> None:
        self.data = data


def frame(channel: int, body: bytes) -> bytes:
    return (8 + len(body)).to_bytes(4, "big") + b"\x02\x00" + channel.to_bytes(2, "big") + body


OPEN = performative(0x10, "raw-peer")
BEGIN = performative(0x11, None, 0, 5000, 5000)


def attach(name: str, handle: int, receiver: bool, *rest: object) -> bytes:
    source = Raw(b"\x00\x53\x28" + amqp.encode_value(["a"]))
    target = Raw(b"\x00\x53\x29" + amqp.encode_value(["b"]))
    return performative(
        0x12, name, handle, receiver, amqp.UByte(0), amqp.UByte(0), source, target, None, None, None if receiver else 0, *rest
    )


def transfer(
    handle: int, delivery_id: int | None, tag: bytes | None, payload: bytes, *, settled: bool = False, more: bool = False
) -> bytes:
    return performative(0x14, handle, delivery_id, tag, 0, settled, more) + payload


class RawPeer:
    """Speaks to a server engine in bytes and reads its answers as decoded frames."""

    def __init__(self, notes: Notes | None = None, config: amqp.ConnectionConfig | None = None) -> None:
        self.notes = notes or Notes()
        self.server = amqp.Connection(self.notes, config or amqp.ConnectionConfig(container_id="server", next_outgoing_id=0x40000000), True)

    def send(self, *chunks: bytes) -> RawPeer:
        for chunk in chunks:
            self.server.receive_bytes(chunk)
        return self

    def opened(self) -> RawPeer:
        self.send(AMQP_HEADER, frame(0, OPEN))
        return self

    def begun(self) -> RawPeer:
        self.opened().send(frame(0, BEGIN))
        return self

    def attached(self, receiver: bool = False) -> RawPeer:
        """One link with handle 0; the peer sends unless it is to be the receiver."""
        self.begun().send(frame(0, attach("link", 0, receiver)))
        self.frames()
        return self

    @property
    def link(self) -> amqp.Link:
        return self.notes.links[-1]

    def frames(self) -> list[tuple[int, object]]:
        """What the engine has to say, decoded: (channel, performative), headers left out."""
        return parse(self.server.bytes_to_send())

    def error(self) -> amqp.AmqpError:
        """The error of the close that must have been sent last."""
        last = self.frames()[-1][1]
        assert isinstance(last, Ending) and last.error is not None
        assert self.server.closed
        return last.error


_READERS: dict[int, Callable[[Fields], object]] = {
    0x10: Open,
    0x11: Begin,
    0x12: Attach,
    0x14: Transfer,
    0x15: Disposition,
    0x16: Detach,
    0x17: Ending,
    0x18: Ending,
}


def parse(data: bytes) -> list[tuple[int, object]]:
    found: list[tuple[int, object]] = []
    at = 0
    while at < len(data):
        if data[at : at + 4] == b"AMQP":
            at += 8
            continue
        size = int.from_bytes(data[at : at + 4], "big")
        assert size >= 8 and at + size <= len(data), "a frame that does not fit the stream"
        end = at + size
        if size > 8 and data[at + 5] == 0:
            code, value = read_descriptor(data, at + 8, end)
            channel = int.from_bytes(data[at + 6 : at + 8], "big")
            found.append((channel, read_flow(data, value, end) if code == 0x13 else _READERS[code](Fields("sent", data, value, end))))
        at = end
    return found
