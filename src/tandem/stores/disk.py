"""Every call that touches the file system behind one port, so that another process can make them and a double can fail any of them."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Final

from mypy_extensions import mypyc_attr

_LOCK_LOOK_SECONDS: Final = 0.02
_held: Final[set[int]] = set()
"""Descriptors of locks held by this process."""


def _let_go() -> None:
    """In a forked child: a lock that a child inherits would outlive its parent."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_let_go)


@mypyc_attr(allow_interpreted_subclasses=True)
class Disk(ABC):
    """What a store needs of a file system. Every call is abstract: a disk that lacks one cannot be made."""

    @abstractmethod
    def begin(self) -> None:
        """A store is about to be opened: the first call of every opening."""

    @abstractmethod
    def open(self, path: str, flags: int) -> int: ...

    @abstractmethod
    def close(self, descriptor: int) -> None: ...

    @abstractmethod
    def pread(self, descriptor: int, size: int, offset: int) -> bytes: ...

    @abstractmethod
    def pwritev(self, descriptor: int, buffers: list[bytes], offset: int) -> int: ...

    @abstractmethod
    def fdatasync(self, descriptor: int) -> None: ...

    @abstractmethod
    def fsync(self, descriptor: int) -> None: ...

    @abstractmethod
    def fallocate(self, descriptor: int, size: int) -> bool:
        """Reserve room; False where the file system cannot."""

    @abstractmethod
    def truncate(self, descriptor: int, size: int) -> None: ...

    @abstractmethod
    def size(self, descriptor: int) -> int: ...

    @abstractmethod
    def next_data(self, descriptor: int, offset: int) -> int:
        """The first place at or after `offset` that may hold anything but zeros; -1 when there is none."""

    @abstractmethod
    def drop_cache(self, descriptor: int) -> None:
        """Make the next read come from the medium: after a failed sync the cache may hold what the medium does not."""

    @abstractmethod
    def rename(self, source: str, target: str) -> None: ...

    @abstractmethod
    def unlink(self, path: str) -> None: ...

    @abstractmethod
    def listdir(self, path: str) -> list[str]: ...

    @abstractmethod
    def identity(self, path: str) -> tuple[int, int]:
        """Which file or directory this path leads to at the moment."""

    @abstractmethod
    def free_bytes(self, path: str) -> int:
        """What the file system that holds `path` has left for us."""

    @abstractmethod
    def mkdir(self, path: str) -> None:
        """With its parents; one that is there already is fine. Its name is durable once its parent is synced."""

    @abstractmethod
    def sync_directory(self, path: str) -> None:
        """The names in it are durable on return."""

    @abstractmethod
    def lock(self, path: str) -> int:
        """The descriptor that holds the lock; BlockingIOError when somebody else does."""

    @abstractmethod
    def unlock(self, descriptor: int) -> None: ...

    @abstractmethod
    def abandon(self) -> None:
        """A call has not returned for too long."""


@mypyc_attr(allow_interpreted_subclasses=True)
class LocalDisk(Disk):
    """The one of this machine, in this process. Descriptors are never inherited by other programs (Python opens with O_CLOEXEC)."""

    lock_wait_seconds: float = 0.0
    """How long a lock that somebody else holds is waited for."""

    def begin(self) -> None:
        """Nothing has to be started."""

    def open(self, path: str, flags: int) -> int:
        return os.open(path, flags | os.O_CLOEXEC, 0o600)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def pread(self, descriptor: int, size: int, offset: int) -> bytes:
        return os.pread(descriptor, size, offset)

    def pwritev(self, descriptor: int, buffers: list[bytes], offset: int) -> int:
        return os.pwritev(descriptor, buffers, offset)

    def fdatasync(self, descriptor: int) -> None:
        os.fdatasync(descriptor)

    def fsync(self, descriptor: int) -> None:
        os.fsync(descriptor)

    def fallocate(self, descriptor: int, size: int) -> bool:
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.EINVAL):
                return False
            raise
        return True

    def truncate(self, descriptor: int, size: int) -> None:
        os.ftruncate(descriptor, size)

    def size(self, descriptor: int) -> int:
        return os.fstat(descriptor).st_size

    def next_data(self, descriptor: int, offset: int) -> int:
        try:
            return os.lseek(descriptor, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return -1
            if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
                return offset if offset < self.size(descriptor) else -1
            raise

    def drop_cache(self, descriptor: int) -> None:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def listdir(self, path: str) -> list[str]:
        return os.listdir(path)

    def identity(self, path: str) -> tuple[int, int]:
        found = os.stat(path)
        return found.st_dev, found.st_ino

    def free_bytes(self, path: str) -> int:
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def mkdir(self, path: str) -> None:
        os.makedirs(path, mode=0o700, exist_ok=True)

    def sync_directory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def lock(self, path: str) -> int:
        descriptor = self.open(path, os.O_RDWR | os.O_CREAT)
        try:
            self._take(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        _held.add(descriptor)
        return descriptor

    def _take(self, descriptor: int) -> None:
        for _ in range(int(self.lock_wait_seconds / _LOCK_LOOK_SECONDS)):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_LOCK_LOOK_SECONDS)
            else:
                return
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def abandon(self) -> None:
        """In the same process it can only be waited for."""

    def unlock(self, descriptor: int) -> None:
        _held.discard(descriptor)
        os.close(descriptor)


def write_fully(disk: Disk, descriptor: int, buffers: list[bytes], offset: int) -> None:
    """A short write is continued; only an error is an error."""
    wanted = sum(map(len, buffers))
    written = disk.pwritev(descriptor, buffers, offset)
    if written == wanted:
        return
    rest = b"".join(buffers)
    while written < wanted:
        step = disk.pwritev(descriptor, [rest[written:]], offset + written)
        if step <= 0:
            raise OSError(errno.EIO, "the file takes no more bytes and says no reason")
        written += step


def make_directory(disk: Disk, path: str) -> None:
    """With its parents, and with names that last: one that was not synced may be gone after a power cut, with all that is in it.

    The parent is synced also if the directory is there: whoever made it may have been stopped before that.
    """
    parent = os.path.dirname(path) or "."
    if parent != path:
        try:
            disk.identity(parent)
        except FileNotFoundError:
            make_directory(disk, parent)
    disk.mkdir(path)
    try:
        disk.sync_directory(parent)
    except PermissionError:
        pass  # somebody else's directory, which we may not read: the name in it was made by its owner


def sync_name(path: Path) -> None:
    """The name of this file or directory of this machine lasts: it is found again after a power cut."""
    LocalDisk().sync_directory(str(path.absolute().parent))


def write_file(disk: Disk, directory: str, name: str, content: bytes) -> None:
    """The whole file or none of it, durable on return."""
    temporary = f"{directory}/{name}.tmp"
    descriptor = disk.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        write_fully(disk, descriptor, [content], 0)
        disk.fsync(descriptor)
    finally:
        disk.close(descriptor)
    disk.rename(temporary, f"{directory}/{name}")
    disk.sync_directory(directory)


def read_file(disk: Disk, path: str) -> bytes:
    descriptor = disk.open(path, os.O_RDONLY)
    try:
        parts: list[bytes] = []
        at = 0
        while part := disk.pread(descriptor, 1_048_576, at):
            parts.append(part)
            at += len(part)
        return b"".join(parts)
    finally:
        disk.close(descriptor)
