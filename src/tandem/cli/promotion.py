"""Promotes the standby of a second region, and says exactly which messages may be missing there."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tandem.broker import facts
from tandem.broker.entities.joined import FRAGMENT_SHIFT
from tandem.model.clock import SystemClock
from tandem.model.entity_json import kind_and_path_in
from tandem.model.errors import ConfigurationError, EngineAway
from tandem.model.store_row import FIRST_ENGINE, StoreRow
from tandem.stores.blocks import seed_of
from tandem.stores.ledger_engines import always
from tandem.stores.ledger_entries import LedgerRecovery
from tandem.stores.postgres_connection import EngineConnection, Hosts, sqlstate_of
from tandem.stores.postgres_engines import EngineRegistry, Place
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
    unknown: list[str] = field(default_factory=list)
    """Entities that its journal has, and the catalog has not: whoever serves it drops what is in them."""

    def as_dict(self) -> dict[str, Any]:
        return {
            "namespace": self.namespace,
            "store": self.number,
            "engine": self.engine,
            "block": self.block,
            "instant_ms": self.instant_ms,
            "begins_at": self.begins_at,
            "missing": [{"entity": gap.entity, "first": gap.first, "last": gap.last} for gap in self.gaps],
            "unknown_entities": self.unknown,
        }


class _Numbers:
    """A tenant that only wants to know which entities there are, which number each gave last, and when anything happened last."""

    def __init__(self) -> None:
        self.last: dict[int, int] = {}
        self.instant = 0
        self.highest = 0
        """Of the ids of all entities that were ever here, whether they had messages or not."""
        self.described: dict[int, bytes] = {}
        """By id: the entities that are here, as the journal was told of them."""

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
        elif kind == facts.ENTITY:
            self._told_of(facts.id_of(entity), flags, key)

    def _told_of(self, id_: int, flags: int, key: bytes) -> None:
        self.highest = max(self.highest, id_)
        if facts.has_ended(flags):
            self.described.pop(id_, None)
        else:
            self.described[id_] = key

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
            if not force:
                _would_agree(standbys.connections)
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
        counts = Counter(one.row.namespace for one in read)
        promoted = [self._go_on(connections, one, entities.get(one.row.namespace, {}), counts[one.row.namespace]) for one in read]
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

    def _go_on(self, connections: dict[str, EngineConnection], read: _StoreRead, names: dict[int, str], stores: int) -> PromotedStore:
        """Its numbers go on where nobody can have been. `names`: by id, the entities of its namespace, which has so many `stores`."""
        first, row, told = connections[FIRST_ENGINE], read.row, read.told
        highest = max((seq & _LOCAL for seq in told.last.values()), default=0)
        begins_at = max(highest, row.begins_at) + NUMBERS_LEFT_OUT
        ((entity_max,),) = first.execute("SELECT highest_id FROM tandem.namespace WHERE name = %s", (row.namespace,)).fetchall()
        connections[read.engine].execute(
            "INSERT INTO tandem.numbers (store, begins_at, entity_max) VALUES (%s, %s, %s) "
            "ON CONFLICT (store) DO UPDATE SET begins_at = excluded.begins_at, entity_max = excluded.entity_max",
            (row.id, begins_at, entity_max),
        )
        mine = _entities_of(first, row.namespace, row.number, stores)
        gaps = [
            Gap(_name(entity, names), last + 1, (last & ~_LOCAL) + begins_at - 1)
            for entity, last in sorted(({one: _base(one) for one in mine} | told.last).items())
            if facts.id_of(entity) in names
        ]
        ended = first.execute("SELECT id FROM tandem.entity WHERE namespace = %s AND gone", (row.namespace,)).fetchall()
        known = names.keys() | {id_ for (id_,) in ended}
        unknown = sorted(kind_and_path_in(key.decode())[1] for id_, key in told.described.items() if id_ not in known)
        return PromotedStore(row.namespace, row.number, read.block, told.instant, begins_at, gaps, read.engine, unknown)


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


@dataclass(frozen=True, slots=True)
class _Differences:
    """What engines know of each other's stores, and is not so: their standbys end at different moments."""

    stray: list[tuple[str, StoreRow]]
    """Stores of namespaces that the first engine does not know, and the engine that has them."""
    lacking: list[tuple[str, Place, bytes]]
    """Stores that the first engine knows and their own lacks, with what names their journal."""
    unheard: list[tuple[str, StoreRow]]
    """Stores that the first engine may not know to be made."""

    def must_be_none(self) -> None:
        for name, row in self.stray:
            raise ConfigurationError(
                f"store-{row.number} of namespace {row.namespace} is in engine {name}, and the first, which is further behind, does not "
                "know the namespace yet: nobody could reach what is in it. --force strikes it; its tables stay"
            )
        for name, (namespace, number), _ in self.lacking:
            raise ConfigurationError(
                f"store-{number} of namespace {namespace} is not in engine {name}: it was made after what its standby has, or "
                "that is the wrong one. --force makes it anew, and empty"
            )


