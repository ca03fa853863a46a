"""Blocks in files: what was synced is read again after a restart, what was not is cut off, and damage is told."""

from __future__ import annotations

import os
from collections.abc import Callable

from tandem.broker.ports import Tenant
from tandem.model.clock import Clock
from tandem.model.errors import StoreUnavailable
from tandem.stores.block_log import BlockLog, Continuation, Replayed
from tandem.stores.blocks import SEGMENT_HEADER_BYTES
from tandem.stores.committer import BlockWriter
from tandem.stores.disk import Disk, LocalDisk
from tandem.stores.maintenance import Maintenance
from tandem.stores.recovery import Recovery, SegmentStats
from tandem.stores.segment_files import LOCK, Manifest, SegmentFiles
from tandem.stores.settings import LogSettings
from tandem.stores.store_identity import StoreIdentity
from tandem.stores.synced import Synced, SyncedMark, read_mark
from tandem.stores.worker import ThreadWorker, Worker


class FileLog(BlockLog):
    """Segments in one directory."""

    def __init__(
        self,
        directory: str,
        settings: LogSettings,
        clock: Clock,
        disk: Disk | None = None,
        new_worker: Callable[[str], Worker] = ThreadWorker,
        new_store_id: Callable[[], bytes] = lambda: os.urandom(16),
        identity: StoreIdentity | None = None,
    ) -> None:
        super().__init__(directory, "disk")
        self._directory = directory
        self._settings = settings
        self._clock = clock
        self._disk: Disk = disk or LocalDisk()
        self._new_worker = new_worker
        self._new_store_id = new_store_id
        self._identity = identity or StoreIdentity()
        self._lock_descriptor = -1
        self._mark: SyncedMark | None = None
        self._written_id = b""
        """Of the store that was written last."""
        self._files: SegmentFiles
        self._stats: dict[int, SegmentStats]
        self._recovery: Recovery
        self._maintenance: Maintenance
        self._writer: BlockWriter

    @property
    def syncs(self) -> int:
        return self._writer.syncs

    def replay(self, tenant: Tenant, stats: dict[int, SegmentStats], trusted: int, trusted_number: int) -> Replayed:
        settings = self._settings
        beginning = self._take_lock()
        files = self._files = SegmentFiles(self._directory, self._disk, self._clock, settings.segment_bytes)
        segments = files.load(beginning, settings.audit_retention_ms > 0)
        if files.manifest.store_id != self._written_id:
            trusted = 0  # begun anew: what was known of the one that was lost says nothing
        if files.manifest.begins_at:
            tenant.numbers_begin_at(files.manifest.begins_at, files.manifest.entity_max)
        mark = self._mark = SyncedMark(self._disk, self._directory, files.manifest.store_id)
        synced, doubt = read_mark(self._disk, self._directory, files.manifest.store_id)
        if trusted and synced is not None and synced.number > trusted_number:
            # a commit that came through too late: nobody was told of it, so it is cut off, and first of all forgotten here
            synced = Synced(trusted >> 32, trusted & 0xFFFF_FFFF, trusted_number)
            mark.begin(synced)
        recovery = self._recovery = Recovery(files, stats, tenant, trusted, synced)
        recovery.run(segments)
        if doubt:
            recovery.report.notes.append(doubt)
        self._identity.settle(files)
        maintenance = Maintenance(files, stats, settings, self._clock, self._call_loop, self._new_worker, self._stop, self._tell_room)
        self._stats, self._maintenance = stats, maintenance
        grown, filled = maintenance.index_grown, maintenance.segment_filled
        writer = BlockWriter(files, self._announce, grown, filled, maintenance.report, mark, settings.index_spill_bytes)
        self._writer = writer
        told = (*files.found, *recovery.report.told())
        return Replayed(files.seed, recovery.report, maintenance, told, writer.write, files.short)

    def begin_writing(self) -> Continuation:
        recovery, maintenance, mark = self._recovery, self._maintenance, self._mark
        assert mark is not None
        segment, stats = recovery.segment, self._stats.setdefault(recovery.segment, SegmentStats())
        for older in recovery.unindexed:
            maintenance.seal(older, None, self._stats[older].totals)
        end = stats.totals.segment_bytes
        if recovery.sealed or end >= self._settings.segment_bytes:
            if not recovery.sealed:
                maintenance.seal(segment, None, stats.totals)
            segment, end = segment + 1, SEGMENT_HEADER_BYTES
            stats = self._stats[segment] = SegmentStats()
        descriptor = self._files.take(segment)
        if self._disk.size(descriptor) < self._settings.segment_bytes:
            try:
                self._disk.fallocate(descriptor, self._settings.segment_bytes)
            except OSError as error:
                # a full disk must not keep the store from opening: what is in it can still be read, settled, and make room
                maintenance.troubles["room"] = f"no room to grow segment {segment}: {error}"
                self._files.stays_short(segment, self._disk.size(descriptor))
            self._disk.fsync(descriptor)
        try:
            mark.begin(Synced(segment, end, recovery.number - 1))
        except OSError as error:
            maintenance.troubles["mark"] = f"how much is synced cannot be noted: {error}"
        self._writer.expect(segment, stats.totals.blocks > 0)
        maintenance.prepare(segment + 1)
        self._written_id = self._files.manifest.store_id
        return Continuation(segment, end, recovery.number)

    def _take_lock(self) -> Manifest:
        self._disk.begin()
        beginning = self._identity.prepare(self._disk, self._directory, self._new_store_id)
        try:
            self._lock_descriptor = self._disk.lock(f"{self._directory}/{LOCK}")
        except BlockingIOError as error:
            raise StoreUnavailable(f"{self._directory}: the store is open in another process, or twice in this one") from error
        return beginning

    def release(self) -> None:
        if self._mark is not None:
            self._mark.close()
        if hasattr(self, "_files"):
            self._files.put_back_all()
        if self._lock_descriptor >= 0:
            descriptor, self._lock_descriptor = self._lock_descriptor, -1
            self._disk.unlock(descriptor)

    def abandon(self) -> None:
        self._disk.abandon()

    def give_up_waiting(self) -> None:
        self._disk.abandon()
