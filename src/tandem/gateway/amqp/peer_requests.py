"""Requests from node to node: `$peer` answers them, and a channel to another node asks them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, cast

from tandem.amqp.config import ConnectionConfig
from tandem.amqp.connection import Connection
from tandem.amqp.errors import AmqpError
from tandem.amqp.handlers import ConnectionHandler
from tandem.amqp.link import Link, SenderLink
from tandem.amqp.terminus import Terminus
from tandem.amqp.types import Int
from tandem.cluster.ownership import Ownership
from tandem.cluster.peers import ClusterNode
from tandem.gateway.amqp.asking import Asker
from tandem.gateway.amqp.connection import PeerConnection
from tandem.gateway.amqp.requests import NodeRequest, Requests
from tandem.gateway.translate import refusal
from tandem.model.errors import BusError, NotImplementedByBroker, OperationTimeout, StoreUnavailable
from tandem.server.context import NamespaceContext

PEER: Final = "$peer"
BYTES_MAX: Final = 16_777_216
"""Of one request. An answer may have a message of any size in it."""
_CREDIT: Final = 1_000
_CONNECT_SECONDS: Final = 2.0

Operation = Callable[[dict[object, object]], Awaitable[dict[object, object]]]


class PeerNode(Requests):
    """Answers what other nodes ask."""

    def __init__(self, connection: PeerConnection, operations: dict[str, Operation]) -> None:
        super().__init__(connection, PEER)
        self._operations = operations

    def handle(self, request: NodeRequest) -> None:
        self.connection.context.spawn(self._answer(request))

    async def _answer(self, request: NodeRequest) -> None:
        name = request.properties.get("operation")
        try:
            operation = self._operations.get(str(name))
            if operation is None:
                raise NotImplementedByBroker(f"This node does not know the request {name!r}: it is of another version.")
            body = await operation(request.body if isinstance(request.body, dict) else {})
            self.reply(request, {"status": Int(200)}, body)
        except BusError as error:
            self._refuse(request, error)
        except OSError as error:
            self._refuse(request, refusal(error))

    def _refuse(self, request: NodeRequest, error: BusError) -> None:
        properties: dict[object, object] = {"status": Int(error.status), "condition": error.condition, "description": error.description}
        self.reply(request, properties, None)


class RefusedByPeer(BusError):
    """What another node answered, passed on as it is."""

    def __init__(self, status: int, condition: str, description: str) -> None:
        super().__init__(description)
        self.status = status  # type: ignore[misc]
        self.condition = condition  # type: ignore[misc]


class NodeChannel(Asker):
    """Asks one other node. Connects when it is first needed, and again after it was lost."""

    def __init__(self, node: str, address: Callable[[], str | None], config: Callable[[], ConnectionConfig]) -> None:
        super().__init__(PEER)
        self.node = node
        self._address = address
        self._config = config
        self._wire: _Wire | None = None
        self._requests: SenderLink | None = None
        self._opening = asyncio.Lock()
        self._ready: asyncio.Future[None] | None = None

    async def ask(self, operation: str, body: dict[object, object], seconds: float = 10.0) -> dict[object, object]:
        """The answer's body. Raises what the node refused it with; StoreUnavailable if it cannot be asked."""
        try:
            async with asyncio.timeout(seconds):
                async with self._opening:
                    await self._connect()
                properties, answer = await self.answer_to({"operation": operation}, body, self._send)
        except TimeoutError:
            told = f"Node '{self.node}' did not answer. One that hangs is given up, or started again, within half a minute: try again then."
            raise OperationTimeout(told) from None
        except OSError as error:
            raise StoreUnavailable(f"Node '{self.node}' cannot be reached: {error}.") from error
        status = properties.get("status")
        if status != 200:
            raise RefusedByPeer(int(cast(int, status or 500)), str(properties.get("condition")), str(properties.get("description")))
        return answer if isinstance(answer, dict) else {}

    def close(self) -> None:
        if self._wire is not None:
            self._wire.engine.close()
            self._wire.flush()

    def _send(self, payload: bytes) -> None:
        assert self._requests is not None
        assert self._wire is not None
        self._requests.send(payload, self.tag(), True, None)
        self._wire.flush()

    async def _connect(self) -> None:
        if self._wire is not None and not self._wire.engine.closed and self._requests is not None and self._requests.attached:
            return
        where = self._address()
        if where is None:
            raise StoreUnavailable(f"Nobody knows the address of node '{self.node}'.")
        loop = asyncio.get_running_loop()
        wire = _Wire(self._config(), self.lost)
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                if where.startswith("unix:"):
                    await loop.create_unix_connection(lambda: wire, where.removeprefix("unix:"))
                else:
                    host, _, port = where.rpartition(":")
                    await loop.create_connection(lambda: wire, host.strip("[]"), int(port))
                self._wire = wire
                self._ready = loop.create_future()
                session = wire.engine.begin()
                replies = session.attach_receiver("answers", Terminus(PEER), Terminus(PEER), self, 1)
                replies.auto_credit = _CREDIT
                self._requests = session.attach_sender("requests", Terminus(PEER), Terminus(PEER), self, 1)
                wire.flush()
                await self._ready
        except (TimeoutError, asyncio.CancelledError):
            wire.cut()  # now: a word from it later would be taken for one from the next
            raise

    def lost(self, error: AmqpError | None) -> None:
        lost = StoreUnavailable(f"Node '{self.node}' was lost: {error.description if error is not None else 'it hung up'}.")
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(lost)
            self._ready.exception()
        self.give_up(lost)

    def on_attached(self, link: Link) -> None:
        if link is self._requests and self._ready is not None and not self._ready.done():
            self._ready.set_result(None)


