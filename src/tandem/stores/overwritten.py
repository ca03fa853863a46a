"""A database file that somebody copies another one over while it is open: SQLite does not notice, and would make one of both."""

from __future__ import annotations

import os
from typing import Final

PUT_RIGHT: Final = "Stop the broker, put the right file there (without those that end in -wal and -shm), and start it again"
_READ_BYTES: Final = 1 << 20


class OverwrittenFile:
    """Looks into the file itself, past SQLite's memory and its write-ahead log, for a text that stays in it for ever.

    Closing any descriptor of a file gives up the locks that this process has on it, those of SQLite too: close this one after the database.
    """

    def __init__(self, path: str, text: str) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._text = text.encode("ascii")
        self._seen: tuple[int, int] = (-1, -1)
        self._had = False
        self.has_lost_it()

    def has_lost_it(self) -> bool:
        """Whether it was there at an earlier look and is not any more. Looks only when the file was written since."""
        found = os.fstat(self._descriptor)
        if (found.st_mtime_ns, found.st_size) == self._seen:
            return False
        has = self._has(self._text)
        if self._had and not has:
            return True
        self._seen, self._had = (found.st_mtime_ns, found.st_size), has
        return False

    def close(self) -> None:
        os.close(self._descriptor)

    def _has(self, text: bytes) -> bool:
        at, tail = 0, b""
        while block := os.pread(self._descriptor, _READ_BYTES, at):
            if text in tail + block:
                return True
            at, tail = at + len(block), block[-len(text) :]
        return False
