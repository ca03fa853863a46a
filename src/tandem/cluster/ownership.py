"""Which node serves a store. A broker without a cluster serves all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Ownership(Protocol):
    """The stores of one namespace, by number, and the nodes that serve them. Asked on the loop; never waits."""

    def owner(self, store: int) -> str | None:
        """Name of the node that serves this store. None: it is between two owners, and whoever wants it waits a moment."""
        ...

    def here(self, store: int) -> bool:
        """Does this node serve it?"""
        ...

    def address(self, node: str) -> str | None:
        """Where that node listens for its peers: `host:port` or `unix:/path`. None: nobody of that name is known."""
        ...

    def subscribe(self, changed: Callable[[int], None]) -> None:
        """`changed` is called on the loop with the number of a store whenever its owner has changed."""
        ...


class SoleOwnership:
    """One node, and everything is here."""

    def __init__(self, node: str) -> None:
        self._node = node

    def owner(self, store: int) -> str | None:
        return self._node

    def here(self, store: int) -> bool:
        return True

    def address(self, node: str) -> str | None:
        return None

    def subscribe(self, changed: Callable[[int], None]) -> None:
        """Nothing will ever change."""
