"""HTTP connections whose peers are not waited for without end: a request that is begun comes whole, or the connection is over."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web


class GuardedHandler(web.RequestHandler):
    """Hangs up on peers who begin a request and never finish its header, or never begin one. Who serves a request says so."""

    def __init__(
        self, manager: web.Server, *, header_ms_max: int, loop: asyncio.AbstractEventLoop, connections_max: int = 0, **settings: Any
    ) -> None:
        """`connections_max`: further ones are hung up on; 0: somebody else counts them."""
        super().__init__(manager, loop=loop, **settings)
        self._connections_max = connections_max
        self._header_seconds = header_ms_max / 1000
        self._header_timer: asyncio.TimerHandle | None = None
        self._busy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._expect_header()
        if 0 < self._connections_max < len(self._manager.connections if self._manager is not None else ()):
            self.force_close()

    def data_received(self, data: bytes) -> None:
        if not self._busy and self._header_timer is None:
            self._expect_header()
        super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def request_began(self) -> None:
        self._busy = True
        self._stop_timer()

    def request_ended(self) -> None:
        self._busy = False

    def _expect_header(self) -> None:
        self._header_timer = self._loop.call_later(self._header_seconds, self._too_slow)

    def _too_slow(self) -> None:
        self._header_timer = None
        self.force_close()

    def _stop_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None
