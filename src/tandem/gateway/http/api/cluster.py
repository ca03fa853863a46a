"""The whole cluster, from any of its nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandem.gateway.http.cluster_figures import own_figures, stores_of
from tandem.gateway.http.onward import HEADER
from tandem.model.entity import Right
from tandem.model.errors import EntityNotFound

if TYPE_CHECKING:
    from tandem.gateway.http.api.calls import ApiCall


async def show(call: ApiCall) -> object:
    """-> {asked, nodes, stores, followers, figures: by node what it says of itself}. Asked by another node, its own figures only."""
    call.caller.need("", Right.LISTEN)
    server, node = call.server, call.server.node
    if node is None:
        raise EntityNotFound("This broker is not a node of a cluster.")
    own = own_figures(server, call.number)
    if HEADER in call.request.headers:
        return own
    others = await server.onward.others_say(call.request) if server.onward is not None else {}
    state = node.state()
    return {
        "asked": node.name,
        "nodes": state["nodes"],
        "followers": state["followers"],
        "notes": state["notes"],
        "stores": stores_of(node, call.context.namespace.name),
        "figures": {node.name: own, **{name: said for name, said in others.items() if "takeovers" in said}},
    }
