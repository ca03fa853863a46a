"""One address for a cluster, as a load balancer gives it: each new connection goes to the next node that answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Final

_CHUNK: Final = 65_536
_CONNECT_SECONDS: Final = 2.0


class FrontDoor:
    """Bytes are handed on as they are; when either side goes, so does the other."""

    def __init__(self, ports: Callable[[], list[int]]) -> None:
        """`ports`: those of the nodes that are thought to be up."""
        self._ports = ports
        self._next = 0
        self._server: asyncio.Server | None = None
        self.port = 0
        self._open: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> FrontDoor:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._open:
            task.cancel()
        if self._open:
            await asyncio.wait(self._open)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            there = await self._connect()
            if there is not None:
                await _either(_copy(reader, there[1]), _copy(there[0], writer))
                there[1].close()
        except asyncio.CancelledError:
            return  # the demo ends
        finally:
            self._open.discard(task)
            writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        for _ in range(len(self._ports())):
            ports = self._ports()
            if not ports:
                return None
            self._next += 1
            with contextlib.suppress(OSError, TimeoutError):
                return await asyncio.wait_for(asyncio.open_connection("127.0.0.1", ports[self._next % len(ports)]), _CONNECT_SECONDS)
        return None


async def _either(*ways: Coroutine[Any, Any, None]) -> None:
    tasks = [asyncio.ensure_future(way) for way in ways]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
