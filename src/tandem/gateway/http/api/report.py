"""The report of an outage, for those who are logged in: a browser that follows a link brings no token, so the link itself is one, once."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from tandem.gateway.http.api.outage import REPORT
from tandem.gateway.http.types import PASSIVE
from tandem.model.entity import Right
from tandem.model.errors import EntityNotFound

if TYPE_CHECKING:
    from tandem.gateway.http.api.calls import ApiCall
    from tandem.gateway.http.operated_broker import OperatedBroker

_TICKET_MS: Final = 60_000
_TICKETS_MAX: Final = 100
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'; sandbox"
"""The page has styles of its own and pictures inside; it may run nothing."""


class ReportTickets:
    """For one server."""

    def __init__(self, server: OperatedBroker) -> None:
        self._server = server
        self._tickets: OrderedDict[str, int] = OrderedDict()

    async def issue(self, call: ApiCall) -> Any:
        call.caller.need("", Right.LISTEN)
        ticket = call.server.entropy(24).hex()
        self._tickets[ticket] = call.context.connection_clock.steady_ms() + _TICKET_MS
        while len(self._tickets) > _TICKETS_MAX:
            self._tickets.popitem(last=False)
        return {"address": f"/$tandem/report/{ticket}"}

    async def serve(self, request: web.BaseRequest, rest: tuple[str, ...]) -> web.StreamResponse:
        until = self._tickets.pop(rest[0], 0) if rest else 0
        directory = self._server.settings.data_dir
        if self._server.contexts[0].connection_clock.steady_ms() >= until or directory is None:
            gone = EntityNotFound("This link was used, or is too old. Open the report from the console again.")
            return web.Response(status=404, text=gone.description, headers=PASSIVE)
        try:
            content = await asyncio.to_thread((directory / REPORT).read_bytes)
        except OSError:
            return web.Response(status=404, text="There is no report.", headers=PASSIVE)
        headers = PASSIVE | {"Content-Security-Policy": _POLICY, "Cache-Control": "no-store"}
        return web.Response(body=content, content_type="text/html", charset="utf-8", headers=headers)
