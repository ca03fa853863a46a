"""The whole cluster, from any of its nodes; and what an operator wishes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tandem.gateway.http.api.calls import Caller
from tandem.gateway.http.cluster_figures import own_figures, stores_of
from tandem.gateway.http.onward import HEADER
from tandem.model.entity import Right
from tandem.model.errors import ArgumentRefused, BusError, ConfigurationError, EntityNotFound, OperationTimeout, Unauthorized

if TYPE_CHECKING:
    from tandem.cluster.node import Node
    from tandem.cluster.wishes import ClusterWishes
    from tandem.gateway.http.api.calls import ApiCall

_STORES_MAX: Final = 4_096
_ENGINE_SECONDS: Final = 15.0


async def show(call: ApiCall) -> object:
    """-> {asked, nodes, stores, single: whether one store can be moved, followers, figures: by node what it says of itself}.

    Asked by another node, its own figures only.
    """
    call.caller.need("", Right.LISTEN)
    server, node = call.server, _node(call)
    own = own_figures(server, call.number)
    if HEADER in call.request.headers:
        return own
    others = await server.onward.others_say(call.request) if server.onward is not None else {}
    state = node.state()
    return {
        "asked": node.name,
        "namespace": call.context.namespace.name,
        "nodes": state["nodes"],
        "followers": state["followers"],
        "notes": state["notes"],
        "stores": stores_of(node, call.context.namespace.name),
        "single": node.membership.spreads(call.context.namespace.name),
        "figures": {node.name: own, **{name: said for name, said in others.items() if "takeovers" in said}},
    }


def _node(call: ApiCall) -> Node:
    node = call.server.node
    if node is None:
        raise EntityNotFound("This broker is not a node of a cluster.")
    return node


# --- wishes


async def move(call: ApiCall) -> object:
    """{node, store?} -> {said}: this namespace, or one store of it, goes to that node. What `GET cluster` shows tells how far it is."""
    call.caller.need("", Right.MANAGE)
    _node(call)
    stores = call.context.namespace.name
    if call.body.get("store") is not None:
        stores += f"/{call.number_of('store', 0, _STORES_MAX)}"
    node = call.argument("node", str)
    return await _told(call, lambda wishes: wishes.move(stores, node))


async def drain(call: ApiCall) -> object:
    """{node, end?} -> {said}: what it serves moves to others, in all namespaces: whoever wishes it manages all that the node serves."""
    call.caller.need("", Right.MANAGE)
    name, end = call.argument("node", str), call.argument("end", bool, False)
    serves = {row.namespace for row in _node(call).membership.view.stores if row.owner == name}
    for context in call.server.contexts:
        if context.namespace.name in serves and context is not call.context:
            try:
                (await Caller.of(context, call.request.headers.get("Authorization"))).need("", Right.MANAGE)
            except BusError:
                raise Unauthorized(
                    f"InsufficientClaims: node '{name}' serves the namespace '{context.namespace.name}' too, which this login does not "
                    "manage. Somebody with access to the engine can: tandem cluster drain."
                ) from None
    return await _told(call, lambda wishes: wishes.drain(name, end))


async def _told(call: ApiCall, wish: Callable[[ClusterWishes], str]) -> object:
    wishes = call.server.wishes
    if wishes is None:
        raise EntityNotFound("This broker is not a node of a cluster.")
    try:
        async with asyncio.timeout(_ENGINE_SECONDS):
            return {"said": await asyncio.get_running_loop().run_in_executor(None, wish, wishes)}
    except TimeoutError:
        raise OperationTimeout(
            f"The engine did not answer within {_ENGINE_SECONDS:g} s. Look whether it was done before you try again."
        ) from None
    except ConfigurationError as error:
        raise ArgumentRefused(str(error)) from None
