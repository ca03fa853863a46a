"""What a damaged block still holds: every record that can be proved to be as it was written, and which bodies are lost."""

from __future__ import annotations

import os
from collections.abc import Iterator
from struct import error as StructError
from typing import Final

from tandem.broker import facts
from tandem.model.errors import Corrupt
from tandem.model.message import damaged_body
from tandem.stores.blocks import BLOCK_BYTES, RECORD, RECORD_BYTES, SEGMENT_HEADER_BYTES, BadBlock, parse_block_header
from tandem.stores.checksum import crc32
from tandem.stores.scan import damaged_bodies, read_exactly, scan_blocks
from tandem.stores.segment_files import SegmentFiles
from tandem.stores.segment_index import BadIndex, IndexReader

REPAIR: Final = "`tandem store repair` saves what can be read, and says what cannot"


class Salvaged:
    """One block. `payload` has the bytes of its records, `damaged` says where in it records stand whose bodies must not be believed."""

    __slots__ = ("count", "crc", "damaged", "end", "payload")

    def __init__(self, payload: bytes, count: int, crc: int, damaged: list[int], end: int) -> None:
        self.payload = payload
        self.count = count
        self.crc = crc
        self.damaged: frozenset[int] = frozenset(damaged)
        self.end = end
        """Offset behind the block."""


def salvage_block(files: SegmentFiles, descriptor: int, number: int, offset: int) -> Salvaged | None:
    """By the block's own checksum: heads and keys are proved, bodies prove themselves. None if more is damaged than bodies."""
    disk = files.disk
    header = parse_block_header(disk.pread(descriptor, BLOCK_BYTES, offset), files.seed)
    if header is None or header.number != number:
        return None
    payload = read_exactly(disk, descriptor, header.payload_bytes, offset + BLOCK_BYTES)
    damaged = damaged_bodies(header, payload, files.seed) if len(payload) == header.payload_bytes else None
    if damaged is None:
        return None
    return Salvaged(payload, header.count, header.crc, damaged, offset + BLOCK_BYTES + header.payload_bytes)


def salvage_by_index(files: SegmentFiles, descriptor: int, segment: int, number: int) -> Salvaged | None:
    """The index of a sealed segment has everything but the bodies once more."""
    try:
        index = IndexReader(files.disk, files.index_path(segment), segment, files.manifest.store_id)
    except (FileNotFoundError, BadIndex):
        return None
    try:
        for found, offset, payload_bytes, heads, keys in index.entries():
            if found == number:
                raw = read_exactly(files.disk, descriptor, payload_bytes, offset + BLOCK_BYTES)
                return _rebuilt(raw, heads, keys, offset + BLOCK_BYTES + payload_bytes)
    except BadIndex:
        return None
    finally:
        index.close()
    return None


def _rebuilt(raw: bytes, heads: bytes, keys: bytes, end: int) -> Salvaged:
    parts: list[bytes] = []
    damaged: list[int] = []
    at = key_at = head_at = 0
    for record in RECORD.iter_unpack(heads):
        body_at = at + RECORD_BYTES + record[6]
        after = body_at + record[7]
        body = raw[body_at:after]
        if len(body) < record[7] or crc32(body) != record[8]:
            damaged.append(at)
        parts += [heads[head_at : head_at + RECORD_BYTES], keys[key_at : key_at + record[6]], body.ljust(record[7], b"\0")]
        head_at += RECORD_BYTES
        key_at += record[6]
        at = after
    return Salvaged(b"".join(parts), len(heads) // RECORD_BYTES, 0, damaged, end)


def walk_sealed(files: SegmentFiles, segment: int, first_number: int) -> Iterator[tuple[int, Salvaged]]:
    """(offset, block) of each block of a segment that takes no more; Corrupt where even salvage ends."""
    descriptor = files.open_segment(segment, os.O_RDONLY)
    try:
        offset, number = SEGMENT_HEADER_BYTES, first_number
        while True:
            try:
                for at, header, payload in scan_blocks(files.disk, descriptor, files.seed, segment, number, offset):
                    offset, number = at + BLOCK_BYTES + header.payload_bytes, header.number + 1
                    yield at, Salvaged(payload, header.count, header.crc, [], offset)
                return
            except BadBlock as bad:
                saved = salvage_block(files, descriptor, number, bad.offset) or salvage_by_index(files, descriptor, segment, number)
                bad_at = bad.offset
                if saved is None:
                    raise Corrupt(f"{files.path(segment)}: {bad}. {REPAIR}") from bad
            yield bad_at, saved
            offset, number = saved.end, number + 1
    finally:
        files.disk.close(descriptor)


def lost_body(where: str, kind: int, entity: int, seq: int, key: bytes) -> str:
    """One line: whose body fails its checksum. Numbers are not enough for whoever has to send it again."""
    if kind not in (facts.ENQUEUED, facts.PUBLISHED):
        return f"{where}: the body of a record of kind {facts.KIND_NAMES.get(kind, str(kind))} fails its checksum"
    name = facts.text_of(_names_in(key)[0])
    return f"{where}: the body of message {seq} (id {name}) of entity {facts.id_of(entity)} fails its checksum: set aside"


def _names_in(key: bytes) -> tuple[bytes, str | None]:
    """Message id and session id; nothing when the key did not survive either."""
    try:
        message_id, session_id, _, _ = facts.read_enqueued(facts.HAS_SESSION, key)
    except (ValueError, StructError):
        return b"", None
    return message_id, session_id or None


def substitute(kind: int, key: bytes, where: str) -> bytes:
    """What goes on in place of a message's body that is damaged; Corrupt for facts that nothing can stand for."""
    if kind not in (facts.ENQUEUED, facts.PUBLISHED):
        raise Corrupt(f"{where}: the body of a record of kind {facts.KIND_NAMES.get(kind, str(kind))} fails its checksum. {REPAIR}")
    message_id, session_id = _names_in(key)
    return damaged_body(message_id, session_id, f"{where}: the body fails its checksum")
