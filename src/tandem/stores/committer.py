"""One group of records becomes one durable block: joined, checksummed, written, synced, and then announced to the loop, once."""

from __future__ import annotations

import errno
from collections.abc import Callable

from tandem.broker.ports import Effect
from tandem.model.errors import BusError, StoreUnavailable
from tandem.stores.blocks import BLOCK_BYTES, OFFSET_MAX, RECORD_BYTES, pack_block_header
from tandem.stores.disk import Disk, write_fully
from tandem.stores.guard import guard_of
from tandem.stores.segment_files import SegmentFiles
from tandem.stores.segment_index import SegmentTotals, pack_columns
from tandem.stores.synced import SyncedMark


class Group:
    """What is appended between two hand-overs: the records of one block, and who waits for it."""

    __slots__ = (
        "_bodies_at",
        "_next",
        "_read",
        "bodies",
        "body_bytes",
        "bytes",
        "effects",
        "error",
        "finished",
        "last",
        "number",
        "offset",
        "parts",
        "segment",
        "started_at",
    )

    def __init__(self, segment: int, offset: int, number: int) -> None:
        self.segment = segment
        self.bytes: int = 0
        """Of all its records."""
        self.bodies: int = 0
        """Records that have one."""
        self.body_bytes: int = 0
        self.offset = offset
        """Where the block stands in the segment."""
        self.number = number
        self.parts: list[bytes] = []
        """Header, key and body of each record, in turn."""
        self.effects: list[Effect] = []
        self.last = False
        """The segment is full with this block."""
        self.started_at: int = 0
        self.finished = False
        self.error: Exception | None = None
        self._bodies_at: dict[int, bytes] = {}
        """By location, of the records that were read for it: only as far and as soon as somebody asks."""
        self._read: int = 0
        self._next: int = segment << 32 | offset + BLOCK_BYTES

    def body_at(self, location: int) -> bytes | None:
        """Of a record of this block that may not be on disk yet."""
        parts = self.parts
        at_location = self._next
        for at in range(self._read, len(parts), 3):
            body = parts[at + 2]
            self._bodies_at[at_location] = body
            at_location += RECORD_BYTES + len(parts[at + 1]) + len(body)
        self._next = at_location
        self._read = len(parts)
        return self._bodies_at.get(location)

    def seal(self, effects: list[Effect], at: int, seed: int, size: int, bodies: int, body_bytes: int) -> int:
        """Who waits for it and since when, and no more records, but for the one that guards them; sizes are those of the others.
        Returns the bytes of the whole block; 0: there is nothing to write."""
        self.effects = effects
        self.started_at = at
        self.bytes = size
        self.bodies = bodies
        self.body_bytes = body_bytes
        parts = self.parts
        if not parts:
            return 0
        head, body = guard_of(seed, self.segment, self.number, parts)
        parts.append(head)
        parts.append(b"")
        parts.append(body)
        return BLOCK_BYTES + self.bytes + len(head) + len(body)

    def fill_segment(self) -> None:
        self.last = True

    def give_up_effects(self) -> list[Effect]:
        """Whoever waits is told by somebody else."""
        effects, self.effects = self.effects, []
        return effects

    def finish(self, error: Exception | None) -> None:
        """The block is durable, or it will not be."""
        self.error = error
        self.finished = True


class SealedBlock:
    """The bytes of a group's block, and what its segment and its index have to know of it."""

    __slots__ = ("count", "crc", "end", "header", "payload")

    def __init__(self, group: Group, seed: int) -> None:
        payload = b"".join(group.parts)
        count = len(group.parts) // 3
        self.count: int = count
        self.payload = payload
        self.end: int = group.offset + BLOCK_BYTES + len(payload)
        """Offset behind it."""
        if self.end > OFFSET_MAX:
            raise StoreUnavailable(f"a group of {len(payload)} bytes does not fit in a segment")
        self.header = pack_block_header(seed, group.segment, group.number, count, payload)
        self.crc: int = int.from_bytes(self.header[4:8], "little")

    def count_in(self, totals: SegmentTotals, group: Group) -> None:
        totals.add(group.number, group.offset, self.end, self.crc, self.count, group.bodies, group.body_bytes)

    def entry(self, group: Group) -> bytes:
        """Of the index of its segment."""
        key_bytes = group.bytes - (self.count - 1) * RECORD_BYTES - group.body_bytes
        return pack_columns(group.number, group.offset, self.count, len(self.payload), key_bytes, self.crc, group.parts)


