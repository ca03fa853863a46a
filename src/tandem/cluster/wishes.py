"""What operators wish of a cluster, whoever they tell it to: a command, or the console of a node."""

from __future__ import annotations

from typing import Protocol


class ClusterWishes(Protocol):
    """Calls block. Each says what will happen, or raises ConfigurationError with what is wrong; EngineAway if the engine cannot be told."""

    def move(self, stores: str, node: str) -> str:
        """A namespace, or one store of it (`tandem/2`), goes to this node as soon as its owner has finished what it is at."""
        ...

    def drain(self, node: str, end: bool) -> str:
        """The node serves nothing; with `end` it may serve again."""
        ...
