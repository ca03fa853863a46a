"""What a damaged block still holds: every record that can be proved to be as it was written, and which bodies are lost."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from struct import error as StructError
from typing import Final

from tandem.broker import facts
from tandem.model.errors import Corrupt
from tandem.model.message import damaged_body
from tandem.stores.blocks import (
    BLOCK_BYTES,
    GUARD,
    RECORD,
    RECORD_BYTES,
    SEGMENT_HEADER_BYTES,
    BadBlock,
    pack_block_header,
    parse_block_header,
)
from tandem.stores.checksum import crc32
from tandem.stores.guard import find_foot
from tandem.stores.scan import damaged_bodies, read_exactly, scan_blocks
from tandem.stores.segment_files import SegmentFiles
from tandem.stores.segment_index import BadIndex, IndexReader

MESSAGES: Final = (facts.ENQUEUED, facts.PUBLISHED)
REPAIR: Final = "`tandem store repair` saves what can be read, and says what cannot"


class Salvaged:
    """One block. `payload` has the bytes of its records, `damaged` says where in it records stand whose bodies must not be believed."""

    __slots__ = ("bare", "count", "crc", "damaged", "end", "payload", "told")

    def __init__(self, payload: bytes, count: int, crc: int, damaged: list[int], end: int, told: str = "", bare: bool = False) -> None:
        self.payload = payload
        self.bare: bool = bare
        """Its bodies were not read: `payload` has the heads of all records, then all keys, as an index has them."""
        self.count = count
        self.crc = crc
        self.damaged: frozenset[int] = frozenset(damaged)
        self.end = end
        """Offset behind the block."""
        self.told = told
        """One line, if more than bodies of messages was damaged: where, and what became of it."""


def salvage(files: SegmentFiles, descriptor: int, segment: int, number: int, bad: BadBlock) -> Salvaged | None:
    """All of block `number`, which is not whole, that can be proved. None if heads or keys are lost."""
    itself = _by_itself(files, descriptor, number, bad.offset)
    if itself is not None and all(itself.payload[at] in MESSAGES for at in itself.damaged):
        return itself
    where = f"{files.path(segment)}: offset {bad.offset}: damaged ({bad.reason})"
    found = _by_guard(files, descriptor, segment, number, bad.offset)
    if found is not None:
        found.told = f"{where}: all but bodies of messages was restored"
        return found
    if itself is not None:
        return itself
    found = _by_index(files, descriptor, segment, number)
    if found is not None:
        found.told = f"{where}: heads and keys were taken from the index"
    return found


def _by_guard(files: SegmentFiles, descriptor: int, segment: int, number: int, offset: int) -> Salvaged | None:
    disk = files.disk
    header = parse_block_header(disk.pread(descriptor, BLOCK_BYTES, offset), files.seed)
    known = header is not None and header.segment == segment and header.number == number
    payload_bytes = header.payload_bytes if known and header is not None else 0
    foot = find_foot(disk, descriptor, files.seed, segment, number, offset, payload_bytes)
    if foot is None:
        return None
    payload = foot.restore(read_exactly(disk, descriptor, foot.payload_bytes, offset + BLOCK_BYTES))
    if payload is None:
        return None
    crc = int.from_bytes(pack_block_header(files.seed, segment, number, foot.count + 1, payload)[4:8], "little")
    damaged = [at for at, record in _records(payload, foot.count) if crc32(_body(payload, at, record)) != record[8]]
    return Salvaged(payload, foot.count + 1, crc, damaged, offset + BLOCK_BYTES + foot.payload_bytes)


def _records(payload: bytes, count: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """(where, head) of each."""
    at = 0
    for _ in range(count):
        record = RECORD.unpack_from(payload, at)
        yield at, record
        at += RECORD_BYTES + record[6] + record[7]


def _body(payload: bytes, at: int, record: tuple[int, ...]) -> bytes:
    body_at = at + RECORD_BYTES + record[6]
    return payload[body_at : body_at + record[7]]


def _by_itself(files: SegmentFiles, descriptor: int, number: int, offset: int) -> Salvaged | None:
    """By the block's own checksum: heads and keys are proved, bodies prove themselves. None if more is damaged than bodies."""
    disk = files.disk
    header = parse_block_header(disk.pread(descriptor, BLOCK_BYTES, offset), files.seed)
    if header is None or header.number != number:
        return None
    payload = read_exactly(disk, descriptor, header.payload_bytes, offset + BLOCK_BYTES)
    damaged = damaged_bodies(header, payload, files.seed) if len(payload) == header.payload_bytes else None
    if damaged is None:
        return None
    told = ""
    if damaged and payload[damaged[-1]] == GUARD:
        where = f"{files.path(header.segment)}: offset {offset + BLOCK_BYTES + damaged.pop()}"
        told = f"{where}: the guard of block {number} is damaged: nothing is lost"
    return Salvaged(payload, header.count, header.crc, damaged, offset + BLOCK_BYTES + header.payload_bytes, told)


def _by_index(files: SegmentFiles, descriptor: int, segment: int, number: int) -> Salvaged | None:
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


def walk_segment(files: SegmentFiles, segment: int, beginning: int = 0) -> Generator[tuple[int, Salvaged], None, None]:
    """(offset, block) of each block of a segment; Corrupt where even salvage ends. With number 0 whichever comes first.

    Who gives it up before its end closes it: its file stays open until then.
    """
    descriptor = files.open_segment(segment, os.O_RDONLY)
    try:
        offset, number = SEGMENT_HEADER_BYTES, beginning or first_number(files, descriptor, segment)
        while True:
            try:
                for at, header, payload in scan_blocks(files.disk, descriptor, files.seed, segment, number, offset):
                    offset, number = at + BLOCK_BYTES + header.payload_bytes, header.number + 1
                    yield at, Salvaged(payload, header.count, header.crc, [], offset)
                return
            except BadBlock as bad:
                saved = salvage(files, descriptor, segment, number, bad)
                bad_at = bad.offset
                if saved is None:
                    raise Corrupt(f"{files.path(segment)}: {bad}. {REPAIR}") from bad
            yield bad_at, saved
            offset, number = saved.end, number + 1
    finally:
        files.disk.close(descriptor)


def first_number(files: SegmentFiles, descriptor: int, segment: int) -> int:
    """Of the first block, or if its header is damaged, as its guard has it; 0 if nobody knows."""
    header = parse_block_header(files.disk.pread(descriptor, BLOCK_BYTES, SEGMENT_HEADER_BYTES), files.seed)
    if header is not None and header.segment == segment:
        return header.number
    foot = find_foot(files.disk, descriptor, files.seed, segment, 0, SEGMENT_HEADER_BYTES, 0)
    return foot.number if foot is not None else 0


def lost_body(where: str, kind: int, entity: int, seq: int, key: bytes) -> str:
    """One line: whose body fails its checksum. Numbers are not enough for whoever has to send it again."""
    if kind == facts.PREPARED:
        return (
            f"{where}: the share of a transaction fails its checksum: if it was committed, messages that it settled in this store "
            "are available again, and those that it sent to it are lost"
        )
    if kind not in MESSAGES:
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
    """What goes on in place of a body that is damaged: nothing, for a share of a transaction; Corrupt for what nothing can stand for."""
    if kind == facts.PREPARED:
        return b""
    if kind not in MESSAGES:
        raise Corrupt(f"{where}: the body of a record of kind {facts.KIND_NAMES.get(kind, str(kind))} fails its checksum. {REPAIR}")
    message_id, session_id = _names_in(key)
    return damaged_body(message_id, session_id, f"{where}: the body fails its checksum")