class PeerChannels:
    """Of one namespace: a channel to each node that is asked."""

    def __init__(self, context: NamespaceContext, cluster: ClusterNode, ownership: Ownership, entropy: Callable[[int], bytes]) -> None:
        self._context = context
        self._cluster = cluster
        self._ownership = ownership
        self._entropy = entropy
        self._channels: dict[str, NodeChannel] = {}

    async def ask(self, node: str, operation: str, body: dict[object, object]) -> dict[object, object]:
        channel = self._channels.get(node)
        if channel is None:
            channel = self._channels[node] = NodeChannel(node, lambda: self._ownership.address(node), self._config)
        return await channel.ask(operation, body)

    def _config(self) -> ConnectionConfig:
        return self._cluster.config_to(self._context.namespace.name, self._context.limits, self._entropy)


class _Wire(asyncio.Protocol):
    """The engine of a channel and its transport."""

    def __init__(self, config: ConnectionConfig, lost: Callable[[AmqpError | None], None]) -> None:
        self.engine = Connection(_Closing(lost), config, False)
        self._transport: asyncio.Transport | None = None
        self._beats: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.engine.open()
        self.flush()
        self._beat()

    def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        self.engine.tick(int(loop.time() * 1000))
        self.flush()
        if not self.engine.closed:
            self._beats = loop.call_later(1, self._beat)

    def data_received(self, data: bytes) -> None:
        self.engine.receive_bytes(data)
        self.flush()

    def flush(self) -> None:
        if self._transport is None:
            return
        data = self.engine.bytes_to_send()
        if data:
            self._transport.write(data)
        if self.engine.closed:
            self._transport.close()

    def cut(self) -> None:
        self.connection_lost(None)
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._beats is not None:
            self._beats.cancel()
        self.engine.lost()


class _Closing(ConnectionHandler):
    def __init__(self, lost: Callable[[AmqpError | None], None]) -> None:
        self._lost = lost

    def on_close(self, connection: Connection, error: AmqpError | None) -> None:
        self._lost(error)
