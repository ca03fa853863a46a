"""Ledgers and event logs as tests write them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

MINUTE = 60_000
NOON = 1_750_000_000_000


def write_lines(path: Path, rows: Iterable[Mapping[str, object]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def ledger(path: Path, entries: Iterable[tuple[str, str, int]], **more: object) -> str:
    """(message id, path, seconds after noon) each, numbered in order."""
    rows = [
        {"message_id": message_id, "path": entity, "at_ms": NOON + int(seconds * 1000), "number": number, **more}
        for number, (message_id, entity, seconds) in enumerate(entries)
    ]
    return write_lines(path, rows)
