"""Index files of sealed segments: everything of each record but its body, so that a restart need not read the bodies."""

from __future__ import annotations

import os
from collections.abc import Iterator
from struct import Struct
from typing import Final

from tandem.stores.blocks import GUARD, READABLE, RECORD, RECORD_BYTES, SEGMENT_HEADER_BYTES, VERSION
from tandem.stores.checksum import crc32
from tandem.stores.disk import Disk, write_fully

INDEX_MAGIC: Final = b"TANDEMIX"
FOOTER_MAGIC: Final = b"TANDEMIE"
_HEADER: Final = Struct("<8sHHI16s")
"""magic, version, header bytes, segment, store id."""
HEADER_BYTES: Final = 32
ENTRY: Final = Struct("<QIIIII")
"""block number, offset of the block, record count, payload bytes, bytes of keys, CRC of the block. Record headers, then keys, follow."""
_pack_entry: Final = ENTRY.pack
ENTRY_BYTES: Final = 28
_FOOTER: Final = Struct("<8sQQQQQQIII")
"""magic, blocks, records, records with a body, bytes of bodies, first and last block number, segment bytes, last block's offset and CRC."""
_U32: Final = Struct("<I")
FOOTER_BYTES: Final = 72
CHUNK_BYTES: Final = 1_048_576


class BadIndex(Exception):
    """The index cannot be used; the segment itself has to be read."""


class SegmentTotals:
    """What an index says about its segment as a whole."""

    __slots__ = ("blocks", "bodies", "body_bytes", "first_number", "last_crc", "last_number", "last_offset", "records", "segment_bytes")

    def __init__(self) -> None:
        self.blocks: int = 0
        self.records: int = 0
        self.bodies: int = 0
        self.body_bytes: int = 0
        self.first_number: int = 0
        self.last_number: int = 0
        self.segment_bytes: int = 0
        self.last_offset: int = 0
        self.last_crc: int = 0

    def read(self, footer: bytes) -> None:
        """Of an index."""
        (
            _,
            self.blocks,
            self.records,
            self.bodies,
            self.body_bytes,
            self.first_number,
            self.last_number,
            self.segment_bytes,
            self.last_offset,
            self.last_crc,
        ) = _FOOTER.unpack_from(footer)

    def begin(self) -> None:
        """An empty segment: its header alone."""
        self.segment_bytes = SEGMENT_HEADER_BYTES

    def add(self, number: int, offset: int, end: int, crc: int, records: int, bodies: int, body_bytes: int) -> None:
        if self.blocks == 0:
            self.first_number = number
        self.blocks += 1
        self.records += records
        self.bodies += bodies
        self.body_bytes += body_bytes
        self.last_number = number
        self.segment_bytes = end
        self.last_offset = offset
        self.last_crc = crc


def pack_entry(number: int, offset: int, count: int, payload_bytes: int, crc: int, heads: bytes, keys: bytes) -> bytes:
    return _pack_entry(number, offset, count, payload_bytes, len(keys), crc) + heads + keys


def pack_columns(number: int, offset: int, count: int, payload_bytes: int, key_bytes: int, crc: int, parts: list[bytes]) -> bytes:
    """The same of a block that was just written: `parts` are head, key and body of each record, in turn."""
    columns = [_pack_entry(number, offset, count, payload_bytes, key_bytes, crc)]
    columns += parts[::3]
    columns += parts[1::3]
    return b"".join(columns)


