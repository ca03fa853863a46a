"""Promotes the standby of a second region, and says exactly which messages may be missing there."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Final

from tandem.broker import facts
from tandem.broker.entities.joined import FRAGMENT_SHIFT
from tandem.model.clock import SystemClock
from tandem.model.errors import ConfigurationError, EngineAway
from tandem.stores.blocks import seed_of
from tandem.stores.ledger_engines import always
from tandem.stores.ledger_entries import LedgerRecovery
from tandem.stores.postgres_connection import EngineConnection, Hosts, sqlstate_of, without_password
from tandem.stores.postgres_engines import EngineRegistry, must_have_one_engine
from tandem.stores.postgres_ledger import PostgresLedger
from tandem.stores.postgres_nodes import PostgresNodes
from tandem.stores.postgres_reading import EnginePlace, EngineReader, entities_in_engine
from tandem.stores.postgres_schema import Schema

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

    def as_dict(self) -> dict[str, Any]:
        return {
            "namespace": self.namespace,
            "store": self.number,
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

    def relocate(self, kind: int, flags: int, entity: int, seq: int, at: int, aux: int, key: bytes, body: bytes, location: int) -> None:
        """Nothing is compacted here."""

    def segment_leaving(self, entities: set[int]) -> None:
        """Nothing is compacted here."""

    def numbers_begin_at(self, seq: int, entity_max: int) -> None:
        """An earlier promotion: the rows of that are in the engine."""


class Promotion:
    """Of one engine. Every step may be repeated: whoever was interrupted starts again."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._where = without_password(dsn)

    def run(self, force: bool) -> list[PromotedStore]:
        connection = EngineConnection(Hosts(self._dsn, "any"), "tandem promote", SystemClock())
        try:
            Schema(self._dsn, connection).check(None)
            must_have_one_engine(EngineRegistry(connection))
            self._make_primary(connection, force)
        finally:
            connection.close()
        connection = EngineConnection(Hosts(self._dsn), "tandem promote", SystemClock())
        try:
            Schema(self._dsn, connection).complete()
            connection.execute("DELETE FROM tandem.follower")
            stores = PostgresNodes(connection).look()[1]
            reader = EngineReader(EnginePlace(self._dsn, ""))
            entities = entities_in_engine(reader)
            reader.close()
            promoted = [self._take(connection, row.namespace, row.number, entities.get(row.namespace, {})) for row in stores]
            connection.execute("DELETE FROM tandem.node")
        finally:
            connection.close()
        return promoted

    def _make_primary(self, connection: EngineConnection, force: bool) -> None:
        # who has no rights to see it all sees that there is a receiver, and no more
        found = connection.execute(
            "SELECT pg_is_in_recovery(), current_setting('synchronous_standby_names'), (SELECT count(*) FROM pg_stat_replication), "
            "(SELECT count(*) FROM pg_stat_wal_receiver WHERE coalesce(status, 'streaming') = 'streaming')"
        ).fetchone()
        assert found is not None
        follows, names, replicas, streaming = found
        if follows and streaming and not force:
            raise ConfigurationError(
                f"{self._where}: it still receives from its primary, which may be accepting messages that would be missing here. "
                "Stop the nodes and the PostgreSQL of the other region first; if that cannot be done: --force"
            )
        if names and not replicas:
            raise ConfigurationError(
                f"{self._where}: synchronous_standby_names is {names!r}, and no standby replicates from this server: every commit would "
                "wait for ever. ALTER SYSTEM SET synchronous_standby_names = '', or start its standbys; SELECT pg_reload_conf(); then again"
            )
        if not follows:
            self._must_be_idle(connection)
            return
        try:
            done = connection.execute("SELECT pg_promote(true, 60)").fetchone()
        except EngineAway as error:
            if sqlstate_of(error) == _INSUFFICIENT_PRIVILEGE:
                raise ConfigurationError(
                    f"{self._where}: {error.description}; promote it by other means (Patroni, pg_ctl promote), then run this again, or "
                    "GRANT EXECUTE ON FUNCTION pg_promote TO the user"
                ) from error
            raise
        if done is None or not done[0]:
            raise ConfigurationError(f"{self._where}: was not promoted within 60 s; see its log, then run this again")

    def _must_be_idle(self, connection: EngineConnection) -> None:
        """It was promoted already, or it is a primary that nobody wanted to promote."""
        nodes = PostgresNodes(connection)
        before = {row[0]: row[2] for row in nodes.look()[0]}
        if before:
            time.sleep(_LISTEN_SECONDS)
        beating = [row[0] for row in nodes.look()[0] if row[2] != before.get(row[0])]
        if beating:
            raise ConfigurationError(
                f"{self._where}: is a primary, and nodes serve on it ({', '.join(beating)}): there is nothing to promote"
            )

    def _take(self, connection: EngineConnection, namespace: str, number: int, names: dict[int, str]) -> PromotedStore:
        """Whoever owned it is deposed, all of it is read and checked, and its numbers go on where nobody can have been."""
        ledger = PostgresLedger(Hosts(self._dsn), SystemClock(), (namespace, number), "", 0, always)
        try:
            row = ledger.acquire()
            told = _Numbers()
            recovery = LedgerRecovery(ledger, row, seed_of(row.journal), told, {})
            recovery.run()
        finally:
            ledger.close()
        highest = max((seq & _LOCAL for seq in told.last.values()), default=0)
        begins_at = max(highest, row.begins_at) + NUMBERS_LEFT_OUT
        connection.execute(
            "INSERT INTO tandem.numbers (store, begins_at, entity_max) SELECT %s, %s, highest_id FROM tandem.namespace WHERE name = %s "
            "ON CONFLICT (store) DO UPDATE SET begins_at = excluded.begins_at, entity_max = excluded.entity_max",
            (row.id, begins_at, namespace),
        )
        mine = {4 * id_ for id_ in self._entities_of(connection, namespace, number)}
        gaps = [
            Gap(_name(entity, names), last + 1, (last & ~_LOCAL) + begins_at - 1)
            for entity, last in sorted((dict.fromkeys(mine, 0) | told.last).items())
            if facts.id_of(entity) in names
        ]
        return PromotedStore(namespace, number, recovery.number - 1, told.instant, begins_at, gaps)

    @staticmethod
    def _entities_of(connection: EngineConnection, namespace: str, store: int) -> list[int]:
        """That may have had their first message when it was lost."""
        rows = connection.execute(
            "SELECT id FROM tandem.entity WHERE namespace = %s AND store = %s AND NOT gone", (namespace, store)
        ).fetchall()
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
