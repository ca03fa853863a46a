"""What an error of SQLite means: the file is damaged, the disk does not do its part, or we asked for nonsense."""

from __future__ import annotations

import sqlite3
from typing import Final

from tandem.model.errors import Corrupt, StoreUnavailable

WHAT_TO_DO: Final = "restore the file from a copy, or move it away and rebuild it: tandem store recover-metadata"
DAMAGED: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT)
UNREADABLE: Final = (*DAMAGED, sqlite3.SQLITE_ERROR, 0)
"""While a file of ours is read: what is asked never changes, so a column that is not there is a rotten name, and a text that Python
(which has no code) cannot decode is a rotten text."""
_DISK: Final = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CANTOPEN)


def translated(error: sqlite3.DatabaseError, where: str, damaged: tuple[int, ...] = DAMAGED) -> Exception:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # absent when Python, not SQLite, refused
    if code in damaged:
        what = str(error).partition(" with text ")[0]  # which is a whole description, keys and all: not for a log
        return Corrupt(f"{where}: {what}; {WHAT_TO_DO}")
    if code in _DISK:
        return StoreUnavailable(f"{where}: {error}; nothing was changed")
    return error
