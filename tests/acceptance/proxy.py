"""A network between client and broker that takes its time, or all of it."""

from __future__ import annotations

import asyncio
import collections


class SlowNetwork:
    """Forwards every byte to a port, each way `one_way` seconds late and in order.

    While `flowing` is cleared it is a black hole: connections open, and nothing comes through. `bytes_per_second` makes a narrow line.
    """

    def __init__(self, target_port: int, one_way: float = 0.0) -> None:
        self._target_port = target_port
        self.one_way = one_way
        self.bytes_per_second: int | None = None
        self.flowing = asyncio.Event()
        self.flowing.set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    async def __aenter__(self) -> SlowNetwork:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()

    def cut(self) -> None:
        """Every connection there is."""
        for task in self._tasks:
            task.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target_port)
        except ConnectionError:
            writer.close()
            return
        for source, target in ((reader, back), (there, writer)):
            task = asyncio.ensure_future(self._carry(source, target))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        """Reading and delayed writing run beside each other, so that a delay is a latency and not a bandwidth."""
        loop = asyncio.get_running_loop()
        late: collections.deque[tuple[float, bytes]] = collections.deque()
        arrived = asyncio.Event()

        async def deliver() -> None:
            while True:
                while not late:
                    arrived.clear()
                    await arrived.wait()
                at, data = late.popleft()
                await asyncio.sleep(max(0.0, at - loop.time()))
                await self.flowing.wait()
                if not data:
                    target.close()
                    return
                if self.bytes_per_second is not None:
                    data, rest = data[: self.bytes_per_second], data[self.bytes_per_second :]
                    if rest:
                        late.appendleft((loop.time() + 1.0, rest))
                target.write(data)
                await target.drain()

        delivering = asyncio.ensure_future(deliver())
        try:
            while True:
                data = await source.read(65_536)
                late.append((loop.time() + self.one_way, data))
                arrived.set()
                if not data:
                    await delivering
                    return
        except (ConnectionError, asyncio.CancelledError):
            delivering.cancel()
            target.close()
