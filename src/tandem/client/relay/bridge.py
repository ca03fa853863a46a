"""TCP through a relay: one side takes connections of ordinary clients, the other makes them to an ordinary server."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import AsyncIterable, Awaitable, Callable, Sequence
from typing import Final

from tandem.client.relay.errors import RelayError
from tandem.client.relay.stream import RelayStream

log = logging.getLogger("tandem.client.relay")

_READ_BYTES: Final = 65_536
_END: Final = "end"
"""The only text between the two sides: this direction is over, the other may go on (a half-closed connection)."""

Open = Callable[[], Awaitable[RelayStream]]


async def serve_bridge(open_stream: Open, host: str, port: int) -> asyncio.Server:
    """Each connection to `host:port` becomes a stream of its own. Close the server to end it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            stream = await open_stream()
        except RelayError as error:
            log.warning("a connection from %s was dropped: %s", writer.get_extra_info("peername"), error)
            _reset(writer)
            return
        await join(stream, reader, writer)

    return await asyncio.start_server(serve, host, port, limit=_READ_BYTES)


async def expose(streams: AsyncIterable[RelayStream], host: str, port: int) -> None:
    """Each stream becomes a connection to `host:port`, until there are no more streams."""
    running: set[asyncio.Task[None]] = set()
    try:
        async for stream in streams:
            task = asyncio.get_running_loop().create_task(_reach(stream, host, port))
            running.add(task)
            task.add_done_callback(running.discard)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _reach(stream: RelayStream, host: str, port: int) -> None:
    try:
        reader, writer = await asyncio.open_connection(host, port, limit=_READ_BYTES)
    except OSError as error:
        log.warning("%s:%s cannot be reached: %s", host, port, error)
        await stream.close(1011, f"the server cannot be reached: {error.strerror or error}"[:120])
        return
    await join(stream, reader, writer)


async def join(stream: RelayStream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Bytes both ways until both are over. A break on one side is a break on the other, never an ordinary end."""
    tasks = [asyncio.ensure_future(_outward(stream, reader)), asyncio.ensure_future(_inward(stream, writer))]
    try:
        await asyncio.gather(*tasks)
        await stream.close()
        writer.close()
    except (RelayError, OSError) as error:
        log.info("a connection broke: %s", error)
        await _cut(stream, writer, tasks)
    except asyncio.CancelledError:
        await _cut(stream, writer, tasks)
        raise


async def _cut(stream: RelayStream, writer: asyncio.StreamWriter, tasks: Sequence[asyncio.Future[None]]) -> None:
    for task in tasks:
        task.cancel()
    _reset(writer)
    await asyncio.gather(*tasks, stream.close(1011, "the connection broke"), return_exceptions=True)


def _reset(writer: asyncio.StreamWriter) -> None:
    """The peer must not take it for an ordinary end: no more comes, and what came may not be all."""
    raw = writer.get_extra_info("socket")
    if raw is not None and raw.fileno() >= 0:  # else the peer was first, and it is closed
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _outward(stream: RelayStream, reader: asyncio.StreamReader) -> None:
    while data := await reader.read(_READ_BYTES):
        await stream.send(data)
    await stream.send(_END)


async def _inward(stream: RelayStream, writer: asyncio.StreamWriter) -> None:
    async for message in stream:
        if isinstance(message, str):
            if writer.can_write_eof():
                writer.write_eof()
            return
        writer.write(message)
        await writer.drain()
    raise ConnectionResetError("the other side closed before it was done")
