"""Clients that say exactly what a test wants said: our own engine as a client, and below it a bare socket."""

from __future__ import annotations

import itertools
import socket
import time
import uuid
from collections.abc import Callable
from types import TracebackType
from typing import Any

from tandem import amqp
from tandem.server.sas import make_token
from tests.conformance.house import ROOT_KEY, ROOT_NAME

SECONDS = 20
SESSION_FILTER = "com.microsoft:session-filter"
MODIFIED, REJECTED = 0x27, 0x25


class Refused(Exception):
    """The broker said no, with this AMQP error."""

    def __init__(self, error: amqp.AmqpError | None) -> None:
        super().__init__(repr(error))
        self.error = error
        self.condition = error.condition if error is not None else ""
        self.description = (error.description or "") if error is not None else ""


class Events(amqp.ConnectionHandler):
    def __init__(self) -> None:
        self.closed_with: amqp.AmqpError | None = None

    def on_close(self, connection: amqp.Connection, error: amqp.AmqpError | None) -> None:
        self.closed_with = error


class End(amqp.LinkHandler):
    """What happens on one link, written down."""

    def __init__(self) -> None:
        self.attached = False
        self.gone = False
        self.error: amqp.AmqpError | None = None
        self.outcomes: dict[int, amqp.Outcome] = {}
        self.settled: set[int] = set()
        """Of deliveries to us: the broker has forgotten them."""
        self.deliveries: list[Arrival] = []
        self.flows = 0

    def on_attached(self, link: amqp.Link) -> None:
        self.attached = True

    def on_detach(self, link: amqp.Link, error: amqp.AmqpError | None) -> None:
        self.gone = True
        self.error = error

    def on_flow(self, link: amqp.Link) -> None:
        self.flows += 1

    def on_disposition(self, link: amqp.SenderLink, deliveries: list[amqp.Delivery], outcome: amqp.Outcome, settled: bool) -> None:
        for delivery in deliveries:
            self.outcomes[delivery.delivery_id] = outcome

    def on_settled_incoming(self, link: amqp.ReceiverLink, first: int, last: int, outcome: amqp.Outcome, settled: bool) -> None:
        for delivery_id in range(first, last + 1):
            self.outcomes[delivery_id] = outcome
            if settled:
                self.settled.add(delivery_id)

    def on_transfer(
        self, link: amqp.ReceiverLink, delivery_id: int, tag: bytes, payload: bytes, settled: bool, message_format: int, state: bytes | None
    ) -> None:
        self.deliveries.append(Arrival(delivery_id, tag, payload, settled))


class Arrival:
    def __init__(self, delivery_id: int, tag: bytes, payload: bytes, settled: bool) -> None:
        self.delivery_id = delivery_id
        self.tag = tag
        self.payload = payload
        self.settled = settled
        self.message = amqp.decode_message(payload)

    @property
    def text(self) -> str:
        body: Any = self.message.body
        return b"".join(body).decode()

    @property
    def token(self) -> uuid.UUID:
        return uuid.UUID(bytes_le=self.tag)


class Sender:
    def __init__(self, raw: Raw, link: amqp.SenderLink, end: End) -> None:
        self.raw, self.link, self.end = raw, link, end
        self._tags = itertools.count()

    def start(self, payload: bytes, settled: bool = False, message_format: int = 0) -> int:
        """Send without waiting for the answer."""
        return self.link.send(payload, next(self._tags).to_bytes(4, "big"), settled, None, message_format)

    def send(self, payload: bytes, settled: bool = False, message_format: int = 0) -> amqp.Outcome | None:
        """Send, and wait for the answer if there is to be one. A refusal is raised."""
        delivery_id = self.start(payload, settled, message_format)
        if settled:
            self.raw.flush()
            return None
        self.raw.until(lambda: delivery_id in self.end.outcomes or self.end.gone)
        if delivery_id not in self.end.outcomes:
            raise Refused(self.end.error)
        outcome = self.end.outcomes[delivery_id]
        if outcome.code == REJECTED:
            raise Refused(outcome.error)
        return outcome


