"""A small asynchronous client on our own engine: pipelined sends, confirmed settlement, management requests; nothing is retried."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, cast

from mypy_extensions import mypyc_attr

from tandem.amqp.config import ConnectionConfig
from tandem.amqp.connection import Connection
from tandem.amqp.errors import AmqpError
from tandem.amqp.handlers import ConnectionHandler, LinkHandler
from tandem.amqp.link import Delivery, Link, ReceiverLink, SenderLink
from tandem.amqp.message import decode_message, encode_message
from tandem.amqp.outcomes import ACCEPTED, Outcome
from tandem.amqp.sasl import SaslClient
from tandem.amqp.terminus import Terminus
from tandem.amqp.types import Described, Symbol, UInt

SESSION_FILTER: Final = "com.microsoft:session-filter"
BATCH_FORMAT: Final = 0x80013700
NEXT_SESSION: Final = object()
"""As `session`: whichever session is free next."""
_SELECTOR: Final = "apache.org:selector-filter:string"
_VALUE: Final = 0x77
_TOKENS: Final = "$cbs"
_AUTH_FAILED: Final = "com.microsoft:auth-failed"
_NOT_FOUND: Final = "amqp:not-found"
_NO_SESSION: Final = object()
_ACCEPTED_CODE: Final = 0x24
_FIRST_ANSWER: Final = Symbol("com.microsoft:timeout")


class PeerRefused(Exception):
    """The broker said no. `condition` says why, for programs."""

    def __init__(self, error: AmqpError | None, what: str) -> None:
        super().__init__(f"{what}: {error.condition}: {error.description}" if error is not None else what)
        self.condition = str(error.condition) if error is not None else ""


@mypyc_attr(native_class=False)
class Gone(ConnectionError):
    """The connection ended before an answer came: what was asked may have happened, or not."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """One delivery as it came."""

    payload: bytes
    delivery_id: int
    tag: bytes
    """The lock token."""
    settled: bool


class AmqpClient(ConnectionHandler):
    """One connection. `await AmqpClient.connect(port)`, then make links; `ended` is done when the connection is gone."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._engine: Connection | None = None
        self._flush_planned = False
        self._ticks_seconds = 0.0
        self._names = itertools.count(1)
        self._nodes: dict[str, tuple[AmqpSender, AmqpReceiver]] = {}
        self._answers: dict[str, asyncio.Future[tuple[int, dict[str, Any]]]] = {}
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self.ended: asyncio.Future[None] = self._loop.create_future()

    @classmethod
    async def connect(
        cls,
        port: int,
        *,
        host: str = "127.0.0.1",
        user: str = "RootManageSharedAccessKey",
        password: str = "SAS_KEY_VALUE",
        max_frame_size: int = 65_536,
        idle_timeout_ms: int = 0,
    ) -> AmqpClient:
        """With an idle timeout a peer that falls silent ends the connection, and heartbeats keep the peer from doing the same."""
        self = cls()
        config = ConnectionConfig(
            container_id="client",
            hostname=host,
            sasl=SaslClient(user, password),
            max_frame_size=max_frame_size,
            idle_timeout_ms=idle_timeout_ms,
        )
        self._ticks_seconds = idle_timeout_ms / 4_000
        self._engine = Connection(self, config, False)
        try:
            await self._loop.create_connection(lambda: cast(asyncio.Protocol, _Pump(self)), host, port)
        except OSError as error:
            raise Gone(f"cannot connect: {error}") from error
        self._engine.open()
        self.plan_flush()
        if self._ticks_seconds:
            self._tick()
        await self._opened
        return self

    def _tick(self) -> None:
        if not self.ended.done() and self._engine is not None:
            self._engine.tick(round(self._loop.time() * 1000))
            self.flush()
            self._loop.call_later(self._ticks_seconds, self._tick)

    # -- links -------------------------------------------------------------------------------

    async def sender(self, address: str) -> AmqpSender:
        sender = AmqpSender(self)
        session = self._running().begin()
        name = f"s{next(self._names)}"
        sender.link = session.attach_sender(name, Terminus(name), Terminus(address), sender)
        self.plan_flush()
        await sender.ready
        return sender

    async def receiver(
        self, address: str, *, credit: int = 0, delete: bool = False, session: object = _NO_SESSION, selector: str = ""
    ) -> AmqpReceiver:
        """Peek-lock with confirmed settlement, or receive-and-delete. Credit is topped up by itself; 0 leaves it to `grant`."""
        receiver = AmqpReceiver(self)
        filters: dict[object, object] = {}
        if session is not _NO_SESSION:
            filters[Symbol(SESSION_FILTER)] = None if session is NEXT_SESSION else session
        if selector:
            filters[Symbol(_SELECTOR)] = Described(Symbol(_SELECTOR), selector)
        name = f"r{next(self._names)}"
        receiver.link = (
            self._running()
            .begin()
            .attach_receiver(
                name,
                Terminus(address, filter=filters),
                Terminus(name),
                receiver,
                snd_settle_mode=1 if delete else 0,
                rcv_settle_mode=0 if delete else 1,
                properties={_FIRST_ANSWER: UInt(5_000)},
            )
        )
        receiver.link.auto_credit = credit
        self.plan_flush()
        await receiver.ready
        return receiver

    async def request(self, address: str, operation: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Ask the management node of an entity; (status, body). Raises PeerRefused for an error status."""
        return await self._exchange(f"{address}/$management", {"operation": operation}, body)

    async def put_token(self, resource: str, token: str) -> None:
        """What it allows is allowed on this connection from here on. Raises PeerRefused."""
        await self._exchange(_TOKENS, {"operation": "put-token", "type": "jwt", "name": resource}, token)

    async def _exchange(self, node: str, asked: dict[object, object], body: object) -> tuple[int, dict[str, Any]]:
        if node not in self._nodes:
            sender = await self.sender(node)
            receiver = await self.receiver(node, credit=100, delete=True)
            receiver.on_message = self._answered
            receiver.on_end = lambda: self._without_answers(node)
            self._nodes[node] = (sender, receiver)
        sender, receiver = self._nodes[node]
        number = f"{node}#{next(self._names)}"
        answer: asyncio.Future[tuple[int, dict[str, Any]]] = self._loop.create_future()
        self._answers[number] = answer
        message = encode_message(
            properties={"message-id": number, "reply-to": receiver.link.name},
            application_properties=asked,
            body=body,
            body_kind=_VALUE,
        )
        await sender.send(message)
        return await answer

    def _without_answers(self, node: str) -> None:
        """Its link ended, and the connection goes on: nothing more will be heard from there."""
        self._nodes.pop(node, None)
        for number in [number for number in self._answers if number.startswith(f"{node}#")]:
            _fail(self._answers.pop(number), Gone("the link ended"))

    def _answered(self, incoming: Incoming) -> None:
        message = decode_message(incoming.payload)
        answer = self._answers.pop(str(message.properties.get("correlation-id")))
        if answer.done():
            return  # whoever asked has given up waiting
        said = message.application_properties
        if "status-code" in said:
            code = int(cast(int, said["status-code"]))
            if code >= 300:
                refusal = AmqpError(_NOT_FOUND if code == 404 else _AUTH_FAILED, str(said.get("status-description")))
                _fail(answer, PeerRefused(refusal, f"status {code}"))
            else:
                answer.set_result((code, {}))
            return
        status = int(cast(int, said["statusCode"]))
        if status >= 400:
            condition = message.application_properties.get("errorCondition")
            text = message.application_properties.get("statusDescription")
            _fail(answer, PeerRefused(AmqpError(str(condition), str(text)), f"status {status}"))
        else:
            answer.set_result((status, cast("dict[str, Any]", message.body or {})))

    # -- life --------------------------------------------------------------------------------

    async def close(self) -> None:
        if not self.ended.done():
            self._running().close()
            self.plan_flush()
            await asyncio.wait([self.ended])

    def abort(self) -> None:
        """Hang up without a word."""
        if self._transport is not None:
            self._transport.abort()

    @property
    def transport(self) -> asyncio.Transport | None:
        return self._transport

    def _running(self) -> Connection:
        if self._engine is None or self.ended.done():
            raise Gone("the connection has ended")
        return self._engine

    # -- bytes -------------------------------------------------------------------------------

    def plan_flush(self) -> None:
        if not self._flush_planned:
            self._flush_planned = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        self._flush_planned = False
        engine, transport = self._engine, self._transport
        if engine is None or transport is None or transport.is_closing():
            return
        data = engine.bytes_to_send()
        if data:
            transport.write(data)
        if engine.closed:
            transport.close()

    def connected(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.flush()

    def received(self, data: bytes) -> None:
        assert self._engine is not None
        self._engine.receive_bytes(data)
        self._engine.tick(round(self._loop.time() * 1000))
        self.flush()

    def lost(self) -> None:
        assert self._engine is not None
        self._engine.lost()
        gone = Gone("the connection ended")
        for answer in self._answers.values():
            _fail(answer, gone)
        self._answers.clear()
        _fail(self._opened, gone)
        if not self.ended.done():
            self.ended.set_result(None)

    # -- the engine's events -----------------------------------------------------------------

    def on_open(self, connection: Connection) -> None:
        if not self._opened.done():
            self._opened.set_result(None)

    def on_close(self, connection: Connection, error: AmqpError | None) -> None:
        _fail(self._opened, Gone("the connection ended") if error is None else PeerRefused(error, "the connection was refused"))


class AmqpSender(LinkHandler):
    """`send` returns at once; its future is done when the broker has accepted the message."""

    link: SenderLink

    def __init__(self, client: AmqpClient) -> None:
        self._client = client
        self._tags = itertools.count(1)
        self.error: BaseException | None = None
        """What ended the link."""
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unanswered: dict[asyncio.Future[None], None] = {}
        """In their order: a set's would depend on where they lie in memory."""

    def follow(self, answer: asyncio.Future[None]) -> None:
        """It fails when the link ends, as those of `send` do."""
        self._unanswered[answer] = None

    def send(self, payload: bytes, message_format: int = 0) -> asyncio.Future[None]:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not self.link.attached:
            answer.set_exception(Gone("the link is gone"))
            return answer
        self.link.send(payload, next(self._tags).to_bytes(4, "big"), False, answer, message_format)
        self._unanswered[answer] = None
        self._client.plan_flush()
        return answer

    def send_batch(self, payloads: list[bytes]) -> asyncio.Future[None]:
        """Accepted whole or not at all."""
        return self.send(encode_message(body=payloads), BATCH_FORMAT)

    def on_attached(self, link: Link) -> None:
        if not self.ready.done():  # whoever waited may have given up
            self.ready.set_result(None)

    def on_disposition(self, link: SenderLink, deliveries: list[Delivery], outcome: Outcome, settled: bool) -> None:
        for delivery in deliveries:
            answer = cast("asyncio.Future[None]", delivery.context)
            self._unanswered.pop(answer, None)
            if answer.done():
                continue
            if outcome.code == _ACCEPTED_CODE:
                answer.set_result(None)
            else:
                answer.set_exception(PeerRefused(outcome.error, f"not accepted, outcome {outcome.code:#x}"))

    def on_detach(self, link: Link, error: AmqpError | None) -> None:
        self.error = PeerRefused(error, "detached") if error is not None else Gone("the link ended")
        _fail(self.ready, self.error)
        unanswered, self._unanswered = self._unanswered, {}
        for answer in unanswered:
            _fail(answer, Gone("the link ended"))


class AmqpReceiver(LinkHandler):
    """Deliveries wait in `get`, or go to `on_message` as they come."""

    link: ReceiverLink

    def __init__(self, client: AmqpClient) -> None:
        self._client = client
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting: asyncio.Queue[Incoming | None] = asyncio.Queue()
        self._unanswered: dict[int, asyncio.Future[None]] = {}
        self.error: BaseException | None = None
        self.on_message: Callable[[Incoming], None] = self._waiting.put_nowait
        self.on_end: Callable[[], None] = lambda: None

    def grant(self, credit: int) -> None:
        self.link.grant(credit)
        self._client.plan_flush()

    async def get(self) -> Incoming:
        """The next delivery; raises what ended the link when there will be none."""
        incoming = self._waiting.get_nowait() if not self._waiting.empty() else await self._waiting.get()
        if incoming is None:
            self._waiting.put_nowait(None)
            assert self.error is not None
            raise self.error
        return incoming

    def settle(self, incoming: Incoming, state: bytes = ACCEPTED) -> asyncio.Future[None]:
        """Done when the broker has confirmed: the outcome is on its disk."""
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not self.link.attached:
            answer.set_exception(Gone("the link is gone"))
            return answer
        self._unanswered[incoming.delivery_id] = answer
        self.link.session.send_disposition(True, incoming.delivery_id, incoming.delivery_id, False, state)
        self._client.plan_flush()
        return answer

    async def detach(self) -> None:
        self.link.detach()
        self._client.plan_flush()
        while self.error is None:
            await self._waiting.get()
        self._waiting.put_nowait(None)

    def on_attached(self, link: Link) -> None:
        if not self.ready.done():  # whoever waited may have given up
            self.ready.set_result(None)

    def on_transfer(
        self, link: ReceiverLink, delivery_id: int, tag: bytes, payload: bytes, settled: bool, message_format: int, state: bytes | None
    ) -> None:
        self.on_message(Incoming(payload, delivery_id, tag, settled))

    def on_settled_incoming(self, link: ReceiverLink, first: int, last: int, outcome: Outcome, settled: bool) -> None:
        for delivery_id in range(first, last + 1):
            answer = self._unanswered.pop(delivery_id, None)
            if answer is None or answer.done():
                continue
            if outcome.error is not None:
                answer.set_exception(PeerRefused(outcome.error, "not settled"))
            else:
                answer.set_result(None)

    def on_detach(self, link: Link, error: AmqpError | None) -> None:
        self.error = PeerRefused(error, "detached") if error is not None else Gone("the link ended")
        _fail(self.ready, self.error)
        unanswered, self._unanswered = self._unanswered, {}
        for answer in unanswered.values():
            _fail(answer, Gone("the link ended"))
        self._waiting.put_nowait(None)
        self.on_end()


class _Pump:
    """Quacks like asyncio.Protocol."""

    def __init__(self, client: AmqpClient) -> None:
        self._client = client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._client.connected(cast(asyncio.Transport, transport))

    def data_received(self, data: bytes) -> None:
        self._client.received(data)

    def eof_received(self) -> None:
        """The transport closes by itself."""

    def pause_writing(self) -> None:
        """What is sent waits in the transport."""

    def resume_writing(self) -> None:
        """It is on its way."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.lost()


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # whoever dropped the future has no interest in the answer
