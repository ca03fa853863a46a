"""What a cluster keeps in PostgreSQL, read from outside: in short statements, on a standby where there is one, never half of it.

No transaction lasts longer than one statement, so a reader keeps nobody from appending, and a segment that is given up is dropped between
two of its statements. Whoever still wanted that segment is told so.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from tandem.model.clock import SystemClock
from tandem.model.errors import Corrupt, EngineAway, StoreUnavailable
from tandem.model.store_row import StoreRow
from tandem.stores.blocks import BLOCK_BYTES, RECORD_BYTES, parse_block_header, payload_is_whole, seed_of
from tandem.stores.ledger_entries import is_whole
from tandem.stores.postgres_connection import UNDEFINED_TABLE, EngineConnection, Hosts, sqlstate_of, without_password
from tandem.stores.postgres_ledger import STORE_COLUMNS
from tandem.stores.segment_index import ENTRY, ENTRY_BYTES, columns_of

BLOCKS_PER_RANGE: Final = 1024
"""What one task reads: of a busy store some 18 MB of entries, or 256 MB of blocks."""
_ENTRIES_AT_ONCE: Final = 64
_BLOCKS_AT_ONCE: Final = 8
_TRIES: Final = 60
_PAUSE_SECONDS: Final = 0.25
_STANDBY_TRIES: Final = 40
"""Looks at a standby that has not replayed what the primary had; then the primary is read."""
_PLAN_TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class EnginePlace:
    """Where to read, and from when: a standby has to be as far as this."""

    dsn: str = field(repr=False)
    position: str
    """Of the WAL, when the reading was planned; empty: nobody knows."""


@dataclass(frozen=True, slots=True)
class BlockRange:
    """Blocks of one segment of one store."""

    engine: EnginePlace
    namespace: str
    store: str
    directory: str
    """For people, and to tell journals apart: the engine without its password, and the store."""
    segment: int
    store_id: int
    journal: bytes
    first: int
    last: int

    @property
    def table(self) -> str:
        return f"tandem.b_{self.store_id}_{self.segment}"


class EngineReader:
    """Of one place, by one thread. Opened with the first question; asked again if the engine could not answer."""

    def __init__(self, engine: EnginePlace) -> None:
        self._engine = engine
        self._connection = EngineConnection(Hosts(engine.dsn, "prefer-standby"), "tandem reader", SystemClock())
        self._caught_up = not engine.position
        self._ending = threading.Event()

    def rows(self, sql: str, values: tuple[object, ...] = (), tries: int = _TRIES) -> list[tuple[Any, ...]]:
        """EngineAway if it does not answer for a while; at once if there is no such table."""
        for attempt in range(tries):
            try:
                if not self._caught_up:
                    self._catch_up()
                found: list[tuple[Any, ...]] = self._connection.execute(sql, values, prepare=False).fetchall()
            except EngineAway as error:
                self._caught_up = not self._engine.position  # the next host may be another one
                if sqlstate_of(error) == UNDEFINED_TABLE or attempt == tries - 1:
                    raise
                self.pause()
            else:
                return found
        raise AssertionError

    def pause(self) -> None:
        self._ending.wait(_PAUSE_SECONDS)

    def _catch_up(self) -> None:
        """A standby shows what it has replayed, which may be less than what was there when the reading was planned."""
        for _ in range(_STANDBY_TRIES):
            found = self._connection.execute(
                "SELECT NOT pg_is_in_recovery() OR pg_last_wal_replay_lsn() >= %s::pg_lsn", (self._engine.position,), prepare=False
            ).fetchone()
            if found is not None and found[0]:
                self._caught_up = True
                return
            self.pause()
        self.use_primary()
        self._caught_up = True

    def use_primary(self) -> None:
        self._connection.close()
        self._connection = EngineConnection(Hosts(self._engine.dsn), "tandem reader", SystemClock())

    def close(self) -> None:
        self._connection.close()


def look_at(dsn: str) -> EnginePlace:
    """Where the engine is now: the primary says; without one, whatever can be read is read as it is. EngineAway if nobody answers."""
    connection = EngineConnection(Hosts(dsn), "tandem reader", SystemClock())
    try:
        found = connection.execute("SELECT pg_current_wal_lsn()::text", prepare=False).fetchone()
    except EngineAway:
        reader = EngineReader(EnginePlace(dsn, ""))
        try:
            reader.rows("SELECT 1", tries=1)
        finally:
            reader.close()
        return EnginePlace(dsn, "")
    finally:
        connection.close()
    return EnginePlace(dsn, str(found[0]) if found is not None else "")


def engines_beside(dsn: str) -> tuple[bytes, str, dict[str, str]]:
    """Of which cluster it is, what it is called there (the first engine has no name), and by name the others if it is the first."""
    reader = EngineReader(EnginePlace(dsn, ""))
    try:
        ((secret,),) = reader.rows("SELECT secret FROM tandem.cluster", tries=1)
        try:
            named = reader.rows("SELECT name FROM tandem.this_engine")
            others = reader.rows("SELECT name, dsn FROM tandem.engine ORDER BY name")
        except EngineAway as error:
            if sqlstate_of(error) != UNDEFINED_TABLE:
                raise
            named, others = [], []  # of an older version
    finally:
        reader.close()
    return bytes(secret), str(named[0][0]) if named else "", {str(name): str(there) for name, there in others}


def stores_in_engine(reader: EngineReader) -> list[StoreRow]:
    return [StoreRow(*row) for row in reader.rows(f"SELECT {STORE_COLUMNS} FROM tandem.store ORDER BY namespace, number")]


def entities_in_engine(reader: EngineReader) -> dict[str, dict[int, str]]:
    """By namespace: the paths of its entities, as they were spelled when they were made."""
    found: dict[str, dict[int, str]] = {}
    for namespace, id_, text in reader.rows("SELECT namespace, id, description FROM tandem.entity WHERE NOT gone"):
        described = json.loads(json.loads(text)["entity"])
        name = str(described["name"])
        found.setdefault(namespace, {})[id_] = f"{described['topic']}/Subscriptions/{name}" if "topic" in described else name
    return found


def ranges_of(engine: EnginePlace, reader: EngineReader, row: StoreRow) -> list[BlockRange]:
    """All blocks of a store as they are now."""
    for _ in range(_PLAN_TRIES):
        found: list[BlockRange] = []
        try:
            for segment in [*_kept(reader, row), *range(row.first_segment, row.last_segment + 1)]:
                first, last = _ends(reader, row, segment)
                found += [
                    BlockRange(
                        engine,
                        row.namespace,
                        f"store-{row.number}",
                        f"{without_password(engine.dsn)} {row.namespace}/store-{row.number}",
                        segment,
                        row.id,
                        row.journal,
                        begin,
                        min(begin + BLOCKS_PER_RANGE - 1, last),
                    )
                    for begin in range(first, last + 1, BLOCKS_PER_RANGE)
                ]
        except StoreUnavailable:
            rows = stores_in_engine(reader)
            now = next(one for one in rows if one.id == row.id)
            if now.first_segment == row.first_segment:
                raise
            row = now  # segments were given up while we looked
            continue
        return found
    raise StoreUnavailable(f"{row.namespace} store-{row.number}: segments are given up faster than they can be looked at; read again")


def _kept(reader: EngineReader, row: StoreRow) -> list[int]:
    """Segments that were given up and are kept for audit."""
    try:
        found = reader.rows("SELECT segment FROM tandem.retired WHERE store = %s AND segment < %s ORDER BY 1", (row.id, row.first_segment))
    except EngineAway as error:
        if sqlstate_of(error) != UNDEFINED_TABLE:
            raise
        return []
    return [int(segment) for (segment,) in found]


def _ends(reader: EngineReader, row: StoreRow, segment: int) -> tuple[int, int]:
    """First and last block; (1, 0) for the last segment before its first block, and for one that was kept long enough."""
    try:
        found = reader.rows(f"SELECT min(number), max(number) FROM tandem.b_{row.id}_{segment}")
    except EngineAway as error:
        if sqlstate_of(error) != UNDEFINED_TABLE:
            raise
        found = [(None, None)]
    first, last = found[0]
    if first is not None:
        return int(first), int(last)
    if segment == row.last_segment or segment < row.first_segment:
        return 1, 0
    raise StoreUnavailable(f"{row.namespace} store-{row.number}: segment {segment} is not there")


def read_range(
    blocks: BlockRange, bodies: bool, lost: list[tuple[int, str]], reader: EngineReader | None = None
) -> Iterator[tuple[int, bytes, bytes, bytes]]:
    """(offset of the first record, record headers, keys, payload) of each block; without payload unless `bodies`.

    All of them, or StoreUnavailable: a segment that was given up meanwhile, or a standby that lost its primary, makes no shorter table.
    """
    reader = reader or EngineReader(blocks.engine)
    seed = seed_of(blocks.journal)
    column, most = ("block", _BLOCKS_AT_ONCE) if bodies else ("entry", _ENTRIES_AT_ONCE)
    sql = f"SELECT number, at, {column} FROM {blocks.table} WHERE number > %s AND number <= %s ORDER BY number LIMIT {most}"
    number = blocks.first
    try:
        while number <= blocks.last:
            try:
                rows = reader.rows(sql, (number - 1, blocks.last))
            except EngineAway as error:
                if sqlstate_of(error) != UNDEFINED_TABLE:
                    raise
                rows = []
            if not rows or rows[0][0] != number:
                raise _missing(blocks, number)
            for found, at, raw in rows:
                if found != number:
                    raise _missing(blocks, number)
                number += 1
                columns = _from_block(raw, seed) if bodies else _from_entry(raw, seed)
                if columns is None and not bodies:  # all that the entry says is in the block
                    again = reader.rows(f"SELECT block FROM {blocks.table} WHERE number = %s", (found,))
                    columns = _from_block(again[0][0], seed) if again else None
                if columns is None:
                    lost.append((at, f"block {found} fails its checksum"))
                else:
                    yield at + BLOCK_BYTES, *columns
    finally:
        reader.close()


def _missing(blocks: BlockRange, number: int) -> StoreUnavailable:
    return StoreUnavailable(
        f"{blocks.directory}: segment {blocks.segment}: block {number} is gone: the segment was given up while it was read, "
        "and what still mattered in it was written again behind what was to be read. Read again."
    )


def _from_entry(entry: bytes, seed: int) -> tuple[bytes, bytes, bytes] | None:
    if not is_whole(entry, seed):
        return None
    _, _, count, _, key_bytes, _ = ENTRY.unpack_from(entry)
    heads_end = ENTRY_BYTES + count * RECORD_BYTES
    return entry[ENTRY_BYTES:heads_end], entry[heads_end : heads_end + key_bytes], b""


def _from_block(raw: bytes, seed: int) -> tuple[bytes, bytes, bytes] | None:
    header, payload = parse_block_header(raw[:BLOCK_BYTES], seed), raw[BLOCK_BYTES:]
    if header is None or not payload_is_whole(header, payload, seed):
        return None
    try:
        heads, keys, _, _ = columns_of(payload, header.count)
    except ValueError:
        return None
    return heads, keys, payload


MeterTotal = tuple[str, str, str, str, int, int, int]
"""Namespace, entity, operation, outcome, unit, count, bytes."""


def meter_totals(engine: EnginePlace) -> tuple[list[MeterTotal], int | None, int | None]:
    """All that was counted, added up by the engine, with the first and the last minute."""
    reader = EngineReader(engine)
    try:
        rows = reader.rows(
            "SELECT s.namespace, m.entity, m.operation, m.outcome, m.unit::bigint, sum(m.count)::bigint, sum(m.bytes)::bigint, "
            "min(m.minute_ms), max(m.minute_ms) FROM tandem.meter m JOIN tandem.store s ON s.id = m.store GROUP BY 1, 2, 3, 4, 5"
        )
    except EngineAway as error:
        if sqlstate_of(error) != UNDEFINED_TABLE:
            raise
        raise Corrupt(f"{without_password(engine.dsn)}: has no meters; start a node of this version, which keeps them there") from error
    finally:
        reader.close()
    totals = [(str(row[0]), str(row[1]), str(row[2]), str(row[3]), int(row[4]), int(row[5]), int(row[6])) for row in rows]
    return totals, min((row[7] for row in rows), default=None), max((row[8] for row in rows), default=None)


def node_events(engine: EnginePlace) -> list[tuple[str, int, str, str, str]]:
    """Node, instant, kind, what it is about, detail; of all nodes, in order. None if no node of this version was ever there."""
    reader = EngineReader(engine)
    try:
        rows = reader.rows("SELECT node, at_ms, kind, path, detail FROM tandem.event ORDER BY at_ms, node, incarnation, number")
    except EngineAway as error:
        if sqlstate_of(error) != UNDEFINED_TABLE:
            raise
        return []
    finally:
        reader.close()
    return [(str(row[0]), int(row[1]), str(row[2]), str(row[3]), str(row[4])) for row in rows]
