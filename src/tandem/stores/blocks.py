"""The bytes of a segment: file header, blocks, records. docs/internals/journal-format.md says the same in prose."""

from __future__ import annotations

from struct import Struct
from typing import Final

from tandem.model.errors import Corrupt, StoreUnavailable
from tandem.stores.checksum import crc32

RECORD: Final = Struct("<BBIQQQIII")
"""kind, flags, entity, seq, at, aux, key bytes, body bytes, CRC of the body. Key and body follow."""
RECORD_BYTES: Final = 42

GUARD: Final = 255
"""The kind of the last record of a block, which guards the others; facts never have it."""

BLOCK_MAGIC: Final = b"TBLK"
_FIELDS: Final = Struct("<IQII")
"""segment, block number, record count, payload bytes."""
_U32: Final = Struct("<I")
_pack_fields: Final = _FIELDS.pack
_pack_covered: Final = Struct("<I20s").pack
_pack_header: Final = Struct("<4sI24s").pack
_crc32: Final = crc32
BLOCK_BYTES: Final = 32
"""Magic, CRC of all that follows it, CRC of the fields alone, fields."""

SEGMENT_MAGIC: Final = b"TANDEMSG"
_SEGMENT: Final = Struct("<8sHHI16sQQ12x")
"""magic, version, header bytes, segment, store id, created at, bytes allocated. A CRC of it follows."""
SEGMENT_HEADER_BYTES: Final = 64
VERSION: Final = 2
"""Written. Segments, indexes and manifests of format 1 are read too: their blocks have no guard, their manifest stands there once."""
READABLE: Final = (1, 2)

OFFSET_MAX: Final = 0xFFFF_FFFF
SEGMENT_MAX: Final = 0x7FFF_FFFF
SCAN_BYTES: Final = 4_194_304


def newer_format(path: str, version: int) -> StoreUnavailable:
    """Nothing is damaged: whoever wrote it can read it."""
    return StoreUnavailable(
        f"{path}: written by a newer Tandem (format {version}; this one reads up to {VERSION}). Start that one again, or restore a backup"
    )


class BadBlock(Exception):
    """No valid block where one was expected."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"offset {offset}: {reason}")
        self.offset = offset
        self.reason = reason


class Damage(BadBlock):
    """A bad block, and good ones after it: no crash leaves that."""


def seed_of(store_id: bytes) -> int:
    """Checksums start from the store's id: a block of another store, or one quoted in a message, is never taken for ours."""
    return crc32(store_id)


def pack_block_header(seed: int, segment: int, number: int, count: int, payload: bytes) -> bytes:
    fields = _pack_fields(segment, number, count, len(payload))
    covered = _pack_covered(_crc32(fields, seed), fields)
    return _pack_header(BLOCK_MAGIC, _crc32(payload, _crc32(covered, seed)), covered)


class BlockHeader:
    """Verified: its own checksum was right."""

    __slots__ = ("count", "covered", "crc", "number", "payload_bytes", "segment")

    def __init__(self, crc: int, covered: bytes, segment: int, number: int, count: int, payload_bytes: int) -> None:
        self.crc: int = crc
        self.covered: bytes = covered
        self.segment: int = segment
        self.number: int = number
        self.count: int = count
        self.payload_bytes: int = payload_bytes


def parse_block_header(raw: bytes, seed: int) -> BlockHeader | None:
    if len(raw) < BLOCK_BYTES or raw[:4] != BLOCK_MAGIC:
        return None
    fields = raw[12:BLOCK_BYTES]
    if crc32(fields, seed) != _U32.unpack_from(raw, 8)[0]:
        return None
    segment, number, count, payload_bytes = _FIELDS.unpack(fields)
    return BlockHeader(_U32.unpack_from(raw, 4)[0], raw[8:BLOCK_BYTES], segment, number, count, payload_bytes)


def payload_is_whole(header: BlockHeader, payload: bytes, seed: int) -> bool:
    return len(payload) == header.payload_bytes and crc32(payload, crc32(header.covered, seed)) == header.crc


def pack_segment_header(segment: int, store_id: bytes, created_at: int, allocated: int) -> bytes:
    head = _SEGMENT.pack(SEGMENT_MAGIC, VERSION, SEGMENT_HEADER_BYTES, segment, store_id, created_at, allocated)
    return head + _U32.pack(crc32(head))


class SegmentHeader:
    __slots__ = ("allocated", "created_at", "segment", "store_id")

    def __init__(self, segment: int, store_id: bytes, created_at: int, allocated: int) -> None:
        self.segment: int = segment
        self.store_id: bytes = store_id
        self.created_at: int = created_at
        self.allocated: int = allocated


def segment_version(raw: bytes) -> int | None:
    """The format that a segment's header names, whoever wrote it; None: it has no header yet."""
    if len(raw) < SEGMENT_HEADER_BYTES or not raw.startswith(SEGMENT_MAGIC):
        return None
    version: int = _SEGMENT.unpack(raw[: SEGMENT_HEADER_BYTES - 4])[1]
    return version


def parse_segment_header(raw: bytes, path: str) -> SegmentHeader:
    if len(raw) < SEGMENT_HEADER_BYTES:
        raise Corrupt(f"{path}: offset 0: {len(raw)} bytes, too short for a segment's header")
    head = raw[: SEGMENT_HEADER_BYTES - 4]
    if crc32(head) != _U32.unpack_from(raw, SEGMENT_HEADER_BYTES - 4)[0]:
        raise Corrupt(f"{path}: offset 0: the segment's header fails its checksum")
    magic, version, _, segment, store_id, created_at, allocated = _SEGMENT.unpack(head)
    if magic == SEGMENT_MAGIC and version > VERSION:
        raise newer_format(path, version)
    if magic != SEGMENT_MAGIC or version not in READABLE:
        raise Corrupt(f"{path}: offset 0: not a segment of format {VERSION} or earlier (found {magic!r}, format {version})")
    return SegmentHeader(segment, store_id, created_at, allocated)
