"""The service's side of a pair: a listener on each endpoint, each reconnecting for itself, as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Any

from tandem.client.errors import describe
from tandem.client.events import EventHub
from tandem.client.relay.endpoint import RelayEndpoint
from tandem.client.relay.errors import BothRelaysUnavailableError, RelayRefusedError
from tandem.client.relay.listener import RelayListener
from tandem.client.relay.requests import Handler
from tandem.client.relay.stream import RelayStream


class PairListener:
    """Iterate over it for connections of either endpoint, or `handle_http`. One endpoint is enough to be open."""

    def __init__(self, endpoints: Sequence[RelayEndpoint], events: EventHub, options: dict[str, Any]) -> None:
        self._events = events
        self.listeners = tuple(RelayListener(endpoint, on_state=self._state, **options) for endpoint in endpoints)
        self._streams: asyncio.Queue[RelayStream | None] = asyncio.Queue(1)
        self._pumps: list[asyncio.Task[None]] = []

    @property
    def health(self) -> dict[str, bool]:
        """Endpoint -> is it listened on now."""
        return {str(listener.endpoint): listener.online for listener in self.listeners}

    def handle_http(self, handler: Handler) -> None:
        for listener in self.listeners:
            listener.handle_http(handler)

    async def __aenter__(self) -> PairListener:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def start(self) -> None:
        """An endpoint that refuses us is an error; one that is out of reach is tried again, if the other can be listened on or not."""
        results = await asyncio.gather(*(listener.start() for listener in self.listeners), return_exceptions=True)
        refusals = [result for result in results if isinstance(result, BaseException)]
        if refusals:
            await self.close()
            if len(refusals) > 1 and all(isinstance(refusal, RelayRefusedError) for refusal in refusals):
                raise BothRelaysUnavailableError("both endpoints refuse this listener", refusals)
            raise refusals[0]
        loop = asyncio.get_running_loop()
        self._pumps = [loop.create_task(self._pump(listener)) for listener in self.listeners]

    async def wait_online(self, timeout: float | None = None) -> None:
        """Returns when at least one endpoint is listened on. Raises TimeoutError."""
        waiting = [asyncio.ensure_future(listener.wait_online()) for listener in self.listeners]
        try:
            async with asyncio.timeout(timeout):
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waiting:
                one.cancel()

    async def serve_forever(self) -> None:
        await asyncio.gather(*(listener.serve_forever() for listener in self.listeners))

    async def close(self) -> None:
        for listener in self.listeners:
            await listener.close()
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)
        while not self._streams.empty():
            await _turn_away(self._streams.get_nowait())
        self._streams.put_nowait(None)

    def __aiter__(self) -> AsyncIterator[RelayStream]:
        return self._taken()

    async def _taken(self) -> AsyncIterator[RelayStream]:
        while (stream := await self._streams.get()) is not None:
            yield stream
        self._streams.put_nowait(None)  # for others who iterate

    async def _pump(self, listener: RelayListener) -> None:
        async for stream in listener:
            try:
                await self._streams.put(stream)
            except asyncio.CancelledError:
                await _turn_away(stream)
                raise

    def _state(self, listener: RelayListener, online: bool, error: BaseException | None) -> None:
        if online:
            self._events.tell("path-healthy", str(listener.endpoint), "the endpoint is listened on")
        elif error is not None:
            self._events.tell("path-failed-over", str(listener.endpoint), describe(error), error)


async def _turn_away(stream: RelayStream | None) -> None:
    """Nobody has taken it, and nobody will."""
    if stream is not None:
        await stream.close(1001, "the listener was closed")
