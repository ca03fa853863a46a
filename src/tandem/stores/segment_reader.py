"""One segment file read on its own, from outside the store that may be writing it at this moment."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from tandem.model.clock import SystemClock
from tandem.model.errors import ConfigurationError, Corrupt
from tandem.stores.blocks import (
    BLOCK_BYTES,
    SEGMENT_HEADER_BYTES,
    BadBlock,
    Damage,
    SegmentHeader,
    parse_block_header,
    parse_segment_header,
    seed_of,
)
from tandem.stores.disk import Disk, read_file
from tandem.stores.salvage import first_number, salvage
from tandem.stores.scan import block_is_whole, find_later_block, scan_blocks
from tandem.stores.segment_files import AUDIT, MANIFEST, Manifest, SegmentFiles, read_manifest_file
from tandem.stores.segment_index import columns_of


class SegmentReader:
    """One segment, read on its own: the header says which store it is of."""

    def __init__(self, disk: Disk, path: str) -> None:
        self.path = path
        self.disk = disk
        self.doubt = ""
        """What is wrong with the header, if anything."""
        self.descriptor = disk.open(path, os.O_RDONLY)
        try:
            self.header: SegmentHeader = self._read_header()
        except BaseException:
            disk.close(self.descriptor)
            raise
        self.seed = seed_of(self.header.store_id)
        self.end = SEGMENT_HEADER_BYTES
        self.number = 0
        """Of the block expected next; 0 before the first."""

    def _read_header(self) -> SegmentHeader:
        """All that it says stands elsewhere too: where it is damaged, manifest, name and first block are believed."""
        raw = self.disk.pread(self.descriptor, SEGMENT_HEADER_BYTES + BLOCK_BYTES, 0)
        try:
            return parse_segment_header(raw[:SEGMENT_HEADER_BYTES], self.path)
        except Corrupt as error:
            directory, name = os.path.split(self.path)
            directory = os.path.dirname(directory) if os.path.basename(directory) == AUDIT else directory
            try:
                store_id = read_manifest(self.disk, directory).store_id
            except ConfigurationError:
                store_id = b""
            first = parse_block_header(raw[SEGMENT_HEADER_BYTES:], seed_of(store_id))
            if first is None or name[:10] != f"{first.segment:010d}":
                raise
            self.doubt = error.description
            return SegmentHeader(first.segment, store_id, 0, 0)

    def close(self) -> None:
        self.disk.close(self.descriptor)

    def blocks_past_damage(self, told: Callable[[int, str], None]) -> Iterator[tuple[int, int, bytes, bytes, bytes]]:
        """The same as `blocks`, but what is damaged and can be restored is yielded too; `told` gets offset and reason of what cannot."""
        while True:
            try:
                yield from self.blocks(self.number)
                return
            except Damage as bad:
                damage = bad
            source = _Source(self)
            number = self.number or first_number(source, self.descriptor, self.header.segment)
            saved = salvage(source, self.descriptor, self.header.segment, number, damage)
            if saved is not None:
                heads, keys, _, _ = columns_of(saved.payload, saved.count)
                yield damage.offset, number, saved.payload, heads, keys
                self.end, self.number = saved.end, number + 1
                continue
            told(damage.offset, damage.reason)
            later = find_later_block(self.disk, self.descriptor, self.seed, self.header.segment, self.number, damage.offset + 1)
            if later < 0:
                return
            self.end, self.number = later, 0

    def blocks(self, number: int = 0) -> Iterator[tuple[int, int, bytes, bytes, bytes]]:
        """(offset, block number, payload, record headers, keys) of each whole block.

        Raises Damage at a bad block with good ones at or behind its place, BadBlock at a tail that a crash, or a writer at work, may leave.
        """
        self.number = number
        suspect = -1
        while True:
            try:
                yield from self._scan()
                return
            except BadBlock as bad:
                if not self._more_behind(bad.offset):
                    raise
                if bad.offset == suspect:
                    raise Damage(bad.offset, bad.reason) from bad
                suspect = bad.offset  # a live writer may have finished it between two looks; damage is still there at the third

    def _scan(self) -> Iterator[tuple[int, int, bytes, bytes, bytes]]:
        for offset, header, payload in scan_blocks(self.disk, self.descriptor, self.seed, self.header.segment, self.number, self.end):
            try:
                heads, keys, _, _ = columns_of(payload, header.count)
            except ValueError as error:
                raise BadBlock(offset, str(error)) from error
            self.end = offset + BLOCK_BYTES + header.payload_bytes
            self.number = header.number + 1
            yield offset, header.number, payload, heads, keys

    def _more_behind(self, offset: int) -> bool:
        header = parse_block_header(self.disk.pread(self.descriptor, BLOCK_BYTES, offset), self.seed)
        if header is not None and block_is_whole(self.disk, self.descriptor, self.seed, header, offset):
            return True
        return find_later_block(self.disk, self.descriptor, self.seed, self.header.segment, self.number, offset) >= 0


class _Source(SegmentFiles):
    """One file, as whoever salvages it wants to see it."""

    def __init__(self, file: SegmentReader) -> None:
        super().__init__(os.path.dirname(file.path), file.disk, SystemClock(), 0)
        self._path = file.path
        self.seed = file.seed
        self.manifest = Manifest(file.header.store_id, file.header.segment, file.header.segment, 0)

    def path(self, segment: int) -> str:
        return self._path


def read_manifest(disk: Disk, directory: str, told: Callable[[str], None] = lambda damage: None) -> Manifest:
    path = f"{directory}/{MANIFEST}"
    try:
        manifest, damage = read_manifest_file(read_file(disk, path), path)
        if damage:
            told(damage)
        return manifest
    except FileNotFoundError as error:
        raise ConfigurationError(f"{directory}: not a store: {MANIFEST} is missing") from error
