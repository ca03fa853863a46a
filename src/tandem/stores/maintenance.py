"""Upkeep of a log in files: bodies are read, segments made, indexed and removed, and the disk is looked at, on threads of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tandem.model.clock import Clock
from tandem.model.errors import Corrupt
from tandem.stores.body_reader import BodyReader
from tandem.stores.fetching import Fetch
from tandem.stores.maintenance_jobs import MaintenanceJobs
from tandem.stores.recovery import SegmentStats
from tandem.stores.segment_files import MANIFEST, SegmentFiles
from tandem.stores.segment_index import SegmentTotals
from tandem.stores.settings import LogSettings
from tandem.stores.upkeep import Blocks, Upkeep
from tandem.stores.worker import Worker

CHUNK_BYTES: Final = 1_048_576
"""Read at a time from the segment being compacted."""

_WORTH_IT: Final = 4
"""When no room could be reserved any more, compaction begins as soon as this part of a segment can be won by it."""


class Maintenance(Upkeep):
    """Of one directory."""

    def __init__(
        self,
        files: SegmentFiles,
        stats: dict[int, SegmentStats],
        settings: LogSettings,
        clock: Clock,
        loop_call: Callable[[Callable[[], None]], None],
        new_worker: Callable[[str], Worker],
        stop: Callable[[Exception], None],
        room_changed: Callable[[], None],
    ) -> None:
        super().__init__(stats, settings, clock, loop_call, new_worker, stop, room_changed)
        self._files = files
        self.reader = BodyReader(files, settings)
        self._jobs = MaintenanceJobs(files, self.report)
        files.tell = self.tell_later
        self._directory = files.disk.identity(files.directory)

    def fetch(self, fetch: Fetch) -> None:
        def read() -> None:
            fetch.read(self.reader)
            self._loop_call(fetch.deliver)

        self._reading.submit(read)

    def prepare(self, segment: int) -> None:
        """What it takes is counted at once: a disk may fill up between two looks."""

        def make() -> None:
            self._jobs.prepare(segment)
            if self._settings.free_bytes_min:
                self._look_at_free_space()

        self._maintaining.submit(make)

    def seal(self, segment: int, entries: list[bytes] | None, totals: SegmentTotals) -> None:
        self._maintaining.submit(lambda: self._jobs.seal(segment, entries, totals))

    def index_grown(self, segment: int, entries: list[bytes]) -> None:
        """On the committer's thread."""
        self._maintaining.submit(lambda: self._jobs.spill(segment, entries))

    def segment_filled(self, segment: int, entries: list[bytes] | None, totals: SegmentTotals) -> None:
        """On the committer's thread: the segment after this one is in use from now on, so the one after that is made."""
        self.prepare(segment + 2)
        self.seal(segment, entries, totals)

    def _first_segment(self) -> int:
        return self._files.manifest.first

    def _worth_it(self, head: int, active: int) -> bool:
        """Short of room, what was written since is won back again and again, so that settling never ends; but what still matters of the
        oldest segment has to fit into what is left. Everything is walked until nothing is to be won."""
        size = self._settings.segment_bytes
        dead = sum(stats.totals.segment_bytes - self._wanted_bytes(segment) for segment, stats in self._stats.items())
        if dead < (size // _WORTH_IT if "room" in self.troubles else size):
            return False
        left = max(self._files.bytes_of(active) - self._stats[active].totals.segment_bytes, 0) if active in self._stats else 0
        return self._wanted_bytes(head) <= left + self._files.reserved_bytes(active)

    def read_blocks(self, segment: int, begin: bool, done: Callable[[Blocks, Exception | None], None]) -> None:
        """`done` is called on the maintenance thread."""
        first_number = self._stats[segment].totals.first_number

        def read() -> None:
            try:
                blocks = self._jobs.read_blocks(segment, first_number, CHUNK_BYTES, begin)
            except (OSError, Corrupt) as error:
                done([], error)
            else:
                done(blocks, None)

        self._maintaining.submit(read)

    def remove_head(self, segment: int, active: int, removed: Callable[[], None]) -> None:
        """Only once all that it held and still matters is durable elsewhere; `removed` is called on the loop. What comes free on a full
        disk is reserved at once, before somebody else has it."""
        totals = self._stats.pop(segment).totals
        self.relocated.drop(segment)
        audit = self._settings.audit_retention_ms > 0

        def drop() -> None:
            # reads that were asked for while the segment was there come before this on the same thread
            self.reader.drop(segment)
            self._maintaining.submit(remove)

        def remove() -> None:
            lacking = "room" in self.troubles
            try:
                self._files.remove_first(totals.last_number + 1, audit and not lacking)
            except OSError as error:
                self.report("compaction", f"segment {segment} cannot be removed: {error}")
            else:
                if lacking:
                    self._jobs.prepare(active + 1)
                self._loop_call(removed)

        self._reading.submit(drop)

    def check(self, active: int) -> None:
        """Now and then: old audit segments go, and what could not be done is tried again."""
        steady = self._clock.steady_ms()
        if steady - self._checked_at < self._settings.check_ms:
            return
        self._checked_at = steady
        retention = self._settings.audit_retention_ms
        if retention:
            kept_from = self._clock.now_ms() - retention
            self._maintaining.submit(lambda: self._drop_audit(kept_from))
        if "room" in self.troubles:
            self.prepare(active + 1)
        if "index" in self.troubles:
            self._maintaining.submit(lambda: self._jobs.index_again(self._stats))
        self._maintaining.submit(self._look_around)

    def _look_around(self) -> None:
        """Open files go on taking what is written to them after their directory was lost; whoever opens the store next misses it."""
        files = self._files
        try:
            here = files.disk.identity(files.directory)
            files.disk.identity(f"{files.directory}/{MANIFEST}")
        except OSError as error:
            self.report("gone", f"its files are gone: {error}")
            return
        if here != self._directory:
            self.report("gone", f"{files.directory}: is another directory now")
        elif self._settings.free_bytes_min:
            self._look_at_free_space()

    def _look_at_free_space(self) -> None:
        least = self._settings.free_bytes_min
        try:
            free = self._files.disk.free_bytes(self._files.directory)
        except OSError as error:
            self.report("space", f"the free space cannot be seen: {error}")
            return
        self.report("space", f"only {free} bytes are free, less than the {least} kept for settling" if free < least else "")

    def _drop_audit(self, retired_before: int) -> None:
        try:
            self._files.drop_old_audit(retired_before)
        except OSError as error:
            self.report("audit", f"old segments cannot be deleted: {error}")
        else:
            self.report("audit", "")

    def _close(self) -> None:
        self._jobs.close()
        self.reader.close()
