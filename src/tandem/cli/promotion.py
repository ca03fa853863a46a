"""Promotes the standby of a second region, and says exactly which messages may be missing there."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tandem.broker import facts
from tandem.broker.entities.joined import FRAGMENT_SHIFT
from tandem.model.clock import SystemClock
from tandem.model.errors import ConfigurationError, EngineAway
from tandem.model.store_row import FIRST_ENGINE, StoreRow
from tandem.stores.blocks import seed_of
from tandem.stores.ledger_engines import always
from tandem.stores.ledger_entries import LedgerRecovery
from tandem.stores.postgres_connection import EngineConnection, Hosts, sqlstate_of
from tandem.stores.postgres_engines import EngineRegistry
from tandem.stores.postgres_ledger import FORMAT, PostgresLedger
from tandem.stores.postgres_nodes import PostgresNodes
from tandem.stores.postgres_reading import EnginePlace, EngineReader, entities_in_engine
from tandem.stores.postgres_schema import Schema
from tandem.stores.postgres_standbys import Standbys

NUMBERS_LEFT_OUT: Final = 100_000_000
"""By so much sequence numbers jump: more than were given while a standby lagged, so that none is given twice."""
_LISTEN_SECONDS: Final = 2.5
_INSUFFICIENT_PRIVILEGE: Final = "42501"
_SUB_QUEUES: Final = ("", "/$DeadLetterQueue", "/$Transfer/$DeadLetterQueue", "/?")
_LOCAL: Final = (1 << FRAGMENT_SHIFT) - 1


@dataclass(frozen=True, slots=True)
class Gap:
    """Messages of one entity that may be missing: those with a sequence number in this range, both ends included."""

    entity: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class PromotedStore:
    """Where the journal of one store ends."""

    namespace: str
    number: int
    block: int
    """The last one that was replayed; 0: none."""
    instant_ms: int
    """When the last fact in it was written."""
    begins_at: int
    """New messages have this sequence number, or a higher one."""
    gaps: list[Gap] = field(default_factory=list)
    engine: str = FIRST_ENGINE

    def as_dict(self) -> dict[str, Any]:
        return {
            "namespace": self.namespace,
            "store": self.number,
            "engine": self.engine,
            "block": self.block,
            "instant_ms": self.instant_ms,
            "begins_at": self.begins_at,
            "missing": [{"entity": gap.entity, "first": gap.first, "last": gap.last} for gap in self.gaps],
        }


class _Numbers:
    """A tenant that only wants to know which number each entity gave last, and when anything happened last."""

    def __init__(self) -> None:
        self.last: dict[int, int] = {}
        self.instant = 0
        self.highest = 0
        """Of the ids of entities that have ever had a message here."""

    def replayed(self, kind: int, flags: int, entity: int, seq: int, at: int, aux: int, key: bytes, location: int, body_bytes: int) -> None:
        self.instant = max(self.instant, at)
        if kind == facts.ENQUEUED:
            self._gave(entity, seq)
        elif kind == facts.COUNTER:
            self._gave(entity, aux - 1)
        elif kind == facts.PUBLISHED:
            self._gave(entity, seq)
            for target, number, _ in facts.read_targets(key):
                self._gave(target, number)

    def _gave(self, entity: int, seq: int) -> None:
        self.last[entity] = max(self.last.get(entity, 0), seq)
        self.highest = max(self.highest, facts.id_of(entity))

    def relocate(
        self, kind: int, flags: int, entity: int, seq: int, at: int, aux: int, key: bytes, body: bytes | None, location: int
    ) -> bool:
        return False  # nothing is compacted here

    def segment_leaving(self, entities: set[int]) -> None:
        """Nothing is compacted here."""

    def numbers_begin_at(self, seq: int, entity_max: int) -> None:
        """An earlier promotion: the rows of that are in the engine."""


@dataclass(frozen=True, slots=True)
class _StoreRead:
    """A store that was taken from whoever had it, and read from end to end."""

    engine: str
    row: StoreRow
    told: _Numbers
    block: int


class Promotion:
    """Of all engines of a cluster. Every step may be repeated: whoever was interrupted starts again."""

    def __init__(self, dsn: str, others: Mapping[str, str] | None = None) -> None:
        """`dsn`: the standby of the first engine; `others`: by name, those of the engines beside it."""
        self._dsns = {FIRST_ENGINE: dsn, **(others or {})}

    def run(self, force: bool) -> list[PromotedStore]:
        standbys = Standbys(self._dsns, "--engine", "tandem promote", SystemClock())
        try:
            standbys.check()
            follow = [name for name in self._dsns if self._follows(standbys.connections[name], standbys.where(name), force)]
            for name in follow:
                _promote(standbys.connections[name], standbys.where(name))
        finally:
            standbys.close()
        connections = {name: EngineConnection(Hosts(dsn), "tandem promote", SystemClock()) for name, dsn in self._dsns.items()}
        try:
            return self._take_all(connections, force)
        finally:
            for connection in connections.values():
                connection.close()

    def _take_all(self, connections: dict[str, EngineConnection], force: bool) -> list[PromotedStore]:
        for name, connection in connections.items():
            Schema(self._dsns[name], connection).complete()
        first = connections[FIRST_ENGINE]
        first.execute("DELETE FROM tandem.follower")
        first.execute("DELETE FROM tandem.follower_of")
        _agree(connections, force)
        registry = EngineRegistry(first)
        for name in connections.keys() - {FIRST_ENGINE}:
            registry.moved(name, self._dsns[name])
        read = [self._read(name, row) for name, connection in connections.items() for row in PostgresNodes(connection).look()[1]]
        reader = EngineReader(EnginePlace(self._dsns[FIRST_ENGINE], ""))
        entities = entities_in_engine(reader)
        reader.close()
        for namespace in {one.row.namespace for one in read}:
            # an engine may be ahead of the first, with entities that its catalog has lost: nobody else is given their ids
            highest = max(one.told.highest for one in read if one.row.namespace == namespace)
            first.execute("UPDATE tandem.namespace SET highest_id = greatest(highest_id, %s) WHERE name = %s", (highest, namespace))
        promoted = [self._go_on(connections, one, entities.get(one.row.namespace, {})) for one in read]
        for connection in connections.values():
            connection.execute("DELETE FROM tandem.node")
        return sorted(promoted, key=lambda one: (one.namespace, one.number))

    @staticmethod
    def _follows(connection: EngineConnection, where: str, force: bool) -> bool:
        """Whether it is to be promoted. ConfigurationError if it may not be."""
        # who has no rights to see it all sees that there is a receiver, and no more
        found = connection.execute(
            "SELECT pg_is_in_recovery(), current_setting('synchronous_standby_names'), (SELECT count(*) FROM pg_stat_replication), "
            "(SELECT count(*) FROM pg_stat_wal_receiver WHERE coalesce(status, 'streaming') = 'streaming')"
        ).fetchone()
        assert found is not None
        follows, names, replicas, streaming = found
        if follows and streaming and not force:
            raise ConfigurationError(
                f"{where}: it still receives from its primary, which may be accepting messages that would be missing here. "
                "Stop the nodes and the PostgreSQL of the other region first; if that cannot be done: --force"
            )
        if names and not replicas:
            raise ConfigurationError(
                f"{where}: synchronous_standby_names is {names!r}, and no standby replicates from this server: every commit would "
                "wait for ever. ALTER SYSTEM SET synchronous_standby_names = '', or start its standbys; SELECT pg_reload_conf(); then again"
            )
        if not follows:
            _must_be_idle(connection, where)
        return bool(follows)

    def _read(self, engine: str, row: StoreRow) -> _StoreRead:
        """Whoever owned it is deposed, and all of it is read and checked."""
        ledger = PostgresLedger(Hosts(self._dsns[engine]), SystemClock(), (row.namespace, row.number), "", 0, always)
        try:
            taken = ledger.acquire()
            told = _Numbers()
            recovery = LedgerRecovery(ledger, taken, seed_of(taken.journal), told, {})
            recovery.run()
        finally:
            ledger.close()
        return _StoreRead(engine, taken, told, recovery.number - 1)

    def _go_on(self, connections: dict[str, EngineConnection], read: _StoreRead, names: dict[int, str]) -> PromotedStore:
        """Its numbers go on where nobody can have been."""
        first, row, told = connections[FIRST_ENGINE], read.row, read.told
        highest = max((seq & _LOCAL for seq in told.last.values()), default=0)
        begins_at = max(highest, row.begins_at) + NUMBERS_LEFT_OUT
        ((entity_max,),) = first.execute("SELECT highest_id FROM tandem.namespace WHERE name = %s", (row.namespace,)).fetchall()
        connections[read.engine].execute(
            "INSERT INTO tandem.numbers (store, begins_at, entity_max) VALUES (%s, %s, %s) "
            "ON CONFLICT (store) DO UPDATE SET begins_at = excluded.begins_at, entity_max = excluded.entity_max",
            (row.id, begins_at, entity_max),
        )
        mine = {4 * id_ for id_ in _entities_of(first, row.namespace, row.number)}
        gaps = [
            Gap(_name(entity, names), last + 1, (last & ~_LOCAL) + begins_at - 1)
            for entity, last in sorted((dict.fromkeys(mine, 0) | told.last).items())
            if facts.id_of(entity) in names
        ]
        return PromotedStore(row.namespace, row.number, read.block, told.instant, begins_at, gaps, read.engine)


def _promote(connection: EngineConnection, where: str) -> None:
    try:
        done = connection.execute("SELECT pg_promote(true, 60)").fetchone()
    except EngineAway as error:
        if sqlstate_of(error) == _INSUFFICIENT_PRIVILEGE:
            raise ConfigurationError(
                f"{where}: {error.description}; promote it by other means (Patroni, pg_ctl promote), then run this again, or "
                "GRANT EXECUTE ON FUNCTION pg_promote TO the user"
            ) from error
        raise
    if done is None or not done[0]:
        raise ConfigurationError(f"{where}: was not promoted within 60 s; see its log, then run this again")


def _must_be_idle(connection: EngineConnection, where: str) -> None:
    """It was promoted already, or it is a primary that nobody wanted to promote."""
    nodes = PostgresNodes(connection)
    before = {row[0]: row[2] for row in nodes.look()[0]}
    if before:
        time.sleep(_LISTEN_SECONDS)
    beating = [row[0] for row in nodes.look()[0] if row[2] != before.get(row[0])]
    if beating:
        raise ConfigurationError(f"{where}: is a primary, and nodes serve on it ({', '.join(beating)}): there is nothing to promote")


def _agree(connections: dict[str, EngineConnection], force: bool) -> None:
    """The standbys end at different moments: what one of them knows of the stores of another is made true, or refused."""
    first = connections[FIRST_ENGINE]
    known = {row[0] for row in first.execute("SELECT name FROM tandem.namespace").fetchall()}
    rows = first.execute("SELECT namespace, number, engine, journal, made FROM tandem.placed").fetchall()
    placed = {(row[0], row[1]): (row[2], bytes(row[3])) for row in rows if row[4]}
    for name in connections.keys() - {FIRST_ENGINE}:
        connection = connections[name]
        there = {(row.namespace, row.number): row for row in PostgresNodes(connection).look()[1]}
        for place, row in there.items():
            if place[0] not in known:
                if not force:
                    raise ConfigurationError(
                        f"store-{place[1]} of namespace {place[0]} is in engine {name}, and the first, which is further behind, does not "
                        "know the namespace yet: nobody could reach what is in it. --force strikes it; its tables stay"
                    )
                connection.execute("DELETE FROM tandem.store WHERE id = %s", (row.id,))
            else:
                first.execute(
                    "INSERT INTO tandem.placed (namespace, number, engine, journal, made) VALUES (%s, %s, %s, %s, true) "
                    "ON CONFLICT (namespace, number) DO UPDATE SET made = true",
                    (*place, name, row.journal),
                )
        for place, (engine, journal) in placed.items():
            if engine == name and place not in there:
                if not force:
                    raise ConfigurationError(
                        f"store-{place[1]} of namespace {place[0]} is not in engine {name}: it was made after what its standby has, or "
                        "that is the wrong one. --force makes it anew, and empty"
                    )
                connection.execute(
                    "INSERT INTO tandem.store (namespace, number, journal, format) VALUES (%s, %s, %s, %s)", (*place, journal, FORMAT)
                )


def _entities_of(first: EngineConnection, namespace: str, store: int) -> list[int]:
    """That may have had their first message when it was lost."""
    rows = first.execute("SELECT id FROM tandem.entity WHERE namespace = %s AND store = %s AND NOT gone", (namespace, store)).fetchall()
    return [int(row[0]) for row in rows]


def _name(entity: int, names: dict[int, str]) -> str:
    fragment = entity >> facts.FRAGMENT_BITS
    return names[facts.id_of(entity)] + _SUB_QUEUES[entity & 3] + (f" (partition {fragment})" if fragment else "")


def known_missing(promoted: list[PromotedStore], state: dict[str, Any]) -> dict[str, Any]:
    """What a follower had seen on the other side, and is not here."""
    here = {(store.namespace, store.number): store.block for store in promoted}
    try:
        stores = []
        for one in state["stores"]:
            last = here.get((one["namespace"], one["store"]), 0)
            messages = sum(count for block, count in one["missing"] if block > last)
            if one["block"] > last:
                stores.append({"namespace": one["namespace"], "store": one["store"], "blocks": one["block"] - last, "messages": messages})
        return {"at_ms": state["at_ms"], "messages": sum(one["messages"] for one in stores), "stores": stores}
    except (KeyError, TypeError) as error:
        raise ConfigurationError(f"--state: not what tandem cluster follow writes: {error!r}") from error
