"""Looking into a store from outside, live or stopped: is it whole, what does it hold, and a copy that opens."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from struct import error as StructError
from zlib import crc32

from tandem.broker import facts
from tandem.model.errors import ConfigurationError, Corrupt
from tandem.stores.blocks import (
    BLOCK_BYTES,
    RECORD,
    RECORD_BYTES,
    SEGMENT_HEADER_BYTES,
    BadBlock,
    Damage,
    SegmentHeader,
    parse_block_header,
    parse_segment_header,
    seed_of,
)
from tandem.stores.disk import Disk, read_file, write_file, write_fully
from tandem.stores.index import BadIndex, IndexReader, columns_of
from tandem.stores.scan import block_is_whole, find_later_block, only_zeros, scan_blocks
from tandem.stores.segment_files import AUDIT, MANIFEST, Manifest, decode_manifest, index_name, segment_name

_COPY_BYTES = 1_048_576


@dataclass(slots=True)
class VerifyReport:
    """`problems` is empty in a store that is whole. Each line names file and offset."""

    segments: int = 0
    audit_segments: int = 0
    blocks: int = 0
    records: int = 0
    bytes: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What is no damage but worth knowing: an unfinished block at the end, an index not written yet."""


class SegmentFile:
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


def verify(directory: Path, disk: Disk | None = None) -> VerifyReport:
    """Reads every byte. On a live store what is being written at this moment is a note, not a problem."""
    disk = disk or Disk()
    report = VerifyReport()
    try:
        manifest = read_manifest(disk, str(directory))
    except Corrupt as error:
        report.problems.append(error.description)
        return report
    number = manifest.first_number
    segment = manifest.first
    while segment <= manifest.last:
        path = f"{directory}/{segment_name(segment)}"
        try:
            file = SegmentFile(disk, path)
        except FileNotFoundError:
            manifest = read_manifest(disk, str(directory))
            if segment < manifest.first:  # compacted while we looked
                segment, number = manifest.first, manifest.first_number
                continue
            report.problems.append(f"{path}: missing; the store consists of segments {manifest.first} to {manifest.last}")
            number = 0
        except Corrupt as error:
            report.problems.append(error.description)
            number = 0
        else:
            try:
                number = _verify_segment(disk, directory, file, manifest, segment, number, report)
            finally:
                file.close()
            manifest = read_manifest(disk, str(directory))
        segment += 1
    _verify_audit(disk, directory, report)
    return report


def _verify_segment(
    disk: Disk, directory: Path, file: SegmentFile, manifest: Manifest, segment: int, number: int, report: VerifyReport
) -> int:
    """The number of the block that has to follow."""
    if file.header.store_id != manifest.store_id or file.header.segment != segment:
        report.problems.append(f"{file.path}: is segment {file.header.segment} of store {file.header.store_id.hex()}")
        return 0
    entries: dict[int, tuple[int, bytes, bytes]] = {}
    failed = _read_blocks(file, number, report, entries)
    if failed is not None:
        tail = segment == manifest.last or _is_empty(disk, f"{directory}/{segment_name(segment + 1)}")
        if isinstance(failed, Damage) or not tail:
            report.problems.append(f"{file.path}: {failed}")
            return 0
        report.notes.append(f"{file.path}: {failed}: an unfinished block at the end")
    _verify_index(disk, directory, segment, manifest.store_id, file, entries, report)
    return file.number


def _read_blocks(file: SegmentFile, number: int, report: VerifyReport, entries: dict[int, tuple[int, bytes, bytes]]) -> BadBlock | None:
    report.segments += 1
    try:
        for offset, block, payload, heads, keys in file.blocks(number):
            entries[block] = (offset, heads, keys)
            report.blocks += 1
            report.records += len(heads) // RECORD_BYTES
            at = 0
            for record in RECORD.iter_unpack(heads):
                body_at = at + RECORD_BYTES + record[6]
                if crc32(payload[body_at : body_at + record[7]]) != record[8]:
                    report.problems.append(f"{file.path}: offset {offset + BLOCK_BYTES + at}: the record's body fails its checksum")
                at = body_at + record[7]
    except BadBlock as bad:
        return bad
    finally:
        report.bytes += file.end
    return None


def _is_empty(disk: Disk, path: str) -> bool:
    try:
        descriptor = disk.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return True
    try:
        return only_zeros(disk, descriptor, SEGMENT_HEADER_BYTES)
    finally:
        disk.close(descriptor)


def _verify_index(
    disk: Disk,
    directory: Path,
    segment: int,
    store_id: bytes,
    file: SegmentFile,
    entries: dict[int, tuple[int, bytes, bytes]],
    report: VerifyReport,
) -> None:
    path = f"{directory}/{index_name(segment)}"
    try:
        index = IndexReader(disk, path, segment, store_id)
    except FileNotFoundError:
        return
    except BadIndex as error:
        report.problems.append(f"{path}: {error}")
        return
    try:
        found = {number: (offset, heads, keys) for number, offset, _, heads, keys in index.entries()}
        if found != entries or index.totals.segment_bytes != file.end or disk.size(file.descriptor) != file.end:
            report.problems.append(f"{path}: does not agree with its segment")
    except BadIndex as error:
        report.problems.append(f"{path}: {error}")
    finally:
        index.close()


