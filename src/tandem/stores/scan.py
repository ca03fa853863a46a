"""Reading segments block by block, and telling a torn tail from damage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tandem.stores.blocks import (
    BLOCK_BYTES,
    BLOCK_MAGIC,
    RECORD,
    RECORD_BYTES,
    BadBlock,
    BlockHeader,
    parse_block_header,
    payload_is_whole,
)
from tandem.stores.checksum import crc32
from tandem.stores.disk import Disk

CHUNK_BYTES: Final = 1_048_576
SECTOR_BYTES: Final = 512
"""The least that a disk writes whole."""
_ZEROS: Final = bytes(CHUNK_BYTES)


def read_exactly(disk: Disk, descriptor: int, size: int, offset: int) -> bytes:
    """As many bytes as the file has, up to `size`: a read may return less than it could."""
    raw = disk.pread(descriptor, size, offset)
    while len(raw) < size:
        more = disk.pread(descriptor, size - len(raw), offset + len(raw))
        if not more:
            break
        raw += more
    return raw


def scan_blocks(disk: Disk, descriptor: int, seed: int, segment: int, number: int, offset: int) -> Iterator[tuple[int, BlockHeader, bytes]]:
    """(offset, header, payload) of each block from `offset` on, numbered from `number`; ends at the end of the file or where only
    zeros follow, raises BadBlock at anything else. Pass number 0 to accept whatever number comes first."""
    size = disk.size(descriptor)
    buffer = b""
    position = 0
    while offset < size:
        if len(buffer) - position < BLOCK_BYTES:
            buffer = read_exactly(disk, descriptor, CHUNK_BYTES, offset)
            position = 0
        header = parse_block_header(buffer[position : position + BLOCK_BYTES], seed)
        if header is None:
            if not any(buffer[position : position + BLOCK_BYTES]) and only_zeros(disk, descriptor, offset):
                return
            raise BadBlock(offset, "no valid block header")
        if header.segment != segment:
            raise BadBlock(offset, f"a block of segment {header.segment}")
        if number and header.number != number:
            raise BadBlock(offset, f"block {header.number} where block {number} was expected")
        length = BLOCK_BYTES + header.payload_bytes
        if offset + length > size:
            raise BadBlock(offset, f"block {header.number} is cut off: {offset + length - size} bytes are missing")
        if len(buffer) - position < length:
            buffer = read_exactly(disk, descriptor, max(CHUNK_BYTES, length), offset)
            position = 0
        payload = buffer[position + BLOCK_BYTES : position + length]
        if not payload_is_whole(header, payload, seed):
            raise BadBlock(offset, f"block {header.number} fails its checksum")
        yield offset, header, payload
        offset += length
        position += length
        number = header.number + 1


def damaged_bodies(header: BlockHeader, payload: bytes, seed: int) -> list[int] | None:
    """Where in the payload the records stand whose bodies fail their checksums, if all the rest of the block is as it was written; None
    if it is not. The block's checksum is taken as if each of those bodies were whole, which its record's checksum allows:
    CRCs are linear, so crc(body, c) = crc(body, 0) ^ crc(zeros, c) ^ crc(zeros, 0) for as many zeros."""
    crc = crc32(header.covered, seed)
    found: list[int] = []
    at = 0
    end = len(payload)
    for _ in range(header.count):
        if at + RECORD_BYTES > end:
            return None
        _, _, _, _, _, _, key_bytes, body_bytes, body_crc = RECORD.unpack_from(payload, at)
        body_at = at + RECORD_BYTES + key_bytes
        after = body_at + body_bytes
        if after > end:
            return None
        crc = crc32(payload[at:body_at], crc)
        body = payload[body_at:after]
        if crc32(body) == body_crc:
            crc = crc32(body, crc)
        else:
            found.append(at)
            zeros = bytes(body_bytes)
            crc = body_crc ^ crc32(zeros, crc) ^ crc32(zeros)
        at = after
    return found if at == end and crc == header.crc else None


def only_zeros(disk: Disk, descriptor: int, offset: int) -> bool:
    at = offset
    while True:
        at = disk.next_data(descriptor, at)
        if at < 0:
            return True
        chunk = disk.pread(descriptor, CHUNK_BYTES, at)
        if not chunk:
            return True
        if chunk != (_ZEROS if len(chunk) == CHUNK_BYTES else bytes(len(chunk))):
            return False
        at += len(chunk)


def find_later_block(disk: Disk, descriptor: int, seed: int, segment: int, number: int, offset: int) -> int:
    """Where a good block with this number or a higher one stands at or after `offset`; -1 if there is none.

    Only one block is ever in flight, so what a crash tears has nothing good behind it.
    """
    size = disk.size(descriptor)
    at = offset
    while at < size:
        at = disk.next_data(descriptor, at)
        if at < 0:
            return -1
        chunk = read_exactly(disk, descriptor, CHUNK_BYTES, at)
        if len(chunk) < BLOCK_BYTES:
            return -1
        found = chunk.find(BLOCK_MAGIC)
        while found >= 0:
            if found + BLOCK_BYTES > len(chunk):
                break
            header = parse_block_header(chunk[found : found + BLOCK_BYTES], seed)
            fits = header is not None and header.segment == segment and header.number >= number
            if fits and header is not None and block_is_whole(disk, descriptor, seed, header, at + found):
                return at + found
            found = chunk.find(BLOCK_MAGIC, found + 1)
        # headers that straddle two chunks are looked at again
        at += len(chunk) - BLOCK_BYTES + 1
    return -1


def block_is_whole(disk: Disk, descriptor: int, seed: int, header: BlockHeader, offset: int) -> bool:
    if offset + BLOCK_BYTES + header.payload_bytes > disk.size(descriptor):
        return False
    return payload_is_whole(header, read_exactly(disk, descriptor, header.payload_bytes, offset + BLOCK_BYTES), seed)


def may_be_torn(disk: Disk, descriptor: int, header: BlockHeader | None, offset: int) -> bool:
    """Whether an interrupted write can have left this block: sectors reach the medium whole or not at all, and room that was reserved
    holds zeros until then. Without a valid header only the header itself can be looked at."""
    length = BLOCK_BYTES + (header.payload_bytes if header is not None else 0)
    raw = read_exactly(disk, descriptor, length, offset)
    if len(raw) < length or (header is None and length - raw.count(0) <= 1):
        return True  # the beginning of a block has more than one byte that is not zero: nothing was ever written here
    at = 0
    while at < length:
        end = min(length, at + SECTOR_BYTES - (offset + at) % SECTOR_BYTES)
        if not any(raw[at:end]):
            return True
        at = end
    return False
