"""The journal of a store as rows in PostgreSQL: the fence is part of the append, and nothing is believed that the quorum does not have.

Why the statements are as they are is in docs/internals/cluster.md. In short: an append *locks* the store's row and matches the epoch, so a
takeover waits for it or refuses it; a confirmation is a write first and a read after, because what is visible need not be durable.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from struct import Struct
from typing import Final

from tandem.model.clock import Clock
from tandem.model.errors import Corrupt, EngineAway, StoreMissing
from tandem.model.store_row import StoreRow
from tandem.stores.ledger import Block, Deposed, Entry, InDoubt, NoRoom, NotOurs, Part
from tandem.stores.postgres_connection import UNDEFINED_TABLE, EngineConnection, Hosts, sqlstate_of

STORE_COLUMNS: Final = "id, namespace, number, journal, format, epoch, owner, incarnation, wanted, first_segment, last_segment, first_block"
_LOCK_NOT_AVAILABLE: Final = "55P03"
_DISK_FULL: Final = "53100"
_MADE_MEANWHILE: Final = ("42P07", "42710", "23505")
"""Another session was making the table, and has made it: the table is there, the type of its rows, or PostgreSQL's own row about either."""
_RESERVE_ROW_BYTES: Final = 65_536
_ACQUIRE_TRIES: Final = 5
_RELEASE_SECONDS: Final = 2.0
FORMAT: Final = 2
"""Of blocks and entries: that of segments in files."""

_int4: Final = Struct("!i").pack
_int8: Final = Struct("!q").pack

MayTake = Callable[[StoreRow], bool]
"""Is this store ours, or may it be taken from its owner? Asked on the thread that opens the store."""