class Receiver:
    def __init__(self, raw: Raw, link: amqp.ReceiverLink, end: End) -> None:
        self.raw, self.link, self.end = raw, link, end

    def receive(self, count: int = 1) -> list[Arrival]:
        """Exactly this many."""
        self.link.grant(count)
        self.raw.until(lambda: len(self.end.deliveries) >= count or self.end.gone)
        if len(self.end.deliveries) < count:
            raise Refused(self.end.error)
        taken, self.end.deliveries = self.end.deliveries[:count], self.end.deliveries[count:]
        return taken

    def drain(self, credit: int) -> list[Arrival]:
        """Whatever there is, up to `credit`; the broker says when that is all."""
        self.link.credit = credit
        self.link.ask_drain()
        self.raw.until(lambda: self.link.credit == 0 and not self.link.drain)
        taken, self.end.deliveries = self.end.deliveries, []
        return taken

    def settle(self, arrival: Arrival, state: bytes, settled: bool = False) -> amqp.Outcome | None:
        """The broker's answer to an unsettled disposition, as it came."""
        self.link.session.send_disposition(True, arrival.delivery_id, arrival.delivery_id, settled, state)
        if settled:
            self.raw.flush()
            return None
        self.raw.until(lambda: arrival.delivery_id in self.end.outcomes or self.end.gone)
        if arrival.delivery_id not in self.end.outcomes:
            raise Refused(self.end.error)
        return self.end.outcomes.pop(arrival.delivery_id)


