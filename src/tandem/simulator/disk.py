"""A disk in memory that forgets what was not synced, tears what was being written, and fails when told to."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from random import Random

from tandem.simulator.agenda import PowerCut
from tandem.stores.disk import Disk

SECTOR_BYTES = 512


def _parent(path: str) -> str:
    return os.path.dirname(path) or "."


def _is_in(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory + "/")


class Inode:
    """What the file shows, what the medium holds, and what is between them."""

    __slots__ = ("content", "durable", "pending")

    def __init__(self) -> None:
        self.content = bytearray()
        self.durable = bytearray()
        self.pending: list[tuple[int, bytes | None]] = []
        """(offset, bytes written) or (new size, None), in order."""

    def apply(self, target: bytearray, offset: int, data: bytes | None) -> None:
        if data is None:
            if offset < len(target):
                del target[offset:]
            else:
                target.extend(bytes(offset - len(target)))
            return
        if len(target) < offset:
            target.extend(bytes(offset - len(target)))
        target[offset : offset + len(data)] = data

    def change(self, offset: int, data: bytes | None) -> None:
        self.apply(self.content, offset, data)
        self.pending.append((offset, data))

    def sync(self) -> None:
        for offset, data in self.pending:
            self.apply(self.durable, offset, data)
        self.pending.clear()

    def lose_power(self, random: Random) -> None:
        """Each change since the last sync reached the medium, or did not; writes may have arrived in part, by sectors, in any order."""
        for offset, data in self.pending:
            luck = random.random()
            if luck < 0.3:
                continue
            if luck < 0.6 or data is None:
                self.apply(self.durable, offset, data)
                continue
            at = 0
            while at < len(data):
                end = min(len(data), at + SECTOR_BYTES - (offset + at) % SECTOR_BYTES)
                if random.random() < 0.5:
                    self.apply(self.durable, offset + at, data[at:end])
                at = end
        self.pending.clear()
        self.content = bytearray(self.durable)


class SimDisk(Disk):
    """`before` is called with the name of each call and its path: it may raise OSError, or PowerCut, or return a number of bytes
    at which a write stops short."""

    def __init__(self, before: Callable[[str, str], int | None] | None = None) -> None:
        self.before = before
        self.calls: list[tuple[str, str]] = []
        self.dead = False
        self._names: dict[str, Inode] = {}
        self._durable_names: dict[str, Inode] = {}
        self._renames: list[tuple[str, str | None, Inode | None]] = []
        """Changes of names since the directory was last synced: (path, path it had before, inode or None when unlinked)."""
        self._directories: set[str] = set()
        self._durable_directories: set[str] = set()
        """Those whose name was synced: any other may be gone after a power cut, with all that is in it."""
        self._mounted: tuple[dict[str, Inode], dict[str, Inode], list[tuple[str, str | None, Inode | None]], set[str], set[str]] | None = (
            None
        )
        self._open: dict[int, tuple[Inode, str]] = {}
        self._locked: set[str] = set()
        self._next_descriptor = 1_000

    # ── what a test does to it ───────────────────────────────────────────────────────────────────────────────────────────────

    def restart(self, random: Random | None) -> None:
        """Power comes back. With `random` whatever was not synced is lost by chance; without, only the process died."""
        if random is not None:
            for change in self._surviving_renames(random):
                self._rename_in(self._durable_names, change)
            self._lose_directories(random)
            self._names = dict(self._durable_names)
            for inode in self._names.values():
                inode.lose_power(random)
        self._renames.clear()
        self._durable_names = dict(self._names)
        self._durable_directories = set(self._directories)
        self._open.clear()
        self._locked.clear()
        self.dead = False
        self.before = None

    def _lose_directories(self, random: Random) -> None:
        for directory in sorted(self._directories - self._durable_directories):
            if random.random() < 0.5:
                self._directories = {path for path in self._directories if not _is_in(path, directory)}
                self._durable_names = {path: inode for path, inode in self._durable_names.items() if not _is_in(path, directory)}

    def _surviving_renames(self, random: Random) -> list[tuple[str, str | None, Inode | None]]:
        """The first few, as a journalling file system keeps them, or any of them, as POSIX allows; on one path never out of order."""
        if random.random() < 0.5:
            return self._renames[: random.randint(0, len(self._renames))]
        lost: set[str | None] = set()
        kept = []
        for change in self._renames:
            path, before, _ = change
            if path in lost or (before is not None and before in lost) or random.random() < 0.5:
                lost.update((path, before) if before is not None else (path,))
            else:
                kept.append(change)
        return kept

    def flip(self, path: str, offset: int, bit: int) -> None:
        inode = self._names[path]
        for content in (inode.content, inode.durable):
            content[offset] ^= 1 << bit

    def cut(self, path: str, size: int) -> None:
        """The file is shorter all of a sudden."""
        inode = self._names[path]
        del inode.content[size:]
        del inode.durable[size:]

    def remove(self, path: str) -> None:
        """The file is gone all of a sudden."""
        del self._names[path]
        del self._durable_names[path]

    def put(self, path: str, content: bytes) -> None:
        """The file is there all of a sudden, with this content."""
        inode = Inode()
        inode.content[:] = inode.durable[:] = content
        self._names[path] = self._durable_names[path] = inode

    def copy(self) -> SimDisk:
        """The same files, on a disk of their own, and nobody using it."""
        twin = SimDisk()
        for path in self.paths():
            twin.put(path, self.content(path))
        twin._directories = set(self._directories)
        twin._durable_directories = set(self._directories)
        return twin

    def unmount(self, mount_point: str) -> None:
        """The disk is not there: where it was mounted is an empty directory of another one. For a time when nobody has it open."""
        self._mounted = (self._names, self._durable_names, self._renames, self._directories, self._durable_directories)
        self._names, self._durable_names, self._renames = {}, {}, []
        self._directories, self._durable_directories = {mount_point}, {mount_point}

    def mount(self) -> None:
        """It is back; whatever was put in its place is hidden by it."""
        if self._mounted is not None:
            self._names, self._durable_names, self._renames, self._directories, self._durable_directories = self._mounted
            self._mounted = None

    def paths(self) -> list[str]:
        return sorted(self._names)

    def content(self, path: str) -> bytes:
        return bytes(self._names[path].content)

    # ── what a store does with it ────────────────────────────────────────────────────────────────────────────────────────────

    def _called(self, name: str, path: str) -> int | None:
        if self.dead:
            raise PowerCut(f"{name} {path}")
        self.calls.append((name, path))
        if self.before is None:
            return None
        try:
            return self.before(name, path)
        except PowerCut:
            self.dead = True
            raise

    def open(self, path: str, flags: int) -> int:
        self._called("open", path)
        inode = self._names.get(path)
        if inode is None:
            if not flags & os.O_CREAT:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            inode = Inode()
            self._names[path] = inode
            self._renames.append((path, None, inode))
        elif flags & os.O_TRUNC:
            inode.change(0, None)
        self._next_descriptor += 1
        self._open[self._next_descriptor] = (inode, path)
        return self._next_descriptor

    def close(self, descriptor: int) -> None:
        if self.dead:
            return  # with the machine went what it had open; who is cleared away after it has nothing to close
        self._called("close", self._open[descriptor][1])
        del self._open[descriptor]

    def pread(self, descriptor: int, size: int, offset: int) -> bytes:
        inode, path = self._open[descriptor]
        self._called("pread", path)
        return bytes(inode.content[offset : offset + size])

    def pwritev(self, descriptor: int, buffers: list[bytes], offset: int) -> int:
        inode, path = self._open[descriptor]
        data = b"".join(buffers)
        try:
            limit = self._called("pwritev", path)
        except PowerCut:
            inode.change(offset, data)  # it had begun: how much of it arrived is decided by `restart`
            raise
        if limit is not None:
            data = data[:limit]
        inode.change(offset, data)
        return len(data)

    def fdatasync(self, descriptor: int) -> None:
        self._sync("fdatasync", descriptor)

    def fsync(self, descriptor: int) -> None:
        self._sync("fsync", descriptor)

    def _sync(self, name: str, descriptor: int) -> None:
        inode, path = self._open[descriptor]
        try:
            self._called(name, path)
        except OSError:
            # as Linux does it: the pages are marked clean, so that nobody will ever write them
            inode.pending.clear()
            raise
        inode.sync()

    def fallocate(self, descriptor: int, size: int) -> bool:
        inode, path = self._open[descriptor]
        self._called("fallocate", path)
        if len(inode.content) < size:
            inode.change(size, None)
        return True

    def truncate(self, descriptor: int, size: int) -> None:
        inode, path = self._open[descriptor]
        self._called("truncate", path)
        inode.change(size, None)

    def size(self, descriptor: int) -> int:
        return len(self._open[descriptor][0].content)

    def next_data(self, descriptor: int, offset: int) -> int:
        return offset if offset < len(self._open[descriptor][0].content) else -1

    def drop_cache(self, descriptor: int) -> None:
        inode, path = self._open[descriptor]
        self._called("drop_cache", path)
        if not inode.pending:
            inode.content = bytearray(inode.durable)

    def rename(self, source: str, target: str) -> None:
        self._called("rename", target)
        if source not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such file", source)
        change = (target, source, self._names[source])
        self._rename_in(self._names, change)
        self._renames.append(change)

    def unlink(self, path: str) -> None:
        self._called("unlink", path)
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        del self._names[path]
        self._renames.append((path, None, None))

    def _rename_in(self, names: dict[str, Inode], change: tuple[str, str | None, Inode | None]) -> None:
        path, before, inode = change
        if before is not None:
            names.pop(before, None)
        if inode is None:
            names.pop(path, None)
        else:
            names[path] = inode

    def listdir(self, path: str) -> list[str]:
        self._called("listdir", path)
        inside = [name[len(path) + 1 :] for name in self._names if name.startswith(path + "/")]
        if not self._is_directory(path):
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        return [name for name in inside if "/" not in name]

    def identity(self, path: str) -> tuple[int, int]:
        if path not in (".", "/") and path not in self._names and not self._is_directory(path):
            raise FileNotFoundError(errno.ENOENT, "no such file or directory", path)
        return 0, 0

    def _is_directory(self, path: str) -> bool:
        return path in self._directories or any(name.startswith(path + "/") for name in self._names)

    def free_bytes(self, path: str) -> int:
        return 1 << 40

    def mkdir(self, path: str) -> None:
        self._called("mkdir", path)
        while path not in ("", ".", "/"):
            self._directories.add(path)
            path = os.path.dirname(path)

    def sync_directory(self, path: str) -> None:
        """The names in this directory are durable, no others: that is all that is promised, whatever a file system does."""
        self._called("sync_directory", path)
        later: list[tuple[str, str | None, Inode | None]] = []
        for change in self._renames:
            if _parent(change[0]) == path:
                self._rename_in(self._durable_names, change)
            else:
                later.append(change)
        self._renames = later
        self._durable_directories |= {directory for directory in self._directories if _parent(directory) == path}

    def lock(self, path: str) -> int:
        if path in self._locked:
            raise BlockingIOError(errno.EAGAIN, "locked", path)
        descriptor = self.open(path, os.O_RDWR | os.O_CREAT)
        self._locked.add(path)
        return descriptor

    def begin(self) -> None:
        """Always there."""

    def abandon(self) -> None:
        """It answers at once."""

    def unlock(self, descriptor: int) -> None:
        self._locked.discard(self._open[descriptor][1])
        self.close(descriptor)
