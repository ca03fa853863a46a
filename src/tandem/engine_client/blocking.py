"""Our own engine over a blocking socket: the fast way in and out for one thread, as Spark's workers need it.

Nothing here retries. An error says what the peer said; whoever calls decides what happens next.
"""

from __future__ import annotations

import socket
import ssl
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Final

from tandem.amqp import (
    AmqpError,
    Connection,
    ConnectionConfig,
    ConnectionHandler,
    Delivery,
    Link,
    LinkHandler,
    Outcome,
    ReceiverLink,
    SaslClient,
    SenderLink,
    Session,
    Terminus,
    decode_message,
    encode_message,
)
from tandem.amqp.message import VALUE
from tandem.amqp.types import Array, Int, Symbol, Timestamp, UInt
from tandem.engine_client.endpoint import Endpoint as Endpoint
from tandem.engine_client.endpoint import TransportError as TransportError
from tandem.engine_client.message_encoding import ONCE
from tandem.model.clock import Clock, SystemClock
from tandem.model.sas_token import make_token

_READ_BYTES: Final = 262_144
_TOKEN_MS: Final = 3_600_000
BATCH_FORMAT: Final = 0x80013700
_ACCEPTED: Final = 0x24
_LINKS_PER_SESSION: Final = 200
_AWAY: Final = range(500, 600)


