"""Operators' pages of a broker that is several processes: what each of them says, joined into one answer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from aiohttp import web

from tandem.broker.entities.joined import FRAGMENT_SHIFT, fragment_of_key
from tandem.gateway.http.joined_figures import joined_stores
from tandem.gateway.http.lock_pages import release_locks
from tandem.gateway.http.onward import HEADER, Onward
from tandem.gateway.http.operated_broker import OperatedBroker
from tandem.gateway.http.pages import OperatorPages, as_json
from tandem.gateway.http.types import PASSIVE
from tandem.model.address import parse

if TYPE_CHECKING:
    from tandem.broker.entities.partitioned import PartitionedQueue

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
            theirs = {worker: other["namespaces"][place] for worker, other in others.items()}
            namespace["connections"] += sum(one["connections"] for one in theirs.values())
            namespace["stores"] = joined_stores(namespace["stores"], {worker: one["stores"] for worker, one in theirs.items()})
            well = well and not namespace["notes"] and all(store["state"] in _WELL for store in namespace["stores"])
        said["status"] = "ok" if well else "degraded"
        said["workers"] = {"asked": len(self._onward.others) + 1, "silent": [one for one in self._onward.others if one not in others]}
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
        pages = dict.fromkeys(sorted((self._node, *self._onward.others)), b"") | {self._node: own}
        page, kind = joined_exposition(pages | await self._onward.others_write(request), request.headers.get("Accept", ""))
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
            found = list((await self._others(request)).values())
            return found[0] if found else await super()._connections(request, rest)
        mine: Any = await super()._connections(request, rest)
        for other in (await self._others(request)).values():
            for name, value in other.items():
                if isinstance(value, list):
                    mine[name] = [*mine.get(name, ()), *value]
        return mine

    async def _locks(self, request: web.BaseRequest, rest: tuple[str, ...]) -> object:
        """Of a partitioned entity every worker has some; of another, the one that has it answers."""
        number = self._server.namespace_of(request.headers.get("Host", ""))
        front = self._server.contexts[number].namespace.front(parse("/".join(rest)))
        if front is None or HEADER in request.headers:
            return await super()._locks(request, rest)
        query = request.query
        if request.method == "DELETE" and ("seq" in query or "session" in query):
            return await self._release(request, rest, number, front)
        mine: Any = await super()._locks(request, rest)
        for other in (await self._others(request)).values():
            for name, value in other.items():
                if name != "entity":
                    mine[name] = mine[name] + value
        if "locks" in mine:
            mine["locks"].sort(key=lambda lock: int(lock["locked_until_ms"]))
        return mine

    async def _release(self, request: web.BaseRequest, rest: tuple[str, ...], number: int, front: PartitionedQueue) -> object:
        """What is named, by whoever has it: all of a worker's, or nothing."""
        query, count = request.query, len(front.fragments.queues)
        shares: dict[str, list[tuple[str, str]]] = {}
        if "session" in query:
            owner = self._onward.owner_of_fragment(number, fragment_of_key(query["session"], count))
            shares[owner] = [("session", query["session"])]
        for seq in query.getall("seq", []):
            fragment = int(seq) >> FRAGMENT_SHIFT if seq.isdecimal() else 0
            shares.setdefault(self._onward.owner_of_fragment(number, min(fragment, count - 1)), []).append(("seq", seq))
        context, path, released = self._server.contexts[number], "/".join(rest), 0
        for owner, named in shares.items():
            if owner:
                what = f"DELETE /$tandem/locks/{quote(path)}?{urlencode(named)}"
                told = await self._onward.says(owner, request, b"", what)
            else:
                told = release_locks(context, path, [seq for word, seq in named if word == "seq"], query.get("session"), False)
            released += int(told["released"])
        return {"entity": path, "released": released}

    async def _faults(self, request: web.BaseRequest, rest: tuple[str, ...]) -> object:
        """Injected everywhere, under the same number as long as they are injected here only."""
        mine = await super()._faults(request, rest)
        await self._others(request)
        return mine
