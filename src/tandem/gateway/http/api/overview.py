"""How a namespace is and was during the last hour: rates, depths, stores, alarms; live as server-sent events. Of all workers together."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from tandem.broker.ports import StoreState
from tandem.gateway.http.joined_figures import ELSEWHERE, joined_columns, joined_sample, joined_stores
from tandem.gateway.http.types import PASSIVE
from tandem.model.entity import Right
from tandem.model.errors import ServerBusy

if TYPE_CHECKING:
    from tandem.gateway.http.api.calls import ApiCall
    from tandem.gateway.http.operated_broker import OperatedBroker

_WATCHERS_MAX: Final = 100
_DISK_FREE_MIN: Final = 0.1
_LAG_MS_MAX: Final = 250
_EVENTS_SHOWN: Final = 200
_ASK_SECONDS: Final = 1.0
"""A worker that takes longer is shown as one that does not answer; the rest is shown all the same."""
_SIGN_OF_LIFE_SECONDS: Final = 3.0
"""So long a stream is silent at most: a page that hears nothing for longer knows that its connection is dead."""
_OF_A_WORKER: Final = ("sent_per_second", "received_per_second", "active", "connections", "memory_bytes", "loop_lag_ms")


class Overview:
    """For one server. However many watch, the other workers are asked once for each sample."""

    def __init__(self, server: OperatedBroker) -> None:
        self._server = server
        self._asked: dict[int, tuple[float, asyncio.Task[dict[str, Any]]]] = {}
        """By namespace the instant of our own sample, and what the others say beside it."""

    async def show(self, call: ApiCall) -> object:
        """`?hour=no` leaves out the history."""
        call.caller.need("", Right.LISTEN)
        if "hour" in call.request.query:
            return _now(call)
        said = await call.others_say(seconds=_ASK_SECONDS)
        history = joined_columns(call.server.histories[call.number].columns(), [one.pop("history") for one in said.values()])
        return {"history": history} | _together(call, said)

    async def live(self, call: ApiCall) -> web.StreamResponse:
        """A line for each sample, until the token ends or somebody hangs up."""
        call.caller.need("", Right.LISTEN)
        history = call.server.histories[call.number]
        if history.watchers >= _WATCHERS_MAX:
            raise ServerBusy(f"{_WATCHERS_MAX} consoles watch already; close one.")
        response = web.StreamResponse(headers=PASSIVE | {"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        await response.prepare(call.request)
        clock = call.context.connection_clock
        await response.write(_event(_together(call, await self._others(call))))
        while clock.now_ms() < call.caller.expires_at_ms:
            try:
                async with asyncio.timeout(_SIGN_OF_LIFE_SECONDS):
                    sample = await history.next_sample()
            except TimeoutError:
                line = b":\n\n"
            else:
                if not sample:
                    break
                line = _event(_together(call, await self._others(call)))
            try:
                async with asyncio.timeout(30):
                    await response.write(line)
            except TimeoutError:  # one that does not read is not waited for
                if call.request.transport is not None:
                    call.request.transport.abort()
                return response
        await response.write_eof()
        return response

    async def _others(self, call: ApiCall) -> dict[str, Any]:
        if not call.others:
            return {}
        at = call.server.histories[call.number].latest().get("at_ms", 0.0)
        asked = self._asked.get(call.number)
        if asked is None or asked[0] != at:
            asking = asyncio.ensure_future(call.others_say("GET overview?hour=no", seconds=_ASK_SECONDS))
            asked = self._asked[call.number] = (at, asking)
        return await asyncio.shield(asked[1])  # whoever asked first may hang up


# --- of this process


def _now(call: ApiCall) -> dict[str, Any]:
    context, server = call.context, call.server
    supervisor = server.supervisors[call.number]
    stores = [
        {"number": number, "name": f"store-{number}", "state": health.state.value, "cause": health.cause, "notes": list(health.notes)}
        for number, health in enumerate(supervisor.health())
    ]
    faults = [fault.describe() for fault in context.fault_points.faults.active.values()] if context.fault_points is not None else []
    latest = server.histories[call.number].latest()
    return {
        "now_ms": context.connection_clock.now_ms(),
        "namespace": context.namespace.name,
        "entities": len(context.namespace.entities),
        "relays": len(context.relays.entities),
        "latest": latest,
        "stores": stores,
        "faults": faults,
        "alarms": _alarms(call, latest, len(faults)),
        "events": server.events.of(context.namespace.name)[-_EVENTS_SHOWN:],
    }


def _alarms(call: ApiCall, latest: dict[str, float], faults: int) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    for number, health in enumerate(call.server.supervisors[call.number].health()):
        if health.state not in (StoreState.UP, StoreState.ELSEWHERE):
            level = "slow" if health.state in (StoreState.DEGRADED, StoreState.RECOVERING) else "bad"
            found.append({"level": level, "text": f"store-{number} is {health.state.value}: {health.cause}"})
    for number, tenant in enumerate(call.context.namespace.stores):
        if tenant.backing.short_of_room:
            found.append({"level": "bad", "text": f"store-{number} takes no messages: {tenant.backing.short_of_room}"})
    if call.context.metadata_trouble:
        found.append({"level": "bad", "text": call.context.metadata_trouble})
    if latest.get("disk_bytes") and latest["disk_free_bytes"] < _DISK_FREE_MIN * latest["disk_bytes"]:
        found.append({"level": "slow", "text": f"the disk has {latest['disk_free_bytes'] / 2**30:.1f} GiB left"})
    if latest.get("loop_lag_ms", 0) > _LAG_MS_MAX:
        found.append({"level": "slow", "text": f"the event loop comes {latest['loop_lag_ms']:.0f} ms late"})
    if faults:
        found.append({"level": "slow", "text": f"{faults} faults were injected and are in force"})
    for path in call.server.reports[call.number].failed_over():
        found.append({"level": "bad", "text": f"a client reports {path} as failed over"})
    return found


# --- of all of them


def _together(call: ApiCall, said: dict[str, Any]) -> dict[str, Any]:
    own = _now(call)
    cluster = call.server.cluster
    if not call.others or cluster is None:
        return own
    everybody = {cluster.node: own, **said}
    silent = [worker for worker in call.others if worker not in said]
    alarms = [{"level": "bad", "text": f"{worker} does not answer: what it has is not counted"} for worker in silent]
    known: set[str] = set()
    for worker, told in everybody.items():
        for alarm in told["alarms"]:
            if alarm["text"] not in known:  # of the disk, which they share
                known.add(alarm["text"])
                alarms.append({**alarm, "worker": worker})
    events = [{**event, "worker": worker} for worker, told in everybody.items() for event in told["events"]]
    return own | {
        "latest": joined_sample(own["latest"], [told["latest"] for told in said.values()]),
        "stores": joined_stores(own["stores"], {worker: told["stores"] for worker, told in said.items()}),
        "alarms": alarms,
        "events": sorted(events, key=lambda event: float(event["at_ms"]))[-_EVENTS_SHOWN:],
        "workers": [_worker(name, everybody.get(name)) for name in sorted((cluster.node, *call.others))],
    }


def _worker(name: str, told: dict[str, Any] | None) -> dict[str, Any]:
    if told is None:
        return {"name": name, "answers": False, "stores": []}
    stores = [store["number"] for store in told["stores"] if store["state"] != ELSEWHERE]
    return {"name": name, "answers": True, "stores": stores, **{column: told["latest"].get(column, 0) for column in _OF_A_WORKER}}


def _event(value: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()
