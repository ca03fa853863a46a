"""A disk that fails when an operator asks it to, so that outages of a store can be rehearsed on the real thing."""

from __future__ import annotations

import errno
import os
import threading

from tandem.stores.disk import Disk
from tandem.stores.remote_disk import RemoteDisk


class FaultDisk(Disk):
    """Changed from the loop, felt by the store's threads."""

    def __init__(self) -> None:
        self.down = False
        """Nothing can be opened, written or synced."""
        self.failing = False
        """Syncs fail."""
        self.full = False
        """Writes find no space."""
        self.sync_delay_ms = 0
        self._never = threading.Event()

    def _check(self) -> None:
        if self.down:
            raise OSError(errno.EIO, "the store was taken down by an injected fault")

    def open(self, path: str, flags: int) -> int:
        self._check()
        return super().open(path, flags)

    def pwritev(self, descriptor: int, buffers: list[bytes], offset: int) -> int:
        self._check()
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC) + " (injected)")
        return super().pwritev(descriptor, buffers, offset)

    def fdatasync(self, descriptor: int) -> None:
        if self.sync_delay_ms:
            self._never.wait(self.sync_delay_ms / 1000)
        self._check()
        if self.failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO) + " (injected)")
        super().fdatasync(descriptor)


class FaultRemoteDisk(FaultDisk, RemoteDisk):
    """The same for a disk in a process of its own."""

    def __init__(self, name: str) -> None:
        RemoteDisk.__init__(self, name)
        FaultDisk.__init__(self)
