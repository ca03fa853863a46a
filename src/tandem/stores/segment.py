"""The append log: what is announced as durable is on disk, in the order in which it was appended, or the store says that it has stopped."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tandem.broker.ports import Effect, FetchEffect, StoreHealth, StoreState, Tenant
from tandem.model.clock import Clock
from tandem.model.errors import BusError, Corrupt, StoreUnavailable
from tandem.model.histogram import Histogram
from tandem.stores.blocks import BLOCK_BYTES, RECORD, RECORD_BYTES, SEGMENT_HEADER_BYTES
from tandem.stores.checksum import crc32
from tandem.stores.committer import BlockWriter, Group
from tandem.stores.compaction import Compaction
from tandem.stores.disk import Disk, LocalDisk
from tandem.stores.effects import run_effects
from tandem.stores.fetching import Fetch
from tandem.stores.maintenance import Maintenance
from tandem.stores.recent import RecentBodies
from tandem.stores.recovery import Recovery, RecoveryReport, SegmentStats
from tandem.stores.segment_files import LOCK, Manifest, SegmentFiles
from tandem.stores.settings import LogSettings
from tandem.stores.store_identity import StoreIdentity
from tandem.stores.synced import Synced, SyncedMark, read_mark
from tandem.stores.worker import ThreadWorker, Worker

_pack: Final = RECORD.pack
_STOPPED: Final = -1
_BLOCK_END_MAX: Final = 0x8000_0000
"""A pending block that reaches this offset takes no more records: locations have 32 bits for the offset."""
_STOP_SECONDS: Final = 30.0
_REOPEN_SECONDS: Final = 1.0
"""Reopening is tried again soon anyway; the loop must not wait long for a thread that hangs in a call."""


class SegmentStore:
    """One directory, one failure domain. All methods are called on the loop's thread."""

    def __init__(
        self,
        directory: Path,
        loop_call: Callable[[Callable[[], None]], None],
        settings: LogSettings,
        clock: Clock,
        disk: Disk | None = None,
        new_worker: Callable[[str], Worker] = ThreadWorker,
        new_store_id: Callable[[], bytes] = lambda: os.urandom(16),
        identity: StoreIdentity | None = None,
    ) -> None:
        self._directory = str(directory)
        self._loop_call = loop_call
        self._settings = settings
        self._clock = clock
        self._disk: Disk = disk or LocalDisk()
        self._new_worker = new_worker
        self._new_store_id = new_store_id
        self._identity = identity or StoreIdentity()
        self._state = StoreState.RECOVERING
        self._cause = ""
        self._lock_descriptor = -1
        self.recovery = RecoveryReport()
        self._room_changed: Callable[[], None] | None = None
        self._mark: SyncedMark | None = None
        # the pending block
        self._parts: list[bytes] = []
        self._next: int = 0
        """Location of the next record."""
        self._limit: int = _STOPPED
        """Records begin below this location; lower than any location while the store takes none."""
        self._start: int = 0
        """Location of the first record of the pending block."""
        self._flushed: int = 0
        """`_next` at the last flush: records beyond it belong to a turn that is not over."""
        self._number: int = 1
        self._recent = RecentBodies(self._parts, 0)
        self._waiters: list[Effect] = []
        self._lazy_since: int = 0
        # the block in flight
        self._group: Group | None = None
        self._trusted: int = 0
        """Location behind the last durable block."""
        self._trusted_number: int = 0
        self._stats: dict[int, SegmentStats] = {}
        self._workers_made = self._turn_asked = False
        self.commit_times = Histogram()

    # ── hot ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def append(self, kind: int, flags: int, entity: int, seq: int, at: int, aux: int, key: bytes, body: bytes) -> int:
        location = self._next
        if location > self._limit:
            raise self._refusal()
        key_bytes = len(key)
        body_bytes = len(body)
        head = _pack(kind, flags, entity, seq, at, aux, key_bytes, body_bytes, crc32(body) if body_bytes else 0)
        parts = self._parts
        parts.append(head)
        parts.append(key)
        parts.append(body)
        self._next = location + RECORD_BYTES + key_bytes + body_bytes
        return location

    def when_durable(self, effect: Effect) -> None:
        if self._limit == _STOPPED:
            raise self._refusal()
        self._waiters.append(effect)

    def forget(self, location: int) -> None:
        stats = self._stats.get(location >> 32)
        if stats is not None:
            stats.forgotten += 1

    def flush(self) -> None:
        self._flushed = self._next
        if self._group is not None or self._limit == _STOPPED:
            return
        if self._waiters:
            self._hand_over()
        elif self._next != self._start:
            self._flush_lazy()

    def _flush_lazy(self) -> None:
        """Nobody waits: gather, but neither without limit nor for ever."""
        now = self._clock.steady_ms()
        if self._lazy_since == 0:
            self._lazy_since = now
        if self._next - self._start >= self._settings.lazy_bytes_max or now - self._lazy_since >= self._settings.lazy_ms_max:
            self._hand_over()

    def _hand_over(self) -> None:
        """The pending block goes to the committer; where the next one will stand is known from here on."""
        start, effects = self._start, self._waiters
        segment = start >> 32
        offset = (start & 0xFFFF_FFFF) - BLOCK_BYTES
        group = Group(segment, offset, self._number, self._parts, self._recent, effects)
        group.started_at = self._clock.steady_ms()
        group.bytes = self._next - start
        self._group = group
        self._waiters = []
        self._lazy_since = 0
        if not self._parts:
            group.finished = True
            self._loop_call(self._completed)
            return
        totals = self._stats[segment].totals
        end = offset + group.seal(self._files.seed)
        self._number += 1
        if end >= self._files.bytes_of(segment):
            group.last = True
            segment += 1
            end = SEGMENT_HEADER_BYTES
            self._stats[segment] = SegmentStats()
        self._begin_block(segment, end)
        self._flushed = self._next
        self._committer.submit(lambda: self._writer.write(group, totals))

    def _begin_block(self, segment: int, offset: int) -> None:
        self._parts = []
        self._start = self._next = segment << 32 | offset + BLOCK_BYTES
        self._limit = (segment << 32) + max(_BLOCK_END_MAX, offset + BLOCK_BYTES)
        self._recent = RecentBodies(self._parts, self._start)

    def _trust(self) -> None:
        """All blocks before the pending one are durable."""
        self._trusted = self._start - BLOCK_BYTES
        self._trusted_number = self._number - 1

    def _completed(self) -> None:
        """On the loop, once per commit: the next group leaves for the disk before the effects of this one run."""
        group = self._group
        if group is None or not group.finished:
            return
        self._group = None
        if self._limit == _STOPPED:
            return  # those who waited for it know already
        if group.error is not None:
            self._stop(group.error, group.effects)
            return
        self._trust()
        self.commit_times.observe(self._clock.steady_ms() - group.started_at)
        between_turns = self._next == self._flushed
        effects = group.effects
        if self._next == self._start:
            if self._waiters:
                effects, self._waiters = effects + self._waiters, []
        elif self._waiters and between_turns:
            self._hand_over()
        run_effects(effects, None)
        if between_turns:
            self.flush()
        if self._compaction.blocked:
            self.compaction_goes_on()

    # ── reading back ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def fetch(self, locations: list[int], effect: FetchEffect) -> None:
        fetch = Fetch(len(locations), effect, self._fetched)
        if self._limit == _STOPPED:
            fetch.error = self._refusal()
            self._loop_call(fetch.deliver)
            return
        group = self._group
        in_memory = group.segment << 32 | group.offset if group is not None else self._start
        for i, location in enumerate(locations):
            if location < in_memory:
                fetch.wanted.append(location)
                continue
            body = group.recent.find(location) if group is not None and location < self._start else self._recent.find(location)
            if body is None:
                fetch.error = Corrupt(f"{self._directory}: no record at location {location:#x}")
                break
            fetch.found[i] = body
        if fetch.error is not None or not fetch.wanted:
            self._loop_call(fetch.deliver)
        else:
            self._maintenance.fetch(fetch)

    def _fetched(self, fetch: Fetch) -> None:
        error = fetch.error
        if error is None and self._limit == _STOPPED:
            error = self._refusal()  # whoever asked would go on as if the store took what follows
        if error is None:
            self._maintenance.tell(fetch.damaged)
            fetch.effect.fetched(fetch.in_order(), None)
            return
        if not isinstance(error, StoreUnavailable):
            self._stop(error, [])
        fetch.effect.fetched([], error)

    # ── opening, stopping, closing ───────────────────────────────────────────────────────────────────────────────────────────

    def replay(self, tenant: Tenant) -> None:
        if self._state is not StoreState.RECOVERING:
            raise StoreUnavailable(f"the store is {self._state.value}; only a store that was just opened can be replayed")
        try:
            self._recover(tenant)
        except OSError as error:
            self._state, self._cause = StoreState.DOWN, f"cannot be opened: {error}"
            self._release_files()
            raise StoreUnavailable(f"{self._directory}: {self._cause}") from error
        except BusError as error:
            self._state = StoreState.CORRUPT if isinstance(error, Corrupt) else StoreState.DOWN
            self._cause = error.description
            self._release_files()
            raise
        except BaseException:
            self._state, self._cause = StoreState.DOWN, "replay was interrupted"
            self._release_files()
            raise

    def _recover(self, tenant: Tenant) -> None:
        settings = self._settings
        beginning = self._take_lock()
        files = self._files = SegmentFiles(self._directory, self._disk, self._clock, settings.segment_bytes)
        segments = files.load(beginning, settings.audit_retention_ms > 0)
        if files.manifest.store_id != self._identity.store_id:
            self._trusted = 0  # begun anew: what was known of the one that was lost says nothing
        if files.manifest.begins_at:
            tenant.numbers_begin_at(files.manifest.begins_at, files.manifest.entity_max)
        self._stats = {}
        self._mark = SyncedMark(self._disk, self._directory, files.manifest.store_id)
        synced, doubt = read_mark(self._disk, self._directory, files.manifest.store_id)
        if self._trusted and synced is not None and synced.number > self._trusted_number:
            # a commit that came through too late: nobody was told of it, so it is cut off, and first of all forgotten here
            synced = Synced(self._trusted >> 32, self._trusted & 0xFFFF_FFFF, self._trusted_number)
            self._mark.begin(synced)
        recovery = Recovery(files, self._stats, tenant, self._trusted, synced)
        recovery.run(segments)
        if doubt:
            recovery.report.notes.append(doubt)
        self.recovery = recovery.report
        self._identity.settle(files)
        maintenance = Maintenance(files, self._stats, settings, self._clock, self._call_loop, self._new_worker, self.compaction_failed)
        self._maintenance = maintenance
        maintenance.room_changed = self._room_changed
        maintenance.tell((*files.found, *recovery.report.told()))
        self._committer = self._new_worker("tandem-committer")
        self._workers_made = True
        grown, filled = maintenance.index_grown, maintenance.segment_filled
        self._writer = BlockWriter(files, self._announce, grown, filled, maintenance.report, self._mark, settings.index_spill_bytes)
        self._compaction = Compaction(self, maintenance, tenant, settings)
        self._begin_writing(recovery, self._mark)
        self._state, self._cause = StoreState.UP, ""

    def _begin_writing(self, recovery: Recovery, mark: SyncedMark) -> None:
        segment, stats = recovery.segment, self._stats.setdefault(recovery.segment, SegmentStats())
        for older in recovery.unindexed:
            self._maintenance.seal(older, None, self._stats[older].totals)
        end = stats.totals.segment_bytes
        if recovery.sealed or end >= self._settings.segment_bytes:
            if not recovery.sealed:
                self._maintenance.seal(segment, None, stats.totals)
            segment, end = segment + 1, SEGMENT_HEADER_BYTES
            stats = self._stats[segment] = SegmentStats()
        descriptor = self._files.take(segment)
        if self._disk.size(descriptor) < self._settings.segment_bytes:
            try:
                self._disk.fallocate(descriptor, self._settings.segment_bytes)
            except OSError as error:
                # a full disk must not keep the store from opening: what is in it can still be read, settled, and make room
                self._maintenance.troubles["room"] = f"no room to grow segment {segment}: {error}"
                self._files.stays_short(segment, self._disk.size(descriptor))
            self._disk.fsync(descriptor)
        try:
            mark.begin(Synced(segment, end, recovery.number - 1))
        except OSError as error:
            self._maintenance.troubles["mark"] = f"how much is synced cannot be noted: {error}"
        self._writer.expect(segment, stats.totals.blocks > 0)
        self._number = recovery.number
        self._begin_block(segment, end)
        self._flushed = self._next
        self._trust()
        self._maintenance.prepare(segment + 1)

    def _take_lock(self) -> Manifest:
        self._disk.begin()
        beginning = self._identity.prepare(self._disk, self._directory, self._new_store_id)
        try:
            self._lock_descriptor = self._disk.lock(f"{self._directory}/{LOCK}")
        except BlockingIOError as error:
            raise StoreUnavailable(f"{self._directory}: the store is open in another process, or twice in this one") from error
        return beginning

    def _stop(self, error: Exception, effects: list[Effect]) -> None:
        """For good: after a failed write or sync nobody knows what the file holds. `reopen` reads it again."""
        if self._limit != _STOPPED:
            self._limit = _STOPPED
            self._state = StoreState.CORRUPT if isinstance(error, Corrupt) else StoreState.DOWN
            self._cause = str(error) or type(error).__name__
        refusal = self._refusal()
        refusal.__cause__ = error
        waiting, group = effects, self._group
        if group is not None:
            # It may still reach the disk; but whoever waited is told that nobody knows, and on reopening it is cut off.
            waiting = waiting + group.effects
            group.effects = []
        waiting, self._waiters = waiting + self._waiters, []
        self._parts = []
        self._next = self._flushed = self._start
        run_effects(waiting, refusal)

    def fail(self, cause: str) -> None:
        """Stop from outside: a stalled disk, an injected fault."""
        if self._limit != _STOPPED:
            self._stop(StoreUnavailable(cause), [])

    def check_stalled(self, stall_ms_max: int) -> None:
        group = self._group
        if group is not None and not group.finished and self._clock.steady_ms() - group.started_at > stall_ms_max:
            self.fail(f"the disk has not answered for more than {stall_ms_max} ms")
            self._disk.abandon()

    def reopen(self, tenant: Tenant) -> None:
        if self._limit != _STOPPED:
            raise StoreUnavailable("the store is up; only a store that stopped can be reopened")
        stuck = self._group is not None and not self._group.finished
        if stuck or not self._stop_workers(_REOPEN_SECONDS):
            raise StoreUnavailable(f"{self._directory}: a call to the disk has not returned yet; reopen the store when it has")
        self._completed()
        self._release_files()
        self._state, self._cause = StoreState.RECOVERING, ""
        self.replay(tenant)

    def close(self) -> None:
        """Everything appended is made durable, lazily appended records too, and their effects run before this returns."""
        while self._limit != _STOPPED and (self._group is not None or self._next != self._start or self._waiters):
            if self._group is None:
                self._hand_over()
            self._wait_for_committer()
            self._completed()
        self._limit = _STOPPED
        if self._state in (StoreState.UP, StoreState.RECOVERING):
            self._state, self._cause = StoreState.DOWN, "closed"
        if self._stop_workers(_STOP_SECONDS):
            self._release_files()
        self._disk.abandon()

    def _wait_for_committer(self) -> None:
        self._committer.stop(_STOP_SECONDS)
        group = self._group
        if group is not None and not group.finished:
            self._stop(StoreUnavailable("the last commit did not return in time"), [])
        self._committer = self._new_worker("tandem-committer")

    def _stop_workers(self, seconds: float) -> bool:
        """In the order in which they hand work to each other."""
        if not self._workers_made:
            return True
        if not self._committer.stop(seconds) or not self._maintenance.end(seconds):
            return False
        self._workers_made = False
        return True

    def _release_files(self) -> None:
        if self._workers_made:
            self._stop_workers(_STOP_SECONDS)
        if self._mark is not None:
            self._mark.close()
        if hasattr(self, "_files"):
            self._files.put_back_all()
        if self._lock_descriptor >= 0:
            descriptor, self._lock_descriptor = self._lock_descriptor, -1
            self._disk.unlock(descriptor)

    def _announce(self) -> None:
        """On the committer's thread."""
        self._call_loop(self._completed)

    def _call_loop(self, function: Callable[[], None]) -> None:
        try:
            self._loop_call(function)
        except RuntimeError:
            pass  # the loop is closed already; `close` looks for itself what is finished

    # ── compaction ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    def step_compaction(self) -> bool:
        """True while compaction is under way. Call it now and then: it looks whether compaction is due, and that goes on by itself."""
        if self._limit == _STOPPED:
            return False
        self._maintenance.check(self.active_segment)
        if not self._compaction.under_way:
            self._compaction_turn()
        return self._compaction.under_way

    def _compaction_turn(self) -> None:
        """Bounded, and a turn of its own on the loop."""
        self._turn_asked = False
        if self._limit == _STOPPED:
            return
        between_turns = self._next == self._flushed
        if self._compaction.step():
            self.compaction_goes_on()
        if between_turns:
            self.flush()

    def compaction_goes_on(self) -> None:
        if not self._turn_asked:
            self._turn_asked = True
            self._call_loop(self._compaction_turn)

    def wake_compaction(self) -> None:
        """On any thread."""
        self._call_loop(self.compaction_goes_on)

    def compaction_failed(self, error: Exception) -> None:
        self._stop(error, [])

    # ── what others may ask ──────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def pending_bytes(self) -> int:
        group = self._group
        return self._next - self._start + (group.bytes if group is not None else 0)

    @property
    def health(self) -> StoreHealth:
        if self._state is StoreState.UP:
            group, healthy = self._group, self._maintenance.healthy
            waited = self._clock.steady_ms() - group.started_at if group is not None else 0
            if waited > self._settings.stall_ms_max:
                return StoreHealth(StoreState.DEGRADED, f"the disk has not answered for {waited} ms", healthy.notes)
            for cause in self._maintenance.troubles.values():
                return StoreHealth(StoreState.DEGRADED, cause, healthy.notes)
            return healthy
        return StoreHealth(self._state, self._cause)

    @property
    def short_of_room(self) -> str:
        """The segment in use was reserved before room ran out, so what settles messages still fits; new messages would use it up."""
        if self._state is not StoreState.UP:
            return ""
        return self._maintenance.short_of_room

    def when_room_changes(self, tell: Callable[[], None]) -> None:
        self._room_changed = tell
        if self._workers_made:
            self._maintenance.room_changed = tell

    @property
    def sync_count(self) -> int:
        return self._writer.syncs

    @property
    def active_segment(self) -> int:
        return self._start >> 32

    @property
    def segment_count(self) -> int:
        return len(self._stats)

    def _refusal(self) -> StoreUnavailable:
        if self._limit != _STOPPED:
            return StoreUnavailable(f"{os.path.basename(self._directory)}: too much waits for the disk already")
        return StoreUnavailable(
            f"{os.path.basename(self._directory)}: the store is {self._state.value}" + (f": {self._cause}" if self._cause else "")
        )
