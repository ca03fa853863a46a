"""What a node says of its cluster: who lives, who serves what, what is carried where, and how quick the engine is."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from tandem.model.store_row import FIRST_ENGINE

if TYPE_CHECKING:
    from tandem.cluster.node import Node
    from tandem.gateway.http.operated_broker import OperatedBroker
    from tandem.model.histogram import Histogram
    from tandem.server.context import NamespaceContext


@runtime_checkable
class Timed(Protocol):
    """A journal that measures how long the disk, or the engine, takes; one in memory has neither."""

    commit_times: Histogram


def carried_links(context: NamespaceContext) -> dict[str, int]:
    """By the node that they lead to."""
    found: Counter[str] = Counter()
    for connection in context.connections:
        found.update(connection.carried_links())
    return dict(found)


def stores_of(node: Node, namespace: str) -> list[dict[str, Any]]:
    """As the last beat has shown them: the same from every node."""
    return [
        {
            "namespace": row.namespace,
            "store": row.number,
            "owner": row.owner,
            "served": node.membership.owner(row.namespace, row.number) is not None,
            "epoch": row.epoch,
            "wanted": row.wanted,
            **({"engine": row.engine or FIRST_ENGINE} if node.watches else {}),
        }
        for row in sorted(node.membership.view.stores, key=lambda row: (row.namespace, row.number))
        if row.namespace == namespace
    ]


def own_figures(server: OperatedBroker, number: int) -> dict[str, Any]:
    """What only this node knows."""
    context, node = server.contexts[number], server.node
    assert node is not None
    commits = [tenant.journal.commit_times for tenant in context.namespace.stores if isinstance(tenant.journal, Timed)]
    count = sum(sum(one.counts) for one in commits)
    return {
        "takeovers": node.takeovers,
        "beat_ms": node.beat_ms,
        "commits": count,
        "commit_ms": sum(one.sum_ms for one in commits) / count if count else None,
        "carried_links": carried_links(context),
        "connections": context.client_count(),
        "clock_ahead_ms": -node.skew_ms,
    }
