"""A messaging store that several nodes share, as their engine has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FIRST_ENGINE: Final = "first"
"""What people call the engine that has the metadata; rows of its stores name none."""


@dataclass(frozen=True, slots=True)
class StoreRow:
    """What the engine knows of a store."""

    id: int
    namespace: str
    number: int
    journal: bytes
    """16 bytes that name the journal: its checksums start from them."""
    format: int
    epoch: int
    """Raised with every change of owner: nothing of an earlier one is taken any more."""
    owner: str
    """Name of a node; empty: free."""
    incarnation: int
    wanted: str
    """The node that somebody wants it to move to; empty: nobody does."""
    first_segment: int
    last_segment: int
    first_block: int
    """Number of the first block of the first segment."""
    begins_at: int = 0
    """Sequence numbers below are not given any more to entities up to `entity_max`: messages that had them may have been lost."""
    entity_max: int = 0
    engine: str = ""
    """The name of the engine that it lives in; empty: the first."""
    owner_beat: tuple[int, int] = (0, 0)
    """The incarnation and the beat of its owner when it was looked at alone; zeros: nothing is known of them."""
