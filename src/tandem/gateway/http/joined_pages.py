"""Operators' pages of a broker that is several processes: what each of them says, joined into one answer."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

from tandem.gateway.http.onward import HEADER, Onward
from tandem.gateway.http.operated_broker import OperatedBroker
from tandem.gateway.http.pages import OperatorPages, as_json
from tandem.gateway.http.types import PASSIVE

_ELSEWHERE = "elsewhere"
_WELL = ("up", "degraded")


class JoinedPages(OperatorPages):
    """Asked by an operator it asks the others; asked by another node it answers for itself."""

    def __init__(self, server: OperatedBroker, onward: Onward, node: str) -> None:
        super().__init__(server)
        self._onward = onward
        self._node = node

    async def _others(self, request: web.BaseRequest) -> dict[str, Any]:
        if HEADER in request.headers:
            return {}
        return await self._onward.others_say(request, await request.read())

    async def health(self, request: web.BaseRequest, rest: tuple[str, ...]) -> web.StreamResponse:
        mine = await super().health(request, rest)
        if HEADER in request.headers or mine.status == 401 or not isinstance(mine, web.Response):
            return mine
        said = json.loads(mine.body if isinstance(mine.body, bytes) else b"{}")
        if "namespaces" not in said:
            return mine
        others = await self._others(request)
        well = True
        for place, namespace in enumerate(said["namespaces"]):
            theirs = [other["namespaces"][place] for other in others.values() if "namespaces" in other]
            namespace["connections"] += sum(one["connections"] for one in theirs)
            for number, store in enumerate(namespace["stores"]):
                if store["state"] == _ELSEWHERE:
                    found = [one["stores"][number] for one in theirs if one["stores"][number]["state"] != _ELSEWHERE]
                    gone = {"name": store["name"], "state": "down", "cause": "the worker that has it does not answer", "notes": []}
                    store = namespace["stores"][number] = found[0] if found else gone
                well = well and store["state"] in _WELL
        said["status"] = "ok" if well else "degraded"
        said["workers"] = {"asked": len(others) + 1}
        return as_json(said)

    async def metrics(self, request: web.BaseRequest, rest: tuple[str, ...]) -> web.StreamResponse:
        """Every sample says which worker it is of."""
        from tandem.gateway.http.metrics import exposition, joined_exposition

        mine = await super().metrics(request, rest)
        if mine.status != 200:
            return mine
        own, kind = exposition(self._server, await self._readable(request, []), "")
        if HEADER in request.headers:
            return web.Response(body=own, headers=PASSIVE | {"Content-Type": kind})
        pages = {self._node: own, **await self._onward.others_write(request)}
        page, kind = joined_exposition(pages, request.headers.get("Accept", ""))
        return web.Response(body=page, headers=PASSIVE | {"Content-Type": kind})

    async def _events(self, request: web.BaseRequest) -> object:
        """Numbers are each process's own: what came `after` one is asked of each by its own."""
        mine: Any = await super()._events(request)
        for node, other in (await self._others(request)).items():
            mine["events"] += [{**event, "worker": node} for event in other.get("events", ())]
        mine["events"].sort(key=lambda event: int(event["at_ms"]))
        return mine

    async def _meters(self, request: web.BaseRequest) -> object:
        mine: Any = await super()._meters(request)
        rows: dict[tuple[object, ...], dict[str, Any]] = {}
        for said in (mine, *(await self._others(request)).values()):
            for row in said.get("rows", ()):
                key = tuple(row[name] for name in ("minute_ms", "entity", "operation", "outcome", "unit"))
                known = rows.setdefault(key, {**row, "count": 0, "bytes": 0})
                known["count"] += row["count"]
                known["bytes"] += row["bytes"]
        mine["rows"] = [rows[key] for key in sorted(rows, key=str)]
        return mine

    async def _connections(self, request: web.BaseRequest, rest: tuple[str, ...]) -> object:
        if request.method == "DELETE":
            others = await self._others(request)
            found = [other for other in others.values() if "error" not in other]
            return found[0] if found else await super()._connections(request, rest)
        mine: Any = await super()._connections(request, rest)
        for other in (await self._others(request)).values():
            for name, value in other.items():
                if isinstance(value, list):
                    mine[name] = [*mine.get(name, ()), *value]
        return mine

    async def _faults(self, request: web.BaseRequest, rest: tuple[str, ...]) -> object:
        """Injected everywhere, under the same number as long as they are injected here only."""
        mine = await super()._faults(request, rest)
        await self._others(request)
        return mine
