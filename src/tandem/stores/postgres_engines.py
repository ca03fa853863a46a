"""Which engines a cluster has beside its first, and which stores live there: kept in the first, checked against each of them.

A store is in one engine for good. Its row, its blocks and what is counted are there, so nothing needs a transaction over two; the first one
remembers that it was made, and with which journal, so that a database that was emptied or mistaken for another is noticed.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from psycopg import conninfo

from tandem.model.errors import ConfigurationError, EngineAway
from tandem.model.store_row import StoreRow
from tandem.stores.postgres_connection import EngineConnection, Hosts, parameters_of, sqlstate_of
from tandem.stores.postgres_ledger import FORMAT, STORE_COLUMNS
from tandem.stores.postgres_schema import Schema

_SECRETS: Final = ("password", "sslpassword")
_AWAY_STATES: Final = ("", "08", "57")
"""Classes of errors of an engine that is not there, or going, or not there yet."""

Place = tuple[str, int]
"""A store: namespace and number."""


def key_of(name: str) -> str:
    """How the settings of an engine are called in refusals."""
    return f"cluster.more_engines ({name})"


def label_of(name: str) -> str:
    return f"engine {name}"


def to_keep(dsn: str) -> str:
    """What may be written down of a connection string: passwords come from PostgreSQL's usual places."""
    kept: str = conninfo.make_conninfo("", **{key: value for key, value in parameters_of(dsn).items() if key not in _SECRETS})
    return kept


def is_away(error: BaseException) -> bool:
    """Rather than one that answers and may not be used."""
    cause = error.__cause__ if isinstance(error, ConfigurationError) else error
    return isinstance(cause, EngineAway) and sqlstate_of(cause)[:2] in _AWAY_STATES


class EngineRegistry:
    """What the first engine knows of the others. Calls block; EngineAway goes through."""

    def __init__(self, connection: EngineConnection) -> None:
        self._connection = connection

    def engines(self) -> dict[str, str]:
        """By name: the connection string, without passwords."""
        return {row[0]: row[1] for row in self._connection.rows_if_there("SELECT name, dsn FROM tandem.engine ORDER BY name")}

    def called(self) -> str:
        """What this one is called, if it is not the first."""
        return "".join(row[0] for row in self._connection.rows_if_there("SELECT name FROM tandem.this_engine LIMIT 1"))

    def placed(self) -> dict[Place, str]:
        """The engine of every store that is not in the first."""
        sql = "SELECT namespace, number, engine FROM tandem.placed ORDER BY 1, 2"
        return {(row[0], row[1]): row[2] for row in self._connection.rows_if_there(sql)}

    def add(self, name: str, dsn: str) -> bool:
        """True if it was not there."""
        added = "INSERT INTO tandem.engine (name, dsn) VALUES (%s, %s) ON CONFLICT DO NOTHING"
        if self._connection.execute(added, (name, to_keep(dsn))).rowcount:
            return True
        self.moved(name, dsn)
        return False

    def moved(self, name: str, dsn: str) -> None:
        """Commands find it there from now on."""
        kept = to_keep(dsn)
        self._connection.execute("UPDATE tandem.engine SET dsn = %s WHERE name = %s AND dsn <> %s", (kept, name, kept))

    def strike(self, name: str) -> None:
        self._connection.execute("DELETE FROM tandem.engine WHERE name = %s", (name,))

    def must_fit(self, configured: dict[str, str], stores: Iterable[tuple[Place, str]]) -> None:
        """`configured`: by name the connection strings of a node; `stores`: where it looks for each store, empty for the first engine.
        ConfigurationError if the cluster has others, or a store lives elsewhere."""
        known = self.engines()
        for name in known.keys() - configured.keys():
            raise ConfigurationError(
                f"cluster.more_engines: this cluster has an engine {name}, and it is not configured here: give each node the same "
                "[[cluster.more_engines]]"
            )
        for name, dsn in configured.items():
            if name not in known:
                raise ConfigurationError(f"{key_of(name)}: was not prepared; once, with this file: tandem cluster init --config <file>")
            self.moved(name, dsn)
        if not known:
            return
        placed = self.placed()
        first = {(row[0], row[1]) for row in self._connection.rows_if_there("SELECT namespace, number FROM tandem.store")}
        for place, engine in stores:
            lives = placed.get(place, "")
            if engine and place in first:
                raise _lives_elsewhere(
                    place, "the first engine", key_of(engine), f"take {place[1]} out of its stores, or say with namespaces for which it is"
                )
            if lives and lives != engine:
                where = key_of(engine) if engine else "cluster.more_engines"
                raise _lives_elsewhere(place, label_of(lives), where, f"name {place[1]} in the stores of {lives}")

    def place(self, place: Place, engine: str) -> tuple[bytes, bool]:
        """From now on it lives there. Its journal's name, and whether it was made."""
        self._connection.execute(
            "INSERT INTO tandem.placed (namespace, number, engine, journal) VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING",
            (*place, engine, secrets.token_bytes(16)),
        )
        sql = "SELECT engine, journal, made FROM tandem.placed WHERE namespace = %s AND number = %s"
        ((lives, journal, made),) = self._connection.execute(sql, place).fetchall()
        if lives != engine:
            raise _lives_elsewhere(place, label_of(lives), key_of(engine), f"name {place[1]} in the stores of {lives}")
        return bytes(journal), bool(made)

    def was_made(self, place: Place) -> None:
        self._connection.execute("UPDATE tandem.placed SET made = true WHERE namespace = %s AND number = %s AND NOT made", place)


