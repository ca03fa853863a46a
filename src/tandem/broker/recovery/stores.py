"""The stores of one namespace, and which of them holds what: all that transfers and transactions between them need to know of it."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tandem.broker.queue.entity import Entity
    from tandem.broker.queue.queue import Queue
    from tandem.broker.recovery.tenant import StoreTenant
    from tandem.broker.turn import Turn


class Stores:
    """Base of a namespace."""

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.stores: list[StoreTenant] = []
        self.in_doubt: list[tuple[int, int, list[int]]] = []
        """Messages that were on their way to a store when it stopped: (that store, where they come from, their numbers there)."""

    def still_in_doubt(self, left: list[tuple[int, int, list[int]]]) -> None:
        self.in_doubt = left

    def tenant_of(self, queue: Queue) -> StoreTenant | None:
        """The store that holds this queue; None when it is out of service."""
        for tenant in self.stores:
            if tenant.queues.get(queue.entity_id) is queue:
                return tenant
        return None

    @abstractmethod
    def forward_target(self, name: str) -> Entity | None:
        """The queue or topic that takes what is forwarded to this name."""
