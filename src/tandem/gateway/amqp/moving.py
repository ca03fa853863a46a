"""A connection moved to the worker that has the entity of its first link: the socket and what was read from it so far.

The other worker reads those bytes as if they had come to it, and takes the connection only if it would have answered exactly what was
answered: then both ends are where they would be had the client come there first. If not, nothing has happened and the link is carried.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import socket
from collections.abc import Callable
from typing import Any, Final, cast

from tandem.gateway.amqp.connection import PeerConnection
from tandem.gateway.amqp.pump import AmqpPump
from tandem.gateway.amqp.recording import HEAD, READ_BYTES_MAX, Recording, pieces_of

_SECONDS: Final = 2.0
_PACKET_BYTES_MAX: Final = 2 * READ_BYTES_MAX
_FITS: Final = b"Y"
_GO: Final = b"G"


async def move(connection: PeerConnection, path: str) -> bool:
    """To the worker that takes over at this unix socket; its recording is frozen, and it is not read from. False: it stays."""
    recording = connection.recording
    if not isinstance(recording, Recording) or recording.transport.get_write_buffer_size():
        return False
    transport = recording.transport
    descriptor = transport.get_extra_info("socket").fileno()
    loop = asyncio.get_running_loop()
    moved = False
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
            channel.setblocking(False)
            async with asyncio.timeout(_SECONDS):
                await loop.sock_connect(channel, path)
                socket.send_fds(channel, [recording.packet()], [descriptor])
                if await loop.sock_recv(channel, 1) == _FITS and not connection.gone:
                    channel.send(_GO)
                    moved = True
    except (OSError, TimeoutError):
        moved = False
    if moved:
        connection.connection_lost()
        transport.abort()
    return moved


class TakingOver:
    """Where connections are moved to."""

    def __init__(self, path: str, make_pump: Callable[[], AmqpPump], run_turn: Callable[[], None]) -> None:
        self._make_pump = make_pump
        self._run_turn = run_turn
        self._tasks: set[asyncio.Task[None]] = set()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # of a process that had our name before
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(path)
        self._listener.listen(1024)
        self._listener.setblocking(False)
        asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()

    def _accept(self) -> None:
        try:
            channel, _ = self._listener.accept()
        except OSError:
            return
        channel.setblocking(False)
        task = asyncio.get_running_loop().create_task(self._take(channel))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _take(self, channel: socket.socket) -> None:
        descriptors: list[int] = []
        with channel:
            try:
                async with asyncio.timeout(_SECONDS):
                    await _readable(channel)
                    packet, descriptors, _, _ = socket.recv_fds(channel, _PACKET_BYTES_MAX, 1)
                    if len(descriptors) != 1:
                        return
                    replayed = self._replay(packet, descriptors[0])
                    if replayed is None:
                        return
                    channel.send(_FITS)
                    if await asyncio.get_running_loop().sock_recv(channel, 1) == _GO:
                        accepted = socket.socket(fileno=descriptors.pop())
                        accepted.setblocking(False)
                        await asyncio.get_running_loop().connect_accepted_socket(lambda: _Handover(replayed), accepted)
                    else:
                        replayed.pump.connection_lost(None)
            except (OSError, TimeoutError):
                return
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)

    def _replay(self, packet: bytes, descriptor: int) -> _Replayed | None:
        """The connection as it would be had its client come here; None if it would have heard something else."""
        sent, digest = HEAD.unpack_from(packet)
        with socket.socket(fileno=os.dup(descriptor)) as there:
            peer = there.getpeername()
        desk = _Desk(peer)
        pump = self._make_pump()
        pump.connection_made(desk)
        pieces = pieces_of(packet)
        for piece in pieces[:-1]:
            pump.data_received(piece)
            self._run_turn()
        written = b"".join(desk.written)
        if len(written) < sent or hashlib.sha256(written[:sent]).digest() != digest or desk.closed:
            pump.connection_lost(None)
            return None
        return _Replayed(pump, desk, sent, pieces[-1])


class _Replayed:
    def __init__(self, pump: AmqpPump, desk: _Desk, sent: int, last: bytes) -> None:
        self.pump = pump
        self.desk = desk
        self.sent = sent
        """So much of what the desk has was written to the client before."""
        self.last = last
        """The piece with the attach: it has consequences, and is read when the connection is ours."""


class _Handover(asyncio.Protocol):
    """The first protocol of the real transport: gives it to the pump."""

    def __init__(self, replayed: _Replayed) -> None:
        self._replayed = replayed

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)
        replayed = self._replayed
        rest = b"".join(replayed.desk.written)[replayed.sent :]
        stream.set_protocol(replayed.pump)
        replayed.pump.use(stream)
        if rest:
            stream.write(rest)
        replayed.pump.data_received(replayed.last)


class _Desk(asyncio.Transport):
    """What a pump writes while there is no socket yet."""

    def __init__(self, peer: Any) -> None:
        super().__init__({"peername": peer})
        self.written: list[bytes] = []
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def is_reading(self) -> bool:
        return True

    def pause_reading(self) -> None:
        """It is not read from."""

    def resume_reading(self) -> None:
        """It is not read from."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """It takes everything."""


async def _readable(channel: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(channel, lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(channel)
