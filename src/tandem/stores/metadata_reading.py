"""Metadata looked at from outside, be it that of a broker at work or one that lies where nothing can be written."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from tandem.stores.rule_rows import row_checksum
from tandem.stores.sqlite_errors import UNREADABLE, WHAT_TO_DO, translated

_CHECKED: Final = (
    {
        "entities": "id, kind, path, topic_id, store, description",
        "rules": "subscription_id, name, description",
        "authorization_rules": "name, description",
    },
    {"identity": "id", "stores": "number, store_id, begins_at, entity_max"},
    {"relays": "name, description"},
)
"""What the rows of each table are checked by, as `Metadata` writes them; a version has its own and those before it."""


def open_for_reading(path: Path) -> sqlite3.Connection:
    """Changes nothing. SQLite wants to write beside a file to read it, unless it is told that nobody changes it: nobody does where that is
    impossible and no change is waiting to be taken over."""
    unchanging = not os.access(path.parent, os.W_OK) and not path.with_name(path.name + "-wal").exists()
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro{'&immutable=1' if unchanging else ''}", uri=True, timeout=10)


def problems_of(path: Path) -> list[str]:
    """What is wrong with the file and with each row of it; empty if it is whole."""
    try:
        with closing(open_for_reading(path)) as db:
            version: int = db.execute("PRAGMA user_version").fetchone()[0]
            found = [row[0] for row in db.execute("PRAGMA integrity_check(3)") if row[0] != "ok"]
            if version == 0:
                found.append("holds nothing")  # an empty file is a whole database to SQLite
            found += [
                f"{table} {values[0]} does not match its checksum"
                for tables in _CHECKED[: 0 if found else version]
                for table, columns in tables.items()
                for *values, checksum in db.execute(f"SELECT {columns}, checksum FROM {table}")
                if row_checksum(*values) != checksum
            ]
    except sqlite3.DatabaseError as error:
        return [str(translated(error, str(path), UNREADABLE))]
    return [f"{path}: {problem}; {WHAT_TO_DO}" for problem in found]
