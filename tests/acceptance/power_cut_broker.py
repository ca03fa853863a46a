"""`tandem serve` on a machine whose power will fail: keeps a copy of the data directory that holds what was synced, and nothing else.

Arguments: the data directory, the copy, and then those of `tandem`. A file's bytes enter the copy when the file is synced, names when their
directory is. SQLite syncs by itself, out of sight: its files are taken as they are by whoever cuts the power.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import sys
import threading
from pathlib import Path
from typing import Any


class SyncedCopy:
    """Follows every fsync of this process below one directory."""

    def __init__(self, data: Path, copy: Path) -> None:
        self._data = data
        self._names = copy / "names"
        self._inodes = copy / "inodes"
        for directory in (self._names, self._inodes):
            directory.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._generations: dict[int, int] = {}
        """How often a file with this number was removed: the file system uses numbers again."""

    def follow(self) -> None:
        os.fsync, os.fdatasync = self._after(os.fsync), self._after(os.fdatasync)  # type: ignore[assignment]
        os.unlink, os.remove = self._removing(os.unlink, 0), self._removing(os.remove, 0)  # type: ignore[assignment]
        os.rename, os.replace = self._removing(os.rename, 1), self._removing(os.replace, 1)  # type: ignore[assignment]

    def _removing(self, call: Any, place: int) -> Any:
        def removed(*arguments: Any, **options: Any) -> None:
            with contextlib.suppress(OSError, TypeError):
                number = os.lstat(arguments[place]).st_ino
                self._generations[number] = self._generations.get(number, 0) + 1
            call(*arguments, **options)

        return removed

    def _after(self, sync: Any) -> Any:
        def synced(descriptor: Any) -> None:
            sync(descriptor)
            number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
            with self._lock:
                self._synced(number)

        return synced

    def _synced(self, descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path != self._data.parent and self._data not in (path, *path.parents):
            return
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            self._sync_names(path)
        else:
            self._sync_bytes(descriptor, found)

    def _sync_bytes(self, descriptor: int, found: os.stat_result) -> None:
        """In place: a kill in the middle leaves a block half written, as power does."""
        target = os.open(self._inode(found), os.O_RDWR | os.O_CREAT, 0o600)
        reader = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY)
        try:
            at = 0
            while part := os.pread(reader, 1 << 20, at):
                if os.pread(target, len(part), at) != part:
                    os.pwrite(target, part, at)
                at += len(part)
            os.ftruncate(target, found.st_size)
        finally:
            os.close(reader)
            os.close(target)

    def _sync_names(self, path: Path) -> None:
        if path == self._data.parent:
            entries = [self._data]
            there = self._names.parent
        else:
            entries = [Path(entry) for entry in os.scandir(path)]
            there = self._names / path.relative_to(self._data)
        if path != self._data.parent and not there.is_dir():
            return  # its own name was never synced: nothing in it can be found again
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                self._sync_name(entry, there / entry.name if path != self._data.parent else self._names)
        if path != self._data.parent:
            now = {entry.name for entry in entries}
            for gone in os.scandir(there):
                if gone.name not in now and not gone.is_dir():
                    os.unlink(gone.path)

    def _sync_name(self, entry: Path, name: Path) -> None:
        found = entry.stat()
        if stat.S_ISDIR(found.st_mode):
            name.mkdir(exist_ok=True)
            return
        inode = self._inode(found)
        inode.touch()  # named, and never synced itself: it is there, and empty
        if not name.exists() or not name.samefile(inode):
            name.unlink(missing_ok=True)
            os.link(inode, name)

    def _inode(self, found: os.stat_result) -> Path:
        """One for each file that ever was."""
        return self._inodes / f"{found.st_ino}-{self._generations.get(found.st_ino, 0)}"


def cut_power(data: Path, copy: Path) -> None:
    """The process is dead: put what was synced in the place of what it had written."""
    kept = data.with_name(f"{data.name}.after")
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(copy / "names", kept)
    for found in data.rglob("metadata.sqlite*"):
        target = kept / found.relative_to(data)
        if target.parent.is_dir():
            shutil.copy(found, target)
    shutil.rmtree(data)
    kept.rename(data)
    shutil.rmtree(copy)
    _remember(data, copy)


def _remember(data: Path, copy: Path) -> None:
    """What survived is on the medium: the next life begins with it."""
    (copy / "inodes").mkdir(parents=True)
    shutil.copytree(data, copy / "names", copy_function=lambda source, target: _link(Path(source), Path(target), copy / "inodes"))


def _link(source: Path, target: Path, inodes: Path) -> str:
    found = source.stat()
    inode = inodes / f"{found.st_ino}-0"
    shutil.copy(source, inode)
    os.link(inode, target)
    return str(target)


def main() -> None:
    data, copy, *arguments = sys.argv[1:]
    sys.argv = ["tandem", *arguments]
    sys.path = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent]
    SyncedCopy(Path(data).resolve(), Path(copy).resolve()).follow()
    from tandem.cli.main import main as tandem

    tandem()


if __name__ == "__main__":
    main()