def _verify_audit(disk: Disk, directory: Path, report: VerifyReport) -> None:
    for name in _names(disk, f"{directory}/{AUDIT}"):
        path = f"{directory}/{AUDIT}/{name}"
        try:
            file = SegmentFile(disk, path)
        except FileNotFoundError:
            continue  # its time had come while we looked
        except Corrupt as error:
            report.problems.append(error.description)
            continue
        try:
            failed = _read_blocks(file, 0, report, {})
            if failed is not None:
                report.problems.append(f"{path}: {failed}")
        finally:
            file.close()
        report.segments -= 1
        report.audit_segments += 1


def _names(disk: Disk, directory: str) -> list[str]:
    try:
        return sorted(name for name in disk.listdir(directory) if name.endswith(".seg"))
    except FileNotFoundError:
        return []


def dump(directory: Path, disk: Disk | None = None, audit: bool = True, bodies: bool = False) -> Iterator[dict[str, object]]:
    """Every fact, oldest first, as a flat dict that JSON can carry. Stops with Corrupt at damage; an unfinished tail just ends it."""
    disk = disk or Disk()
    if audit:
        for name in _names(disk, f"{directory}/{AUDIT}"):
            yield from dump_segment(Path(f"{directory}/{AUDIT}/{name}"), disk, bodies)
    manifest = read_manifest(disk, str(directory))
    number = manifest.first_number
    for segment in range(manifest.first, manifest.last + 1):
        path = f"{directory}/{segment_name(segment)}"
        try:
            for row in dump_segment(Path(path), disk, bodies):
                block = row["block"]
                if number and block not in (number, number - 1):
                    raise Corrupt(f"{path}: offset {row['offset']}: block {block} where block {number} was expected")
                number = block + 1 if isinstance(block, int) else 0
                yield row
        except FileNotFoundError:
            if segment >= read_manifest(disk, str(directory)).first:
                raise Corrupt(f"{path}: missing") from None
            number = 0  # compacted while we looked


def dump_segment(path: Path, disk: Disk | None = None, bodies: bool = False) -> Iterator[dict[str, object]]:
    """The facts of one segment file: what a parallel reader gives to each of its tasks."""
    file = SegmentFile(disk or Disk(), str(path))
    segment = file.header.segment
    try:
        for offset, block, payload, heads, keys in file.blocks():
            at = key_at = 0
            for record in RECORD.iter_unpack(heads):
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
    except BadBlock as bad:
        if isinstance(bad, Damage):
            raise Corrupt(f"{path}: {bad}") from bad
    finally:
        file.close()


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
            message_id, session_id, count, _ = facts.unpack_key(key, flags & facts.HAS_SESSION != 0)
        except (ValueError, StructError):
            return row  # the key says it all, to whoever can read it
        row["message_id"] = _text(message_id)
        row["session_id"] = session_id
        row["delivery_count"] = count
    return row


def _text(message_id: bytes) -> str:
    """AMQP strings as text, anything else in hexadecimal."""
    start = {0xA1: 2, 0xB1: 5}.get(message_id[0] if message_id else 0, 0)
    return message_id[start:].decode(errors="replace") if start else message_id.hex()


def backup(directory: Path, target: Path, disk: Disk | None = None) -> VerifyReport:
    """A copy that opens as a store, of a live or stopped one: all that was durable when this was called, and maybe more.

    Segments are copied oldest first and the growing one last, so that what compaction moves ahead of us is still met.
    """
    disk = disk or Disk()
    source, copy = str(directory), str(target)
    disk.mkdir(copy)
    if disk.listdir(copy):
        raise ConfigurationError(f"{copy}: not empty; a backup needs a directory of its own")
    manifest = read_manifest(disk, source)
    first, number = manifest.first, manifest.first_number
    segment = first
    last = 0
    while segment <= manifest.last:
        name = segment_name(segment)
        try:
            _copy_segment(disk, f"{source}/{name}", f"{copy}/{name}")
            last = segment
        except FileNotFoundError:
            manifest = read_manifest(disk, source)
            if segment >= manifest.first:
                raise Corrupt(f"{source}/{name}: missing; the store consists of segments {manifest.first} to {manifest.last}") from None
            for older in range(first, last + 1):
                disk.unlink(f"{copy}/{segment_name(older)}")
            first, number = manifest.first, manifest.first_number
            segment, last = first, 0
            continue
        segment += 1
        manifest = read_manifest(disk, source)
    write_file(disk, copy, MANIFEST, Manifest(manifest.store_id, first, last, number).encode())
    return verify(target, disk)


def _copy_segment(disk: Disk, source: str, target: str) -> None:
    """Whole blocks only: one that is being written right now is left out."""
    file = SegmentFile(disk, source)
    try:
        try:
            for _ in file.blocks():
                pass
        except BadBlock as bad:
            if isinstance(bad, Damage):
                raise Corrupt(f"{source}: {bad}") from bad
        descriptor = disk.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            at = 0
            while at < file.end:
                part = disk.pread(file.descriptor, min(_COPY_BYTES, file.end - at), at)
                if not part:
                    raise Corrupt(f"{source}: offset {at}: became shorter while it was copied")
                write_fully(disk, descriptor, [part], at)
                at += len(part)
            disk.fsync(descriptor)
        finally:
            disk.close(descriptor)
    finally:
        file.close()