class IndexWriter:
    """Grows beside its segment under a temporary name; gets its own name only when it is whole and durable."""

    def __init__(self, disk: Disk, path: str, segment: int, store_id: bytes) -> None:
        self._disk = disk
        self._path = path
        self._descriptor = disk.open(path + ".tmp", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self._offset = 0
        self._crc = 0
        self._blocks = 0
        self._write(_HEADER.pack(INDEX_MAGIC, VERSION, HEADER_BYTES, segment, store_id))

    def add(self, entries: list[bytes]) -> None:
        """One entry per block."""
        self._write(b"".join(entries))
        self._blocks += len(entries)

    def finish(self, totals: SegmentTotals) -> None:
        if self._blocks != totals.blocks:
            raise BadIndex(f"has {self._blocks} of {totals.blocks} blocks")
        self._write(
            _FOOTER.pack(
                FOOTER_MAGIC,
                totals.blocks,
                totals.records,
                totals.bodies,
                totals.body_bytes,
                totals.first_number,
                totals.last_number,
                totals.segment_bytes,
                totals.last_offset,
                totals.last_crc,
            )
        )
        self._write(_U32.pack(self._crc))
        self._disk.fsync(self._descriptor)
        self.close()
        self._disk.rename(self._path + ".tmp", self._path)
        self._disk.sync_directory(os.path.dirname(self._path))

    def close(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            self._disk.close(descriptor)

    def _write(self, content: bytes) -> None:
        write_fully(self._disk, self._descriptor, [content], self._offset)
        self._offset += len(content)
        self._crc = crc32(content, self._crc)


class IndexReader:
    """An index whose checksum, identity and footer were found right."""

    def __init__(self, disk: Disk, path: str, segment: int, store_id: bytes) -> None:
        self._disk = disk
        self._descriptor = disk.open(path, os.O_RDONLY)
        try:
            self._end = self._check(segment, store_id)
        except BaseException:
            disk.close(self._descriptor)
            raise

    def close(self) -> None:
        self._disk.close(self._descriptor)

    def _check(self, segment: int, store_id: bytes) -> int:
        end = self._disk.size(self._descriptor) - FOOTER_BYTES
        if end < HEADER_BYTES:
            raise BadIndex("too short")
        crc = 0
        at = 0
        while at < end + FOOTER_BYTES - 4:
            part = self._disk.pread(self._descriptor, min(CHUNK_BYTES, end + FOOTER_BYTES - 4 - at), at)
            if not part:
                raise BadIndex("shorter than it says")
            crc = crc32(part, crc)
            at += len(part)
        footer = self._disk.pread(self._descriptor, FOOTER_BYTES, end)
        if _U32.unpack_from(footer, FOOTER_BYTES - 4)[0] != crc:
            raise BadIndex("fails its checksum")
        magic, version, _, found_segment, found_store = _HEADER.unpack(self._disk.pread(self._descriptor, HEADER_BYTES, 0))
        if magic != INDEX_MAGIC or version not in READABLE or footer[:8] != FOOTER_MAGIC:
            raise BadIndex("not an index of this format")
        if found_segment != segment or found_store != store_id:
            raise BadIndex(f"is of segment {found_segment} of store {found_store.hex()}")
        totals = SegmentTotals()
        totals.read(footer)
        self.totals = totals
        return end

    def entries(self) -> Iterator[tuple[int, int, int, bytes, bytes]]:
        """(block number, offset, payload bytes, record headers, keys) of each block."""
        buffer = b""
        position = 0
        at = HEADER_BYTES
        while True:
            need = ENTRY_BYTES
            if len(buffer) - position >= ENTRY_BYTES:
                number, offset, count, payload_bytes, key_bytes, _ = ENTRY.unpack_from(buffer, position)
                need += count * RECORD_BYTES + key_bytes
            if len(buffer) - position < need:
                if at >= self._end:
                    if position == len(buffer):
                        return
                    raise BadIndex("ends inside an entry")
                more = self._disk.pread(self._descriptor, min(max(CHUNK_BYTES, need), self._end - at), at)
                at += len(more)
                buffer = buffer[position:] + more
                position = 0
                continue
            heads_at = position + ENTRY_BYTES
            keys_at = heads_at + count * RECORD_BYTES
            position += need
            yield number, offset, payload_bytes, buffer[heads_at:keys_at], buffer[keys_at:position]


def columns_of(payload: bytes, count: int) -> tuple[bytes, bytes, int, int]:
    """(record headers, keys, facts with a body, bytes of bodies) of a block; ValueError if the records do not fill it exactly."""
    heads: list[bytes] = []
    keys: list[bytes] = []
    bodies = body_bytes = 0
    position = 0
    end = len(payload)
    unpack = RECORD.unpack_from
    for _ in range(count):
        key_at = position + RECORD_BYTES
        if key_at > end:
            raise ValueError("the records do not fill the block")
        fields = unpack(payload, position)
        heads.append(payload[position:key_at])
        body_at = key_at + fields[6]
        keys.append(payload[key_at:body_at])
        if fields[7] and fields[0] != GUARD:
            bodies += 1
            body_bytes += fields[7]
        position = body_at + fields[7]
    if position != end:
        raise ValueError("the records do not fill the block")
    return b"".join(heads), b"".join(keys), bodies, body_bytes
