"""A client's connection as the process around it sees it, whatever it speaks."""

from __future__ import annotations

from typing import Protocol

from tandem.broker.ports import Lock
from tandem.model.errors import BusError


class ServedConnection(Protocol):
    def look_after(self, now: int) -> None:
        """Called a few times a second with the steady clock: heartbeats, silence, tokens that lapsed."""

    def close(self, error: BusError) -> None:
        """In an orderly way, with this reason."""

    def cut(self) -> None:
        """At once, as if the network had failed."""

    def expire_tokens(self) -> None:
        """Whatever was granted is over: links are detached."""

    def drop_revoked(self) -> None:
        """Whatever was granted by tokens that their issuer took back is over."""

    def detach_links(self, entity: str, error: BusError) -> None:
        """Those of this entity, in lower case; of all entities if it is empty."""

    @property
    def peer(self) -> str:
        """Where it comes from: address:port."""
        ...

    def is_of_a_client(self) -> bool:
        """False: another node, or worker, continues here what a client has with it."""
        ...

    def carried_links(self) -> list[str]:
        """Of each link to an entity of another node, that node."""
        ...

    def unsettled_count(self) -> int:
        """Deliveries that its peer has in hand."""
        ...

    def held_locks(self, entity: str) -> list[Lock]:
        """Of messages of this entity that were delivered over it and are not settled."""
        ...

    def describe(self, now: int) -> dict[str, object]:
        """For operators; `now` is on the steady clock."""
        ...
