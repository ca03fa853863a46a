"""The stores of one namespace, and which of them holds what: all that transfers and transactions between them need to know of it."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from mypy_extensions import mypyc_attr

if TYPE_CHECKING:
    from tandem.broker.queue.entity import Entity
    from tandem.broker.queue.queue import Queue
    from tandem.broker.recovery.tenant import StoreTenant
    from tandem.broker.turn import Turn
    from tandem.model.message import Message


@mypyc_attr(allow_interpreted_subclasses=True)
class FarTransfer:
    """Messages of one queue on their way to a store that another node had."""

    def __init__(self, store: int, target: str, source: int) -> None:
        self.store: int = store
        self.target: str = target
        self.source: int = source
        """The queue they come from, as journals number it."""
        self.messages: list[tuple[int, int, bytes]] = []
        """Number in the source, fragment of the target (-1: it has none), and the message as it arrives."""

    def is_over(self) -> bool:
        """Nobody waits for the answer any more."""
        return False

    def dropped(self) -> None:
        """It was over before it was answered."""

    def answered(self, refused: dict[int, tuple[str, str]]) -> None:
        """They are on disk there, or were before; but those that the target does not take, with reason and description."""


@mypyc_attr(allow_interpreted_subclasses=True)
class FarArrivals:
    """Somebody who wants to know which messages of a queue have arrived in other stores."""

    def is_over(self) -> bool:
        """Nobody waits for the answer any more."""
        return False

    def learned(self, found: dict[int, list[int]]) -> None:
        """By store: what it remembers."""


@mypyc_attr(allow_interpreted_subclasses=True)
class FarAnswer:
    """Somebody who wants a yes or no from other stores."""

    def is_over(self) -> bool:
        """Nobody waits for the answer any more."""
        return False

    def said(self, yes: bool) -> None: ...


@mypyc_attr(allow_interpreted_subclasses=True)
class FarStores:
    """Stores that may be with other nodes. Whoever has one when it is asked is asked, until there is an answer; that may be this node."""

    def stores_move(self) -> bool:
        """A store that goes down here may come back with another node."""
        return False

    def transfer(self, transfer: FarTransfer) -> None: ...

    def ended(self, store: int, source: int, seqs: list[int]) -> None:
        """They have left their source for good: that they arrived need not be remembered. Asked once; `learn` finds the rest."""

    def learn(self, source: int, own: int, must: list[int], then: FarArrivals) -> None:
        """What all stores but its `own` remember to have had from this queue. Those that `must` say are waited for, the others a moment."""

    def decided(self, store: int, transaction: bytes, then: FarAnswer) -> None:
        """Has this store decided that the transaction happens? If it does not know, it does not, and never will."""

    def held(self, transaction: bytes, then: FarAnswer) -> None:
        """Has any store that is not here a share of it?"""


class Stores:
    """Base of a namespace."""

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.stores: list[StoreTenant] = []
        self.far: FarStores | None = None
        """None: all stores are this node's."""
        self.in_doubt: list[tuple[int, int, list[int]]] = []
        """Messages that were on their way to a store when it stopped: (that store, where they come from, their numbers there)."""

    def reach(self, far: FarStores) -> None:
        """Other nodes have some of the stores."""
        self.far = far

    def still_in_doubt(self, left: list[tuple[int, int, list[int]]]) -> None:
        self.in_doubt = left

    def tenant_of(self, queue: Queue) -> StoreTenant | None:
        """The store that holds this queue; None when it is out of service."""
        for tenant in self.stores:
            if tenant.queues.get(queue.entity_id) is queue:
                return tenant
        return None

    @abstractmethod
    def place_of(self, target: Entity, message: Message) -> tuple[int, int]:
        """Where a message for it goes: a store that is elsewhere (-1: it is here), and which fragment there (-1: it has none)."""

    @abstractmethod
    def forward_target(self, name: str) -> Entity | None:
        """The queue or topic that takes what is forwarded to this name."""
