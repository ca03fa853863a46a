"""Workers: the processes of one broker on one machine, each with some of its stores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tandem.cluster.peers import ClusterNode


def worker_name(number: int) -> str:
    return f"worker-{number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlan:
    """What all workers of a broker are told alike."""

    count: int
    sockets: Path
    """A directory that is theirs alone."""
    secret: bytes
    broker: str
    """The name under which clients know all of them."""
    moves: bool = True
    """A connection is moved to the worker that has the entity of its first link."""
    relays_apart: bool = False
    """The first worker has no stores: it answers HTTP and relays."""
    stores: dict[str, tuple[int, ...]]
    """By namespace, for each store the number of the worker that has it."""

    def node(self, number: int) -> ClusterNode:
        return ClusterNode(
            node=worker_name(number),
            listen=self.address(number),
            secret=self.secret,
            ownership=lambda namespace: WorkerOwnership(self, namespace, number),
            administrator=worker_name(0),
            http=self.http,
            moving=str(self.sockets) if self.moves else "",
            broker=self.broker,
            others=tuple(worker_name(other) for other in range(self.count) if other != number),
        )

    def address(self, number: int) -> str:
        return f"unix:{self.sockets / worker_name(number)}"

    @property
    def http(self) -> str:
        """Where the first worker takes over HTTP connections that came to others."""
        return str(self.sockets / "http")


class WorkerOwnership:
    """Decided when the broker starts, and the same until it ends: a worker that dies comes back."""

    def __init__(self, plan: WorkerPlan, namespace: str, number: int) -> None:
        self._owners = plan.stores[namespace]
        self._number = number
        self._addresses = {worker_name(other): plan.address(other) for other in range(plan.count)}

    def owner(self, store: int) -> str | None:
        return worker_name(self._owners[store])

    def here(self, store: int) -> bool:
        return self._owners[store] == self._number

    def address(self, node: str) -> str | None:
        return self._addresses.get(node)

    def subscribe(self, changed: Callable[[int], None]) -> None:
        """Nothing will change."""


def assign_stores(count: int, workers: int) -> tuple[int, ...]:
    """For each of so many stores its worker."""
    return tuple(store % workers for store in range(count))
