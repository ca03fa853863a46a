"""Which node has which fragment of a partitioned entity, and how it is asked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tandem.broker.entities.partitioned import PartitionedQueue
from tandem.cluster.ownership import Ownership
from tandem.model.errors import StoreUnavailable
from tandem.server.context import NamespaceContext

Ask = Callable[[str, str, dict[object, object]], Awaitable[dict[object, object]]]
"""(node, request, body) -> the answer's body."""


class FragmentOwners:
    """Of one namespace, as one node sees them. Its own name is the empty one here."""

    def __init__(self, context: NamespaceContext, ownership: Ownership, ask: Ask) -> None:
        self.context = context
        self.ownership = ownership
        self.ask = ask

    def store_of(self, fragment: int) -> int:
        return fragment % len(self.context.namespace.stores)

    def owner_of(self, front: PartitionedQueue, fragment: int) -> str:
        """The node that has this fragment; empty: this one."""
        store = self.store_of(fragment)
        if self.ownership.here(store):
            return ""
        owner = self.ownership.owner(store)
        if owner is None:
            raise StoreUnavailable(f"The store of fragment {fragment} of '{front.path}' is between two owners. Try again.")
        return owner

    def owners(self, front: PartitionedQueue) -> list[str]:
        """All that have fragments of it now, this node first if it has."""
        found: set[str] = set()
        for store in {self.store_of(number) for number in range(len(front.fragments.queues))}:
            owner = "" if self.ownership.here(store) else self.ownership.owner(store)
            if owner is not None:
                found.add(owner)
        return sorted(found)

    def others(self, front: PartitionedQueue) -> list[str]:
        return [owner for owner in self.owners(front) if owner]
