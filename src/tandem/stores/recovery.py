"""What a store is after a restart: every durable fact is replayed, an un-acknowledged tail is cut off and reported, damage is refused."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Final

from tandem.broker.ports import Tenant
from tandem.model.errors import Corrupt
from tandem.stores.blocks import (
    BLOCK_BYTES,
    GUARD,
    RECORD,
    RECORD_BYTES,
    SEGMENT_HEADER_BYTES,
    BadBlock,
    parse_block_header,
)
from tandem.stores.salvage import REPAIR, Salvaged, lost_body, salvage
from tandem.stores.scan import block_is_whole, find_later_block, may_be_torn, only_zeros, scan_blocks
from tandem.stores.segment_files import SegmentFiles
from tandem.stores.segment_index import BadIndex, IndexReader, SegmentTotals, columns_of
from tandem.stores.synced import Synced

TOLD_MAX: Final = 50
"""Lines about one opening; what is beyond that is counted."""


class SegmentStats:
    """What a segment holds, and how much of it is still wanted."""

    __slots__ = ("forgotten", "totals")

    def __init__(self) -> None:
        self.totals = SegmentTotals()
        self.totals.begin()
        self.forgotten: int = 0

    def forget_one(self) -> None:
        """A body is wanted no more."""
        self.forgotten += 1

    def found(self, totals: SegmentTotals) -> None:
        """What its index says of it."""
        self.totals = totals

    def live_bytes(self) -> int:
        """Bodies differ in size and nobody remembers each one's: those forgotten are taken to be average."""
        totals = self.totals
        if totals.bodies == 0 or self.forgotten >= totals.bodies:
            return 0
        return totals.body_bytes * (totals.bodies - self.forgotten) // totals.bodies


@dataclass(slots=True)
class RecoveryReport:
    """What was found on opening. `torn` is empty unless a tail nobody had been told of was cut off."""

    segments: int = 0
    blocks: int = 0
    records: int = 0
    segments_read_in_full: int = 0
    torn: str = ""
    notes: list[str] = field(default_factory=list)

    def count(self, totals: SegmentTotals, in_full: bool) -> None:
        """A segment was replayed; `in_full`: without an index."""
        self.segments += 1
        self.segments_read_in_full += in_full
        self.blocks += totals.blocks
        self.records += totals.records

    def cut(self, what: str) -> None:
        """A torn tail."""
        self.torn = what

    def told(self) -> tuple[str, ...]:
        """Each in one line, for whoever runs the broker."""
        lines = [self.torn] if self.torn else []
        lines += self.notes
        more = len(lines) - TOLD_MAX
        return (*lines[:TOLD_MAX], f"and {more} more") if more > 0 else tuple(lines)


