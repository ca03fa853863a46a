"""The pump of one AMQP connection: bytes between an asyncio transport and a PeerConnection, and no opinions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from tandem.amqp.config import ConnectionConfig
from tandem.gateway.amqp.attach import attach
from tandem.gateway.amqp.connection import ConnectionWriter, PeerConnection
from tandem.gateway.amqp.peer_door import CarriedClient
from tandem.gateway.amqp.recording import Recording, recorded
from tandem.server.backpressure import Backpressure
from tandem.server.context import NamespaceContext


class AmqpPump(asyncio.Protocol):
    """Give to a listener as its protocol for AMQP."""

    def __init__(
        self, context_of: Callable[[str], NamespaceContext], container_id: str, backpressure: Backpressure, movable: bool = False
    ) -> None:
        self._context_of = context_of
        """By the name of the host that a client asked for."""
        self._backpressure = backpressure
        self._container_id = container_id
        self._movable = movable
        """The connection may yet be moved to another process."""
        self._connection: PeerConnection | None = None
        self._writer: TransportWriter | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)
        stream.set_write_buffer_limits(high=self._context_of("").limits.egress_bytes_buffered_max)
        peer = stream.get_extra_info("peername")
        self._writer = TransportWriter(stream)
        self._connection = self.open_connection(self._writer, f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "local")
        if self._movable:
            self._writer.recording = self._connection.recording = recorded(stream)

    def use(self, transport: asyncio.Transport) -> None:
        """From now on this is where its bytes go."""
        assert self._writer is not None
        transport.set_write_buffer_limits(high=self._context_of("").limits.egress_bytes_buffered_max)
        self._writer.transport = transport

    def open_connection(self, writer: ConnectionWriter, peer: str) -> PeerConnection:
        return PeerConnection(self._context_of, attach, writer, peer, self._container_id)

    def data_received(self, data: bytes) -> None:
        connection = self._connection
        if connection is not None and self._writer is not None:
            if self._movable:
                self._record(connection, self._writer, data)
            connection.receive(data)
            self._backpressure.took(self._writer, len(data))

    def _record(self, connection: PeerConnection, writer: TransportWriter, data: bytes) -> None:
        recording = connection.recording
        if not isinstance(recording, Recording) or not recording.read(data):
            connection.recording = writer.recording = None
            self._movable = False

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


class PeerPump(AmqpPump):
    """The same for connections from other nodes."""

    def __init__(self, context_of: Callable[[str], NamespaceContext], config: ConnectionConfig, backpressure: Backpressure) -> None:
        """`context_of`: by the name of the namespace."""
        super().__init__(context_of, config.container_id, backpressure)
        self._config = config

    def open_connection(self, writer: ConnectionWriter, peer: str) -> PeerConnection:
        return CarriedClient(self._context_of, attach, writer, peer, self._config)


class TransportWriter(ConnectionWriter):
    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self._full = False
        self._deaf = False
        self._held = 0
        self.recording: Recording | None = None

    def write(self, data: bytes) -> None:
        if self.recording is not None and not self.recording.wrote(data):
            return
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

    def hold_reading(self, hold: bool) -> None:
        """Several may hold it at once, each once."""
        self._held += 1 if hold else -1
        self._listen()

    def _listen(self) -> None:
        transport = self.transport
        if transport.is_closing():
            return
        if self._full or self._deaf or self._held:
            if transport.is_reading():
                transport.pause_reading()
        elif not transport.is_reading():
            transport.resume_reading()
