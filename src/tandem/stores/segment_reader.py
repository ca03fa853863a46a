"""One segment file read on its own, from outside the store that may be writing it at this moment."""

from __future__ import annotations

import os
from collections.abc import Iterator

from tandem.model.errors import ConfigurationError
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
from tandem.stores.scan import block_is_whole, find_later_block, scan_blocks
from tandem.stores.segment_files import MANIFEST, Manifest, decode_manifest
from tandem.stores.segment_index import columns_of


class SegmentReader:
    """One segment, read on its own: the header says which store it is of."""

    def __init__(self, disk: Disk, path: str) -> None:
        self.path = path
        self.disk = disk
        self.descriptor = disk.open(path, os.O_RDONLY)
        try:
            self.header: SegmentHeader = parse_segment_header(disk.pread(self.descriptor, SEGMENT_HEADER_BYTES, 0), path)
        except BaseException:
            disk.close(self.descriptor)
            raise
        self.seed = seed_of(self.header.store_id)
        self.end = SEGMENT_HEADER_BYTES
        self.number = 0
        """Of the block expected next; 0 before the first."""

    def close(self) -> None:
        self.disk.close(self.descriptor)

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
                heads, keys, _ = columns_of(payload, header.count)
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


def read_manifest(disk: Disk, directory: str) -> Manifest:
    path = f"{directory}/{MANIFEST}"
    try:
        return decode_manifest(read_file(disk, path), path)
    except FileNotFoundError as error:
        raise ConfigurationError(f"{directory}: not a store: {MANIFEST} is missing") from error
