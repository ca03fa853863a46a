"""Pages of our own under `/$tandem/`: health, metrics, faults, events."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from aiohttp import web

from tandem.broker.meters import MINUTE_MS
from tandem.broker.ports import StoreState
from tandem.gateway.http.cluster_figures import carried_links, stores_of
from tandem.gateway.http.connections import close_connection, describe_connections
from tandem.gateway.http.console_files import serve_console
from tandem.gateway.http.lock_pages import describe_locks, release_locks
from tandem.gateway.http.relay_pages import serve_relays
from tandem.gateway.http.types import PASSIVE, note_refused, peer_of
from tandem.gateway.waiting import to_the_end
from tandem.model.entity import Right
from tandem.model.errors import ArgumentRefused, AuthenticationFailed, BusError, EntityNotFound, NotAllowed, Refused, Unauthorized
from tandem.server import sas
from tandem.server.audit import CHANGED, READ_KEYS
from tandem.server.faults import FaultRequest

if TYPE_CHECKING:
    from tandem.gateway.http.front import HttpFront
    from tandem.gateway.http.operated_broker import OperatedBroker
    from tandem.server.context import NamespaceContext

_HEALTHY = (StoreState.UP, StoreState.DEGRADED, StoreState.ELSEWHERE)


class WrongMethod(Refused):
    condition = "amqp:not-allowed"
    status = 405


class OperatorPages:
    """Handlers for one server. Health says up or down to anybody; details and metrics need Listen on the namespace, by token or as user
    name and password (a development broker shows them freely); everything else needs Manage. The console's files say nothing about a
    namespace: it logs in at `/$tandem/api`."""

    def __init__(self, server: OperatedBroker) -> None:
        self._server = server

    def install(self, front: HttpFront) -> None:
        front.mount("health", self.health)
        front.mount("metrics", self.metrics)
        front.mount("faults", self.faults)
        front.mount("events", self.events)
        front.mount("console", serve_console)
        front.mount("meters", self.meters)
        front.mount("connections", self.connections)
        front.mount("locks", self.locks)
        front.mount("reload", self.reload)
        front.mount("relays", self.relays)

    async def health(self, request: web.BaseRequest, rest: tuple[str, ...]) -> web.StreamResponse:
        """200 while a store works; to those who may know, each store with its state: one failing store does not condemn the rest."""
        refusals: list[BusError] = []
        readable = await self._readable(request, refusals)
        if any(context.draining for context in self._server.contexts):
            return as_json({"status": "draining"}, 503)
        if not readable and "Authorization" in request.headers:
            return self._who_are_you(request, refusals)
        if not readable:
            works = any(h.state in _HEALTHY for supervisor in self._server.supervisors for h in supervisor.health())
            return as_json({"status": "up" if works else "down"}, 200 if works else 503)
        namespaces: list[dict[str, object]] = []
        status = "ok"
        for number in readable:
            context, supervisor = self._server.contexts[number], self._server.supervisors[number]
            stores = [
                {"name": f"store-{n}", "state": h.state.value, "cause": h.cause, "notes": list(h.notes)}
                for n, h in enumerate(supervisor.health())
            ]
            if context.metadata_trouble or any(h.state not in _HEALTHY for h in supervisor.health()):
                status = "degraded"
            faults = [f.describe() for f in context.fault_points.faults.active.values()] if context.fault_points is not None else []
            notes = [context.metadata_trouble] if context.metadata_trouble else []
            count = context.client_count()
            namespaces.append({"name": context.namespace.name, "stores": stores, "faults": faults, "connections": count, "notes": notes})
        return as_json({"status": status, "namespaces": namespaces, **self._cluster(readable)})

    def _cluster(self, readable: list[int]) -> dict[str, object]:
        node = self._server.node
        if node is None:
            return {}
        contexts = [self._server.contexts[number] for number in readable]
        stores = [store for context in contexts for store in stores_of(node, context.namespace.name)]
        carried = {context.namespace.name: carried_links(context) for context in contexts}
        return {"cluster": {**node.state(), "stores": stores, "carried_links": carried}}

    async def metrics(self, request: web.BaseRequest, rest: tuple[str, ...]) -> web.StreamResponse:
        """As Prometheus reads it, in OpenMetrics where it is asked for."""
        refusals: list[BusError] = []
        readable = await self._readable(request, refusals)
        if not readable:
            return self._who_are_you(request, refusals)
        from tandem.gateway.http.metrics import exposition  # what only a scrape needs is not loaded before one comes

        page, kind = exposition(self._server, readable, request.headers.get("Accept", ""))
        return web.Response(body=page, headers=PASSIVE | {"Content-Type": kind})

    async def _readable(self, request: web.BaseRequest, refusals: list[BusError]) -> list[int]:
        """The namespaces whose details this request may see, and why it may not see the others."""
        if self._server.settings.dev:
            return list(range(len(self._server.contexts)))
        given = request.headers.get("Authorization", "")
        return [number for number, context in enumerate(self._server.contexts) if given and await _may_read(context, given, refusals)]

    def _who_are_you(self, request: web.BaseRequest, refusals: list[BusError]) -> web.StreamResponse:
        context = self._server.contexts[0]
        needed = "Details need Listen on the namespace: by a token, or by the name and value of a key as user and password."
        missing = AuthenticationFailed(f"{refusals[0].description} {needed}" if refusals else needed)
        missing.reword(context.tracker.describe(missing, "", self._server.turn.now))
        if refusals:
            note_refused(request, missing)
        answer = as_json({"error": missing.condition, "description": missing.description}, 401)
        answer.headers["WWW-Authenticate"] = 'Basic realm="Tandem", charset="UTF-8"'
        return answer

    async def events(self, request: web.BaseRequest, rest: tuple[str, ...]) -> web.StreamResponse:
        """State changes of the namespace and of the whole broker so far, newest last; `?after=<number>` for what came since."""
        return await self._authorized(request, self._events, "GET")

    async def _events(self, request: web.BaseRequest) -> object:
        after = int(request.query.get("after", "0"))
        name = self._server.contexts[self._server.namespace_of(request.headers.get("Host", ""))].namespace.name
        return {"events": [event for event in self._server.events.of(name) if event["number"] > after]}

    async def meters(self, request: web.BaseRequest, rest: tuple[str, ...]) -> web.StreamResponse:
        """Operations per minute, entity, operation, outcome and size unit of the last hour; `?minutes=5` for less."""
        return await self._authorized(request, self._meters, "GET")

    async def _meters(self, request: web.BaseRequest) -> object:
        number = self._server.namespace_of(request.headers.get("Host", ""))
        minutes = int(request.query.get("minutes", "60"))
        since = self._server.turn.begin() // MINUTE_MS - minutes + 1
        return {"namespace": self._server.contexts[number].namespace.name, "rows": self._server.meters[number].rows(since)}

    async def connections(self, request: web.BaseRequest, rest: tuple[str, ...]) -> web.StreamResponse:
        """GET lists, DELETE `/<address:port>` closes."""
        return await self._authorized(request, lambda r: self._connections(r, rest), "GET", "DELETE")

    async def _connections(self, request: web.BaseRequest, rest: tuple[str, ...]) -> object:
        context = self._server.contexts[self._server.namespace_of(request.headers.get("Host", ""))]
        if request.method == "DELETE":
            return close_connection(context, unquote("/".join(rest)))
        return describe_connections(context)

    async def locks(self, request: web.BaseRequest, rest: tuple[str, ...]) -> web.StreamResponse:
        """GET `/<entity>` lists, DELETE `/<entity>?seq=<n>` (or `session=<id>`, `all=true`) releases."""
        return await self._authorized(request, lambda r: self._locks(r, rest), "GET", "DELETE")

    async def _locks(self, request: web.BaseRequest, rest: tuple[str, ...]) -> object:
        context = self._server.contexts[self._server.namespace_of(request.headers.get("Host", ""))]
        path, query = "/".join(rest), request.query
        if request.method == "DELETE":
            return release_locks(context, path, query.getall("seq", []), query.get("session"), query.get("all") == "true")
        return describe_locks(context, path)

    async def reload(self, request: web.BaseRequest, rest: tuple[str, ...]) -> web.StreamResponse:
        """POST: the configuration is read again."""
        return await self._authorized(request, self._reload, "POST")

    async def _reload(self, request: web.BaseRequest) -> object:
        if self._server.on_reload is None:
            raise NotAllowed("This broker was started without a configuration that could be read again.")
        return await self._server.on_reload()

    async def faults(self, request: web.BaseRequest, rest: tuple[str, ...]) -> web.StreamResponse:
        """GET lists, POST injects, DELETE heals all or `/<id>`."""
        return await self._authorized(request, lambda r: self._faults(r, rest), "GET", "POST", "DELETE")

    async def _faults(self, request: web.BaseRequest, rest: tuple[str, ...]) -> object:
        context = self._server.contexts[self._server.namespace_of(request.headers.get("Host", ""))]
        fault_points = context.fault_points
        if fault_points is None:
            raise EntityNotFound("Faults cannot be injected into this broker. Start it with --dev, or with faults = true.")
        if request.method == "POST":
            wanted = _fault_request(await request.read())
            return fault_points.inject(wanted).describe()
        if request.method == "DELETE":
            which = rest[0] if rest and rest[0] else None
            if which is not None and not which.isdigit():
                raise ArgumentRefused(f"a fault is healed by its number, found {which!r}")
            return {"healed": [f.describe() for f in fault_points.heal(int(which) if which is not None else None)]}
        return {"faults": [f.describe() for f in fault_points.faults.active.values()]}

    async def relays(self, request: web.BaseRequest, rest: tuple[str, ...]) -> web.StreamResponse:
        """GET lists or shows, PUT creates or changes, DELETE deletes `/<name>`."""
        admin = self._server.admins[self._server.namespace_of(request.headers.get("Host", ""))]
        return await self._authorized(request, lambda r: serve_relays(admin.relays, r, rest, self._server.entropy), "GET", "PUT", "DELETE")

    async def _authorized(self, request: web.BaseRequest, handler: Callable[[web.BaseRequest], Any], *methods: str) -> web.StreamResponse:
        number = self._server.namespace_of(request.headers.get("Host", ""))
        try:
            await self._server.admins[number].authorize(request.headers.get("Authorization"), "", Right.MANAGE)
            if request.method not in (*methods, *(("HEAD",) if "GET" in methods else ())):
                raise WrongMethod(f"{request.method} means nothing here; {', '.join(methods)} do")
            return as_json(await to_the_end(self._done(request, handler, number, peer_of(request))))
        except BusError as error:
            error.reword(self._server.contexts[number].tracker.describe(error, "", self._server.turn.now))
            if isinstance(error, AuthenticationFailed | Unauthorized):
                note_refused(request, error)
            return as_json({"error": error.condition, "description": error.description}, error.status)
        except (ValueError, RecursionError) as error:
            return as_json({"error": "amqp:decode-error", "description": str(error)}, 400)

    async def _done(self, request: web.BaseRequest, handler: Callable[[web.BaseRequest], Any], number: int, peer: str) -> object:
        done = await handler(request)
        action = CHANGED if request.method not in ("GET", "HEAD") else READ_KEYS if "keys" in request.query else ""
        if action:
            context = self._server.contexts[number]
            who = context.authority.holder_of(request.headers.get("Authorization", ""))
            context.audited(action, who, peer, request.path[:200], request.method)
        return done


async def _may_read(context: NamespaceContext, given: str, refusals: list[BusError]) -> bool:
    """Reading needs no token made for the occasion: scrapers and browsers know user names and passwords."""
    try:
        if given[:6].casefold() == "basic ":
            user, _, key = base64.b64decode(given[6:].strip(), validate=True).decode().partition(":")
            return sas.verify_key(user, key, context.rule_lookup).allows(Right.LISTEN)
        await context.authority.authorized_until(given, "", Right.LISTEN)
    except BusError as error:
        refusals.append(error)
        return False
    except ValueError:
        return False
    return True


def _fault_request(body: bytes) -> FaultRequest:
    try:
        given = json.loads(body or b"{}")
    except ValueError as error:
        raise ArgumentRefused(f"the body is not JSON: {error}") from error
    allowed = set(FaultRequest.__dataclass_fields__)
    if not isinstance(given, dict) or "kind" not in given:
        raise ArgumentRefused("the body must be an object with 'kind'")
    unknown = sorted(set(given) - allowed)
    if unknown:
        raise ArgumentRefused(f"unknown: {', '.join(unknown)}; allowed: {', '.join(sorted(allowed))}")
    for name, kind in (("store", int), ("delay_ms", int), ("for_ms", int), ("count", int), ("entity", str), ("condition", str)):
        if given.get(name) is not None and (not isinstance(given[name], kind) or isinstance(given[name], bool)):
            raise ArgumentRefused(f"{name} must be a {kind.__name__}, found {given[name]!r}")
    if not isinstance(given.get("fraction", 1.0), (int, float)):
        raise ArgumentRefused(f"fraction must be a number, found {given['fraction']!r}")
    return FaultRequest(**{name: value for name, value in given.items() if value is not None})


def as_json(value: object, status: int = 200) -> web.Response:
    return web.Response(text=json.dumps(value), status=status, content_type="application/json", headers=PASSIVE)
