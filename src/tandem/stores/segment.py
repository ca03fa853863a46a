"""The append log in files: what is announced as durable is on disk, in the order of appends, or the store says that it has stopped."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tandem.model.clock import Clock
from tandem.stores.disk import Disk
from tandem.stores.file_log import FileLog
from tandem.stores.group_commit import GroupCommitStore
from tandem.stores.settings import LogSettings
from tandem.stores.store_identity import StoreIdentity
from tandem.stores.worker import ThreadWorker, Worker


class SegmentStore(GroupCommitStore):
    """One directory, one failure domain."""

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
        self._files = FileLog(str(directory), settings, clock, disk, new_worker, new_store_id, identity)
        super().__init__(os.path.basename(directory), self._files, loop_call, settings, clock, new_worker)

    @property
    def sync_count(self) -> int:
        return self._files.syncs
