"""Engines behind the ports of the broker: what is remembered, and where."""

from tandem.stores.backup import backup
from tandem.stores.disk import Disk, LocalDisk
from tandem.stores.inspect import VerifyReport, dump, dump_segment, verify
from tandem.stores.memory import MemoryStore, Shelf
from tandem.stores.recovery import RecoveryReport
from tandem.stores.segment import SegmentStore
from tandem.stores.settings import StoreSettings
from tandem.stores.worker import InlineWorker, ThreadWorker, Worker

__all__ = [
    "Disk",
    "InlineWorker",
    "LocalDisk",
    "MemoryStore",
    "RecoveryReport",
    "SegmentStore",
    "Shelf",
    "StoreSettings",
    "ThreadWorker",
    "VerifyReport",
    "Worker",
    "backup",
    "dump",
    "dump_segment",
    "verify",
]
