"""The stores of one namespace that several nodes share: opened here when this node's turn has come, after what they speak of is known."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from tandem.cluster.node import Node
from tandem.cluster.owners_clock import OwnersClock
from tandem.model.store_row import StoreRow
from tandem.server.catalog_follower import CatalogFollower, SharedCatalog
from tandem.server.context import NamespaceContext


class EngineCatalog(SharedCatalog, Protocol):
    """A catalog in an engine, which may hang."""

    def give_up_after(self, milliseconds: int) -> None:
        """On any thread: a call that takes longer fails."""


class TakenStore(Protocol):
    """A journal that has to be acquired."""

    def take(self) -> StoreRow:
        """On a thread."""
        ...

    def hand_back(self, why: str) -> None: ...


class SharedStores:
    """The supervisor's keeper in a cluster."""

    def __init__(
        self,
        node: Node,
        namespace: str,
        stores: list[TakenStore],
        follower: CatalogFollower,
        context: NamespaceContext,
        check_clock: Callable[[], None],
    ) -> None:
        self._node = node
        self._namespace = namespace
        self._context = context
        self._check_clock = check_clock
        """Tells everybody that it was set."""
        self._stores = stores
        self._follower = follower

    def should_open(self, store: int) -> bool:
        return self._node.should_open(self._namespace, store)

    def is_down(self, store: int) -> None:
        owner = self._node.membership.owner(self._namespace, store)
        if owner is not None and owner != self._node.name:
            self._stores[store].hand_back(f"served by node {owner}")

    async def acquire(self, store: int) -> None:
        row = await asyncio.to_thread(self._stores[store].take)
        self._node.took(row)
        await self._follower.follow()  # after acquiring: nobody else adds facts of entities that we do not know any more

    def opened(self, store: int) -> None:
        self._node.opened(self._namespace, store)

    def replayed(self, store: int, last_instant: int) -> None:
        """The clock of whoever wrote that may have been ahead of ours."""
        clock = self._context.turn.clock
        ahead = last_instant - clock.now_ms()
        if ahead <= 0 or not isinstance(clock, OwnersClock):
            return
        told = f"{self._namespace} store-{store}: its last owner's clock was {ahead} ms ahead of this machine's"
        if clock.not_before(last_instant):
            self._context.log(f"{told}: we go on from there, until ours has caught up")
            self._check_clock()
        else:
            self._context.warn(f"{told}: that is too far to follow; set all clocks by NTP")
