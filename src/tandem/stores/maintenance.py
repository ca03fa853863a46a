"""What a log needs besides its committer: a thread that reads, one that maintains segments, their troubles, and when to compact."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from tandem.broker.ports import StoreHealth, StoreState
from tandem.model.clock import Clock
from tandem.model.errors import Corrupt, StoreUnavailable
from tandem.stores.body_reader import BodyReader
from tandem.stores.fetching import Fetch
from tandem.stores.maintenance_jobs import MaintenanceJobs
from tandem.stores.recovery import TOLD_MAX, SegmentStats
from tandem.stores.relocated_bytes import RelocatedBytes
from tandem.stores.salvage import Salvaged
from tandem.stores.segment_files import MANIFEST, SegmentFiles
from tandem.stores.segment_index import SegmentTotals
from tandem.stores.settings import LogSettings
from tandem.stores.worker import Worker

CHUNK_BYTES: Final = 1_048_576
"""Read at a time from the segment being compacted."""

_WORTH_IT: Final = 4
"""When no room could be reserved any more, compaction begins as soon as this part of a segment can be won by it."""

Blocks = list[tuple[int, Salvaged]]


class Maintenance:
    """Methods are called on the loop unless they say otherwise; `stop` is called back when damage is found."""

    def __init__(
        self,
        files: SegmentFiles,
        stats: dict[int, SegmentStats],
        settings: LogSettings,
        clock: Clock,
        loop_call: Callable[[Callable[[], None]], None],
        new_worker: Callable[[str], Worker],
        stop: Callable[[Exception], None],
    ) -> None:
        self._files = files
        self._stats = stats
        self._settings = settings
        self._clock = clock
        self._loop_call = loop_call
        self._stop = stop
        self._reading = new_worker("tandem-reader")
        self._maintaining = new_worker("tandem-maintenance")
        self.reader = BodyReader(files, settings)
        self._jobs = MaintenanceJobs(files, self.report)
        self._checked_at = 0
        files.tell = self.tell_later
        self._directory = files.disk.identity(files.directory)
        self.relocated = RelocatedBytes()
        self.troubles: dict[str, str] = {}
        """What does not work at the moment, and why; a store with troubles is DEGRADED."""
        self.healthy = StoreHealth(StoreState.UP)
        """With what there is to tell about the files."""
        self.room_changed: Callable[[], None] | None = None

    def tell(self, lines: Sequence[str]) -> None:
        """What was found in the files is part of the store's health until it is opened again; each line once."""
        notes = self.healthy.notes
        fresh = [line for line in dict.fromkeys(lines) if line not in notes][: TOLD_MAX - len(notes)]
        if fresh:
            self.healthy = StoreHealth(StoreState.UP, "", (*notes, *fresh))

    def tell_later(self, line: str) -> None:
        """On any thread."""
        self._loop_call(lambda: self.tell((line,)))

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

    def head_to_compact(self, active: int) -> tuple[int, int]:
        """The oldest segment, once more bytes are dead than live plus two segments, and by how many segments more; 0 before."""
        head = self._files.manifest.first
        if len(self._stats) <= 2 or head >= active or head not in self._stats:
            return 0, 0
        total = live = 0
        for stats in self._stats.values():
            total += stats.totals.segment_bytes
            live += stats.live_bytes()
        live += self.relocated.total
        excess = total - 2 * live - 2 * self._settings.segment_bytes
        if excess > 0:
            return head, excess // self._settings.segment_bytes
        if self.short_of_room and self._worth_it(head, active):
            return head, 0
        return 0, 0

    def _worth_it(self, head: int, active: int) -> bool:
        """Short of room, what was written since is won back again and again, so that settling never ends; but what still matters of the
        oldest segment has to fit into what is left. Everything is walked until nothing is to be won."""
        size = self._settings.segment_bytes
        dead = sum(stats.totals.segment_bytes - self._wanted_bytes(segment) for segment, stats in self._stats.items())
        if dead < (size // _WORTH_IT if "room" in self.troubles else size):
            return False
        left = max(self._files.bytes_of(active) - self._stats[active].totals.segment_bytes, 0) if active in self._stats else 0
        return self._wanted_bytes(head) <= left + self._files.reserved_bytes(active)

    def _wanted_bytes(self, segment: int) -> int:
        """Bodies, and the heads and keys that go with them or were carried here, with their part of the blocks around them."""
        stats = self._stats[segment]
        totals = stats.totals
        around = totals.segment_bytes - totals.body_bytes
        heads = around * max(totals.bodies - stats.forgotten, 0) // max(totals.records, 1)
        relocated = self.relocated.of(segment)
        return min(totals.segment_bytes, stats.live_bytes() + max(heads, relocated + relocated // 8))

    @property
    def short_of_room(self) -> str:
        """Why what is left should be kept for settling."""
        return self.troubles.get("room") or self.troubles.get("space") or ""

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
        """Now and then: old audit segments go, and room that was lacking is looked for again."""
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

    def report(self, what: str, why: str) -> None:
        """On any thread."""
        if why or what in self.troubles:
            self._loop_call(lambda: self._note(what, why))

    def _note(self, what: str, why: str) -> None:
        if what == "damage":
            self._stop(Corrupt(why))
        elif what == "gone":
            self._stop(StoreUnavailable(why))
        elif why:
            self.troubles[what] = why
        else:
            self.troubles.pop(what, None)
        if what in ("room", "space") and self.room_changed is not None:
            self.room_changed()

    def end(self, timeout_seconds: float) -> bool:
        """False if a call to the disk did not return in time."""
        if not self._reading.stop(timeout_seconds) or not self._maintaining.stop(timeout_seconds):
            return False
        self._jobs.close()
        self.reader.close()
        return True
