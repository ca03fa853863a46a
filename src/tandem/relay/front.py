"""The relay as the HTTP door sees it: one object that takes WebSockets under `/$hc/` and requests whose path begins with a relay's name."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable

from aiohttp import web

from tandem.model.clock import SystemClock
from tandem.model.limits import Limits
from tandem.relay.close_codes import GOING_AWAY
from tandem.relay.entity import HybridConnection
from tandem.relay.namespace import RelayNamespace, Surroundings
from tandem.relay.pulse import Pulse
from tandem.relay.refusals import Refusals
from tandem.relay.rendezvous import RendezvousDesk
from tandem.relay.requests import HttpDoor
from tandem.relay.share import LoopShare
from tandem.relay.target import RelayTarget, is_websocket_path, read_target
from tandem.relay.websockets import Arrival, WebSocketDoor

__all__ = ["RelayFront", "is_websocket_path"]


class RelayFront:
    """Of one broker. `detach` takes a connection away from the HTTP server and cancels the task that calls it."""

    def __init__(self, *, limits: Limits, entropy: Callable[[int], bytes], detach: Callable[[web.BaseRequest], asyncio.Transport]) -> None:
        around = Surroundings(
            limits=limits,
            chance=lambda: int.from_bytes(entropy(4), "big") / 0x1_0000_0000,
            new_id=lambda: str(uuid.UUID(bytes=entropy(16), version=4)),
            detach=detach,
        )
        self._refusals = Refusals(SystemClock().steady_ms)
        self._pulse = Pulse(limits.relay_ping_ms)
        desk: RendezvousDesk[Arrival] = RendezvousDesk(entropy)
        share = LoopShare()
        self._websockets = WebSocketDoor(around, desk, self._pulse, share)
        self._http = HttpDoor(around, desk, share)

    async def serve_websocket(self, namespace: RelayNamespace, request: web.BaseRequest) -> web.StreamResponse:
        return await self._late(request, await self._websockets.serve(namespace, request, read_target(request.raw_path)))

    async def _late(self, request: web.BaseRequest, answer: web.StreamResponse) -> web.StreamResponse:
        """hyco-ws tries again at once whatever it hears, more than a thousand times a second."""
        pause = self._refusals.delay(request.remote or "") if answer.status in (401, 403, 404) else 0.0
        if pause:
            self._refusals.delayed += 1
            try:
                await asyncio.sleep(pause)
            finally:
                self._refusals.delayed -= 1
        return answer

    def target_of(self, namespace: RelayNamespace, request: web.BaseRequest) -> tuple[RelayTarget, HybridConnection, int] | None:
        """None: no relay has this path."""
        if not namespace.relays.entities:
            return None
        target = read_target(request.raw_path)
        found = namespace.relays.match(target)
        return (target, *found) if found is not None else None

    async def serve_http(
        self, namespace: RelayNamespace, request: web.BaseRequest, meant: tuple[RelayTarget, HybridConnection, int]
    ) -> web.StreamResponse:
        return await self._http.serve(namespace, request, *meant)

    async def close(self, grace_seconds: float = 0.5) -> None:
        """The broker stops: everybody is told, has a moment to answer, and is cut off."""
        await self._pulse.close_all(GOING_AWAY, "the broker is shutting down", grace_seconds)