class BlockingClient(ConnectionHandler):
    """One connection, used by one thread. Context manager."""

    def __init__(self, endpoint: Endpoint, *, timeout: float = 30.0, clock: Clock | None = None) -> None:
        self.endpoint = endpoint
        self.timeout = timeout
        self._clock = clock or SystemClock()
        self._socket = self._connect()
        self._engine = Connection(
            self,
            ConnectionConfig(
                container_id=f"tandem-{uuid.uuid4()}",
                hostname=endpoint.host,
                max_frame_size=1_048_576,
                incoming_window=65_536,
                sasl=SaslClient() if endpoint.claims else SaslClient(endpoint.key_name, endpoint.key),
            ),
            False,
        )
        self._closed_with: AmqpError | None = None
        self._tokens: dict[str, int] = {}
        self._nodes: dict[str, _Requests] = {}
        self._engine.open()
        self._sessions: list[Session] = [self._engine.begin()]
        self.flush()

    @property
    def session(self) -> Session:
        """One with room for links: brokers allow some 250 in each."""
        found = next((one for one in self._sessions if len(one.links) < _LINKS_PER_SESSION), None)
        if found is None:
            found = self._engine.begin()
            self._sessions.append(found)
        return found

    def __enter__(self) -> BlockingClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _connect(self) -> socket.socket:
        endpoint = self.endpoint
        try:
            plain = socket.create_connection((endpoint.host, endpoint.port), self.timeout)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if not endpoint.tls:
                return plain
            context = ssl.create_default_context(cafile=endpoint.ca_file)
            return context.wrap_socket(plain, server_hostname=endpoint.host)
        except OSError as error:
            raise TransportError("connect", f"{endpoint.place}: {error}") from error

    # -- pump --------------------------------------------------------------------------------

    def flush(self) -> None:
        data = self._engine.bytes_to_send()
        if data:
            try:
                self._socket.sendall(data)
            except OSError as error:
                raise TransportError("send", f"{self.endpoint.place}: {error}") from error

    def pump(self, timeout: float | None = None) -> bool:
        """Write what is queued, read once. False when nothing came in time."""
        self.flush()
        self._socket.settimeout(self.timeout if timeout is None else max(timeout, 0.001))
        try:
            data = self._socket.recv(_READ_BYTES)
        except TimeoutError:
            self._engine.tick(self._clock.now_ms())
            self.flush()
            return False
        except OSError as error:
            raise TransportError("receive", f"{self.endpoint.place}: {error}") from error
        if not data:
            raise TransportError("closed", f"{self.endpoint.place} hung up")
        self._engine.receive_bytes(data)
        self.flush()
        if self._engine.closed:
            error_said = self._closed_with
            if error_said is not None:
                raise TransportError(error_said.condition, error_said.description or "")
            raise TransportError("closed", f"{self.endpoint.place} closed the connection")
        return True

    def pump_until(self, done: Callable[[], bool], what: str, timeout: float | None = None) -> None:
        deadline = self._clock.now_ms() + 1000 * (self.timeout if timeout is None else timeout)
        while not done():
            left = (deadline - self._clock.now_ms()) / 1000
            if left <= 0:
                raise TransportError("com.microsoft:timeout", f"{what}: no answer in time")
            self.pump(left)

    def on_close(self, connection: Connection, error: AmqpError | None) -> None:
        self._closed_with = error

    def close(self) -> None:
        try:
            if not self._engine.closed:
                self._engine.close()
                self.flush()
        except TransportError:
            pass  # it is gone already, which is what was wanted
        finally:
            self._socket.close()

    # -- claims and requests -----------------------------------------------------------------

    def authorize(self, path: str) -> None:
        """Put a token for this entity, unless one with time left was put before."""
        now = self._clock.now_ms()
        if not self.endpoint.claims or self._tokens.get(path, 0) > now + _TOKEN_MS // 10:
            return
        audience = f"sb://{self.endpoint.place}/{path}"
        token = self.endpoint.token or make_token(audience, self.endpoint.key_name, self.endpoint.key, now + _TOKEN_MS)
        properties: dict[object, object] = {
            "operation": "put-token",
            "type": "servicebus.windows.net:sastoken",
            "name": audience,
            "expiration": Timestamp(now + _TOKEN_MS),
        }
        reply = self._node("$cbs").call(properties, token, self.timeout)
        status = reply.application_properties.get("status-code")
        if not isinstance(status, int) or not 200 <= status < 300:
            # A token is asked for before anything else, so its refusal can mean more than a wrong key: no such entity, or not now.
            condition = "amqp:not-found" if status == 404 else "amqp:internal-error" if status in _AWAY else "amqp:unauthorized-access"
            raise TransportError(condition, str(reply.application_properties.get("status-description")))
        self._tokens[path] = now + _TOKEN_MS

    def request(self, path: str, operation: str, body: dict[str, object], timeout: float | None = None) -> dict[str, Any] | None:
        """A management operation on an entity: its reply's body, or None for "nothing there". Raises TransportError."""
        wait = self.timeout if timeout is None else timeout
        pending = self.post(path, operation, body, wait)
        self.pump_until(pending.done, operation, wait)
        return pending.result()

    def post(self, path: str, operation: str, body: dict[str, object], server_seconds: float) -> Pending:
        """Like `request`, without waiting: the answer is in the returned object once `pump` has read it."""
        self.authorize(path)
        properties: dict[object, object] = {"operation": operation, "com.microsoft:server-timeout": UInt(int(server_seconds * 1000))}
        node = self._node(f"{path}/$management")
        return Pending(node, node.send(properties, body))

    def _node(self, address: str) -> _Requests:
        node = self._nodes.get(address)
        if node is None or not node.usable:
            node = _Requests(self, address)
            self._nodes[address] = node
        return node

    # -- wire types, for those who may not import the engine ---------------------------------

    @staticmethod
    def int32(value: int) -> Int:
        return Int(value)

    @staticmethod
    def uint32(value: int) -> UInt:
        return UInt(value)

    @staticmethod
    def instant(at_ms: int) -> Timestamp:
        return Timestamp(at_ms)

    @staticmethod
    def longs(values: Sequence[int]) -> Array:
        return Array(0x81, values)

    @staticmethod
    def uuids(values: Sequence[uuid.UUID]) -> Array:
        return Array(0x98, values)

    # -- links -------------------------------------------------------------------------------

    def receive(self, path: str, most: int, wait: float) -> list[tuple[uuid.UUID, bytes]]:
        """Up to so many messages under peek-lock, as (lock token, payload), waiting for the first. Settle them by request."""
        self.authorize(path)
        receiver = _Receiving(self, path, most)
        try:
            return receiver.receive(wait)
        finally:
            receiver.close()

    def sender(self, path: str, max_in_flight: int = 1_000, once: bool = False) -> BlockingSender:
        """`once`: for batches with numbered messages, of which the broker stores each number once. See `BlockingSender.once`."""
        self.authorize(path)
        return BlockingSender(self, path, max_in_flight, once)


