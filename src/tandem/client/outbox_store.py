"""Where an outbox keeps its messages: a table in SQLite or PostgreSQL, which the caller's own transaction may write to."""

from __future__ import annotations

import fcntl
import importlib
import logging
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

log = logging.getLogger("tandem.client.outbox")

TABLE = "tandem_outbox"
DEAD_TABLE = "tandem_outbox_dead"
_COLUMNS = "entity, lane, message_id, payload, enqueued_ms"
WITHOUT_MAX = 500
_PUMP = ".pump"
"""Beside the file: locked by the process that delivers, and never removed."""


@dataclass(frozen=True, slots=True)
class OutboxEntry:
    """A message to keep. `lane` is the session or key within which order is kept; None is in order with nobody."""

    entity: str
    lane: str | None
    message_id: str
    payload: bytes
    enqueued_ms: int

    def row(self) -> tuple[str, str | None, str, bytes, int]:
        return (self.entity, self.lane, self.message_id, self.payload, self.enqueued_ms)


@dataclass(frozen=True, slots=True)
class Kept:
    id: int
    entry: OutboxEntry


@dataclass(frozen=True, slots=True)
class Dead:
    """A message the target refused for good."""

    id: int
    entry: OutboxEntry
    buried_ms: int
    error: str


class OutboxStore(Protocol):
    """Blocking; every call is made from one thread. What returned is on disk."""

    def open(self) -> None: ...
    def lead(self) -> bool:
        """Whether this process may deliver: one pump per outbox, the others wait for it to end."""
        ...

    def insert(self, entries: Sequence[OutboxEntry]) -> list[int]: ...
    def last_id(self) -> int:
        """Of all that is there; 0 if nothing is."""
        ...

    def read(self, after_id: int, limit: int, bytes_max: int, without: Sequence[str]) -> list[Kept]:
        """In the order of ids, until there are so many or so many bytes of them, one at least; nothing of some entities (at least the
        first `WITHOUT_MAX` of those)."""
        ...

    def remove(self, ids: Iterable[int]) -> None: ...
    def bury(self, id: int, buried_ms: int, error: str) -> None: ...
    def count(self) -> int: ...
    def dead(self, limit: int) -> list[Dead]: ...
    def revive(self, ids: Sequence[int]) -> int:
        """Move dead letters back to the end of the outbox; returns how many."""
        ...

    def close(self) -> None: ...


def insert_statement(placeholder: str) -> str:
    marks = ", ".join([placeholder] * 5)
    return f"INSERT INTO {TABLE} ({_COLUMNS}) VALUES ({marks})"


def is_postgres(connection: object) -> bool:
    return type(connection).__module__.partition(".")[0] == "psycopg"


def enrol(connection: Any, entry: OutboxEntry) -> None:
    """Write the entry in the caller's own transaction (sqlite3 or psycopg); it exists if and when that commits."""
    statement = insert_statement("%s" if is_postgres(connection) else "?")
    connection.execute(statement, entry.row())