class Raw:
    """A blocking connection. PLAIN with the root key unless told otherwise; then `put_token` is the way in."""

    def __init__(self, port: int, user: str = ROOT_NAME, password: str = ROOT_KEY, **config: Any) -> None:
        self.port = port
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.events = Events()
        settings = amqp.ConnectionConfig(
            container_id="raw", hostname="localhost", sasl=amqp.SaslClient(user, password), idle_timeout_ms=0, **config
        )
        self.engine = amqp.Connection(self.events, settings, False)
        self.engine.open()
        self.session = self.engine.begin()
        self._senders: dict[str, Sender] = {}
        self._management: dict[str, tuple[Sender, Receiver]] = {}
        self._names = itertools.count()
        self.hung_up = False

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    # -- bytes -------------------------------------------------------------------------------

    def flush(self) -> None:
        data = self.engine.bytes_to_send()
        if data:
            self.socket.sendall(data)

    def until(self, condition: Callable[[], bool], seconds: float = SECONDS) -> None:
        """Exchange bytes until this holds. Raises Refused when the broker closes the connection first."""
        deadline = time.monotonic() + seconds
        self.flush()
        while not condition():
            self.socket.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                data = self.socket.recv(1 << 20)
            except TimeoutError:
                raise AssertionError("nothing of what was waited for came from the broker") from None
            except ConnectionError:
                data = b""
            if not data:
                self.hung_up = True
                self.engine.lost()
                if condition():
                    return
                raise Refused(self.events.closed_with)
            self.engine.receive_bytes(data)
            self.flush()

    def quiet(self, seconds: float = 0.3) -> None:
        """Take in what comes for a while; used to show that nothing does."""
        deadline = time.monotonic() + seconds
        self.flush()
        while (left := deadline - time.monotonic()) > 0:
            self.socket.settimeout(left)
            try:
                data = self.socket.recv(1 << 20)
            except TimeoutError:
                return
            if not data:
                self.hung_up = True
                return
            self.engine.receive_bytes(data)
            self.flush()

    # -- links -------------------------------------------------------------------------------

    def _name(self) -> str:
        return f"link-{next(self._names)}"

    def _opened(self, end: End) -> None:
        self.until(lambda: end.attached or end.gone)
        if not end.attached:
            raise Refused(end.error)

    def sender(self, address: str, **options: Any) -> Sender:
        end = End()
        link = self.session.attach_sender(self._name(), amqp.Terminus("here"), amqp.Terminus(address), end, **options)
        self._opened(end)
        return Sender(self, link, end)

    def receiver(
        self,
        address: str,
        delete: bool = False,
        session: object = ...,
        properties: dict[object, object] | None = None,
        wait: bool = True,
        name: str = "",
    ) -> Receiver:
        """`session` left out: no filter. `wait=False`: the attach may stay unanswered. `name` left out: one of its own."""
        wanted = None if session is ... else {amqp.Symbol(SESSION_FILTER): session}
        end = End()
        link = self.session.attach_receiver(
            name or self._name(),
            amqp.Terminus(address, filter=wanted),
            amqp.Terminus("here"),
            end,
            snd_settle_mode=1 if delete else 0,
            rcv_settle_mode=0 if delete else 1,
            properties=properties,
        )
        if wait:
            self._opened(end)
        return Receiver(self, link, end)

    def feed(self, queue: str, *bodies: str, **options: Any) -> None:
        """Send text bodies in order and wait until all are accepted. Options as in `encode_message`."""
        sender = self._senders.get(queue)
        if sender is None:
            sender = self._senders[queue] = self.sender(queue)
        ids = [sender.start(message(body, **options)) for body in bodies]
        self.until(lambda: all(one in sender.end.outcomes for one in ids) or sender.end.gone)
        for one in ids:
            outcome = sender.end.outcomes.pop(one)
            if outcome.code == REJECTED:
                raise Refused(outcome.error)

    # -- requests ----------------------------------------------------------------------------

    def exchange(self, node: str, payload: bytes) -> amqp.DecodedMessage:
        pair = self._management.get(node)
        if pair is None:
            receiver = self.receiver(node, delete=True)
            receiver.link.grant(1000)
            pair = self._management[node] = (self.sender(node), receiver)
        sender, receiver = pair
        sender.send(payload)
        self.until(lambda: bool(receiver.end.deliveries) or receiver.end.gone)
        return receiver.end.deliveries.pop(0).message

    def request(self, queue: str, operation: str, body: object, **properties: object) -> tuple[int, amqp.DecodedMessage]:
        """One management operation: status and the whole reply."""
        node = f"{queue}/$management"
        payload = amqp.encode_message(
            properties={"message-id": uuid.uuid4(), "reply-to": node},
            application_properties={"operation": operation, "type": "entity-mgmt", **properties},
            body=body,
            body_kind=0x77,
        )
        reply = self.exchange(node, payload)
        status: Any = reply.application_properties["statusCode"]
        return int(status), reply

    def peek(self, queue: str, start: int = 0, most: int = 100) -> list[amqp.DecodedMessage]:
        status, reply = self.request(queue, "com.microsoft:peek-message", {"from-sequence-number": start, "message-count": amqp.Int(most)})
        answer: Any = reply.body
        return [amqp.decode_message(entry["message"]) for entry in answer["messages"]] if status == 200 else []

    def put_token(self, entity: str, token: str) -> tuple[int, str]:
        audience = f"sb://localhost:{self.port}/{entity}"
        payload = amqp.encode_message(
            properties={"message-id": uuid.uuid4()},
            application_properties={"operation": "put-token", "type": "servicebus.windows.net:sastoken", "name": audience},
            body=token,
            body_kind=0x77,
        )
        reply: Any = self.exchange("$cbs", payload).application_properties
        return int(reply["status-code"]), str(reply["status-description"])


def token_for(port: int, entity: str, name: str = ROOT_NAME, key: str = ROOT_KEY, expires_in: float = 3600) -> str:
    return make_token(f"sb://localhost:{port}/{entity}", name, key, int((time.time() + expires_in) * 1000))


def message(body: str = "", message_id: object = None, session_id: str | None = None, **sections: Any) -> bytes:
    """A text body with the usual properties; `sections` as in `encode_message`."""
    properties: dict[str, object] = dict(sections.pop("properties", {}))
    properties.setdefault("message-id", message_id or str(uuid.uuid4()))
    if session_id is not None:
        properties["group-id"] = session_id
    return amqp.encode_message(properties=properties, body=body.encode(), **sections)
