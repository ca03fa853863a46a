"""Which faults may be injected, and which are in force; `/$tandem/faults` injects and heals them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandem.model.entity import Right
from tandem.server.faults import DELAYED_KINDS, ENTITY_KINDS, ONE_SHOT_KINDS, STORE_KINDS, FaultKind

if TYPE_CHECKING:
    from tandem.gateway.http.api.calls import ApiCall


async def show(call: ApiCall) -> object:
    call.caller.need("", Right.MANAGE)
    points = call.context.fault_points
    kinds = [
        {
            "kind": kind.value,
            "concerns": "store" if kind in STORE_KINDS else "entity" if kind in ENTITY_KINDS else "connections",
            "once": kind in ONE_SHOT_KINDS,
            "delay": kind in DELAYED_KINDS,
            "condition": kind is FaultKind.ENTITY_ERROR,
        }
        for kind in FaultKind
    ]
    active = [fault.describe() for fault in points.faults.active.values()] if points is not None else []
    return {"allowed": points is not None, "kinds": kinds, "active": active, "stores": len(call.context.namespace.stores)}
