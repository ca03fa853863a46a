"""Engines behind the ports of the broker: what is remembered, and where."""

from tandem.stores.backup import backup
from tandem.stores.disk import Disk, LocalDisk
from tandem.stores.journal_dump import dump, dump_segment
from tandem.stores.memory import MemoryStore, Shelf
from tandem.stores.recovery import RecoveryReport
from tandem.stores.segment import SegmentStore
from tandem.stores.settings import LogSettings
from tandem.stores.verify import VerifyReport, verify
from tandem.stores.worker import InlineWorker, ThreadWorker, Worker

__all__ = [
    "Disk",
    "InlineWorker",
    "LocalDisk",
    "LogSettings",
    "MemoryStore",
    "RecoveryReport",
    "SegmentStore",
    "Shelf",
    "ThreadWorker",
    "VerifyReport",
    "Worker",
    "backup",
    "dump",
    "dump_segment",
    "verify",
]
