"""Files of counted operations, one line a row: durable when `append` returns, and repeatable after a crash without doubling a line."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final

from tandem.model.meter_line import MeterLine
from tandem.stores.disk import Disk, LocalDisk, make_directory, write_fully

COLUMNS: Final = "minute_ms,namespace,store,entity,operation,outcome,unit,count,bytes,check"
"""`check` is unit + count + bytes: a reader that meets a line still being written drops it."""


def text_of(namespace: str, store: int, lines: list[MeterLine]) -> str:
    """As they stand in a file."""
    written: list[str] = []
    for minute_ms, path, operation, outcome, unit, count, size in lines:
        quoted = '"' + path.replace('"', '""') + '"' if any(c in path for c in ',"\n\r') else path
        written.append(
            f"{minute_ms},{namespace},store-{store},{quoted},{operation},{outcome},{unit},{count},{size},{unit + count + size}\n"
        )
    return "".join(written)


class CsvMeterFiles:
    """`<data>/<namespace>/meters/store-<n>-<number>.csv`. Numbers only grow: a clock set back can never overwrite what was counted."""

    def __init__(self, data_dir: Path, namespace: str, store: int, disk: Disk | None = None) -> None:
        self._directory = str(data_dir / namespace / "meters")
        self._namespace = namespace
        self._store = store
        self._disk = disk or LocalDisk()
        self._mutex = threading.Lock()

    def path(self, number: int) -> str:
        return f"{self._directory}/store-{self._store}-{number:06d}.csv"

    def append(self, number: int, length: int, lines: list[MeterLine]) -> int:
        """What stands behind `length` was written just before a crash; the journal still has it, so it comes again and the old goes."""
        disk = self._disk
        rows = (("" if length else COLUMNS + "\n") + text_of(self._namespace, self._store, lines)).encode()
        with self._mutex:  # one that was given up on may still be at it
            if length:
                disk.mkdir(self._directory)
            else:
                make_directory(disk, self._directory)
            self._drop_later(number)
            descriptor = disk.open(self.path(number), os.O_RDWR | os.O_CREAT)
            try:
                if disk.size(descriptor) > length:
                    disk.truncate(descriptor, length)
                write_fully(disk, descriptor, [rows], length)
                disk.fsync(descriptor)
            finally:
                disk.close(descriptor)
            if not length:
                disk.sync_directory(self._directory)
        return length + len(rows)

    def _drop_later(self, number: int) -> None:
        later = number + 1
        while True:
            try:
                self._disk.unlink(self.path(later))
            except FileNotFoundError:
                return
            later += 1


class NoMeterFiles:
    """For stores in memory: counted, shown, and gone with the process."""

    def append(self, number: int, length: int, lines: list[MeterLine]) -> int:
        return length + len(lines)