def _lives_elsewhere(place: Place, where: str, key: str, what: str) -> ConfigurationError:
    return ConfigurationError(f"{key}: store-{place[1]} of namespace {place[0]} lives in {where}, for good: {what}")


class EngineParts:
    """What an engine beside the first has of the cluster."""

    def __init__(self, name: str, dsn: str, connection: EngineConnection) -> None:
        self._name = name
        self._connection = connection
        self._registry = EngineRegistry(connection)
        self._key = key_of(name)
        self.schema = Schema(dsn, connection, self._key)

    def initialize(self, secret: bytes) -> bool:
        """As the engine of this name. True if it was made now."""
        made = self.schema.initialize(secret)
        if self._connection.execute("SELECT 1 FROM tandem.engine LIMIT 1").fetchone() is not None:
            raise ConfigurationError(f"{self._key}: is the first engine of a cluster (cluster.engine); allowed is another database")
        if not self._registry.called():
            if self._connection.execute("SELECT 1 FROM tandem.namespace LIMIT 1").fetchone() is not None:
                raise ConfigurationError(f"{self._key}: holds a cluster of its own; allowed is a database without one")
            self._connection.execute("INSERT INTO tandem.this_engine (name) VALUES (%s)", (self._name,))
        self._must_be_ours()
        return made

    def _must_be_ours(self) -> None:
        called = self._registry.called()
        if called != self._name:
            what = f"is the engine {called} of its cluster" if called else "is no engine that was prepared under a name"
            raise ConfigurationError(
                f"{self._key}: that database {what}; allowed is the one that `tandem cluster init` prepared as {self._name}"
            )

    def check(self, secret: bytes, durability: str, now_ms: Callable[[], int]) -> list[str]:
        """ConfigurationError if it may not be used; else what is not as it should be."""
        self._connection.execute("SELECT 1", prepare=False)
        self.schema.must_keep_sessions()
        self.schema.check(secret)
        self.schema.complete()
        self._must_be_ours()
        return self.schema.must_be_durable(durability, now_ms).problems

    def ensure_stores(self, registry: EngineRegistry, places: Iterable[Place]) -> None:
        """Those that live here are there. One that was there once is never made again: it would be empty."""
        for place in places:
            journal, made = registry.place(place, self._name)
            if not made:
                self._connection.execute(
                    "INSERT INTO tandem.store (namespace, number, journal, format) "
                    "SELECT %s, %s, %s, coalesce(max(format), %s) FROM tandem.store ON CONFLICT DO NOTHING",
                    (*place, journal, FORMAT),
                )
            found = self._connection.execute("SELECT journal FROM tandem.store WHERE namespace = %s AND number = %s", place).fetchone()
            if found is None or not hmac.compare_digest(bytes(found[0]), journal):
                what = "is not there any more" if found is None else "is another cluster's"
                raise ConfigurationError(
                    f"{self._key}: store-{place[1]} of namespace {place[0]} {what}: is it the right database? Else restore it from a backup"
                )
            if not made:
                registry.was_made(place)


class PostgresOther:
    """An engine beside the first, for beats. Used by one thread."""

    def __init__(
        self, name: str, hosts: Hosts, connection: EngineConnection, who: tuple[str, int, str], prepare: Callable[[EngineConnection], None]
    ) -> None:
        """`who`: this node's name, incarnation and version."""
        self.name = name
        self.hosts = hosts
        self._connection = connection
        self._who = who
        self._prepare = prepare

    def prepare(self) -> None:
        try:
            self._prepare(self._connection)
        except ConfigurationError as error:
            if is_away(error):
                raise EngineAway(str(error)) from error
            raise

    def beat(self) -> None:
        self._connection.execute(
            "INSERT INTO tandem.node (name, incarnation, beat, address, version) VALUES (%s, %s, 1, '', %s) ON CONFLICT (name) DO UPDATE "
            "SET beat = tandem.node.beat + 1, incarnation = excluded.incarnation, version = excluded.version",
            self._who,
        )

    def look(self) -> tuple[dict[str, tuple[int, int]], list[StoreRow]]:
        nodes = self._connection.execute("SELECT name, incarnation, beat FROM tandem.node").fetchall()
        return {row[0]: (row[1], row[2]) for row in nodes}, stores_of(self._connection, self.name)

    def give_up_after(self, milliseconds: int) -> None:
        self._connection.shut_if_slow(milliseconds)

    def close(self) -> None:
        self._connection.close()


def stores_of(connection: EngineConnection, engine: str) -> list[StoreRow]:
    rows = connection.execute(f"SELECT {STORE_COLUMNS} FROM tandem.store ORDER BY namespace, number").fetchall()
    return [replace(StoreRow(*row), engine=engine) for row in rows]
