"""What keeps a store in order behind the committer's back: the next segment, indexes of full ones, the end of dead ones."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from tandem.model.errors import Corrupt
from tandem.stores.blocks import BLOCK_BYTES, SEGMENT_HEADER_BYTES, BadBlock, BlockHeader
from tandem.stores.index import IndexWriter, Totals, columns_of, pack_entry
from tandem.stores.scan import scan_blocks
from tandem.stores.segment_files import SegmentFiles

Trouble = Callable[[str, str], None]
"""Told what did not work and why, or that it works again (an empty why)."""


class Keeper:
    """Runs on the keeper's thread only. Its failures make the store slower to open or bigger than need be, never wrong."""

    def __init__(self, files: SegmentFiles, trouble: Trouble) -> None:
        self._files = files
        self._disk = files.disk
        self._trouble = trouble
        self._writer: IndexWriter | None = None
        self._writer_segment = 0
        self._spoiled = 0
        """The segment whose index lacks entries because of an error; it is read instead once it is full."""
        self._walk: Iterator[tuple[int, BlockHeader, bytes]] | None = None
        self._walk_descriptor = -1

    def prepare(self, segment: int) -> None:
        """Makes the segment that will be needed next, while there is time."""
        try:
            self._files.prepare(segment)
        except OSError as error:
            self._trouble("room", f"no room for segment {segment} and a spare: {error}")
        else:
            self._trouble("room", "")

    def spill(self, segment: int, entries: list[bytes]) -> None:
        if self._spoiled == segment:
            return
        try:
            self._writer_of(segment).add(entries)
        except OSError as error:
            self._index_failed(segment, error)

    def seal(self, segment: int, entries: list[bytes] | None, totals: Totals) -> None:
        """Gives back the room the segment did not need, then writes its index. Without the index the segment is read on opening."""
        try:
            descriptor = self._files.take(segment)
            self._disk.truncate(descriptor, totals.segment_bytes)
            self._disk.fsync(descriptor)
            self._files.put_back(segment)
            if entries is None or self._spoiled == segment:
                self._index_by_reading(segment, totals)
            else:
                writer = self._writer_of(segment)
                writer.add(entries)
                writer.finish(totals)
                self._writer = None
        except OSError as error:
            self._index_failed(segment, error)
        except Corrupt as error:
            self._trouble("damage", str(error))
        else:
            self._trouble("index", "")

    def _writer_of(self, segment: int) -> IndexWriter:
        if self._writer is None or self._writer_segment != segment:
            self._drop_writer()
            self._writer = IndexWriter(self._disk, self._files.index_path(segment), segment, self._files.manifest.store_id)
            self._writer_segment = segment
        return self._writer

    def _drop_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _index_failed(self, segment: int, error: OSError) -> None:
        self._drop_writer()
        self._files.drop_unfinished_index(segment)
        self._spoiled = segment
        self._trouble("index", f"no index for segment {segment}: {error}")

    def _index_by_reading(self, segment: int, totals: Totals) -> None:
        descriptor = self._files.open_segment(segment, os.O_RDONLY)
        writer = IndexWriter(self._disk, self._files.index_path(segment), segment, self._files.manifest.store_id)
        try:
            blocks = scan_blocks(self._disk, descriptor, self._files.seed, segment, totals.first_number, SEGMENT_HEADER_BYTES)
            for offset, header, payload in blocks:
                heads, keys, _ = columns_of(payload, header.count)
                writer.add([pack_entry(header.number, offset, header.count, header.payload_bytes, header.crc, heads, keys)])
            writer.finish(totals)
        except BadBlock as bad:
            raise Corrupt(f"{self._files.path(segment)}: {bad}") from bad
        except ValueError as error:
            raise Corrupt(f"{self._files.path(segment)}: {error}") from error
        finally:
            writer.close()
            self._disk.close(descriptor)

    def read_blocks(self, segment: int, first_number: int, bytes_wanted: int, begin: bool) -> list[tuple[int, int, bytes]]:
        """The next blocks of the segment being compacted, as (offset, record count, payload); none at its end."""
        if begin:
            self.end_walk()
            self._walk_descriptor = self._files.open_segment(segment, os.O_RDONLY)
            self._walk = scan_blocks(self._disk, self._walk_descriptor, self._files.seed, segment, first_number, SEGMENT_HEADER_BYTES)
        blocks: list[tuple[int, int, bytes]] = []
        if self._walk is None:
            return blocks
        size = 0
        try:
            for offset, header, payload in self._walk:
                blocks.append((offset, header.count, payload))
                size += BLOCK_BYTES + header.payload_bytes
                if size >= bytes_wanted:
                    return blocks
        except BadBlock as bad:
            raise Corrupt(f"{self._files.path(segment)}: {bad}") from bad
        if not blocks:
            self.end_walk()
        return blocks

    def end_walk(self) -> None:
        if self._walk_descriptor >= 0:
            descriptor, self._walk_descriptor = self._walk_descriptor, -1
            self._walk = None
            self._disk.close(descriptor)

    def close(self) -> None:
        self.end_walk()
        self._drop_writer()
