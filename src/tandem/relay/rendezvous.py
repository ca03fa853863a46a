"""Rendezvous: an address that nobody can guess, good once, for as long as somebody waits there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from tandem.model.errors import BusError
from tandem.relay.target import Action


class RendezvousUnknown(BusError):
    """Used before, over, or never given out."""

    condition = "amqp:not-allowed"
    status = 403


@dataclass(frozen=True, slots=True)
class Rejection:
    """A listener does not want the connection."""

    status: int
    reason: str


T = TypeVar("T")


class Rendezvous(Generic[T]):
    """Where one sender waits for its listener."""

    __slots__ = ("action", "arrival", "entity", "key")

    def __init__(self, key: str, entity: str, action: Action) -> None:
        self.key = key
        self.entity = entity
        self.action = action
        self.arrival: asyncio.Future[T] = asyncio.get_running_loop().create_future()


class RendezvousDesk(Generic[T]):
    """Every rendezvous of a broker that somebody still waits at."""

    def __init__(self, entropy: Callable[[int], bytes]) -> None:
        self._entropy = entropy
        self._waiting: dict[str, Rendezvous[T]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def open(self, entity: str, action: Action) -> Rendezvous[T]:
        """`close` it in any case."""
        rendezvous: Rendezvous[T] = Rendezvous(self._entropy(24).hex(), entity.casefold(), action)
        self._waiting[rendezvous.key] = rendezvous
        return rendezvous

    def close(self, rendezvous: Rendezvous[T]) -> None:
        self._waiting.pop(rendezvous.key, None)

    def take(self, key: str, entity: str, action: Action) -> Rendezvous[T]:
        """For the one who comes with its key, and never again. Raises RendezvousUnknown."""
        found = self._waiting.get(key)
        if found is None or found.entity != entity.casefold() or found.action is not action or found.arrival.done():
            raise RendezvousUnknown("This rendezvous address was used before, is over, or was never given out.")
        del self._waiting[key]
        return found
