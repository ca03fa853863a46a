"""Who follows a cluster from another region, and how far behind it is."""

from __future__ import annotations

from dataclasses import dataclass

from tandem.model.store_row import FIRST_ENGINE


@dataclass(frozen=True, slots=True)
class FollowerRow:
    """As the followed engine knows it."""

    name: str
    silent_ms: int
    """Since it last said so."""
    lag_ms: int
    """How old what its standby has replayed was then."""
    lag_messages: int
    """Accepted here, and not replayed there then."""
    lag_blocks: int
    engine: str = FIRST_ENGINE
    """Whose standby it is about."""

    def as_dict(self) -> dict[str, object]:
        return {
            "name": self.name,
            "engine": self.engine,
            "lag_seconds": (self.lag_ms + self.silent_ms) / 1000,
            "lag_messages": self.lag_messages,
            "lag_blocks": self.lag_blocks,
            "silent_seconds": self.silent_ms / 1000,
        }
