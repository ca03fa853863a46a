"""A disk that fails when an operator asks it to, so that outages of a store can be rehearsed on the real thing."""

from __future__ import annotations

import errno
import os
import threading

from tandem.stores.disk import Disk


class FaultDisk(Disk):
    """Stands before another disk, of this process or of another. Changed from the loop, felt by the store's threads."""

    def __init__(self, inner: Disk) -> None:
        self._inner = inner
        self.down = False
        """Nothing can be opened, written or synced."""
        self.failing = False
        """Syncs fail."""
        self.full = False
        """Nothing new fits; what was reserved before can still be written."""
        self.sync_delay_ms = 0
        self._never = threading.Event()

    def set_faults(self, down: bool, failing: bool, full: bool, sync_delay_ms: int) -> None:
        """From now on."""
        self.down = down
        self.failing = failing
        self.full = full
        self.sync_delay_ms = sync_delay_ms

    def _check(self) -> None:
        if self.down:
            raise OSError(errno.EIO, "the store was taken down by an injected fault")

    # -- where faults strike -----------------------------------------------------------------

    def open(self, path: str, flags: int) -> int:
        self._check()
        return self._inner.open(path, flags)

    def lock(self, path: str) -> int:
        self._check()
        return self._inner.lock(path)

    def pwritev(self, descriptor: int, buffers: list[bytes], offset: int) -> int:
        if self.down or self.full:
            self._check()
            self._check_room(descriptor, offset + sum(map(len, buffers)))
        return self._inner.pwritev(descriptor, buffers, offset)

    def fallocate(self, descriptor: int, size: int) -> bool:
        self._check_room(descriptor, size)
        return self._inner.fallocate(descriptor, size)

    def _check_room(self, descriptor: int, end: int) -> None:
        if self.full and end > self._inner.size(descriptor):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC) + " (injected)")

    def free_bytes(self, path: str) -> int:
        return 0 if self.full else self._inner.free_bytes(path)

    def fdatasync(self, descriptor: int) -> None:
        if self.sync_delay_ms:
            self._never.wait(self.sync_delay_ms / 1000)
        if self.down:
            self._check()
        if self.failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO) + " (injected)")
        self._inner.fdatasync(descriptor)

    # -- handed on ---------------------------------------------------------------------------

    def begin(self) -> None:
        self._inner.begin()

    def close(self, descriptor: int) -> None:
        self._inner.close(descriptor)

    def pread(self, descriptor: int, size: int, offset: int) -> bytes:
        return self._inner.pread(descriptor, size, offset)

    def fsync(self, descriptor: int) -> None:
        self._inner.fsync(descriptor)

    def truncate(self, descriptor: int, size: int) -> None:
        self._inner.truncate(descriptor, size)

    def size(self, descriptor: int) -> int:
        return self._inner.size(descriptor)

    def next_data(self, descriptor: int, offset: int) -> int:
        return self._inner.next_data(descriptor, offset)

    def drop_cache(self, descriptor: int) -> None:
        self._inner.drop_cache(descriptor)

    def rename(self, source: str, target: str) -> None:
        self._inner.rename(source, target)

    def unlink(self, path: str) -> None:
        self._inner.unlink(path)

    def listdir(self, path: str) -> list[str]:
        return self._inner.listdir(path)

    def identity(self, path: str) -> tuple[int, int]:
        return self._inner.identity(path)

    def mkdir(self, path: str) -> None:
        self._inner.mkdir(path)

    def sync_directory(self, path: str) -> None:
        self._inner.sync_directory(path)

    def unlock(self, descriptor: int) -> None:
        self._inner.unlock(descriptor)

    def abandon(self) -> None:
        self._inner.abandon()
