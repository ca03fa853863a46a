"""How far a store is known to be on the medium, kept beside its segments: what is missing below that is a loss, never a torn tail."""

from __future__ import annotations

import os
from struct import Struct
from typing import Final

from tandem.stores.checksum import crc32
from tandem.stores.disk import Disk, read_file, write_fully

MARK: Final = "synced"
_MAGIC: Final = b"TANDEMSY"
_MARK: Final = Struct("<8s16sIIQ")
"""magic, store id, segment, end of the block, number of the block. A CRC of it follows."""
_U32: Final = Struct("<I")
_pack_fields: Final = _MARK.pack
_pack_whole: Final = Struct(f"<{_MARK.size}sI").pack
_crc32: Final = crc32
_MARK_BYTES: Final = 44


class Synced:
    """The last block that is known to have been synced."""

    __slots__ = ("end", "number", "segment")

    def __init__(self, segment: int, end: int, number: int) -> None:
        self.segment: int = segment
        self.end: int = end
        """Offset behind the block."""
        self.number: int = number


def pack_mark(store_id: bytes, segment: int, end: int, number: int) -> bytes:
    head = _pack_fields(_MAGIC, store_id, segment, end, number)
    return _pack_whole(head, _crc32(head))


def read_mark(disk: Disk, directory: str, store_id: bytes) -> tuple[Synced | None, str]:
    """What the mark says, and what is wrong with it. A store without one was last open in a version that kept none, or is a copy."""
    path = f"{directory}/{MARK}"
    try:
        raw = read_file(disk, path)[:_MARK_BYTES]
    except FileNotFoundError:
        return None, ""
    if len(raw) < _MARK_BYTES or crc32(raw[: _MARK.size]) != _U32.unpack_from(raw, _MARK.size)[0]:
        return None, f"{path}: damaged; how much was synced is not known, what the segments hold is taken"
    magic, found, segment, end, number = _MARK.unpack_from(raw)
    if magic != _MAGIC or found != store_id:
        return None, f"{path}: is not of this store; how much was synced is not known, what the segments hold is taken"
    return Synced(segment, end, number), ""


class SyncedMark:
    """Written in place after a sync has returned and never synced itself, so it costs no flush: a process that is killed leaves it
    exact, a power cut may leave an older one. It is never ahead of the medium."""

    def __init__(self, disk: Disk, directory: str, store_id: bytes) -> None:
        self._disk = disk
        self._store_id = store_id
        self._path = f"{directory}/{MARK}"
        self._directory = directory
        self._descriptor = -1

    def begin(self, synced: Synced) -> None:
        """The store was read up to here, and what was read was synced. Durable on return."""
        self.close()
        disk = self._disk
        descriptor = disk.open(self._path, os.O_RDWR | os.O_CREAT)
        try:
            write_fully(disk, descriptor, [pack_mark(self._store_id, synced.segment, synced.end, synced.number)], 0)
            disk.fsync(descriptor)
            disk.sync_directory(self._directory)
        except BaseException:
            disk.close(descriptor)
            raise
        self._descriptor = descriptor

    def move(self, segment: int, end: int, number: int) -> None:
        """On the committer's thread."""
        if self._descriptor >= 0:
            self._disk.pwritev(self._descriptor, [pack_mark(self._store_id, segment, end, number)], 0)

    def close(self) -> None:
        """Not synced either: a machine that goes down in order writes it back, one that does not leaves an older one."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            self._disk.close(descriptor)
