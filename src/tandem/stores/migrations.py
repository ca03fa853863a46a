"""The schema of a namespace's metadata, version by version. A script that was released is never edited."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Final

_VERSION_1: Final = """
CREATE TABLE entities (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL CHECK (kind IN ('queue', 'topic', 'subscription')),
    path TEXT NOT NULL UNIQUE,
    topic_id INTEGER REFERENCES entities (id) ON DELETE CASCADE,
    store INTEGER NOT NULL,
    description TEXT NOT NULL,
    checksum INTEGER NOT NULL,
    CHECK ((kind = 'subscription') = (topic_id IS NOT NULL))
);
CREATE INDEX subscriptions_of ON entities (topic_id);
CREATE TABLE rules (
    subscription_id INTEGER NOT NULL REFERENCES entities (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    description TEXT NOT NULL,
    checksum INTEGER NOT NULL,
    PRIMARY KEY (subscription_id, name)
);
CREATE TABLE authorization_rules (
    name TEXT PRIMARY KEY,
    description TEXT NOT NULL,
    checksum INTEGER NOT NULL
);
"""

_VERSION_2: Final = """
CREATE TABLE identity (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    id TEXT NOT NULL,
    checksum INTEGER NOT NULL
);
CREATE TABLE stores (
    number INTEGER PRIMARY KEY,
    store_id TEXT NOT NULL,
    begins_at INTEGER NOT NULL,
    entity_max INTEGER NOT NULL,
    checksum INTEGER NOT NULL
);
"""

_VERSION_3: Final = """
CREATE TABLE relays (
    name TEXT PRIMARY KEY,
    description TEXT NOT NULL,
    checksum INTEGER NOT NULL
);
"""

MIGRATIONS: Final[tuple[str, ...]] = (_VERSION_1, _VERSION_2, _VERSION_3)
"""One script per version, run in order, each with its version number in one transaction. Never edit one that was released."""

ADDED: Final = ("entities, rules and authorization rules", "which stores belong to it", "relays")
"""What each version keeps that those before it did not."""


def statements(script: str) -> Iterator[str]:
    """`executescript` would commit on its own: run the script's statements one by one inside our transaction."""
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""
    if pending.strip():
        raise ValueError(f"migration script ends in the middle of a statement: {pending.strip()[:40]!r}")
