"""How a namespace is and was during the last hour: rates, depths, stores, alarms; live as server-sent events."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from tandem.broker.ports import StoreState
from tandem.gateway.http.types import PASSIVE
from tandem.model.entity import Right
from tandem.model.errors import ServerBusy

if TYPE_CHECKING:
    from tandem.gateway.http.api.calls import ApiCall

_WATCHERS_MAX: Final = 100
_DISK_FREE_MIN: Final = 0.1
_LAG_MS_MAX: Final = 250
_EVENTS_SHOWN: Final = 200


async def overview(call: ApiCall) -> object:
    call.caller.need("", Right.LISTEN)
    return {"history": call.server.histories[call.number].columns()} | _now(call)


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
        "events": list(server.events)[-_EVENTS_SHOWN:],
    }


def _alarms(call: ApiCall, latest: dict[str, float], faults: int) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    for number, health in enumerate(call.server.supervisors[call.number].health()):
        if health.state is not StoreState.UP:
            level = "slow" if health.state in (StoreState.DEGRADED, StoreState.RECOVERING) else "bad"
            found.append({"level": level, "text": f"store-{number} is {health.state.value}: {health.cause}"})
    for number, tenant in enumerate(call.context.namespace.stores):
        if tenant.backing.short_of_room:
            found.append({"level": "bad", "text": f"store-{number} takes no messages: {tenant.backing.short_of_room}"})
    if latest.get("disk_bytes") and latest["disk_free_bytes"] < _DISK_FREE_MIN * latest["disk_bytes"]:
        found.append({"level": "slow", "text": f"the disk has {latest['disk_free_bytes'] / 2**30:.1f} GiB left"})
    if latest.get("loop_lag_ms", 0) > _LAG_MS_MAX:
        found.append({"level": "slow", "text": f"the event loop comes {latest['loop_lag_ms']:.0f} ms late"})
    if faults:
        found.append({"level": "slow", "text": f"{faults} faults were injected and are in force"})
    for path in call.server.reports[call.number].failed_over():
        found.append({"level": "bad", "text": f"a client reports {path} as failed over"})
    return found


async def live(call: ApiCall) -> web.StreamResponse:
    """A line for each sample, until the token ends or somebody hangs up."""
    call.caller.need("", Right.LISTEN)
    history = call.server.histories[call.number]
    if history.watchers >= _WATCHERS_MAX:
        raise ServerBusy(f"{_WATCHERS_MAX} consoles watch already; close one.")
    response = web.StreamResponse(headers=PASSIVE | {"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
    await response.prepare(call.request)
    clock = call.context.connection_clock
    await response.write(_event(_now(call)))
    while clock.now_ms() < call.caller.expires_at_ms:
        sample = await history.next_sample()
        if not sample:
            break
        try:
            async with asyncio.timeout(30):
                await response.write(_event(_now(call)))
        except TimeoutError:  # one that does not read is not waited for
            if call.request.transport is not None:
                call.request.transport.abort()
            return response
    await response.write_eof()
    return response


def _event(value: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()