class PostgresLedger:
    """One store of one namespace. `node` and `incarnation` say who we are."""

    def __init__(
        self,
        hosts: Hosts,
        clock: Clock,
        store: tuple[str, int],
        node: str,
        incarnation: int,
        may_take: MayTake,
        audit_retention_ms: int = 0,
        engine: str = "",
        away: Callable[[], str] = lambda: "",
    ) -> None:
        """`engine`: what the one is called that the store lives in; empty: it is the first. `away`: why that one does not answer, as is
        known without asking; empty: it does."""
        self.hosts = hosts
        self._namespace, self._store_number = store
        self._engine = engine
        self._away = away
        self.where = f"{self._namespace} store-{self._store_number} in {hosts.label}"
        self._node = node
        self._incarnation = incarnation
        self._may_take = may_take
        self._audit_retention_ms = audit_retention_ms
        """How long a segment that was given up is kept for whoever wants to know what happened."""
        name = f"tandem {self._namespace} {self._store_number}"
        self._committing = EngineConnection(hosts, name, clock)
        self._reading = EngineConnection(hosts, f"{name} reader", clock)
        self._maintaining = EngineConnection(hosts, f"{name} maintenance", clock)
        self._id = 0
        self._epoch = 0
        self._retired_below = 0

    def fence(self) -> tuple[int, int]:
        """Whoever writes beside the journal does it under the same epoch."""
        return self._id, self._epoch

    def _table(self, segment: int) -> str:
        return f"tandem.b_{self._id}_{segment}"

    # -- whoever opens the store -------------------------------------------------------------

    def acquire(self) -> StoreRow:
        committing = self._committing
        if why := self._away():
            raise StoreMissing(f"{self.hosts.label} does not answer: {why}")
        for _ in range(_ACQUIRE_TRIES):
            seen = self._look()
            if seen.format > FORMAT:
                raise NotOurs(f"{self.where}: written by a newer Tandem (format {seen.format}; this one writes {FORMAT}); start that one")
            if not self._may_take(seen):
                raise NotOurs(f"served by node {seen.owner}" if seen.owner else "between two owners")
            committing.application = f"tandem {seen.id} {seen.epoch + 1}"
            committing.close()  # the next one is named after the epoch it writes under
            try:
                committing.execute("SET lock_timeout = '1s'", prepare=False)
                taken = committing.execute(
                    # where an operator wanted it, it stays; nodes that do not know that may be there until the schema says otherwise
                    "UPDATE tandem.store SET epoch = epoch + 1, owner = %s, incarnation = %s, wanted = CASE WHEN wanted = %s AND "
                    "(SELECT version FROM tandem.cluster) >= 2 THEN wanted ELSE '' END WHERE id = %s AND epoch = %s "
                    f"RETURNING {STORE_COLUMNS}",
                    (self._node, self._incarnation, self._node, seen.id, seen.epoch),
                    prepare=False,
                ).fetchone()
                committing.execute("SET lock_timeout = 0", prepare=False)
            except EngineAway as error:
                if sqlstate_of(error) != _LOCK_NOT_AVAILABLE:
                    raise
                # its owner was stopped, or cut off, with the row in its hands: what it had not committed is gone
                named = f"tandem {seen.id} {seen.epoch}"
                committing.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s", (named,))
                continue
            if taken is not None:
                begins_at, entity_max = self._numbers(seen.id)
                row = replace(StoreRow(*taken), begins_at=begins_at, entity_max=entity_max, engine=self._engine)
                self._id, self._epoch, self._retired_below = row.id, row.epoch, 0
                return row
        raise NotOurs("others were faster")

    def _numbers(self, store: int) -> tuple[int, int]:
        """After a promotion that may have lost messages: where their numbers end."""
        found = self._committing.execute("SELECT begins_at, entity_max FROM tandem.numbers WHERE store = %s", (store,)).fetchone()
        return (found[0], found[1]) if found is not None else (0, 0)

    def _look(self) -> StoreRow:
        found = self._committing.execute(
            f"SELECT coalesce((SELECT n.incarnation FROM tandem.node AS n WHERE n.name = owner), 0), "
            f"coalesce((SELECT n.beat FROM tandem.node AS n WHERE n.name = owner), 0), {STORE_COLUMNS} "
            "FROM tandem.store WHERE namespace = %s AND number = %s",
            (self._namespace, self._store_number),
        ).fetchone()
        if found is None:
            raise Corrupt(f"{self.where}: its row is gone from the engine; restore the database from a backup")
        return replace(StoreRow(*found[2:]), engine=self._engine, owner_beat=(found[0], found[1]))

    def read_entries(self, segment: int, after: int, most: int) -> list[Entry]:
        return self._entries(self._committing, segment, after, most)

    def _entries(self, connection: EngineConnection, segment: int, after: int, most: int) -> list[Entry]:
        """None if the table was never made: a segment that was begun and never written."""
        sql = f"SELECT number, epoch, at, entry FROM {self._table(segment)} WHERE number > %s ORDER BY number LIMIT %s"
        try:
            return [(row[0], row[1], row[2], row[3]) for row in connection.execute(sql, (after, most)).fetchall()]
        except EngineAway as error:
            if sqlstate_of(error) == UNDEFINED_TABLE:
                return []
            raise

    def release(self) -> None:
        if self._away():
            return  # nobody waits for it; others find out by our beats
        patience = threading.Timer(_RELEASE_SECONDS, self._committing.shut)
        patience.daemon = True
        patience.start()  # the loop waits for this
        try:
            self._committing.execute(
                "UPDATE tandem.store SET owner = '', incarnation = 0 WHERE id = %s AND epoch = %s", (self._id, self._epoch)
            )
        except EngineAway:
            return  # others find out by our beats
        finally:
            patience.cancel()

    def close(self) -> None:
        for connection in (self._committing, self._reading, self._maintaining):
            connection.close()

    # -- the committer's thread --------------------------------------------------------------

    def append(self, segment: int, number: int, at: int, entry: bytes, block: bytes) -> None:
        sql = (
            f"INSERT INTO {self._table(segment)} (number, epoch, at, entry, block) "
            "SELECT $1::bigint, $2::bigint, $3::int, $4::bytea, $5::bytea "
            "FROM (SELECT 1 FROM tandem.store WHERE id = $6::int AND epoch = $2::bigint FOR SHARE) AS mine"
        )
        values = [_int8(number), _int8(self._epoch), _int4(at), entry, block, _int4(self._id)]
        try:
            rows = self._committing.change(sql, values)
        except EngineAway as error:
            raise _in_doubt(error) from error
        if rows != 1:
            self._committing.close()
            raise InDoubt("the engine took no block under our epoch")

    def confirm(self, segment: int) -> int:
        self._touch("touched = touched + 1", ())
        try:
            found = self._committing.execute(f"SELECT max(number) FROM {self._table(segment)}", same=True).fetchone()
        except EngineAway as error:
            if sqlstate_of(error) == UNDEFINED_TABLE:
                return 0
            raise
        last = int(found[0]) if found is not None and found[0] is not None else 0
        # Again: between the two somebody may have taken over and written a block of the same number, or a statement that was given up may
        # have arrived late and be visible before it is durable. What is ours after this was ours when it was read, and is on the quorum;
        # on the same connection, or it would be another primary that is asked, which need not have it.
        self._touch("touched = touched + 1", (), same=True)
        return last

    def _touch(self, change: str, values: tuple[object, ...], connection: EngineConnection | None = None, same: bool = False) -> None:
        """A write under our epoch: it waits for whoever holds the row, and for the quorum."""
        using = connection or self._committing
        sql = f"UPDATE tandem.store SET {change} WHERE id = %s AND epoch = %s"
        if using.execute(sql, (*values, self._id, self._epoch), same=same).rowcount != 1:
            raise Deposed(f"{self.where}: another node has taken the store over")

    def begin_segment(self, segment: int) -> None:
        try:
            self._create(self._committing, segment)
            # never back: one that was given up may arrive after its successor
            self._touch("last_segment = greatest(last_segment, %s)", (segment,))
        except EngineAway as error:
            raise _in_doubt(error) from error

    def use_reserve(self) -> None:
        self._drop_reserve(self._committing)

    def _drop_reserve(self, connection: EngineConnection) -> None:
        table = f"tandem.r_{self._id}"
        found = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (table,)).fetchone()
        if found is not None and found[0]:
            connection.execute(f"DROP TABLE {table}", prepare=False)

    def _create(self, connection: EngineConnection, segment: int) -> None:
        table = self._table(segment)
        found = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (table,)).fetchone()
        if found is not None and found[0]:
            return  # IF NOT EXISTS would say so in a notice
        try:
            connection.execute(
                f"CREATE TABLE {table} (number bigint PRIMARY KEY, epoch bigint NOT NULL, at int NOT NULL, entry bytea NOT NULL, "
                "block bytea NOT NULL) WITH (autovacuum_enabled = false, toast.autovacuum_enabled = false)",
                prepare=False,
            )
        except EngineAway as error:
            if sqlstate_of(error) not in _MADE_MEANWHILE:
                raise
        connection.execute(
            f"ALTER TABLE {table} ALTER entry SET STORAGE EXTERNAL, ALTER block SET STORAGE EXTERNAL",
            prepare=False,
        )

    # -- the reader's thread -----------------------------------------------------------------

    def read_parts(self, segment: int, parts: list[Part]) -> list[bytes]:
        numbers, offsets, sizes = ([part[i] for part in parts] for i in range(3))
        sql = (
            "SELECT substring(b.block FROM w.o + 1 FOR w.s) "
            "FROM unnest(%b::bigint[], %b::int[], %b::int[]) WITH ORDINALITY AS w(n, o, s, i) "
            f"LEFT JOIN {self._table(segment)} AS b ON b.number = w.n ORDER BY w.i"
        )
        try:
            found = self._reading.execute(sql, (numbers, offsets, sizes)).fetchall()
        except EngineAway as error:
            if sqlstate_of(error) == UNDEFINED_TABLE:
                return [b""] * len(parts)
            raise
        return [row[0] or b"" for row in found]

    # -- the maintenance thread --------------------------------------------------------------

    def walk_entries(self, segment: int, after: int, most: int) -> list[Entry]:
        return self._entries(self._maintaining, segment, after, most)

    def read_blocks(self, segment: int, after: int, most: int) -> list[Block]:
        sql = f"SELECT number, at, block FROM {self._table(segment)} WHERE number > %s ORDER BY number LIMIT %s"
        return [(row[0], row[1], row[2]) for row in self._maintaining.execute(sql, (after, most)).fetchall()]

    def prepare_segment(self, segment: int) -> None:
        self._create(self._maintaining, segment)

    def retire(self, first_segment: int, first_block: int) -> None:
        change = "first_segment = greatest(first_segment, %s), first_block = greatest(first_block, %s)"
        self._touch(change, (first_segment, first_block), self._maintaining)
        self._retired_below = 0

    def drop_retired(self) -> bool:
        found = self._maintaining.execute("SELECT first_segment FROM tandem.store WHERE id = %s", (self._id,)).fetchone()
        below = found[0] if found is not None else 0
        if below <= self._retired_below:
            return True
        prefix = f"b_{self._id}_"
        names = self._maintaining.execute(
            "SELECT relname FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = 'tandem' AND relkind = 'r' "
            "AND starts_with(relname, %s)",
            (prefix,),
        ).fetchall()
        gone = sorted(number for (name,) in names if (number := int(name.removeprefix(prefix))) < below)
        due = self._due(gone)
        try:
            self._maintaining.execute("SET lock_timeout = '1s'", prepare=False)
            for segment in due:
                self._maintaining.execute(f"DROP TABLE {self._table(segment)}", prepare=False)
            self._maintaining.execute("SET lock_timeout = 0", prepare=False)
            if due:
                left = [segment for segment in gone if segment not in due]
                self._maintaining.execute("DELETE FROM tandem.retired WHERE store = %s AND segment <> ALL(%s::int[])", (self._id, left))
        except EngineAway as error:
            if sqlstate_of(error) in (_LOCK_NOT_AVAILABLE, UNDEFINED_TABLE):
                return False
            raise
        self._retired_below = below if due == gone else 0
        return True

    def _due(self, gone: list[int]) -> list[int]:
        """Of what was given up: what was kept long enough since somebody saw that it was."""
        if not self._audit_retention_ms or not gone:
            return gone
        now = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
        self._maintaining.execute(
            f"INSERT INTO tandem.retired (store, segment, at_ms) SELECT %s, unnest(%s::int[]), {now} ON CONFLICT DO NOTHING",
            (self._id, gone),
        )
        kept = self._maintaining.execute(
            f"SELECT segment FROM tandem.retired WHERE store = %s AND at_ms + %s > {now}", (self._id, self._audit_retention_ms)
        ).fetchall()
        return [segment for segment in gone if (segment,) not in kept]

    def keep_reserve(self, size: int) -> str:
        table = f"tandem.r_{self._id}"
        try:
            found = self._maintaining.execute("SELECT coalesce(pg_table_size(to_regclass(%s)), 0)", (table,)).fetchone()
            if found is not None and found[0] >= size:
                return ""
            self._drop_reserve(self._maintaining)
            # Unlogged: it costs no WAL and no standby anything. After a crash it is empty, which makes room for the recovery.
            self._maintaining.execute(
                f"CREATE UNLOGGED TABLE {table} (block bytea NOT NULL) WITH (autovacuum_enabled = false); "
                f"ALTER TABLE {table} ALTER block SET STORAGE EXTERNAL; INSERT INTO {table} "
                f"SELECT repeat('0', {_RESERVE_ROW_BYTES})::bytea FROM generate_series(1, {-(-size // _RESERVE_ROW_BYTES)})",
                text=True,
            )
        except EngineAway as error:
            if sqlstate_of(error) == _DISK_FULL:
                return error.description
            raise
        return ""

    def size_bytes(self) -> int:
        found = self._maintaining.execute("SELECT pg_database_size(current_database())").fetchone()
        return int(found[0]) if found is not None else 0

    # -- any thread --------------------------------------------------------------------------

    def give_up_after(self, milliseconds: int) -> None:
        self._committing.shut_if_slow(milliseconds)
        self._reading.shut_if_slow(milliseconds)
        self._maintaining.shut_if_slow(4 * milliseconds)  # a large table takes its time to be dropped

    def abandon(self) -> None:
        for connection in (self._committing, self._reading, self._maintaining):
            connection.shut()


def _in_doubt(error: EngineAway) -> InDoubt:
    return (NoRoom if sqlstate_of(error) == _DISK_FULL else InDoubt)(error.description)
