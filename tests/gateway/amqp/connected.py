"""A client's engine and a broker's connection face to face, over a namespace on a desk; the disk answers when it is told."""

from __future__ import annotations

from tandem import amqp
from tandem.amqp.message import DATA, encode_message
from tandem.amqp.outcomes import encode_outcome
from tandem.gateway.amqp.attach import attach
from tandem.gateway.amqp.connection import ConnectionWriter, PeerConnection
from tandem.gateway.amqp.faulty import FaultyConnection
from tandem.model.entity import QueueDescription, Right
from tandem.model.limits import Limits
from tandem.server.context import NamespaceContext
from tandem.server.fault_points import FaultPoints
from tandem.server.faults import Faults
from tandem.server.sas import Grant
from tandem.server.tracking import Tracker
from tests.amqp.peers import LinkNotes, Notes
from tests.broker.desk import Desk


class Written(ConnectionWriter):
    def __init__(self) -> None:
        self.data: list[bytes] = []
        self.cuts = 0

    def write(self, data: bytes) -> None:
        self.data.append(data)

    def cut(self) -> None:
        self.cuts += 1


class Connected:
    """`client` has a session to the broker; `desk.run()` lets the disk answer, `exchange` does not."""

    def __init__(
        self,
        *descriptions: QueueDescription,
        limits: Limits | None = None,
        faults: bool = False,
        properties: dict[object, object] | None = None,
    ) -> None:
        self.desk = Desk(*(descriptions or (QueueDescription(name="q"),)))
        self.log: list[str] = []
        namespace = self.desk.namespace
        translator = namespace.builder.rewriter
        tracker = Tracker("desk", "G0", lambda count: bytes(count))
        self.context = NamespaceContext(namespace, self.desk.turn, translator, tracker, limits or Limits(), self.log.append)  # type: ignore[arg-type]
        self.writer = Written()
        self.points = FaultPoints(namespace, Faults(lambda: 0.0, 1), self.context.connections, self.log.append, lambda: None)
        if faults:
            self.context.fault_points = self.points
        kind = FaultyConnection if faults else PeerConnection
        self.peer = kind(lambda host: self.context, attach, self.writer, "test", "broker")
        self.peer.grant(Grant(frozenset(Right), 2**62, "", "root"))
        self.client = amqp.Connection(Notes(), amqp.ConnectionConfig(container_id="client", properties=properties), False)
        self.client.open()
        self.session = self.client.begin()
        self.exchange()

    def exchange(self) -> None:
        """Until neither has anything to say; turns are had, and the disk is not waited for."""
        for _ in range(100):
            upward = self.client.bytes_to_send()
            if upward:
                self.peer.receive(upward)
            self.desk.turn.run()
            downward, self.writer.data = b"".join(self.writer.data), []
            self.client.receive_bytes(downward)
            if not upward and not downward:
                return
        raise AssertionError("the two never fall silent")

    def settle(self) -> None:
        """The disk answers, and everybody hears of it."""
        for _ in range(4):
            self.exchange()
            self.desk.run()
        self.exchange()

    def sender(self, address: str = "q", settle_mode: int = 0) -> tuple[amqp.SenderLink, LinkNotes]:
        notes = LinkNotes()
        link = self.session.attach_sender(f"to {address}", amqp.Terminus("here"), amqp.Terminus(address), notes, settle_mode)
        self.exchange()
        return link, notes

    def receiver(self, address: str = "q", credit: int = 10, settle_mode: int = 0) -> tuple[amqp.ReceiverLink, LinkNotes]:
        """Second mode of its own: it settles when the broker has."""
        notes = LinkNotes()
        link = self.session.attach_receiver(f"from {address}", amqp.Terminus(address), amqp.Terminus("here"), notes, settle_mode, 1)
        if credit:
            link.grant(credit)
        self.exchange()
        return link, notes

    def say(self, delivery_id: int, outcome: amqp.Outcome, last: int | None = None) -> None:
        """A receiver's word on a delivery it does not settle itself."""
        self.session.send_disposition(True, delivery_id, delivery_id if last is None else last, False, encode_outcome(outcome))


def payload(text: str) -> bytes:
    return encode_message(properties={"message-id": text}, body=[text.encode()], body_kind=DATA)


def outcomes(notes: LinkNotes) -> list[tuple[list[int], int, str]]:
    """(deliveries, code, condition of the error) of each disposition that came."""
    return [(ids, outcome.code, outcome.error.condition if outcome.error else "") for ids, outcome, _ in notes.dispositions]