class _Requests(LinkHandler):
    """A pair of links to `$cbs` or a management node."""

    def __init__(self, client: BlockingClient, address: str) -> None:
        self.client = client
        self._replies: dict[object, Any] = {}
        self._error: AmqpError | None = None
        self._gone = False
        name = str(uuid.uuid4())
        session = client.session
        self._receiver: ReceiverLink = session.attach_receiver(
            f"{name}-r", Terminus(address), Terminus(f"{name}-r"), self, snd_settle_mode=1
        )
        self._receiver.auto_credit = 1_000
        self._sender: SenderLink = session.attach_sender(f"{name}-s", Terminus(f"{name}-s"), Terminus(address), self)
        self._reply_to = f"{name}-r"
        client.pump_until(lambda: self._gone or (self._receiver.attached and self._sender.attached), f"attach to {address}")
        self._check()
        self._receiver.grant(1_000)

    @property
    def usable(self) -> bool:
        return not self._gone and self._sender.attached and self._receiver.attached

    def call(self, properties: dict[object, object], body: object, timeout: float) -> Any:
        message_id = self.send(properties, body)
        self.client.pump_until(lambda: self.answered(message_id), str(properties.get("operation")), timeout)
        return self.take(message_id)

    def send(self, properties: dict[object, object], body: object) -> uuid.UUID:
        message_id = uuid.uuid4()
        payload = encode_message(
            properties={"message-id": message_id, "reply-to": self._reply_to},
            application_properties=properties,
            body=body,
            body_kind=VALUE,
        )
        self._sender.send(payload, message_id.bytes[:4], True, None)
        return message_id

    def answered(self, message_id: uuid.UUID) -> bool:
        return self._gone or message_id in self._replies

    def take(self, message_id: uuid.UUID) -> Any:
        if message_id not in self._replies:
            self._check()
        return self._replies.pop(message_id)

    def on_transfer(
        self, link: ReceiverLink, delivery_id: int, tag: bytes, payload: bytes, settled: bool, message_format: int, state: bytes | None
    ) -> None:
        message = decode_message(payload)
        self._replies[message.properties.get("correlation-id")] = message

    def on_detach(self, link: Link, error: AmqpError | None) -> None:
        self._gone = True
        self._error = self._error or error

    def _check(self) -> None:
        if self._gone:
            error = self._error
            raise TransportError(error.condition if error else "detached", (error.description if error else "") or "the link was closed")


class _Receiving(LinkHandler):
    """A link for one round of receiving; what it has handed out stays locked after it closes."""

    QUIET_SECONDS = 0.05

    def __init__(self, client: BlockingClient, path: str, most: int) -> None:
        self._client = client
        self._path = path
        self._most = most
        self._found: list[tuple[uuid.UUID, bytes]] = []
        self._gone = False
        self._error: AmqpError | None = None
        name = f"receiver-{uuid.uuid4()}"
        self._link = client.session.attach_receiver(name, Terminus(path), Terminus(name), self, snd_settle_mode=0)
        client.pump_until(lambda: self._gone or self._link.attached, f"attach to {path}")
        self._check()

    def receive(self, wait: float) -> list[tuple[uuid.UUID, bytes]]:
        self._link.grant(self._most)
        if self._client.pump(wait) or self._found:
            while len(self._found) < self._most and self._client.pump(self.QUIET_SECONDS):
                self._check()
        self._link.ask_drain()
        while self._client.pump(self.QUIET_SECONDS):
            self._check()
        return self._found

    def on_transfer(
        self, link: ReceiverLink, delivery_id: int, tag: bytes, payload: bytes, settled: bool, message_format: int, state: bytes | None
    ) -> None:
        self._found.append((uuid.UUID(bytes_le=tag), payload))

    def on_detach(self, link: Link, error: AmqpError | None) -> None:
        self._gone = True
        self._error = error

    def _check(self) -> None:
        if self._gone:
            error = self._error
            raise TransportError(error.condition if error else "detached", (error.description if error else "") or f"{self._path}: closed")

    def close(self) -> None:
        if not self._gone:
            self._link.detach()
            self._client.flush()


