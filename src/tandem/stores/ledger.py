"""The journal of a store in an engine that several nodes share: what the engine must do, and what may be believed of its answers."""

from __future__ import annotations

from typing import Protocol

from tandem.model.errors import StoreMissing, StoreUnavailable
from tandem.model.store_row import StoreRow


class InDoubt(Exception):
    """The engine was asked to write something, and nobody knows whether it did. `BlockLedger.confirm` knows."""


class NoRoom(InDoubt):
    """… and it says that its disk is full."""


class Deposed(StoreUnavailable):
    """Another node owns the store: what was not confirmed by now never will be."""


class NotOurs(StoreMissing):
    """Another node owns the store, or it is between two owners: it is served there, and waited for here."""


Entry = tuple[int, int, int, bytes]
"""Block number, epoch, offset in the segment, index entry."""
Block = tuple[int, int, bytes]
"""Block number, offset in the segment, header and payload."""
Part = tuple[int, int, int]
"""Block number, offset in the block, bytes."""


class BlockLedger(Protocol):
    """One store. Calls block. Three threads may call, each its own methods; a call that fails can be made again.

    Whatever the engine cannot do now is EngineAway; what it may or may not have done is InDoubt.
    """

    where: str
    """For operators."""

    # -- whoever opens the store -------------------------------------------------------------

    def acquire(self) -> StoreRow:
        """From now on the store is ours, under a new epoch, and what is read is on the quorum. NotOurs if it may not be taken."""
        ...

    def read_entries(self, segment: int, after: int, most: int) -> list[Entry]:
        """Of the blocks with higher numbers than `after`, in order; none at the segment's end."""
        ...

    def release(self) -> None:
        """Whoever wants the store may have it. Only if it is still ours; nothing is raised."""
        ...

    def close(self) -> None: ...

    # -- the committer's thread --------------------------------------------------------------

    def append(self, segment: int, number: int, at: int, entry: bytes, block: bytes) -> None:
        """Returns when the block is on the quorum, under our epoch. InDoubt otherwise, whatever the reason."""
        ...

    def confirm(self, segment: int) -> int:
        """The number of the last block of this segment, 0 if it has none. Written, read, and written again: it is on the quorum, and
        nobody has taken the store over meanwhile. Deposed if somebody has."""
        ...

    def begin_segment(self, segment: int) -> None:
        """The first block of this segment comes next. Deposed, or InDoubt: it may be called again."""
        ...

    def use_reserve(self) -> None:
        """What was kept for this is given back: the disk is full, and messages are to be settled still."""
        ...

    # -- the reader's thread -----------------------------------------------------------------

    def read_parts(self, segment: int, parts: list[Part]) -> list[bytes]:
        """In the order asked for; empty for a block that is not there, shorter at a block's end."""
        ...

    # -- the maintenance thread --------------------------------------------------------------

    def walk_entries(self, segment: int, after: int, most: int) -> list[Entry]:
        """As `read_entries`, of a segment that is complete."""
        ...

    def read_blocks(self, segment: int, after: int, most: int) -> list[Block]: ...

    def prepare_segment(self, segment: int) -> None:
        """Ahead of need."""
        ...

    def retire(self, first_segment: int, first_block: int) -> None:
        """What lies before is given up; Deposed if the store is not ours any more. Its room comes back with `drop_retired`."""
        ...

    def drop_retired(self) -> bool:
        """False if something that was given up is still being read: tried again later."""
        ...

    def keep_reserve(self, size: int) -> str:
        """So many bytes are kept for when the disk is full. Why they cannot be; empty: they are."""
        ...

    def size_bytes(self) -> int:
        """Of everything that is kept in the engine, others' stores too."""
        ...

    # -- any thread --------------------------------------------------------------------------

    def give_up_after(self, milliseconds: int) -> None:
        """A call that takes longer is given up, by closing its connection: it fails as any other does."""
        ...

    def abandon(self) -> None:
        """All calls under way fail."""
        ...