class Recovery:
    """One pass over all segments, oldest first. Afterwards: where to go on writing."""

    def __init__(self, files: SegmentFiles, stats: dict[int, SegmentStats], tenant: Tenant, trusted: int, synced: Synced | None) -> None:
        self._files = files
        self._disk = files.disk
        self._stats = stats
        self._tenant = tenant
        self._trusted = trusted
        """Location behind the last block known to be durable; 0 when nobody knows, and what is there is the truth."""
        self._synced = synced
        self.report = RecoveryReport()
        self.segment = 0
        """The last segment that holds blocks, or the first of all."""
        self.number = 0
        """Number of the next block."""
        self.sealed = False
        self.unindexed: list[int] = []
        """Segments that are complete but have no usable index."""

    def run(self, segments: set[int]) -> None:
        manifest = self._files.manifest
        self.number = manifest.first_number
        self.segment = manifest.first
        ordered = sorted(segments)
        if self._trusted:
            self._cut_uncertain_tail(ordered)
        previous_unsealed = 0
        for segment in ordered:
            before = self.number
            stats = self._stats[segment] = SegmentStats()
            sealed = self._replay_index(segment, stats)
            if not sealed:
                self._replay_scan(segment, stats)
            if self.number == before:
                # made ahead of need, or its only block was torn; were blocks lost, the numbers after them would not fit
                if segment != self.segment:
                    del self._stats[segment]
                continue
            if previous_unsealed:
                self.unindexed.append(previous_unsealed)
            previous_unsealed = 0 if sealed else segment
            self.segment = segment
            self.sealed = sealed
            self.report.count(stats.totals, not sealed)
        synced = self._synced
        if synced is not None and self.number <= synced.number:
            held = self._stats.get(synced.segment)
            end = held.totals.segment_bytes if held is not None else SEGMENT_HEADER_BYTES
            raise Corrupt(f"{self._files.path(synced.segment)}: offset {end}: {self._missing(synced)}")
        if self.report.segments and not self.sealed:
            self._look_for_truncation(self.segment)
        if ordered and ordered[-1] > manifest.last:
            self._files.adopt(ordered[-1])

    def _missing(self, synced: Synced) -> str:
        count = synced.number - self.number + 1
        blocks = f"block {self.number}" if count == 1 else f"blocks {self.number} to {synced.number}"
        return f"{blocks} had been synced up to offset {synced.end} of segment {synced.segment}, and cannot be read"

    def _look_for_truncation(self, segment: int) -> None:
        """Room is reserved before a segment is written: a file shorter than that was cut by somebody, or by us just before a crash."""
        path = self._files.path(segment)
        descriptor = self._files.open_segment(segment, os.O_RDONLY)
        try:
            allocated = self._files.allocated(descriptor, segment)
            size = self._disk.size(descriptor)
        finally:
            self._disk.close(descriptor)
        known = self._synced is not None and self._synced.number + 1 == self.number
        if size < allocated and not known and not self.report.torn:
            self.report.notes.append(f"{path}: offset {size}: shorter than the {allocated} bytes reserved; blocks behind it are gone")

    def _cut_uncertain_tail(self, segments: list[int]) -> None:
        """After a failed sync the file may show blocks that the medium does not hold; nobody was told of them, so they go."""
        trusted_segment, offset = self._trusted >> 32, self._trusted & 0xFFFF_FFFF
        for segment in segments:
            if segment < trusted_segment:
                continue
            keep = offset if segment == trusted_segment else SEGMENT_HEADER_BYTES
            descriptor = self._files.open_segment(segment, os.O_RDWR)
            try:
                if self._disk.size(descriptor) > keep and not only_zeros(self._disk, descriptor, keep):
                    self._files.drop_index(segment)  # first: one that knows what is cut off would call the segment damaged for ever
                    self._cut(descriptor, keep)
                    self.report.notes.append(f"{self._files.path(segment)}: offset {keep}: blocks of a failed commit were cut off")
            finally:
                self._disk.close(descriptor)

    def _cut(self, descriptor: int, offset: int) -> None:
        self._disk.truncate(descriptor, offset)
        self._disk.fsync(descriptor)

    def _replay_index(self, segment: int, stats: SegmentStats) -> bool:
        files = self._files
        path = files.index_path(segment)
        try:
            index = IndexReader(self._disk, path, segment, files.manifest.store_id)
        except FileNotFoundError:
            return False
        except BadIndex as error:
            self.report.notes.append(f"{path}: {error}; the segment was read instead")
            return False
        try:
            stale = self._compare(segment, index.totals)
            if stale:
                self.report.notes.append(f"{path}: stale ({stale}); the segment was read instead")
                return False
            totals = index.totals
            if totals.first_number != self.number:
                raise Corrupt(f"{files.path(segment)}: begins with block {totals.first_number}; block {self.number} is missing")
            stats.found(totals)
            for _, offset, _, heads, keys in index.entries():
                feed(self._tenant, segment << 32 | offset + BLOCK_BYTES, heads, keys)
            self.number = totals.last_number + 1
            return True
        finally:
            index.close()

    def _compare(self, segment: int, totals: SegmentTotals) -> str:
        """Why the index does not fit its segment; empty if it does."""
        path = self._files.path(segment)
        descriptor = self._files.open_segment(segment, os.O_RDONLY)
        try:
            size = self._disk.size(descriptor)
            if size < totals.segment_bytes:
                raise Corrupt(f"{path}: offset {size}: truncated; its index says {totals.segment_bytes} bytes")
            if size > totals.segment_bytes:
                return f"the segment has {size} bytes, not {totals.segment_bytes}"
            header = parse_block_header(self._disk.pread(descriptor, BLOCK_BYTES, totals.last_offset), self._files.seed)
            if header is None or header.number != totals.last_number or header.crc != totals.last_crc:
                return f"it says the last block is {totals.last_number} at offset {totals.last_offset}"
            return ""
        finally:
            self._disk.close(descriptor)

    def _replay_scan(self, segment: int, stats: SegmentStats) -> None:
        disk = self._disk
        descriptor = self._files.open_segment(segment, os.O_RDWR)
        try:
            # what is replayed is acted upon, so it has to be on the medium, and it has to be the medium that is read
            disk.fdatasync(descriptor)
            disk.drop_cache(descriptor)
            offset = SEGMENT_HEADER_BYTES
            while offset:
                offset = self._scan_on(segment, stats, descriptor, offset)
        except ValueError as error:
            raise Corrupt(f"{self._files.path(segment)}: block {self.number}: {error}") from error
        finally:
            disk.close(descriptor)

    def _scan_on(self, segment: int, stats: SegmentStats, descriptor: int, offset: int) -> int:
        """From here to the end of the blocks, or to the end of one that was damaged and of which something could be saved; 0 at the end."""
        files = self._files
        try:
            for at, header, payload in scan_blocks(self._disk, descriptor, files.seed, segment, self.number, offset):
                self._take_block(segment, stats, at, header.crc, header.count, payload)
        except BadBlock as bad:
            try:
                self._cut_torn_tail_or_refuse(segment, descriptor, bad)
            except Corrupt as damage:
                saved = salvage(files, descriptor, segment, self.number, bad)
                if saved is None:
                    raise Corrupt(f"{damage.description}. {REPAIR}") from bad
                self._note_damage(segment, bad.offset, saved)
                self._take_block(segment, stats, bad.offset, saved.crc, saved.count, saved.payload)
                return saved.end
        return 0

    def _take_block(self, segment: int, stats: SegmentStats, offset: int, crc: int, count: int, payload: bytes) -> None:
        heads, keys, bodies, body_bytes = columns_of(payload, count)
        end = offset + BLOCK_BYTES + len(payload)
        stats.totals.add(self.number, offset, end, crc, count, bodies, body_bytes)
        feed(self._tenant, segment << 32 | offset + BLOCK_BYTES, heads, keys)
        self.number += 1

    def _note_damage(self, segment: int, offset: int, saved: Salvaged) -> None:
        if saved.told:
            self.report.notes.append(saved.told)
        for at in sorted(saved.damaged):
            kind, _, entity, seq, _, _, key_bytes, _, _ = RECORD.unpack_from(saved.payload, at)
            key = saved.payload[at + RECORD_BYTES : at + RECORD_BYTES + key_bytes]
            where = f"{self._files.path(segment)}: offset {offset + BLOCK_BYTES + at}"
            self.report.notes.append(lost_body(where, kind, entity, seq, key))

    def _cut_torn_tail_or_refuse(self, segment: int, descriptor: int, bad: BadBlock) -> None:
        """A torn tail is un-acknowledged and goes. Damage is a bad block that was known to be synced, that has good ones behind it, or
        of which nothing is missing: a write that was interrupted leaves zeros."""
        files, disk = self._files, self._disk
        path = files.path(segment)
        header = parse_block_header(disk.pread(descriptor, BLOCK_BYTES, bad.offset), files.seed)
        if header is not None and block_is_whole(disk, descriptor, files.seed, header, bad.offset):
            raise Corrupt(f"{path}: offset {bad.offset}: damaged ({bad.reason})")
        later = find_later_block(disk, descriptor, files.seed, segment, self.number, bad.offset)
        if later >= 0:
            raise Corrupt(f"{path}: offset {bad.offset}: damaged ({bad.reason}; a good block follows at offset {later})")
        for follower in range(segment + 1, files.manifest.last + 1):
            other = files.open_segment(follower, os.O_RDONLY)
            try:
                empty = only_zeros(disk, other, SEGMENT_HEADER_BYTES)
            finally:
                disk.close(other)
            if not empty:
                raise Corrupt(f"{path}: offset {bad.offset}: damaged ({bad.reason}; segment {follower} follows)")
        if self._synced is not None and self.number <= self._synced.number:
            raise Corrupt(f"{path}: offset {bad.offset}: damaged ({bad.reason}; {self._missing(self._synced)})")
        reserved = files.allocated(descriptor, segment)
        if reserved and not may_be_torn(disk, descriptor, header, bad.offset):
            raise Corrupt(f"{path}: offset {bad.offset}: damaged ({bad.reason}; no sector of it is missing, so no crash has torn it)")
        self.report.cut(f"{path}: offset {bad.offset}: torn tail cut off ({bad.reason})")
        self._cut(descriptor, bad.offset)


def feed(tenant: Tenant, location: int, heads: bytes, keys: bytes) -> None:
    """Tells the tenant of each record of a block whose first record stands at `location`."""
    replayed = tenant.replayed
    at = 0
    for kind, flags, entity, seq, instant, aux, key_bytes, body_bytes, _ in RECORD.iter_unpack(heads):
        if key_bytes:
            key = keys[at : at + key_bytes]
            at += key_bytes
        else:
            key = b""
        if kind == GUARD:
            break  # the last
        replayed(kind, flags, entity, seq, instant, aux, key, location, body_bytes)
        location += RECORD_BYTES + key_bytes + body_bytes
