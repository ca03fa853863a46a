"""The pump of one AMQP connection: bytes between an asyncio transport and a PeerConnection, and no opinions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from tandem.amqp.config import ConnectionConfig
from tandem.amqp.connection import Connection
from tandem.amqp.sasl import SaslServer
from tandem.gateway.amqp.attach import Node
from tandem.gateway.amqp.connection import ClientHandler, PeerConnection, Writer
from tandem.server.backpressure import Backpressure
from tandem.server.context import NamespaceContext

_FIRST_DELIVERY_ID = 0x40000000
"""Away from the client's own ids: its sender links take a disposition for either."""


def open_client(context_of: Callable[[str], NamespaceContext], writer: Writer, peer: str, container_id: str) -> PeerConnection:
    """A client whose engine is ready for the first byte; which namespace it means is known when it has said its open."""
    context = context_of("")
    limits = context.limits
    client = PeerConnection(context, writer, peer)
    node = Node(client)
    client.node = node
    config = ConnectionConfig(
        container_id=container_id,
        max_frame_size=limits.frame_bytes_max,
        channel_max=limits.channels_max,
        handle_max=limits.links_per_session_max,
        idle_timeout_ms=limits.idle_timeout_ms,
        drop_silent_after_ms=limits.drop_silent_peer_after_ms,
        sasl=SaslServer(),
        message_bytes_ceiling=limits.message_bytes_ceiling,
        next_outgoing_id=_FIRST_DELIVERY_ID,
    )
    client.engine = Connection(ClientHandler(client, node, context_of), config, True)
    context.connections[client] = None
    return client


class AmqpPump(asyncio.Protocol):
    """Give to a listener as its protocol for AMQP."""

    def __init__(self, context_of: Callable[[str], NamespaceContext], container_id: str, backpressure: Backpressure) -> None:
        self._context_of = context_of
        self._backpressure = backpressure
        self._container_id = container_id
        self._client: PeerConnection | None = None
        self._writer: _TransportWriter | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)
        context = self._context_of("")
        if context.faults_active and context.fault_points is not None and context.fault_points.refuses_connection():
            stream.abort()
            return
        stream.set_write_buffer_limits(high=self._context_of("").limits.egress_bytes_buffered_max)
        peer = stream.get_extra_info("peername")
        self._writer = _TransportWriter(stream)
        self._client = open_client(self._context_of, self._writer, f"{peer[0]}:{peer[1]}" if peer else "local", self._container_id)

    def data_received(self, data: bytes) -> None:
        client = self._client
        if client is not None and self._writer is not None:
            client.receive(data)
            self._backpressure.took(self._writer, len(data))

    def pause_writing(self) -> None:
        if self._client is not None:
            self._client.set_writable(False)
        if self._writer is not None:
            # Who does not read its answers is not listened to: each request would add one more to what is kept for it.
            self._writer.note_deaf(True)

    def resume_writing(self) -> None:
        if self._client is not None:
            self._client.set_writable(True)
        if self._writer is not None:
            self._writer.note_deaf(False)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self._client is not None:
            self._client.connection_lost()


class _TransportWriter(Writer):
    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self._full = False
        self._deaf = False

    def write(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(data)

    def hang_up(self) -> None:
        self.transport.close()

    def cut(self) -> None:
        self.transport.abort()

    def pause_reading(self) -> None:
        self._full = True
        self._listen()

    def resume_reading(self) -> None:
        self._full = False
        self._listen()

    def note_deaf(self, deaf: bool) -> None:
        """The peer takes nothing in, or does so again."""
        self._deaf = deaf
        self._listen()

    def _listen(self) -> None:
        transport = self.transport
        if transport.is_closing():
            return
        if self._full or self._deaf:
            if transport.is_reading():
                transport.pause_reading()
        elif not transport.is_reading():
            transport.resume_reading()
