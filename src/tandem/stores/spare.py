"""Room set aside for the day on which the disk is full: what settles messages, and so makes room, has to be written even then."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Final

from tandem.stores.disk import Disk
from tandem.stores.scan import only_zeros

SPARE: Final = "spare"
SPARE_BYTES_MAX: Final = 16_777_216
"""Some hundred thousand settlements."""
_SCRAP_BYTES: Final = 65_536
"""Given up beyond what was asked for, so that it need not be asked for often; never more than an eighth of it all."""
_KEPT_PART: Final = 4
"""When it becomes a segment this part stays behind: for the last block of a segment, which reaches beyond its end, and for manifests."""


class Spare:
    """A file of zeros beside the segments. It becomes a segment when none can be reserved any more, or gives up bytes of its own for
    something that cannot wait. The caller sees to it that only one thread is here."""

    def __init__(self, disk: Disk, directory: str, segment_bytes: int) -> None:
        self._disk = disk
        self._directory = directory
        self._path = f"{directory}/{SPARE}"
        self._bytes = min(segment_bytes, SPARE_BYTES_MAX)
        self._scrap = min(_SCRAP_BYTES, self._bytes // 8)
        self.held = 0
        """Bytes in it, as far as this process knows."""

    def keep(self) -> None:
        """Make it, or make it whole again; OSError when there is no room for it, and then it is as big as it can be."""
        size = self._bytes
        while True:
            try:
                self._grow_to(size)
            except OSError as error:
                if error.errno != errno.ENOSPC or size <= self._scrap:
                    raise
                size //= 2
            else:
                break
        if size < self._bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _grow_to(self, size: int) -> None:
        disk = self._disk
        descriptor = disk.open(self._path, os.O_RDWR | os.O_CREAT)
        try:
            held = disk.size(descriptor)
            try:
                if held < size and disk.fallocate(descriptor, size):
                    disk.fsync(descriptor)
                    disk.sync_directory(self._directory)
            except OSError:
                disk.truncate(descriptor, held)  # a part of what was asked for may have been reserved
                raise
            finally:
                self.held = disk.size(descriptor)
        finally:
            disk.close(descriptor)

    def become(self, path: str) -> int:
        """Most of it has this name now; how many bytes are reserved in that. 0 if there is none."""
        size = self._size()
        self.held = 0
        if not size:
            return 0
        self._disk.rename(self._path, path)
        if not self._is_clean(path):
            self._disk.unlink(path)  # zeros are what tells the end of a segment
            return 0
        kept = size // _KEPT_PART
        descriptor = self._disk.open(path, os.O_RDWR)
        try:
            self._disk.truncate(descriptor, size - kept)
            self._disk.fsync(descriptor)
        finally:
            self._disk.close(descriptor)
        with contextlib.suppress(OSError):  # somebody else was faster; the segment is there all the same
            self._grow_to(kept)
        return size - kept

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
            self.held = max(held - size - self._scrap, 0)
            self._disk.truncate(descriptor, self.held)
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
