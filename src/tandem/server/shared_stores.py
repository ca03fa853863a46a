"""The stores of one namespace that several nodes share: opened here when this node's turn has come, after what they speak of is known."""

from __future__ import annotations

import asyncio
from typing import Protocol

from tandem.cluster.node import Node
from tandem.model.store_row import StoreRow
from tandem.server.catalog_follower import CatalogFollower, SharedCatalog


class EngineCatalog(SharedCatalog, Protocol):
    """A catalog in an engine, which may hang."""

    def give_up_after(self, milliseconds: int) -> None:
        """On any thread: a call that takes longer fails."""


class TakenStore(Protocol):
    """A journal that has to be acquired."""

    def take(self) -> StoreRow:
        """On a thread."""
        ...


class SharedStores:
    """The supervisor's keeper in a cluster."""

    def __init__(self, node: Node, namespace: str, stores: list[TakenStore], follower: CatalogFollower) -> None:
        self._node = node
        self._namespace = namespace
        self._stores = stores
        self._follower = follower

    def should_open(self, store: int) -> bool:
        return self._node.should_open(self._namespace, store)

    async def acquire(self, store: int) -> None:
        row = await asyncio.to_thread(self._stores[store].take)
        self._node.took(row)
        await self._follower.follow()  # after acquiring: nobody else adds facts of entities that we do not know any more
