"""A copy of stores that opens: each as it was at one instant, and all of a namespace at the same one, also while a broker writes them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Final

from tandem.model.errors import ConfigurationError, Corrupt, StoreUnavailable
from tandem.stores.blocks import BLOCK_MAGIC, BadBlock, Damage, pack_segment_header
from tandem.stores.disk import Disk, LocalDisk, make_directory, write_file, write_fully
from tandem.stores.segment_files import MANIFEST, segment_name
from tandem.stores.segment_reader import SegmentReader, read_manifest
from tandem.stores.verify import VerifyReport, verify

_PASSES_MAX: Final = 100_000
_COPY_BYTES: Final = 1_048_576


class StoreCopy:
    """One store, copied block by block, oldest first; `catch_up` copies what has come since. The copy is a prefix of the journal."""

    def __init__(self, source: Path, target: Path, disk: Disk | None = None) -> None:
        self._disk = disk or LocalDisk()
        self._source, self._target = str(source), str(target)
        make_directory(self._disk, self._target)
        if self._disk.listdir(self._target):
            raise ConfigurationError(f"{self._target}: not empty; a backup needs a directory of its own")
        self._begin()

    def _begin(self) -> None:
        manifest = read_manifest(self._disk, self._source)
        self._first, self._first_number = manifest.first, manifest.first_number
        self._segment, self._number = manifest.first, manifest.first_number
        self._file: SegmentReader | None = None
        self._copy = -1
        self._looked = False

    def catch_up(self) -> bool:
        """True if anything was copied; False if the store holds nothing that the copy does not."""
        moved = False
        if self._file is None and read_manifest(self._disk, self._source).last < self._segment:
            return False  # it has no segment yet
        while True:
            try:
                moved = self._advance() or moved
                if not self._next_segment():
                    return moved
            except FileNotFoundError:
                self._start_over()
                moved = True

    def follow(self) -> bool:
        """As `catch_up`, within the segment that was copied last: one look, which takes microseconds."""
        return self._file is not None and self._advance()

    def at_last_segment(self) -> bool:
        """Nothing was written behind the segment that was copied last."""
        try:
            if self._file is None:
                return read_manifest(self._disk, self._source).last < self._segment
            return self._next_begins_with() is None
        except FileNotFoundError:
            return False  # it was, and compaction has already removed it

    def _advance(self) -> bool:
        """The whole blocks that follow in this segment. One that is being written right now is left out."""
        if self._file is None:
            self._open()
        file = self._file
        assert file is not None
        if self._looked and self._disk.pread(file.descriptor, len(BLOCK_MAGIC), file.end) != BLOCK_MAGIC:
            return False
        begin = file.end
        self._looked = True
        try:
            for _, number, _, _, _ in file.blocks(self._number):
                self._number = number + 1
        except BadBlock as bad:
            if isinstance(bad, Damage):
                raise Corrupt(f"{file.path}: {bad}") from bad
        at = begin
        while at < file.end:
            part = self._disk.pread(file.descriptor, min(_COPY_BYTES, file.end - at), at)
            if not part:
                raise Corrupt(f"{file.path}: offset {at}: became shorter while it was copied")
            write_fully(self._disk, self._copy, [part], at)
            at += len(part)
        return file.end > begin

    def _open(self) -> None:
        self._file = SegmentReader(self._disk, f"{self._source}/{segment_name(self._segment)}")
        self._looked = False
        self._copy = self._disk.open(f"{self._target}/{segment_name(self._segment)}", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        header = self._file.header
        # nothing is reserved behind the end of a copy
        write_fully(self._disk, self._copy, [pack_segment_header(header.segment, header.store_id, header.created_at, 0)], 0)

    def _next_segment(self) -> bool:
        """True if the segment is complete, and the next one is to be copied; also if there is more in this one than was seen."""
        first = self._next_begins_with()
        if first is None:
            return False
        if first == self._number:
            self._close()
            self._segment += 1
            return True
        if first > self._number and self._advance():
            return True  # this segment grew and was filled after it was read
        raise Corrupt(f"{self._source}/{segment_name(self._segment + 1)}: begins with block {first}; block {self._number} is missing")

    def _next_begins_with(self) -> int | None:
        """The number of the first block in the segment that follows; None if there is none, or nothing in it."""
        if read_manifest(self._disk, self._source).last <= self._segment:
            return None
        follower = SegmentReader(self._disk, f"{self._source}/{segment_name(self._segment + 1)}")
        try:
            return next((number for _, number, _, _, _ in follower.blocks()), None)
        except BadBlock as bad:
            if isinstance(bad, Damage):
                raise Corrupt(f"{follower.path}: {bad}") from bad
            return None
        finally:
            follower.close()

    def _start_over(self) -> None:
        """Compaction went past us: what we wanted to read next was appended again, further on."""
        if self._segment >= read_manifest(self._disk, self._source).first:
            raise Corrupt(f"{self._source}/{segment_name(self._segment)}: missing")
        self._close()
        for name in self._disk.listdir(self._target):
            self._disk.unlink(f"{self._target}/{name}")
        self._begin()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._copy >= 0:
            self._disk.fsync(self._copy)
            self._disk.close(self._copy)
            self._copy = -1

    def finish(self) -> VerifyReport:
        """Makes it a store: its manifest names what was copied. Every byte of the copy is read back."""
        last = self._segment if self._file is not None else self._first - 1
        self._close()
        manifest = read_manifest(self._disk, self._source)
        copied = replace(manifest, first=self._first, last=last, first_number=self._first_number)
        write_file(self._disk, self._target, MANIFEST, copied.encode())
        return verify(Path(self._target), self._disk)


def backup(directory: Path, target: Path, disk: Disk | None = None) -> VerifyReport:
    """A copy that opens as a store, of a live or stopped one: all that was durable when this was called, and maybe more."""
    copy = StoreCopy(directory, target, disk)
    copy.catch_up()
    return copy.finish()


def backup_together(places: list[tuple[Path, Path]], disk: Disk | None = None) -> list[VerifyReport]:
    """Stores that belong together, all as they were at one instant: what moves between them is in one of the copies, and in one only.

    If no store has grown between two looks at each, there was an instant between the looks at which all were as they were seen. A busy
    broker leaves pauses shorter than a millisecond, so these looks do nothing else; that no further segment had been begun is asked
    after them.
    """
    copies = [StoreCopy(source, target, disk) for source, target in places]
    for copy in copies:
        copy.catch_up()
    for _ in range(_PASSES_MAX):
        grown = [copy.follow() for copy in copies]
        if not any(grown) and not all(copy.at_last_segment() for copy in copies):
            grown = [copy.catch_up() for copy in copies]
        if not any(grown):
            return [copy.finish() for copy in copies]
    raise StoreUnavailable("the stores were written to without a pause; back them up at a quieter time")


def copy_file(source: Path, target: Path) -> None:
    """Durable on return, and for nobody else to read: it may hold keys."""
    disk = LocalDisk()
    content = source.read_bytes()
    make_directory(disk, str(target.parent))
    write_file(disk, str(target.parent), target.name, content)
