"""Metadata looked at from outside, be it that of a broker at work or one that lies where nothing can be written."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path


def open_for_reading(path: Path) -> sqlite3.Connection:
    """Changes nothing. SQLite wants to write beside a file to read it, unless it is told that nobody changes it: nobody does where that is
    impossible and no change is waiting to be taken over."""
    unchanging = not os.access(path.parent, os.W_OK) and not path.with_name(path.name + "-wal").exists()
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro{'&immutable=1' if unchanging else ''}", uri=True, timeout=10)