class BlockWriter:
    """Runs on the committer's thread only. After an error it never touches the descriptor again."""

    def __init__(
        self,
        files: SegmentFiles,
        announce: Callable[[], None],
        grown: Callable[[int, list[bytes]], None],
        filled: Callable[[int, list[bytes] | None, SegmentTotals], None],
        trouble: Callable[[str, str], None],
        mark: SyncedMark,
        spill_bytes: int,
    ) -> None:
        self._files = files
        self._disk: Disk = files.disk
        self._announce = announce
        self._grown = grown
        self._filled = filled
        self._trouble = trouble
        self._mark = mark
        self._unmarked = False
        self._spill_bytes = spill_bytes
        self._segment = 0
        self._descriptor = -1
        self._stopped = False
        self._entries: list[bytes] | None = None
        """Index entries of the growing segment; None when it was begun by an earlier run, and has to be read for its index."""
        self._entry_bytes = 0
        self.syncs = 0

    def expect(self, segment: int, begun: bool) -> None:
        """Where the first group will go; `begun` if the segment already holds blocks."""
        self._segment = segment
        self._descriptor = self._files.take(segment)
        self._entries = None if begun else []

    def write(self, group: Group, totals: SegmentTotals) -> None:
        """`totals` are those of the group's segment; only this thread writes them while the store is up."""
        try:
            if self._stopped:
                raise StoreUnavailable("the store has stopped")
            block = SealedBlock(group, self._files.seed)
            if group.segment != self._segment:
                self._descriptor = self._files.take(group.segment)
                self._segment = group.segment
                self._entries = []
                self._entry_bytes = 0
            self._put(block.header, block.payload, group.offset)
            self.syncs += 1
            self._disk.fdatasync(self._descriptor)
            block.count_in(totals, group)
        except (OSError, BusError) as error:
            self._stopped = True
            group.finish(error)
            self._announce()
            return
        group.finish(None)
        self._announce()
        self._keep(group, block, totals)

    def _put(self, header: bytes, payload: bytes, offset: int) -> None:
        disk, descriptor = self._disk, self._descriptor
        size = BLOCK_BYTES + len(payload)
        try:
            if disk.pwritev(descriptor, [header, payload], offset) != size:
                write_fully(disk, descriptor, [header, payload], offset)
        except OSError as error:
            # The last block of a segment may reach beyond what was reserved. Nothing was synced yet, so it can be written again.
            beyond = offset + size - self._files.bytes_of(self._segment)
            if error.errno != errno.ENOSPC or not self._files.give_room(min(beyond, size) if beyond > 0 else size):
                raise
            write_fully(disk, descriptor, [header, payload], offset)

    def _keep(self, group: Group, block: SealedBlock, totals: SegmentTotals) -> None:
        """After the announcement, when nobody waits any more: the mark moves on, the index of the segment grows."""
        try:
            self._mark.move(group.segment, totals.segment_bytes, group.number)
            if self._unmarked:
                self._unmarked = False
                self._trouble("mark", "")
        except OSError as error:
            self._unmarked = True
            self._trouble("mark", f"how much is synced cannot be noted: {error}")
        entries = self._entries
        if entries is not None:
            entry = block.entry(group)
            entries.append(entry)
            self._entry_bytes += len(entry)
        if group.last:
            self._filled(group.segment, entries, totals)
            self._entries = []
            self._entry_bytes = 0
        elif entries is not None and self._entry_bytes >= self._spill_bytes:
            self._grown(group.segment, entries)
            self._entries = []
            self._entry_bytes = 0
