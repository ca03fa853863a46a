"""The pump of one AMQP connection: bytes between an asyncio transport and a PeerConnection, and no opinions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from tandem.gateway.amqp.attach import attach
from tandem.gateway.amqp.connection import ConnectionWriter, PeerConnection
from tandem.server.backpressure import Backpressure
from tandem.server.context import NamespaceContext


class AmqpPump(asyncio.Protocol):
    """Give to a listener as its protocol for AMQP."""

    def __init__(self, context_of: Callable[[str], NamespaceContext], container_id: str, backpressure: Backpressure) -> None:
        self._context_of = context_of
        """By the name of the host that a client asked for."""
        self._backpressure = backpressure
        self._container_id = container_id
        self._connection: PeerConnection | None = None
        self._writer: _TransportWriter | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)
        stream.set_write_buffer_limits(high=self._context_of("").limits.egress_bytes_buffered_max)
        peer = stream.get_extra_info("peername")
        self._writer = _TransportWriter(stream)
        self._connection = self.open_connection(self._writer, f"{peer[0]}:{peer[1]}" if peer else "local")

    def open_connection(self, writer: ConnectionWriter, peer: str) -> PeerConnection:
        return PeerConnection(self._context_of, attach, writer, peer, self._container_id)

    def data_received(self, data: bytes) -> None:
        connection = self._connection
        if connection is not None and self._writer is not None:
            connection.receive(data)
            self._backpressure.took(self._writer, len(data))

    def pause_writing(self) -> None:
        if self._connection is not None:
            self._connection.set_writable(False)
        if self._writer is not None:
            # Who does not read its answers is not listened to: each request would add one more to what is kept for it.
            self._writer.set_deaf(True)

    def resume_writing(self) -> None:
        if self._connection is not None:
            self._connection.set_writable(True)
        if self._writer is not None:
            self._writer.set_deaf(False)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self._connection is not None:
            self._connection.connection_lost()


class _TransportWriter(ConnectionWriter):
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

    def set_deaf(self, deaf: bool) -> None:
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