def _differences(connections: Mapping[str, EngineConnection]) -> _Differences:
    first = connections[FIRST_ENGINE]
    known = {row[0] for row in first.execute("SELECT name FROM tandem.namespace").fetchall()}
    rows = first.execute("SELECT namespace, number, engine, journal, made FROM tandem.placed").fetchall()
    found = _Differences([], [], [])
    for name in sorted(connections.keys() - {FIRST_ENGINE}):
        there = {(row.namespace, row.number): row for row in PostgresNodes(connections[name]).look()[1]}
        for row in there.values():
            (found.unheard if row.namespace in known else found.stray).append((name, row))
        for namespace, number, engine, journal, made in rows:
            if made and engine == name and (namespace, number) not in there:
                found.lacking.append((name, (namespace, number), bytes(journal)))
    return found


def _agree(connections: Mapping[str, EngineConnection], force: bool) -> None:
    """What one of them knows of the stores of another is made true, or refused."""
    if len(connections) == 1:
        return
    found = _differences(connections)
    if not force:
        found.must_be_none()
    for name, row in found.stray:
        connections[name].execute("DELETE FROM tandem.store WHERE id = %s", (row.id,))
    for name, row in found.unheard:
        connections[FIRST_ENGINE].execute(
            "INSERT INTO tandem.placed (namespace, number, engine, journal, made) VALUES (%s, %s, %s, %s, true) "
            "ON CONFLICT (namespace, number) DO UPDATE SET made = true",
            (row.namespace, row.number, name, row.journal),
        )
    for name, place, journal in found.lacking:
        connections[name].execute(
            "INSERT INTO tandem.store (namespace, number, journal, format) VALUES (%s, %s, %s, %s)", (*place, journal, FORMAT)
        )


def _would_agree(connections: Mapping[str, EngineConnection]) -> None:
    """Before anything is promoted. One that has received more than it shows yet, as a delayed standby has, is asked afterwards."""
    behind = "SELECT pg_is_in_recovery() AND coalesce(pg_last_wal_replay_lsn() < pg_last_wal_receive_lsn(), false)"
    if len(connections) > 1 and not any(connection.execute(behind).fetchall()[0][0] for connection in connections.values()):
        _differences(connections).must_be_none()


def _entities_of(first: EngineConnection, namespace: str, store: int, stores: int) -> list[int]:
    """That may have had their first message when it was lost, as facts name them: of a partitioned one its fragments in this store."""
    rows = first.execute(
        "SELECT e.id, e.store, coalesce(t.description, e.description) FROM tandem.entity e LEFT JOIN tandem.entity t "
        "ON t.namespace = e.namespace AND t.id = e.topic_id WHERE e.namespace = %s AND NOT e.gone",
        (namespace,),
    ).fetchall()
    found: list[int] = []
    for id_, lives, text in rows:
        fragments = json.loads(json.loads(text)["entity"]).get("partition_count", 0)
        if fragments > 1:
            found += [fragment << facts.FRAGMENT_BITS | 4 * id_ for fragment in range(store, fragments, stores)]
        elif lives == store:
            found.append(4 * id_)
    return found


def _base(entity: int) -> int:
    """The numbers of a fragment are those after it."""
    return entity >> facts.FRAGMENT_BITS << FRAGMENT_SHIFT


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