class Pending:
    """An answer that may have come."""

    __slots__ = ("_id", "_node")

    def __init__(self, node: _Requests, message_id: uuid.UUID) -> None:
        self._node = node
        self._id = message_id

    def done(self) -> bool:
        return self._node.answered(self._id)

    def belongs_to(self, client: BlockingClient) -> bool:
        """False for a question asked on a connection that is gone: it will not be answered."""
        return self._node.client is client

    def result(self) -> dict[str, Any] | None:
        """The body of the answer, None for "nothing there"; once. Raises TransportError with what the broker said."""
        reply = self._node.take(self._id)
        said = reply.application_properties
        status = said.get("statusCode")
        if status == 204:
            return None
        if not isinstance(status, int) or not 200 <= status < 300:
            raise TransportError(str(said.get("errorCondition") or status), str(said.get("statusDescription")))
        return {str(key): value for key, value in reply.body.items()} if isinstance(reply.body, dict) else {}


class BlockingSender(LinkHandler):
    """Pipelined sends with at most `max_in_flight` unanswered; every outcome is awaited, failures are kept per message."""

    def __init__(self, client: BlockingClient, path: str, max_in_flight: int, once: bool = False) -> None:
        self.path = path
        self.accepted = 0
        self.failed: list[tuple[object, AmqpError]] = []
        """(context given to `send`, what the broker said) of each refused message; the caller empties it."""
        self.answered: list[object] = []
        """Contexts, unless None, of what was accepted; the caller empties it."""
        self._client = client
        self._max_in_flight = max_in_flight
        self._in_flight = 0
        self._number = 0
        self._gone = False
        self._error: AmqpError | None = None
        name = f"sender-{uuid.uuid4()}"
        wish: dict[object, object] | None = {Symbol(ONCE): True} if once else None
        self._link = client.session.attach_sender(name, Terminus(name), Terminus(path), self, snd_settle_mode=0, properties=wish)
        client.pump_until(lambda: self._gone or self._link.attached, f"attach to {path}")
        self._check()
        self.once = once and self._link.properties.get(ONCE) is True
        """Whether the broker does so; others take no notice of the wish."""
        self.message_bytes_max: int = self._link.remote_max_message_size or 262_144

    def take_answers(self) -> tuple[list[object], list[tuple[object, AmqpError]]]:
        """(what was accepted, what was refused) since it was asked last."""
        answered, self.answered = self.answered, []
        failed, self.failed = self.failed, []
        return answered, failed

    def send(self, payload: bytes, context: object = None, message_format: int = 0) -> None:
        """Queue one encoded message. Blocks while too many are unanswered. Raises TransportError when the link is gone."""
        while self._in_flight >= self._max_in_flight or (self._link.credit <= 0 and not self._gone):
            self._client.pump_until(self._has_room, f"send to {self.path}")
        self._check()
        self._number += 1
        self._in_flight += 1
        self._link.send(payload, self._number.to_bytes(4, "big"), False, context, message_format)
        if self._number % 64 == 0:
            self._client.flush()

    @property
    def in_flight(self) -> int:
        return self._in_flight

    def check(self) -> None:
        """Raises TransportError when the link is gone."""
        self._check()

    def _has_room(self) -> bool:
        return self._gone or (self._in_flight < self._max_in_flight and self._link.credit > 0)

    def drain(self, timeout: float | None = None) -> None:
        """Wait for every outcome."""
        self._client.pump_until(lambda: self._gone or self._in_flight == 0, f"outcomes from {self.path}", timeout)
        self._check()

    def close(self) -> None:
        if not self._gone:
            self._link.detach()
            self._client.flush()

    def on_disposition(self, link: SenderLink, deliveries: list[Delivery], outcome: Outcome, settled: bool) -> None:
        self._in_flight -= len(deliveries)
        if outcome.code == _ACCEPTED:
            self.accepted += len(deliveries)
            self.answered.extend([delivery.context for delivery in deliveries if delivery.context is not None])
            return
        error = outcome.error or AmqpError("amqp:internal-error", f"outcome 0x{outcome.code:02x}")
        self.failed.extend((delivery.context, error) for delivery in deliveries)

    def on_detach(self, link: Link, error: AmqpError | None) -> None:
        self._gone = True
        self._error = error

    def _check(self) -> None:
        if self._gone:
            error = self._error
            raise TransportError(
                error.condition if error else "detached", (error.description if error else "") or f"{self.path}: link closed"
            )
