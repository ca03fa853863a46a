"""Engines behind the ports of the broker: what is remembered, and where."""

from tandem.stores.disk import Disk
from tandem.stores.memory import MemoryStore, Shelf
from tandem.stores.recovery import RecoveryReport
from tandem.stores.segment import SegmentStore
from tandem.stores.settings import StoreSettings
from tandem.stores.worker import InlineWorker, ThreadWorker, Worker

__all__ = [
    "Disk",
    "InlineWorker",
    "MemoryStore",
    "RecoveryReport",
    "SegmentStore",
    "Shelf",
    "StoreSettings",
    "ThreadWorker",
    "Worker",
]
