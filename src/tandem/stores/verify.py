"""Is a store whole? Every byte of it is read, live or stopped, and each problem named with file and offset."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tandem.model.errors import Corrupt
from tandem.stores.blocks import BLOCK_BYTES, GUARD, RECORD, RECORD_BYTES, SEGMENT_HEADER_BYTES, BadBlock, Damage
from tandem.stores.checksum import crc32
from tandem.stores.disk import Disk, LocalDisk
from tandem.stores.scan import only_zeros
from tandem.stores.segment_files import AUDIT, Manifest, index_name, segment_name
from tandem.stores.segment_index import BadIndex, IndexReader
from tandem.stores.segment_reader import SegmentReader, read_manifest
from tandem.stores.synced import read_mark

_GUARD: Final = bytes([GUARD])


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

    def read_block(self, records: int) -> None:
        self.blocks += 1
        self.records += records

    def read_segment(self, size: int, audit: bool) -> None:
        self.bytes += size
        if audit:
            self.audit_segments += 1
        else:
            self.segments += 1

    def add(self, other: VerifyReport) -> None:
        self.segments += other.segments
        self.audit_segments += other.audit_segments
        self.blocks += other.blocks
        self.records += other.records
        self.bytes += other.bytes
        self.problems += other.problems
        self.notes += other.notes


def verify(directory: Path, disk: Disk | None = None) -> VerifyReport:
    """Reads every byte. On a live store what is being written at this moment is a note, not a problem."""
    disk = disk or LocalDisk()
    total = VerifyReport()
    try:
        manifest = read_manifest(disk, str(directory), total.problems.append)
    except Corrupt as error:
        return VerifyReport(problems=[error.description])
    synced, doubt = read_mark(disk, str(directory), manifest.store_id)  # before the segments: what it names has to be in them
    reports: dict[int, VerifyReport] = {}
    numbers = {manifest.first: manifest.first_number}
    """Of the block each segment has to begin with; 0 when nobody knows."""
    looked_again: set[int] = set()
    segment = manifest.first
    while segment <= manifest.last:
        report = reports[segment] = VerifyReport()
        try:
            numbers[segment + 1] = _verify_segment(disk, directory, manifest, segment, numbers[segment], report)
        except FileNotFoundError:
            report.problems.append(
                f"{directory}/{segment_name(segment)}: missing; the store has segments {manifest.first} to {manifest.last}"
            )
            numbers[segment + 1] = 0
        manifest = read_manifest(disk, str(directory))
        if segment < manifest.first:  # compacted while we looked
            reports.clear()
            segment, numbers = manifest.first, {manifest.first: manifest.first_number}
        elif report.problems and segment not in looked_again:
            # the segment before may have grown after it was read, and this one have been sealed meanwhile; damage stays
            looked_again.add(segment)
            segment = max(manifest.first, segment - 1)
        else:
            segment += 1
    for report in reports.values():
        total.add(report)
    if doubt:
        total.problems.append(doubt)
    following = numbers[segment]
    if synced is not None and 0 < following <= synced.number:
        path = f"{directory}/{segment_name(synced.segment)}"
        total.problems.append(f"{path}: ends with block {following - 1}, but block {synced.number} had been synced")
    _verify_audit(disk, directory, total)
    return total


def _verify_segment(disk: Disk, directory: Path, manifest: Manifest, segment: int, number: int, report: VerifyReport) -> int:
    """The number of the block that has to follow; 0 when nobody knows."""
    try:
        file = SegmentReader(disk, f"{directory}/{segment_name(segment)}")
    except Corrupt as error:
        report.problems.append(error.description)
        return 0
    if file.doubt:
        report.problems.append(file.doubt)
    try:
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
    finally:
        file.close()


def _read_blocks(
    file: SegmentReader, number: int, report: VerifyReport, entries: dict[int, tuple[int, bytes, bytes]], audit: bool = False
) -> BadBlock | None:
    try:
        for offset, block, payload, heads, keys in file.blocks(number):
            entries[block] = (offset, heads, keys)
            report.read_block(len(heads) // RECORD_BYTES - (heads[-RECORD_BYTES : -RECORD_BYTES + 1] == _GUARD))
            at = 0
            for record in RECORD.iter_unpack(heads):
                body_at = at + RECORD_BYTES + record[6]
                if crc32(payload[body_at : body_at + record[7]]) != record[8]:
                    report.problems.append(f"{file.path}: offset {offset + BLOCK_BYTES + at}: the record's body fails its checksum")
                at = body_at + record[7]
    except BadBlock as bad:
        return bad
    finally:
        report.read_segment(file.end, audit)
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
    file: SegmentReader,
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
    for name in audit_names(disk, f"{directory}/{AUDIT}"):
        path = f"{directory}/{AUDIT}/{name}"
        try:
            file = SegmentReader(disk, path)
        except FileNotFoundError:
            continue  # its time had come while we looked
        except Corrupt as error:
            report.problems.append(error.description)
            continue
        try:
            failed = _read_blocks(file, 0, report, {}, audit=True)
            if failed is not None:
                report.problems.append(f"{path}: {failed}")
        finally:
            file.close()


def audit_names(disk: Disk, directory: str) -> list[str]:
    try:
        return sorted(name for name in disk.listdir(directory) if name.endswith(".seg"))
    except FileNotFoundError:
        return []
