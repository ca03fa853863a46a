"""Makes a damaged store open again: what can be proved is kept, what cannot is listed record by record, and no file is destroyed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from tandem.broker import facts
from tandem.model.clock import SystemClock
from tandem.model.errors import ConfigurationError, Corrupt
from tandem.stores.blocks import (
    BLOCK_BYTES,
    GUARD,
    RECORD,
    RECORD_BYTES,
    SEGMENT_HEADER_BYTES,
    BadBlock,
    BlockHeader,
    pack_block_header,
    pack_segment_header,
    parse_block_header,
    parse_segment_header,
    seed_of,
)
from tandem.stores.checksum import crc32
from tandem.stores.disk import Disk, LocalDisk, read_file, write_file, write_fully
from tandem.stores.guard import guard_of, parts_of
from tandem.stores.salvage import Salvaged, salvage, substitute
from tandem.stores.scan import find_later_block, may_be_torn, read_exactly, scan_blocks
from tandem.stores.segment_files import LOCK, MANIFEST, Manifest, SegmentFiles, decode_manifest, segment_name
from tandem.stores.settings import LogSettings
from tandem.stores.synced import MARK, read_mark

DAMAGED: Final = "damaged"
"""Below the store's directory: the files as they were found."""
REPAIRED: Final = ".repaired"
"""Ends the name of a segment that is written whole and takes the place of the one that is put aside next."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A record that is gone, or whose body is. What is not `proved` is what the damaged bytes say, and may itself be wrong."""

    segment: int
    offset: int
    block: int
    kind: str
    entity: int
    seq: int
    body_only: bool
    proved: bool


@dataclass(slots=True)
class RepairReport:
    segments: int = 0
    rewritten: list[str] = field(default_factory=list)
    """Names of files that were replaced; the old ones are in `damaged/`."""
    losses: list[Loss] = field(default_factory=list)
    blocks_lost: list[int] = field(default_factory=list)
    """Numbers of blocks of which nothing is left, not even a list of what was in them."""
    notes: list[str] = field(default_factory=list)

    def read_segment(self) -> None:
        self.segments += 1


class _Block:
    """What will stand in the new segment."""

    __slots__ = ("number", "payload", "raw")

    def __init__(self, number: int, raw: bytes, payload: list[bytes] | None) -> None:
        self.number = number
        self.raw = raw
        self.payload = payload
        """Records to write anew; None: `raw` as it is."""


def repair(directory: Path, disk: Disk | None = None) -> RepairReport:
    """Of a store that no broker has open. It opens afterwards; run it again, and it finds nothing to do."""
    disk = disk or LocalDisk()
    place = str(directory)
    try:
        held = disk.lock(f"{place}/{LOCK}")
    except BlockingIOError as error:
        raise ConfigurationError(f"{place}: the store is open; stop its broker first") from error
    try:
        return _Repair(disk, place).run()
    finally:
        disk.unlock(held)


def _guarded_block(seed: int, segment: int, number: int, records: list[bytes]) -> bytes:
    payload, count = b"".join(records), len(records)
    if records:
        payload += b"".join(guard_of(seed, segment, number, parts_of(payload, count)))
        count += 1
    return pack_block_header(seed, segment, number, count, payload) + payload


