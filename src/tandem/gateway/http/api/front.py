"""`/$tandem/api/…`: which call goes where. Every call but the login names the right it needs, and whose token it came with."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from tandem.gateway.http.api import browsing, cluster, entities, entity_counts, faults, login, messages, outage, rules, sessions
from tandem.gateway.http.api.calls import NAMESPACE_HEADER, ApiCall, Caller, answer, parse_body, read_body, refusal
from tandem.gateway.http.api.overview import Overview
from tandem.gateway.http.api.report import ReportTickets
from tandem.gateway.http.api.spread_messages import shared_out
from tandem.gateway.http.onward import HEADER
from tandem.gateway.http.types import peer_of
from tandem.gateway.waiting import to_the_end
from tandem.model.errors import BusError, EntityNotFound
from tandem.server.audit import CHANGED, PURGED, TOKEN

if TYPE_CHECKING:
    from tandem.gateway.http.front import HttpFront
    from tandem.gateway.http.onward import Onward
    from tandem.gateway.http.operated_broker import OperatedBroker

Handler = Callable[[ApiCall], Awaitable[Any]]
logger: Final = logging.getLogger("tandem.http")

_HANDLERS: Final[dict[str, Handler]] = {
    "POST entities": entities.rows,
    "POST entities/counts": entity_counts.counts,
    "POST entities/holding": entity_counts.holding,
    "POST entity": entities.show,
    "PUT entity": entities.put,
    "DELETE entity": entities.delete,
    "POST rules": rules.show,
    "PUT rule": rules.put,
    "DELETE rule": rules.delete,
    "POST rules/test": rules.test,
    "POST messages": browsing.browse,
    "POST messages/lines": browsing.lines,
    "POST message": browsing.show,
    "POST message/body": browsing.body,
    "POST messages/send": messages.send,
    "POST messages/resubmit": messages.resubmit,
    "POST messages/remove": messages.remove,
    "POST messages/cancel": messages.cancel,
    "POST messages/dead-letter": messages.dead_letter,
    "POST messages/purge": messages.purge,
    "POST sessions": sessions.show,
    "PUT session": sessions.set_state,
    "GET outage": outage.show,
    "POST outage/destinations": outage.destinations,
    "POST reports": outage.take_reports,
    "GET faults": faults.show,
    "GET cluster": cluster.show,
    "POST cluster/move": cluster.move,
    "POST cluster/drain": cluster.drain,
}

_OF_MESSAGES: Final = frozenset(
    name for name in _HANDLERS if name.partition(" ")[2].partition("/")[0] in ("messages", "message", "sessions", "session")
) | {"POST outage/destinations"}
"""Answered by the process that has the entity."""
_AUDITED: Final[dict[str, str]] = {
    "PUT entity": CHANGED,
    "DELETE entity": CHANGED,
    "PUT rule": CHANGED,
    "DELETE rule": CHANGED,
    "PUT session": CHANGED,
    "POST messages/purge": PURGED,
    "POST messages/remove": PURGED,
    "POST messages/cancel": PURGED,
    "POST messages/resubmit": CHANGED,
    "POST messages/dead-letter": CHANGED,
    "POST cluster/move": CHANGED,
    "POST cluster/drain": CHANGED,
}
"""Each is done to its end, once begun."""


class ConsoleApi:
    """For one server."""

    def __init__(self, server: OperatedBroker) -> None:
        self._server = server
        self._tickets = ReportTickets(server)
        watched = Overview(server)
        own: dict[str, Handler] = {"GET overview": watched.show, "GET live": watched.live, "POST report": self._tickets.issue}
        self._handlers = _HANDLERS | own

    def install(self, front: HttpFront) -> None:
        front.mount("api", self.serve)
        front.mount("report", self._tickets.serve)
        front.before_close.append(self._close)

    def _close(self) -> None:
        """Whoever watches hears that it is over: the broker waits for nobody."""
        for history in self._server.histories:
            history.close()

    def _namespace(self, request: web.BaseRequest) -> int:
        named = request.headers.get(NAMESPACE_HEADER)
        if named is None:
            return self._server.namespace_of(request.headers.get("Host", ""))
        for number, context in enumerate(self._server.contexts):
            if context.namespace.name.casefold() == named.casefold():
                return number
        return 0

    def _elsewhere(self, request: web.BaseRequest, number: int, what: str, path: str) -> tuple[Onward, str] | None:
        """Who has to answer this, if it is not for us."""
        onward = self._server.onward
        if onward is None or HEADER in request.headers or what not in _OF_MESSAGES:
            return None
        node = onward.owner_elsewhere(number, path)
        return (onward, node) if node is not None else None

    async def _answered(self, call: ApiCall, what: str, handler: Handler, raw: bytes) -> web.StreamResponse:
        """Here, or by whoever has what it is about; and written down."""
        request, peer = call.request, peer_of(call.request)
        shared = shared_out(call, what, handler) if what in _OF_MESSAGES else None
        elsewhere = self._elsewhere(request, call.number, what, str(call.body.get("path", ""))) if shared is None else None
        if elsewhere is not None:
            onward, node = elsewhere
            answered = await onward.answer(node, request, raw)
            if answered.status == 200:
                _note(call, what, peer, json.loads(answered.body) if what in _AUDITED and isinstance(answered.body, bytes) else {})
            return answered
        call.context.turn.begin()
        found = await (handler(call) if shared is None else shared)
        if HEADER not in request.headers:  # else whoever asked us knows who asked them
            _note(call, what, peer, found)
        return found if isinstance(found, web.StreamResponse) else answer(found)

    async def serve(self, request: web.BaseRequest, rest: tuple[str, ...]) -> web.StreamResponse:
        number = self._namespace(request)
        context = self._server.contexts[number]
        limits = context.limits
        try:
            what = f"{request.method} {'/'.join(rest).strip('/')}"
            if what in ("GET login", "POST login"):
                given = parse_body(await read_body(request, limits.http_body_bytes_max, limits.http_body_ms_max))
                told = await login.serve(self._server, number, request, given)
                if request.method == "POST":
                    context.audited(TOKEN, str(told["name"]), peer_of(request), "", "console")
                return answer(told)
            caller = await Caller.of(context, request.headers.get("Authorization"))
            handler = self._handlers.get(what)
            if handler is None:
                raise EntityNotFound(f"The console has no call '{what[:80]}'.")
            raw = await read_body(request, limits.http_body_bytes_max, limits.http_body_ms_max)
            body = parse_body(raw)
            work = self._answered(ApiCall(self._server, number, request, caller, body), what, handler, raw)
            return await (to_the_end(work) if what in _AUDITED else work)
        except BusError as error:
            if error.status >= 500:
                logger.error("%s %s: %s", request.method, request.path[:100], error.description)
            return refusal(context, request, error, context.connection_clock.now_ms())
        except (MemoryError, ConnectionError):
            raise
        except Exception as error:
            if request.writer.output_size > 0:
                raise  # part of an answer is sent already
            logger.exception("%s %s failed", request.method, request.path[:100])
            failure = BusError(f"the broker could not do this: {type(error).__name__}")
            return refusal(context, request, failure, context.connection_clock.now_ms())


def _note(call: ApiCall, what: str, peer: str, found: Any) -> None:
    """Who changed or removed something; a step that did nothing is no news."""
    action = _AUDITED.get(what)
    done = found.get("done") if isinstance(found, dict) else None
    if action is None or done == 0:
        return
    detail = f"console: {what}" + (
        f", {done} messages" if done is not None else f", {found['said']}" if isinstance(found, dict) and "said" in found else ""
    )
    call.context.audited(action, call.caller.name, peer, str(call.body.get("path", ""))[:200], detail)
