"""Room set aside for the day on which the disk is full: what settles messages, and so makes room, has to be written even then."""

from __future__ import annotations

import os
from typing import Final

from tandem.stores.disk import Disk
from tandem.stores.scan import only_zeros

SPARE: Final = "spare"
SPARE_BYTES_MAX: Final = 16_777_216
"""Some hundred thousand settlements."""
_SCRAP_BYTES: Final = 65_536
"""Enough for a manifest."""


class Spare:
    """A file of zeros beside the segments. It becomes a segment when none can be reserved any more, or gives up bytes of its own for
    something that cannot wait. The caller sees to it that only one thread is here."""

    def __init__(self, disk: Disk, directory: str, segment_bytes: int) -> None:
        self._disk = disk
        self._directory = directory
        self._path = f"{directory}/{SPARE}"
        self._bytes = min(segment_bytes, SPARE_BYTES_MAX)

    def keep(self) -> None:
        """Make it, or make it whole again; OSError when there is no room for it."""
        disk = self._disk
        descriptor = disk.open(self._path, os.O_RDWR | os.O_CREAT)
        try:
            if disk.size(descriptor) < self._bytes and disk.fallocate(descriptor, self._bytes):
                disk.fsync(descriptor)
                disk.sync_directory(self._directory)
        finally:
            disk.close(descriptor)

    def become(self, path: str) -> int:
        """It has this name now; how many bytes are reserved in it. 0 if there is none."""
        size = self._size()
        if size:
            self._disk.rename(self._path, path)
            if not self._is_clean(path):
                self._disk.unlink(path)  # zeros are what tells the end of a segment
                return 0
        return size

    def _is_clean(self, path: str) -> bool:
        descriptor = self._disk.open(path, os.O_RDONLY)
        try:
            return only_zeros(self._disk, descriptor, 0)
        finally:
            self._disk.close(descriptor)

    def give_up(self, size: int) -> bool:
        """At least so many bytes are free again; False if it had none to give."""
        held = self._size()
        if not held:
            return False
        descriptor = self._disk.open(self._path, os.O_RDWR)
        try:
            self._disk.truncate(descriptor, max(held - size - _SCRAP_BYTES, 0))
            self._disk.fsync(descriptor)  # before this the file system may not let others have them
        finally:
            self._disk.close(descriptor)
        return True

    def _size(self) -> int:
        try:
            descriptor = self._disk.open(self._path, os.O_RDONLY)
        except FileNotFoundError:
            return 0
        try:
            return self._disk.size(descriptor)
        finally:
            self._disk.close(descriptor)