class _Repair:
    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._report = RepairReport()
        self._synced = 0
        """Number of the last block known to have been synced."""
        self._cut = False
        """Part of the segment at hand is left out."""
        self._files = SegmentFiles(directory, disk, SystemClock(), LogSettings().segment_bytes)

    def run(self) -> RepairReport:
        self._finish()
        manifest = self._manifest()
        self._files.believe(manifest)
        synced, _ = read_mark(self._disk, self._directory, manifest.store_id)
        self._synced = synced.number if synced is not None else 0
        expected = manifest.first_number
        for segment in range(manifest.first, manifest.last + 1):
            expected = self._segment(segment, expected)
            self._report.read_segment()
        self._check_mark(expected)
        return self._report

    def _finish(self) -> None:
        """What a repair left that was interrupted: between two names a segment has none but this. One whose old file is still there is
        repaired again, from whatever that holds by now."""
        names = self._disk.listdir(self._directory)
        for name in [name.removesuffix(REPAIRED) for name in names if name.endswith(REPAIRED)]:
            path = f"{self._directory}/{name}"
            if name in names:
                self._disk.unlink(path + REPAIRED)
            else:
                self._disk.rename(path + REPAIRED, path)
                self._report.notes.append(f"{path}: put in its place, which an interrupted repair had not come to")
            self._disk.sync_directory(self._directory)

    def _manifest(self) -> Manifest:
        path = f"{self._directory}/{MANIFEST}"
        names = self._disk.listdir(self._directory)
        numbers = sorted(int(name[:-4]) for name in names if name.endswith(".seg") and name[:-4].isdigit())
        try:
            known = decode_manifest(read_file(self._disk, path), path)
        except (FileNotFoundError, Corrupt) as error:
            manifest = self._guess(numbers, str(error))
            if MANIFEST in names:
                self._put_aside(MANIFEST)
            write_file(self._disk, self._directory, MANIFEST, manifest.encode())
            self._report.notes.append(f"{path}: made anew from the segments ({error})")
            return manifest
        if numbers and numbers[-1] > known.last + 1:
            known = replace(known, last=numbers[-1])
            write_file(self._disk, self._directory, MANIFEST, known.encode())
            self._report.notes.append(f"{path}: names segments up to {numbers[-1]} now")
        return known

    def _guess(self, numbers: list[int], why: str) -> Manifest:
        for segment in numbers:
            path = self._files.path(segment)
            try:
                header = parse_segment_header(read_file(self._disk, path)[:SEGMENT_HEADER_BYTES], path)
            except Corrupt:
                continue
            manifest = Manifest(header.store_id, numbers[0], numbers[-1], 1)
            first = next((block.number for block in self._read(numbers[0], 0, seed_of(header.store_id), manifest)), 1)
            return replace(manifest, first_number=first)
        raise Corrupt(f"{self._directory}: neither the manifest nor any segment says which store this is ({why})")

    # -- one segment -------------------------------------------------------------------------

    def _segment(self, segment: int, expected: int) -> int:
        """The number that has to follow."""
        blocks: list[_Block] = []
        changed = not self._header_is_good(segment)
        self._cut = False
        for block in self._read(segment, expected, self._files.seed, self._files.manifest):
            while expected < block.number:  # what stands for blocks that are gone: the numbers must have no gap
                blocks.append(_Block(expected, b"", []))
                self._report.blocks_lost.append(expected)
                expected += 1
            blocks.append(block)
            expected = block.number + 1
        if changed or self._cut or any(block.payload is not None for block in blocks):
            self._write(segment, blocks)
        return expected

    def _header_is_good(self, segment: int) -> bool:
        try:
            self._disk.close(self._files.open_segment(segment, os.O_RDONLY))
        except FileNotFoundError:
            self._report.notes.append(f"{self._files.path(segment)}: missing; what it held is gone")
            return False
        except Corrupt as error:
            self._report.notes.append(f"{error.description}: the header was made anew")
            return False
        return True

    def _read(self, segment: int, number: int, seed: int, manifest: Manifest) -> Iterator[_Block]:
        try:
            descriptor = self._disk.open(self._files.path(segment), os.O_RDONLY)
        except FileNotFoundError:
            return
        files = self._files
        files.believe(manifest)
        try:
            offset = SEGMENT_HEADER_BYTES
            while offset >= 0:
                try:
                    for at, header, payload in scan_blocks(self._disk, descriptor, seed, segment, number, offset):
                        raw = read_exactly(self._disk, descriptor, BLOCK_BYTES, at) + payload
                        offset, number = at + len(raw), header.number + 1
                        yield _Block(header.number, raw, None)
                    return
                except BadBlock as bad:
                    saved = salvage(files, descriptor, segment, number, bad)
                    bad_at = bad.offset
                if saved is not None:
                    if saved.told:
                        self._report.notes.append(saved.told)
                    yield _Block(number, b"", self._mend(segment, bad_at, number, saved))
                    offset, number = saved.end, number + 1
                    continue
                self._cut = True
                offset = find_later_block(self._disk, descriptor, seed, segment, number, bad_at + 1)
                head = parse_block_header(self._disk.pread(descriptor, BLOCK_BYTES, bad_at), seed)
                if offset < 0 and number > self._synced and may_be_torn(self._disk, descriptor, head, bad_at):
                    self._report.notes.append(f"{files.path(segment)}: offset {bad_at}: torn tail cut off")
                else:
                    self._list(segment, descriptor, bad_at, offset, number, head)
                number = 0  # whichever comes
        finally:
            self._disk.close(descriptor)

    def _mend(self, segment: int, offset: int, number: int, saved: Salvaged) -> list[bytes]:
        """The block's records, with what stands for a lost body in its place."""
        records: list[bytes] = []
        at = 0
        for _ in range(saved.count):
            kind, flags, entity, seq, instant, aux, key_bytes, body_bytes, _ = RECORD.unpack_from(saved.payload, at)
            body_at = at + RECORD_BYTES + key_bytes
            after = body_at + body_bytes
            if kind == GUARD:
                break  # made anew
            if at not in saved.damaged:
                records.append(saved.payload[at:after])
            else:
                key = saved.payload[at + RECORD_BYTES : body_at]
                where = f"{self._files.path(segment)}: offset {offset + BLOCK_BYTES + at}"
                is_message = kind in (facts.ENQUEUED, facts.PUBLISHED)
                self._lost(segment, offset + BLOCK_BYTES + at, number, kind, entity, seq, body_only=is_message, proved=True)
                if is_message:
                    body = substitute(kind, key, where)
                    records.append(RECORD.pack(kind, flags, entity, seq, instant, aux, key_bytes, len(body), crc32(body)) + key + body)
            at = after
        return records

    def _list(self, segment: int, descriptor: int, offset: int, end: int, number: int, header: BlockHeader | None) -> None:
        """What the records of a block that cannot be proved look like, as far as their lengths make sense."""
        size = end - offset - BLOCK_BYTES if end >= 0 else header.payload_bytes if header is not None else 0
        payload = read_exactly(self._disk, descriptor, max(size, 0), offset + BLOCK_BYTES)
        at = 0
        while at + RECORD_BYTES <= len(payload):
            kind, _, entity, seq, _, _, key_bytes, body_bytes, _ = RECORD.unpack_from(payload, at)
            if kind not in facts.KIND_NAMES or at + RECORD_BYTES + key_bytes + body_bytes > len(payload):
                break
            self._lost(segment, offset + BLOCK_BYTES + at, number, kind, entity, seq, body_only=False, proved=False)
            at += RECORD_BYTES + key_bytes + body_bytes

    def _lost(self, segment: int, offset: int, block: int, kind: int, entity: int, seq: int, *, body_only: bool, proved: bool) -> None:
        name = facts.KIND_NAMES.get(kind, str(kind))
        self._report.losses.append(Loss(segment, offset, block, name, facts.id_of(entity), seq, body_only, proved))

    # -- writing -----------------------------------------------------------------------------

    def _write(self, segment: int, blocks: list[_Block]) -> None:
        disk, path = self._disk, self._files.path(segment)
        seed, store_id = self._files.seed, self._files.manifest.store_id
        descriptor = disk.open(path + ".tmp", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            at = SEGMENT_HEADER_BYTES
            write_fully(disk, descriptor, [pack_segment_header(segment, store_id, 0, 0)], 0)
            for block in blocks:
                raw = block.raw
                if block.payload is not None:
                    raw = _guarded_block(seed, segment, block.number, block.payload)
                write_fully(disk, descriptor, [raw], at)
                at += len(raw)
            disk.fsync(descriptor)
        finally:
            disk.close(descriptor)
        name = segment_name(segment)
        self._files.drop_index(segment)  # first: it would call the new segment damaged
        disk.rename(path + ".tmp", path + REPAIRED)
        disk.sync_directory(self._directory)
        if name in disk.listdir(self._directory):
            self._put_aside(name)
        disk.rename(path + REPAIRED, path)
        disk.sync_directory(self._directory)
        self._report.rewritten.append(name)

    def _put_aside(self, name: str) -> None:
        aside = f"{self._directory}/{DAMAGED}"
        self._disk.mkdir(aside)
        self._disk.sync_directory(self._directory)  # or power that fails takes it away with what is in it
        taken = self._disk.listdir(aside)
        target = f"{name}.{len(taken)}" if name in taken else name
        self._disk.rename(f"{self._directory}/{name}", f"{aside}/{target}")
        self._disk.sync_directory(aside)

    def _check_mark(self, following: int) -> None:
        """It is made anew when the store is opened; until then what was synced is what is there."""
        self._report.blocks_lost.extend(range(following, self._synced + 1))
        if MARK in self._disk.listdir(self._directory):
            self._disk.unlink(f"{self._directory}/{MARK}")
            self._disk.sync_directory(self._directory)
