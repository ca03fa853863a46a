"""Jobs of a store's maintenance thread: make the next segment, index the full ones, read the one that is compacted."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Generator
from contextlib import closing, suppress

from tandem.model.errors import Corrupt
from tandem.stores.blocks import BLOCK_BYTES
from tandem.stores.recovery import SegmentStats
from tandem.stores.salvage import Salvaged, walk_segment
from tandem.stores.segment_files import SegmentFiles
from tandem.stores.segment_index import IndexWriter, SegmentTotals, columns_of, pack_entry

Trouble = Callable[[str, str], None]
"""Told what did not work and why, or that it works again (an empty why)."""


class MaintenanceJobs:
    """Runs on that thread only. Its failures make the store slower to open or bigger than need be, never wrong."""

    def __init__(self, files: SegmentFiles, trouble: Trouble) -> None:
        self._files = files
        self._disk = files.disk
        self._trouble = trouble
        self._writer: IndexWriter | None = None
        self._writer_segment = 0
        self._spoiled = 0
        """The segment whose index lacks entries because of an error; it is read instead once it is full."""
        self._unindexed: set[int] = set()
        """Full, and without an index because of an error."""
        self._lacking = False
        """Not even the next segment and the spare could be reserved: what is left is not for indexes."""
        self._walk: Generator[tuple[int, Salvaged], None, None] | None = None

    def prepare(self, segment: int) -> None:
        """Makes the segment that will be needed next, while there is time."""
        try:
            self._files.prepare(segment)
        except OSError as error:
            self._lacking = True
            self._trouble("room", f"no room for segment {segment} and a spare: {error}")
        else:
            self._lacking = False
            self._trouble("room", "")

    def spill(self, segment: int, entries: list[bytes]) -> None:
        if self._spoiled == segment:
            return
        try:
            self._check_room()
            self._writer_of(segment).add(entries)
        except OSError as error:
            self._spoiled = segment
            self._index_failed(segment, error)

    def seal(self, segment: int, entries: list[bytes] | None, totals: SegmentTotals) -> None:
        """Gives back the room the segment did not need, then writes its index. Without the index the segment is read on opening."""
        try:
            descriptor = self._files.take(segment)
            self._disk.truncate(descriptor, totals.segment_bytes)
            self._disk.fsync(descriptor)
            self._files.put_back(segment)
            self._check_room()
            if entries is None or self._spoiled == segment:
                self._index_by_reading(segment, totals)
            else:
                writer = self._writer_of(segment)
                writer.add(entries)
                writer.finish(totals)
                self._writer = None
        except OSError as error:
            self._unindexed.add(segment)
            self._index_failed(segment, error)
        except Corrupt as error:
            self._trouble("damage", str(error))
        else:
            self._unindexed.discard(segment)
            if not self._unindexed:
                self._trouble("index", "")

    def index_again(self, stats: dict[int, SegmentStats]) -> None:
        """What could not be indexed when it was due. The growing segment is read for its index once it is full."""
        if self._lacking:
            return
        for segment in sorted(self._unindexed):
            found = stats.get(segment)
            if found is None:
                self._unindexed.discard(segment)  # compacted meanwhile
            else:
                self.seal(segment, None, found.totals)
        if not self._unindexed:
            self._trouble("index", "")

    def _check_room(self) -> None:
        if self._lacking:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _writer_of(self, segment: int) -> IndexWriter:
        if self._writer is None or self._writer_segment != segment:
            self._drop_writer()
            self._writer = IndexWriter(self._disk, self._files.index_path(segment), segment, self._files.manifest.store_id)
            self._writer_segment = segment
        return self._writer

    def _drop_writer(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _index_failed(self, segment: int, error: OSError) -> None:
        with suppress(OSError):  # it is made anew, whatever is there
            if self._writer_segment == segment:
                self._drop_writer()
            self._files.drop_unfinished_index(segment)
        self._trouble("index", f"no index for segment {segment}: {error}")

    def _index_by_reading(self, segment: int, totals: SegmentTotals) -> None:
        writer = IndexWriter(self._disk, self._files.index_path(segment), segment, self._files.manifest.store_id)
        number = totals.first_number
        try:
            with closing(walk_segment(self._files, segment, number)) as blocks:
                for offset, block in blocks:
                    heads, keys, _, _ = columns_of(block.payload, block.count)
                    writer.add([pack_entry(number, offset, block.count, len(block.payload), block.crc, heads, keys)])
                    number += 1
            writer.finish(totals)
        except ValueError as error:
            raise Corrupt(f"{self._files.path(segment)}: {error}") from error
        finally:
            writer.close()

    def read_blocks(self, segment: int, first_number: int, bytes_wanted: int, begin: bool) -> list[tuple[int, Salvaged]]:
        """The next blocks of the segment being compacted, with their offsets; none at its end."""
        if begin:
            self.end_walk()
            self._walk = walk_segment(self._files, segment, first_number)
        blocks: list[tuple[int, Salvaged]] = []
        if self._walk is None:
            return blocks
        size = 0
        for block in self._walk:
            blocks.append(block)
            size += BLOCK_BYTES + len(block[1].payload)
            if size >= bytes_wanted:
                return blocks
        if not blocks:
            self.end_walk()
        return blocks

    def end_walk(self) -> None:
        """A walk that is given up closes its file."""
        walk, self._walk = self._walk, None
        if walk is not None:
            walk.close()

    def close(self) -> None:
        self.end_walk()
        self._drop_writer()