def _identity(path: str) -> tuple[int, int] | None:
    """Which file is there, None if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


class SqliteOutboxStore:
    """One SQLite file in WAL mode with full synchronisation; may be the application's own database."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._database: sqlite3.Connection | None = None
        self._lock: int | None = None
        self._file = ""
        """Its whole path, whatever directory this process changes to; empty for one in memory."""
        self._opened: tuple[int, int] | None = None

    @property
    def _db(self) -> sqlite3.Connection:
        if self._database is None:
            raise RuntimeError("the outbox is not open")
        return self._database

    def open(self) -> None:
        # One thread at a time: that of the outbox, and the last one when the interpreter ends.
        database = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=FULL")
        database.execute("PRAGMA busy_timeout=10000")
        self._file = database.execute("PRAGMA database_list").fetchone()[2]
        is_new = database.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (TABLE,)).fetchone() is None
        if is_new and self._file and os.path.exists(self._file + _PUMP):
            log.warning(
                "%s is a new outbox, but there was one here before: what that held, and had not delivered, is gone with it", self._file
            )
        database.execute(
            f"CREATE TABLE IF NOT EXISTS {TABLE} (id INTEGER PRIMARY KEY AUTOINCREMENT, entity TEXT NOT NULL, lane TEXT,"
            " message_id TEXT NOT NULL, payload BLOB NOT NULL, enqueued_ms INTEGER NOT NULL)"
        )
        database.execute(
            f"CREATE TABLE IF NOT EXISTS {DEAD_TABLE} (id INTEGER PRIMARY KEY, entity TEXT NOT NULL, lane TEXT, message_id TEXT NOT NULL,"
            " payload BLOB NOT NULL, enqueued_ms INTEGER NOT NULL, buried_ms INTEGER NOT NULL, error TEXT NOT NULL)"
        )
        self._opened = _identity(self._file)
        self._database = database

    def lead(self) -> bool:
        if self._lock is not None:
            return True
        handle = os.open((self._file or self._path) + _PUMP, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return False
        self._lock = handle
        return True

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """All of it, or nothing: what fails, its commit too, leaves no transaction open in which the next one could not begin."""
        database = self._db
        database.execute("BEGIN IMMEDIATE")
        try:
            yield database
            database.execute("COMMIT")
        except BaseException:
            if database.in_transaction:  # SQLite has ended it itself after some errors
                database.execute("ROLLBACK")
            raise

    def insert(self, entries: Sequence[OutboxEntry]) -> list[int]:
        if self._file and _identity(self._file) != self._opened:
            # SQLite would write on, into a file that nobody finds again.
            raise sqlite3.OperationalError(
                f"{self._file} was removed or replaced while the outbox is open: what it held is still delivered, nothing more is taken. "
                "Open the outbox again"
            )
        statement = insert_statement("?")
        with self._transaction() as database:
            return [database.execute(statement, entry.row()).lastrowid or 0 for entry in entries]

    def last_id(self) -> int:
        (last,) = self._db.execute(f"SELECT max(id) FROM {TABLE}").fetchone()
        return int(last or 0)

    def read(self, after_id: int, limit: int, bytes_max: int, without: Sequence[str]) -> list[Kept]:
        left_out = without[:WITHOUT_MAX]
        condition = f"id > ? AND entity NOT IN ({', '.join('?' * len(left_out))})"
        rows = self._db.execute(f"SELECT id, {_COLUMNS} FROM {TABLE} WHERE {condition} ORDER BY id LIMIT ?", (after_id, *left_out, limit))
        found: list[Kept] = []
        for row in rows:
            found.append(Kept(row[0], OutboxEntry(*row[1:])))
            bytes_max -= len(found[-1].entry.payload)
            if bytes_max <= 0:
                break
        rows.close()
        return found

    def remove(self, ids: Iterable[int]) -> None:
        with self._transaction() as database:
            database.executemany(f"DELETE FROM {TABLE} WHERE id = ?", [(id,) for id in ids])

    def bury(self, id: int, buried_ms: int, error: str) -> None:
        buried = f"INSERT OR REPLACE INTO {DEAD_TABLE} SELECT id, {_COLUMNS}, ?, ? FROM {TABLE} WHERE id = ?"
        with self._transaction() as database:
            database.execute(buried, (buried_ms, error, id))
            database.execute(f"DELETE FROM {TABLE} WHERE id = ?", (id,))

    def count(self) -> int:
        (count,) = self._db.execute(f"SELECT count(*) FROM {TABLE}").fetchone()
        return int(count)

    def dead(self, limit: int) -> list[Dead]:
        rows = self._db.execute(f"SELECT id, {_COLUMNS}, buried_ms, error FROM {DEAD_TABLE} ORDER BY id LIMIT ?", (limit,))
        return [Dead(row[0], OutboxEntry(*row[1:6]), row[6], row[7]) for row in rows]

    def revive(self, ids: Sequence[int]) -> int:
        revived = 0
        with self._transaction() as database:
            for id in ids:
                database.execute(f"INSERT INTO {TABLE} ({_COLUMNS}) SELECT {_COLUMNS} FROM {DEAD_TABLE} WHERE id = ?", (id,))
                revived += database.execute(f"DELETE FROM {DEAD_TABLE} WHERE id = ?", (id,)).rowcount
        return revived

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


class PostgresOutboxStore:
    """Two tables in a PostgreSQL database (psycopg 3), so that an application's transaction there can hold its messages too."""

    _LEADER = 0x7A4D_0B0C

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo
        self._kept: Any = None
        self._leading: Any = None
        """The connection that holds the lock: with it the lock goes."""

    @property
    def _connection(self) -> Any:
        """One that works, as far as is known: another after the server was away."""
        if self._kept is None:
            raise RuntimeError("the outbox is not open")
        if self._kept.closed:
            self._kept = self._connect()
            log.info("connected to the outbox's database again")
        return self._kept

    def _connect(self) -> Any:
        # Not imported before: only those who keep their outbox there need it.
        return importlib.import_module("psycopg").connect(self._conninfo, autocommit=True)

    def open(self) -> None:
        self._kept = self._connect()
        columns = "entity text NOT NULL, lane text, message_id text NOT NULL, payload bytea NOT NULL, enqueued_ms bigint NOT NULL"
        self._connection.execute(f"CREATE TABLE IF NOT EXISTS {TABLE} (id bigserial PRIMARY KEY, {columns})")
        self._connection.execute(
            f"CREATE TABLE IF NOT EXISTS {DEAD_TABLE} (id bigint PRIMARY KEY, {columns}, buried_ms bigint NOT NULL, error text NOT NULL)"
        )

    def lead(self) -> bool:
        connection = self._connection
        if connection is not self._leading:
            (got,) = connection.execute("SELECT pg_try_advisory_lock(%s)", (self._LEADER,)).fetchone()
            self._leading = connection if got else None
        return connection is self._leading

    def insert(self, entries: Sequence[OutboxEntry]) -> list[int]:
        statement = insert_statement("%s") + " RETURNING id"
        connection = self._connection
        with connection.transaction():
            return [int(connection.execute(statement, entry.row()).fetchone()[0]) for entry in entries]

    def last_id(self) -> int:
        (last,) = self._connection.execute(f"SELECT max(id) FROM {TABLE}").fetchone()
        return int(last or 0)

    def read(self, after_id: int, limit: int, bytes_max: int, without: Sequence[str]) -> list[Kept]:
        some = f"SELECT id, {_COLUMNS} FROM {TABLE} WHERE id > %s AND entity <> ALL(%s) ORDER BY id LIMIT %s"
        sized = f"SELECT *, sum(octet_length(payload)) OVER (ORDER BY id) - octet_length(payload) AS before FROM ({some}) AS first"
        fitting = f"SELECT id, {_COLUMNS} FROM ({sized}) AS sized WHERE before < %s ORDER BY id"
        rows = self._connection.execute(fitting, (after_id, list(without), limit, bytes_max))
        return [Kept(row[0], OutboxEntry(row[1], row[2], row[3], bytes(row[4]), row[5])) for row in rows]

    def remove(self, ids: Iterable[int]) -> None:
        self._connection.execute(f"DELETE FROM {TABLE} WHERE id = ANY(%s)", (list(ids),))

    def bury(self, id: int, buried_ms: int, error: str) -> None:
        connection = self._connection
        with connection.transaction():
            connection.execute(
                f"INSERT INTO {DEAD_TABLE} SELECT id, {_COLUMNS}, %s, %s FROM {TABLE} WHERE id = %s ON CONFLICT DO NOTHING",
                (buried_ms, error, id),
            )
            connection.execute(f"DELETE FROM {TABLE} WHERE id = %s", (id,))

    def count(self) -> int:
        (count,) = self._connection.execute(f"SELECT count(*) FROM {TABLE}").fetchone()
        return int(count)

    def dead(self, limit: int) -> list[Dead]:
        rows = self._connection.execute(f"SELECT id, {_COLUMNS}, buried_ms, error FROM {DEAD_TABLE} ORDER BY id LIMIT %s", (limit,))
        return [Dead(row[0], OutboxEntry(row[1], row[2], row[3], bytes(row[4]), row[5]), row[6], row[7]) for row in rows]

    def revive(self, ids: Sequence[int]) -> int:
        connection = self._connection
        with connection.transaction():
            connection.execute(
                f"INSERT INTO {TABLE} ({_COLUMNS}) SELECT {_COLUMNS} FROM {DEAD_TABLE} WHERE id = ANY(%s) ORDER BY id", (list(ids),)
            )
            return int(connection.execute(f"DELETE FROM {DEAD_TABLE} WHERE id = ANY(%s)", (list(ids),)).rowcount)

    def close(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None
