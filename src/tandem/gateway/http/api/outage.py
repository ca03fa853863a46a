"""An outage from inside: what clients report of their paths, backlog queues with their destinations, and the report of the analysis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tandem.broker.entities.queue_entity import QueueEntity
from tandem.gateway.http.api.browsing import Wanted, queue_of, scan
from tandem.gateway.http.api.calls import SEQ_MAX
from tandem.gateway.views import application_properties_of, as_text
from tandem.model.entity import Right
from tandem.model.errors import ArgumentRefused, EntityNotFound, Unauthorized
from tandem.server.history import BACKLOG_MARK

if TYPE_CHECKING:
    from tandem.gateway.http.api.calls import ApiCall

_LINES_MAX: Final = 1_000
_EVENTS_SHOWN: Final = 500
_QUEUES_SHOWN: Final = 500
_DESTINATION: Final = "x-ms-path"
REPORT: Final = "report.html"
"""In the data directory: where `tandem report --out` may put it for the console."""


async def take_reports(call: ApiCall) -> object:
    """{lines}: those of an event log, from a client that may send or listen somewhere in the namespace."""
    if not call.caller.grants:
        raise Unauthorized("InsufficientClaims: a report needs a token that is good for something in this namespace.")
    lines = call.argument("lines", list)
    if len(lines) > _LINES_MAX:
        raise ArgumentRefused(f"'lines' must have at most {_LINES_MAX} lines, found {len(lines)}")
    return {"taken": call.server.reports[call.number].take(lines, call.context.connection_clock.now_ms())}


async def show(call: ApiCall) -> object:
    """What was reported, the backlog queues of this namespace, and whether there is a report to read."""
    call.caller.need("", Right.LISTEN)
    reports = call.server.reports[call.number]
    reporters = [
        {
            "who": one.who,
            "heard_at_ms": one.heard_at_ms,
            "paths": [{"path": path, **_path(known)} for path, known in sorted(one.paths.items())],
        }
        for one in reversed(reports.reporters.values())
    ]
    directory = call.server.settings.data_dir
    others = list((await call.others_say()).values())
    events = [*list(reports.events)[-_EVENTS_SHOWN:], *(event for told in others for event in told["events"])]
    return {
        "now_ms": call.context.connection_clock.now_ms(),
        "reporters": [*reporters, *(one for told in others for one in told["reporters"])],
        "events": sorted(events, key=lambda event: float(event["at_ms"]))[-_EVENTS_SHOWN:],
        "backlog": _joined([_backlog(call), *(told["backlog"] for told in others)]),
        "report": directory is not None and (directory / REPORT).is_file(),
    }


def _path(known: Any) -> dict[str, Any]:
    return {name: getattr(known, name) for name in ("state", "since_ms", "failed_pings", "detail", "attempted", "diverted", "failed")}


def _backlog(call: ApiCall) -> list[dict[str, Any]]:
    now = call.context.turn.now
    found: list[dict[str, Any]] = []
    for name, entity in call.context.namespace.entities.items():
        if BACKLOG_MARK not in name or not isinstance(entity, QueueEntity) or len(found) >= _QUEUES_SHOWN:
            continue
        counts, dead = entity.main.counts(), entity.dead_letters.counts().total
        primary = name.partition("/")[0]
        row = {"path": entity.description.name, "primary": primary, "messages": counts.total, "dead_letters": dead}
        found.append(row | {"oldest_ms": entity.main.oldest_ms(now), "receivers": len(entity.main.receivers.consumers)})
    return sorted(found, key=lambda row: str(row["path"]))


def _joined(several: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Every worker tells of every queue, and counts what it has of it."""
    found: dict[str, dict[str, Any]] = {}
    for row in (row for rows in several for row in rows):
        known = found.setdefault(row["path"], row)
        if known is not row:
            for name in ("messages", "dead_letters", "receivers"):
                known[name] += row[name]
            known["oldest_ms"] = max(known["oldest_ms"] or 0, row["oldest_ms"] or 0) or None
    return list(found.values())


async def destinations(call: ApiCall) -> object:
    """{path of a backlog queue, from} -> {destinations: {path: {messages, oldest_ms}}, next}: of the next few thousand messages."""
    queue = queue_of(call)
    if BACKLOG_MARK not in queue.path.casefold():
        raise EntityNotFound(f"'{queue.path}' is no backlog queue")
    page = await scan(call, queue, Wanted(call), call.number_of("from", 0, SEQ_MAX, 0), 2_000)
    found: dict[str, dict[str, int]] = {}
    for seq, message in page.found:
        if message is None:
            continue
        path = str(as_text(application_properties_of(message.bare).get(_DESTINATION, "unknown")))
        index = queue.part_of(seq).index
        age = call.context.turn.now - index.enqueued_at(seq) if index.state(seq) else 0
        known = found.setdefault(path, {"messages": 0, "oldest_ms": 0})
        known["messages"] += 1
        known["oldest_ms"] = max(known["oldest_ms"], age)
    return {"destinations": found, "next": None if page.next is None else str(page.next)}
