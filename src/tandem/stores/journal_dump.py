"""What a store holds, fact by fact, read from outside whether a broker has it open or not."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from struct import error as StructError
from typing import Final

from tandem.broker import facts
from tandem.model.entity_json import kind_and_path_in
from tandem.model.errors import Corrupt
from tandem.stores.blocks import BLOCK_BYTES, GUARD, RECORD, RECORD_BYTES, SEGMENT_HEADER_BYTES, BadBlock
from tandem.stores.disk import Disk, LocalDisk
from tandem.stores.segment_files import AUDIT, segment_name
from tandem.stores.segment_reader import SegmentReader, read_manifest
from tandem.stores.verify import audit_names

DAMAGED: Final = "damaged"
"""The kind of a row that stands for facts that cannot be read: `text` says what is wrong there."""


def dump(directory: Path, disk: Disk | None = None, audit: bool = True, bodies: bool = False) -> Iterator[dict[str, object]]:
    """Every fact, oldest first, as a flat dict that JSON can carry. Goes on past damage, with a row of kind `damaged` in its place if
    something is lost by it; an unfinished tail just ends it."""
    disk = disk or LocalDisk()
    if audit:
        for name in audit_names(disk, f"{directory}/{AUDIT}"):
            yield from dump_segment(Path(f"{directory}/{AUDIT}/{name}"), disk, bodies)
    manifest = read_manifest(disk, str(directory))
    number = manifest.first_number
    segment = manifest.first
    while segment <= manifest.last:
        path = Path(f"{directory}/{segment_name(segment)}")
        try:
            first = _first_number(disk, path)
            if number and first > number and segment > manifest.first:
                # the segment before grew after it was read, and is full now: the rest of it comes first
                number = yield from _dump_from(path.with_name(segment_name(segment - 1)), disk, bodies, number)
            if number and first and first != number:
                yield _damage(segment, SEGMENT_HEADER_BYTES, f"{path}: block {first} where block {number} was expected")
                number = 0
            number = yield from _dump_from(path, disk, bodies, number)
        except FileNotFoundError:
            now = read_manifest(disk, str(directory))
            if segment < now.first:
                manifest = now  # compacted while we looked
                segment, number = now.first, now.first_number
                continue
            yield _damage(segment, 0, f"{path}: missing; the store has segments {now.first} to {now.last}")
            number = 0
        except Corrupt as error:
            yield _damage(segment, 0, error.description)
            number = 0
        segment += 1
        manifest = read_manifest(disk, str(directory))


def _damage(segment: int, offset: int, text: str) -> dict[str, object]:
    return {"kind": DAMAGED, "segment": segment, "offset": offset, "text": text}


def _first_number(disk: Disk, path: Path) -> int:
    """Of the first block that can be read; 0 if there is none."""
    file = SegmentReader(disk, str(path))
    try:
        for _, number, _, _, _ in file.blocks_past_damage(lambda offset, reason: None):
            return number
    except BadBlock:
        return 0  # it is being written
    finally:
        file.close()
    return 0


def _dump_from(path: Path, disk: Disk, bodies: bool, number: int) -> Generator[dict[str, object], None, int]:
    """The facts of block `number` and later; the number of the block that has to follow, 0 if nobody knows."""
    following = number
    for row in dump_segment(path, disk, bodies):
        block = row.get("block")
        if row["kind"] == DAMAGED:
            number = following = 0
            yield row
        elif isinstance(block, int) and block >= number:
            following = block + 1 if number else 0
            yield row
    return following


def dump_segment(path: Path, disk: Disk | None = None, bodies: bool = False) -> Iterator[dict[str, object]]:
    """The facts of one segment file: what a parallel reader gives to each of its tasks."""
    file = SegmentReader(disk or LocalDisk(), str(path))
    segment = file.header.segment
    lost: list[dict[str, object]] = []
    try:
        for offset, block, payload, heads, keys in file.blocks_past_damage(
            lambda offset, reason: lost.append(_damage(segment, offset, f"{path}: {reason}"))
        ):
            yield from lost
            lost.clear()
            at = key_at = 0
            for record in RECORD.iter_unpack(heads):
                if record[0] == GUARD:
                    break  # the last
                key = keys[key_at : key_at + record[6]]
                key_at += record[6]
                row = _row(record, key)
                row["segment"] = segment
                row["block"] = block
                row["offset"] = offset + BLOCK_BYTES + at
                body_at = at + RECORD_BYTES + record[6]
                at = body_at + record[7]
                if bodies:
                    row["body"] = payload[body_at:at].hex()
                yield row
    except BadBlock:
        pass  # a tail that a crash, or a writer at work, may leave
    finally:
        file.close()
    yield from lost


def _row(record: tuple[int, ...], key: bytes) -> dict[str, object]:
    kind, flags, entity, seq, at, aux, _, body_bytes, _ = record
    row: dict[str, object] = {
        "kind": facts.KIND_NAMES.get(kind, str(kind)),
        "flags": flags,
        "entity": entity >> 2,
        "sub_queue": entity & 3,
        "seq": seq,
        "at": at,
        "aux": aux,
        "key": key.hex(),
        "body_bytes": body_bytes,
    }
    if kind == facts.SETTLED:
        row["reason"] = facts.REASON_NAMES.get(flags, str(flags))
    elif kind == facts.ENQUEUED:
        try:
            message_id, session_id, count, _ = facts.read_enqueued(flags, key)
        except (ValueError, StructError):
            return row  # the key says it all, to whoever can read it
        row["message_id"] = facts.text_of(message_id)
        row["session_id"] = session_id
        row["delivery_count"] = count
    elif kind == facts.ENTITY and not facts.has_ended(flags):
        row["entity_kind"], row["path"] = kind_and_path_in(key.decode())
    return row
