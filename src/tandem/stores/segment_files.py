"""The files of one store: which segments belong to it, how one comes into being, and how one leaves."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from tandem.model.clock import Clock
from tandem.model.errors import Corrupt, StoreUnavailable
from tandem.stores.blocks import (
    BLOCK_BYTES,
    READABLE,
    SEGMENT_HEADER_BYTES,
    SEGMENT_MAX,
    VERSION,
    SegmentHeader,
    newer_format,
    pack_segment_header,
    parse_block_header,
    parse_segment_header,
    seed_of,
)
from tandem.stores.checksum import crc32
from tandem.stores.disk import Disk, read_file, write_file, write_fully
from tandem.stores.spare import Spare

MANIFEST: Final = "store.json"
_COPY_BYTES: Final = 512
"""A sector each."""
LOCK: Final = "lock"
AUDIT: Final = "audit"


@dataclass(frozen=True, slots=True)
class Manifest:
    """Segments `first` to `last` make up the store: a file that is missing is noticed, and so is one too many."""

    store_id: bytes
    first: int
    last: int
    """0 in a store that has no segment yet."""
    first_number: int
    """Number of the first block of segment `first`."""
    metadata: str = ""
    """Identity of the metadata whose entities this store holds; empty in a store of no namespace, or from before it was kept."""
    begins_at: int = 0
    """Not 0 in a store that was begun anew in the place of a lost one: sequence numbers go on above this."""
    entity_max: int = 0
    """The entities to which `begins_at` applies: those that were there before."""

    def encode(self) -> bytes:
        content: dict[str, object] = {
            "format": VERSION,
            "store": self.store_id.hex(),
            "first_segment": self.first,
            "last_segment": self.last,
            "first_block": self.first_number,
        }
        if self.metadata:
            content["metadata"] = self.metadata
        if self.begins_at:
            content["begins_at"] = self.begins_at
            content["entity_max"] = self.entity_max
        text = json.dumps(content, sort_keys=True)
        line = json.dumps({**content, "crc": crc32(text.encode())}, sort_keys=True).encode()
        return (line.ljust(_COPY_BYTES - 1) + b"\n") * 2


def read_manifest_file(raw: bytes, path: str) -> tuple[Manifest, str]:
    """What it says, and what is wrong with it: it stands there twice, a sector each, and one of them is enough."""
    copies = [raw[:_COPY_BYTES], raw[_COPY_BYTES:]] if len(raw) > _COPY_BYTES else [raw]
    found: Manifest | None = None
    wrong: Corrupt | None = None
    for copy in copies:
        try:
            found = found or _decode_copy(copy, path)
        except Corrupt as error:
            wrong = wrong or error
    if found is None:
        raise wrong or Corrupt(f"{path}: empty")
    whole = len(copies) == 1 or copies[0] == copies[1]
    return found, "" if whole else f"{path}: one of its two copies is damaged; the other was taken"


def decode_manifest(raw: bytes, path: str) -> Manifest:
    return read_manifest_file(raw, path)[0]


def _decode_copy(raw: bytes, path: str) -> Manifest:
    try:
        content = json.loads(raw)
        crc = content.pop("crc")
        if crc32(json.dumps(content, sort_keys=True).encode()) != crc:
            raise Corrupt(f"{path}: fails its checksum")
        if isinstance(content["format"], int) and content["format"] > VERSION:
            raise newer_format(path, content["format"])
        if content["format"] not in READABLE:
            raise Corrupt(f"{path}: format {content['format']}; this version reads format {VERSION}")
        store_id = bytes.fromhex(content["store"])
        return Manifest(
            store_id,
            content["first_segment"],
            content["last_segment"],
            content["first_block"],
            content.get("metadata", ""),
            content.get("begins_at", 0),
            content.get("entity_max", 0),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Corrupt(f"{path}: not a store's manifest ({error})") from error


def segment_name(segment: int) -> str:
    return f"{segment:010d}.seg"


def index_name(segment: int) -> str:
    return f"{segment:010d}.idx"


def audit_name(segment: int, retired_at: int) -> str:
    return f"{segment:010d}-{retired_at}.seg"


class SegmentFiles:
    """Callable from every thread of the store; creation and removal exclude each other."""

    def __init__(self, directory: str, disk: Disk, clock: Clock, segment_bytes: int) -> None:
        self.directory = directory
        self.disk = disk
        self._clock = clock
        self._segment_bytes = segment_bytes
        self._mutex = threading.Lock()
        self._open: dict[int, int] = {}
        """Segments being written, or about to be."""
        self.short: dict[int, int] = {}
        """Bytes of segments that were made of less than they should have: they are full earlier."""
        self._spare = Spare(disk, directory, segment_bytes)
        self.manifest = Manifest(b"", 1, 0, 1)
        self.seed = 0
        self.found: list[str] = []
        self.tell: Callable[[str], None] = self.found.append
        """Called on any thread with a line about damage that harms nobody."""

    def path(self, segment: int) -> str:
        return f"{self.directory}/{segment_name(segment)}"

    def index_path(self, segment: int) -> str:
        return f"{self.directory}/{index_name(segment)}"

    def load(self, beginning: Manifest, audit: bool) -> set[int]:
        """Reads the manifest, or writes the one to begin with. The segments found, each checked to be ours and none missing."""
        names = self.disk.listdir(self.directory)
        for name in names:
            if name.endswith(".tmp"):
                self.disk.unlink(f"{self.directory}/{name}")
        segments = {int(name[:-4]) for name in names if name.endswith(".seg") and name[:-4].isdigit()}
        path = f"{self.directory}/{MANIFEST}"
        if MANIFEST in names:
            self.manifest, damage = read_manifest_file(read_file(self.disk, path), path)
            if damage:
                self.tell(damage)
                self._write_manifest(self.manifest)
        elif segments:
            raise Corrupt(f"{path}: missing, but the directory holds {len(segments)} segments")
        else:
            self._write_manifest(beginning)
        self.believe(self.manifest)
        for name in names:
            # a crash between the manifest and the unlink leaves files that are no longer part of the store
            if name[-4:] in (".seg", ".idx") and name[:-4].isdigit() and int(name[:-4]) < self.manifest.first:
                self._retire(int(name[:-4]), audit)
        return self._check_present({segment for segment in segments if segment >= self.manifest.first})

    def believe(self, manifest: Manifest) -> None:
        """This is the store that the files are of."""
        self.manifest = manifest
        self.seed = seed_of(manifest.store_id)

    def _check_present(self, segments: set[int]) -> set[int]:
        first, last = self.manifest.first, self.manifest.last
        missing = [segment for segment in range(first, last + 1) if segment not in segments]
        if missing:
            raise Corrupt(f"{self.path(missing[0])}: missing; the store consists of segments {first} to {last}")
        strangers = [segment for segment in segments if segment > last + 1]
        if strangers:
            raise Corrupt(f"{self.path(min(strangers))}: does not belong here; the store consists of segments {first} to {last}")
        return segments

    def open_segment(self, segment: int, flags: int) -> int:
        """A descriptor of a file whose header names this store and this segment."""
        path = self.path(segment)
        descriptor = self.disk.open(path, flags)
        try:
            header = self._header(descriptor, segment, path)
            if header.store_id != self.manifest.store_id:
                raise Corrupt(f"{path}: belongs to store {header.store_id.hex()}, not to {self.manifest.store_id.hex()}")
            if header.segment != segment:
                raise Corrupt(f"{path}: is segment {header.segment}, not {segment}")
        except BaseException:
            self.disk.close(descriptor)
            raise
        return descriptor

    def _header(self, descriptor: int, segment: int, path: str) -> SegmentHeader:
        """All that it says is known otherwise; where it is damaged, the first block says whose the segment is."""
        raw = self.disk.pread(descriptor, SEGMENT_HEADER_BYTES + BLOCK_BYTES, 0)
        try:
            return parse_segment_header(raw[:SEGMENT_HEADER_BYTES], path)
        except Corrupt as error:
            first = parse_block_header(raw[SEGMENT_HEADER_BYTES:], self.seed)
            empty = len(raw) > SEGMENT_HEADER_BYTES and not any(raw[SEGMENT_HEADER_BYTES:])
            if not empty and (first is None or first.segment != segment):
                raise
            self.tell(f"{error.description}: what it says is known otherwise")
            return SegmentHeader(segment, self.manifest.store_id, 0, 0)

    def allocated(self, descriptor: int, segment: int) -> int:
        """Bytes that were reserved when the segment was made; 0 when nobody knows."""
        return self._header(descriptor, segment, self.path(segment)).allocated

    def take(self, segment: int) -> int:
        """The descriptor to write `segment` with, now: if it is not there yet it is made, on a full disk out of what was set aside."""
        with self._mutex:
            return self._take(segment, urgent=True)

    def prepare(self, segment: int) -> None:
        """Makes the segment, with its room reserved, and the spare whole: ahead of need, so OSError when the disk is full."""
        with self._mutex:
            try:
                self._take(segment, urgent=False)
            finally:
                self._spare.keep()  # as much of it as there is room for, if there is none for a segment

    def _take(self, segment: int, urgent: bool) -> int:
        while self.manifest.last < segment:  # none may be left out, also not one that could not be made when it was due
            made = self._create(self.manifest.last + 1, urgent)
            self._open[self.manifest.last] = made
        descriptor = self._open.get(segment)
        if descriptor is None:
            descriptor = self._open[segment] = self.open_segment(segment, os.O_RDWR)
        return descriptor

    def put_back(self, segment: int) -> None:
        """Nobody writes `segment` any more."""
        with self._mutex:
            descriptor = self._open.pop(segment, None)
            if descriptor is not None:
                self.disk.close(descriptor)

    def put_back_all(self) -> None:
        with self._mutex:
            descriptors = list(self._open.values())
            self._open.clear()
            for descriptor in descriptors:
                self.disk.close(descriptor)

    def _create(self, segment: int, urgent: bool) -> int:
        if segment > SEGMENT_MAX:
            raise StoreUnavailable(f"the store has used up its {SEGMENT_MAX} segment numbers")
        disk, path = self.disk, self.path(segment)
        descriptor, allocated = self._reserve(path + ".tmp", urgent)
        try:
            header = pack_segment_header(segment, self.manifest.store_id, self._clock.now_ms(), allocated)
            write_fully(disk, descriptor, [header], 0)
            disk.fsync(descriptor)
            disk.rename(path + ".tmp", path)
            disk.sync_directory(self.directory)
            self._write_manifest(replace(self.manifest, last=segment))
        except BaseException:
            disk.close(descriptor)
            raise
        return descriptor

    def _reserve(self, path: str, urgent: bool) -> tuple[int, int]:
        """(descriptor, bytes reserved) of a new file. What is urgent and finds no room gets the spare, or grows as it is written."""
        disk = self.disk
        descriptor = disk.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            return descriptor, self._segment_bytes if disk.fallocate(descriptor, self._segment_bytes) else 0
        except OSError as error:
            disk.close(descriptor)
            disk.unlink(path)  # a part of what was asked for may have been reserved
            if not urgent or error.errno != errno.ENOSPC:
                raise
        allocated = self._spare.become(path)
        if allocated:
            self.short[self.manifest.last + 1] = allocated
        return disk.open(path, os.O_RDWR | os.O_CREAT), allocated

    def stays_short(self, segment: int, size: int) -> None:
        """A segment that was begun by an earlier run could not be given the rest of its room."""
        self.short[segment] = size

    def bytes_of(self, segment: int) -> int:
        """A segment is closed by the first block that ends beyond this. On any thread."""
        return self.short.get(segment, self._segment_bytes)

    def reserved_bytes(self, active: int) -> int:
        """What can be written behind the segment in use, whatever the disk says. On any thread, without asking the disk."""
        return (self.manifest.last - active) * self._segment_bytes + self._spare.held

    def give_room(self, size: int) -> bool:
        """Something that cannot wait found the disk full: True if it is worth another try."""
        with self._mutex:
            return self._spare.give_up(size)

    def drop_index(self, segment: int) -> None:
        """The segment is read instead. Durable on return."""
        self._unlink_if_there(self.index_path(segment))
        self.disk.sync_directory(self.directory)

    def drop_unfinished_index(self, segment: int) -> None:
        """It would only take up room."""
        self._unlink_if_there(self.index_path(segment) + ".tmp")

    def adopt(self, segment: int) -> None:
        """A segment that was made just before a crash, and not yet named in the manifest."""
        with self._mutex:
            self._write_manifest(replace(self.manifest, last=segment))

    def adopt_metadata(self, identity: str) -> None:
        """The store belongs to this metadata from now on."""
        with self._mutex:
            self._write_manifest(replace(self.manifest, metadata=identity))

    def remove_first(self, next_number: int, audit: bool) -> None:
        """The oldest segment leaves: out of the manifest first, so that a crash in between leaves only litter."""
        with self._mutex:
            segment = self.manifest.first
            self.short.pop(segment, None)
            self._write_manifest(replace(self.manifest, first=segment + 1, first_number=next_number))
            self._retire(segment, audit)

    def _retire(self, segment: int, audit: bool) -> None:
        self._unlink_if_there(self.index_path(segment))
        if audit:
            directory = f"{self.directory}/{AUDIT}"
            self.disk.mkdir(directory)
            try:
                self.disk.rename(self.path(segment), f"{directory}/{audit_name(segment, self._clock.now_ms())}")
            except FileNotFoundError:
                pass  # only its index was left over
            self.disk.sync_directory(directory)
        else:
            self._unlink_if_there(self.path(segment))
        self.disk.sync_directory(self.directory)

    def drop_old_audit(self, retired_before: int) -> None:
        directory = f"{self.directory}/{AUDIT}"
        try:
            names = self.disk.listdir(directory)
        except FileNotFoundError:
            return
        for name in names:
            stem, dash, retired_at = name.removesuffix(".seg").partition("-")
            if dash and stem.isdigit() and retired_at.isdigit() and int(retired_at) < retired_before:
                self._unlink_if_there(f"{directory}/{name}")

    def _write_manifest(self, manifest: Manifest) -> None:
        content = manifest.encode()
        try:
            write_file(self.disk, self.directory, MANIFEST, content)
        except OSError as error:
            # a segment can neither come nor go without it, and going is what makes room
            if error.errno != errno.ENOSPC or not self._spare.give_up(len(content)):
                raise
            write_file(self.disk, self.directory, MANIFEST, content)
        self.manifest = manifest

    def _unlink_if_there(self, path: str) -> None:
        try:
            self.disk.unlink(path)
        except FileNotFoundError:
            pass  # that it is gone is all that was wanted
