"""The journal port on SQLite: slower, in the most trusted file format there is, and the reference the append log is compared with."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from struct import Struct
from typing import Final

from tandem.broker.facts import SETTLED
from tandem.broker.ports import Effect, FetchEffect, Journal, StoreHealth, StoreState, Tenant, run_effects
from tandem.model.clock import Clock
from tandem.model.errors import BusError, Corrupt, StoreUnavailable
from tandem.stores.checksum import crc32
from tandem.stores.disk import LocalDisk
from tandem.stores.memory import RECORD_BYTES
from tandem.stores.relocated_bytes import RelocatedBytes
from tandem.stores.settings import LogSettings
from tandem.stores.worker import ThreadWorker, Worker

APPLICATION_ID: Final = 0x544E4A4C
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS facts (
    location INTEGER PRIMARY KEY,
    kind INTEGER NOT NULL, flags INTEGER NOT NULL, entity INTEGER NOT NULL,
    seq INTEGER NOT NULL, at INTEGER NOT NULL, aux INTEGER NOT NULL,
    key BLOB NOT NULL, body BLOB NOT NULL,
    fact_crc INTEGER NOT NULL, body_crc INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS ends (one INTEGER PRIMARY KEY CHECK (one = 1), next_location INTEGER NOT NULL) STRICT;
"""
_INSERT: Final = "INSERT INTO facts VALUES (?,?,?,?,?,?,?,?,?,?,?)"
_KEEP_END: Final = "INSERT INTO ends VALUES (1, ?) ON CONFLICT (one) DO UPDATE SET next_location = excluded.next_location"
_FACT: Final = Struct("<QBBIqqqI")
_STOP_SECONDS: Final = 30.0

Row = tuple[int, int, int, int, int, int, int, bytes, bytes, int, int]


def _signed(value: int) -> int:
    """SQLite's integers are signed; ours are not."""
    return value - (1 << 64) if value >= 1 << 63 else value


def _unsigned(value: int) -> int:
    return value + (1 << 64) if value < 0 else value


def _fact_crc(location: int, kind: int, flags: int, entity: int, seq: int, at: int, aux: int, key: bytes, body_bytes: int) -> int:
    """`seq`, `at` and `aux` as SQLite has them."""
    return crc32(key, crc32(_FACT.pack(location, kind, flags, entity, seq, at, aux, body_bytes)))


class _Span:
    """What stands for a segment here: a range of locations whose facts leave together."""

    __slots__ = ("bodies", "body_bytes", "bytes", "forgotten")

    def __init__(self) -> None:
        self.bytes = 0
        self.bodies = 0
        self.body_bytes = 0
        self.forgotten = 0

    def live_bytes(self) -> int:
        return self.body_bytes * max(0, self.bodies - self.forgotten) // self.bodies if self.bodies else 0


class SqliteStore(Journal):
    """One file in one directory. All methods are called on the loop's thread; only its worker touches the database."""

    def __init__(
        self,
        directory: Path,
        loop_call: Callable[[Callable[[], None]], None],
        settings: LogSettings,
        clock: Clock,
        new_worker: Callable[[str], Worker] = ThreadWorker,
    ) -> None:
        self._directory = directory
        self._path = directory / "journal.sqlite"
        self._loop_call = loop_call
        self._settings = settings
        self._clock = clock
        self._new_worker = new_worker
        self._disk = LocalDisk()
        self._lock_descriptor = -1
        self._state = StoreState.RECOVERING
        self._cause = ""
        self._rows: list[Row] = []
        self._next = 0
        self._pending_bytes = 0
        self._flight_bytes = 0
        self._waiters: list[Effect] = []
        self._flight: list[Effect] | None = None
        self._flight_error: Exception | None = None
        self._flight_done = False
        self._lazy_since = 0
        self._spans: dict[int, _Span] = {}
        self._relocated = RelocatedBytes()
        self._tenant: Tenant | None = None
        self._leaving = 0
        self._entities: set[int] = set()
        self._open = False

    @property
    def pending_bytes(self) -> int:
        return self._pending_bytes + self._flight_bytes

    @property
    def short_of_room(self) -> str:
        return ""

    def when_room_changes(self, tell: Callable[[], None]) -> None:
        """It does not look."""

    @property
    def health(self) -> StoreHealth:
        return StoreHealth(self._state, self._cause)

    @property
    def segment_count(self) -> int:
        return len(self._spans)

    def append(self, kind: int, flags: int, entity: int, seq: int, at: int, aux: int, key: bytes, body: bytes) -> int:
        if self._state is not StoreState.UP:
            raise self._refusal()
        location = self._next
        body_bytes = len(body)
        seq, at, aux = _signed(seq), _signed(at), _signed(aux)
        fact_crc = _fact_crc(location, kind, flags, entity, seq, at, aux, key, body_bytes)
        self._rows.append((location, kind, flags, entity, seq, at, aux, key, body, fact_crc, crc32(body)))
        size = RECORD_BYTES + len(key) + body_bytes
        self._pending_bytes += size
        self._count(location, size, body_bytes)
        following = location + size
        if following & 0xFFFF_FFFF >= self._settings.segment_bytes:
            following = (location >> 32) + 1 << 32
        self._next = following
        return location

    def _count(self, location: int, size: int, body_bytes: int) -> None:
        span = self._spans.get(location >> 32)
        if span is None:
            span = self._spans[location >> 32] = _Span()
        span.bytes += size
        if body_bytes:
            span.bodies += 1
            span.body_bytes += body_bytes

    def when_durable(self, effect: Effect) -> None:
        if self._state is not StoreState.UP:
            raise self._refusal()
        self._waiters.append(effect)

    def flush(self) -> None:
        if self._flight is not None or self._state is not StoreState.UP:
            return
        if self._waiters:
            self._hand_over()
        elif self._rows:
            now = self._clock.steady_ms()
            self._lazy_since = self._lazy_since or now
            if self._pending_bytes >= self._settings.lazy_bytes_max or now - self._lazy_since >= self._settings.lazy_ms_max:
                self._hand_over()

    def _hand_over(self) -> None:
        rows, self._rows = self._rows, []
        self._flight, self._waiters = self._waiters, []
        self._flight_bytes, self._pending_bytes = self._pending_bytes, 0
        self._flight_done = False
        self._lazy_since = 0
        following = self._next
        self._writing.submit(lambda: self._write(rows, following))

    def _write(self, rows: list[Row], following: int) -> None:
        """On the writer's thread."""
        try:
            if rows:
                with self._writer:
                    self._writer.executemany(_INSERT, rows)
                    self._writer.execute(_KEEP_END, (following,))
        except sqlite3.Error as error:
            self._flight_error = error
        self._flight_done = True
        self._call_loop(self._completed)

    def _completed(self) -> None:
        effects = self._flight
        if effects is None or not self._flight_done:
            return
        self._flight = None
        self._flight_bytes = 0
        if self._flight_error is not None:
            error, self._flight_error = self._flight_error, None
            self._stop(error, effects)
            return
        run_effects(effects, None)
        self.flush()

    def fetch(self, locations: list[int], effect: FetchEffect) -> None:
        if self._state is not StoreState.UP:
            refusal = self._refusal()
            self._loop_call(lambda: effect.fetched([], refusal))
            return
        pending = {row[0]: row[8] for row in self._rows}
        # the writer's thread, after whatever is in flight: its own connection sees it
        self._writing.submit(lambda: self._fetch(list(locations), pending, effect))

    def _fetch(self, locations: list[int], pending: dict[int, bytes], effect: FetchEffect) -> None:
        bodies: list[bytes] = []
        trouble: Exception | None = None
        try:
            for location in locations:
                body = pending.get(location)
                bodies.append(self._read_body(location) if body is None else body)
        except (sqlite3.Error, Corrupt) as error:
            trouble = error
        self._call_loop(lambda: self._deliver(effect, bodies, trouble))

    def _read_body(self, location: int) -> bytes:
        row = self._writer.execute("SELECT body, body_crc FROM facts WHERE location = ?", (location,)).fetchone()
        if row is None:
            raise Corrupt(f"{self._path}: no record at location {location:#x}")
        body: bytes = row[0]
        if crc32(body) != row[1]:
            raise Corrupt(f"{self._path}: location {location:#x}: the record's body fails its checksum")
        return body

    def _deliver(self, effect: FetchEffect, bodies: list[bytes], error: Exception | None) -> None:
        if error is not None:
            self._stop(error, [])
        effect.fetched([] if error is not None else bodies, error)

    def forget(self, location: int) -> None:
        span = self._spans.get(location >> 32)
        if span is not None:
            span.forgotten += 1

    def replay(self, tenant: Tenant) -> None:
        if self._state is not StoreState.RECOVERING:
            raise StoreUnavailable(f"the store is {self._state.value}; only a store that was just opened can be replayed")
        try:
            self._recover(tenant)
        except (OSError, sqlite3.Error) as error:
            damaged = isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError)
            self._fail_opening(StoreState.CORRUPT if damaged else StoreState.DOWN, str(error))
            kind = Corrupt if damaged else StoreUnavailable
            raise kind(f"{self._path}: {error}") from error
        except BusError as error:
            self._fail_opening(StoreState.CORRUPT if isinstance(error, Corrupt) else StoreState.DOWN, error.description)
            raise

    def _fail_opening(self, state: StoreState, cause: str) -> None:
        self._state, self._cause = state, cause
        self._release()

    def _recover(self, tenant: Tenant) -> None:
        self._take_lock()
        self._writing = self._new_worker("tandem-sqlite")
        self._writer = sqlite3.connect(self._path, check_same_thread=False)
        self._open = True
        writer = self._writer
        found = writer.execute("PRAGMA application_id").fetchone()[0]
        if found not in (0, APPLICATION_ID):
            raise Corrupt(f"{self._path}: a database of somebody else (application id {found:#x})")
        writer.execute("PRAGMA auto_vacuum = INCREMENTAL")  # only heeded before anything is written
        writer.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("PRAGMA synchronous = FULL")
        writer.executescript(_SCHEMA)
        self._spans.clear()
        following = 1 << 32
        columns = "location, kind, flags, entity, seq, at, aux, key, length(body), fact_crc"
        for location, kind, flags, entity, seq, at, aux, key, body_bytes, fact_crc in writer.execute(
            f"SELECT {columns} FROM facts ORDER BY location"
        ):
            if _fact_crc(location, kind, flags, entity, seq, at, aux, key, body_bytes) != fact_crc:
                raise Corrupt(f"{self._path}: location {location:#x}: the record fails its checksum")
            size = RECORD_BYTES + len(key) + body_bytes
            self._count(location, size, body_bytes)
            following = location + size
            tenant.replayed(kind, flags, entity, _unsigned(seq), _unsigned(at), _unsigned(aux), key, location, body_bytes)
        kept = writer.execute("SELECT next_location FROM ends").fetchone()
        self._next = kept[0] if kept is not None else following
        if self._next < following:
            raise Corrupt(f"{self._path}: ends at location {self._next:#x}, but holds a record that ends at {following:#x}")
        self._tenant = tenant
        self._leaving = 0
        self._state, self._cause = StoreState.UP, ""

    def _take_lock(self) -> None:
        if self._lock_descriptor >= 0:
            return
        os.makedirs(self._directory, mode=0o700, exist_ok=True)
        try:
            self._lock_descriptor = self._disk.lock(f"{self._directory}/lock")
        except BlockingIOError as error:
            raise StoreUnavailable(f"{self._directory}: the store is open in another process, or twice in this one") from error

    def step_compaction(self) -> bool:
        if self._state is StoreState.UP and not self._leaving:
            self._leaving = self._head_to_compact()
            if self._leaving:
                self._read_head(self._leaving << 32)
        return self._leaving != 0

    def _head_to_compact(self) -> int:
        head = min(self._spans, default=0)
        if not head or head >= self._next >> 32:
            return 0
        total = sum(span.bytes for span in self._spans.values())
        live = self._relocated.total + sum(span.live_bytes() for span in self._spans.values())
        return head if total - live > live + 2 * self._settings.segment_bytes else 0

    def _read_head(self, after: int) -> None:
        limit, end = self._settings.compaction_records_per_step, self._leaving + 1 << 32
        columns = "location, kind, flags, entity, seq, at, aux, key, body"

        def read() -> None:
            try:
                query = f"SELECT {columns} FROM facts WHERE location >= ? AND location < ? ORDER BY location LIMIT ?"
                rows = self._writer.execute(query, (after, end, limit)).fetchall()
            except sqlite3.Error as error:
                trouble = error
                self._call_loop(lambda: self._stop(trouble, []))
            else:
                self._call_loop(lambda: self._walk(rows))

        self._writing.submit(read)

    def _walk(self, rows: list[tuple[int, int, int, int, int, int, int, bytes, bytes]]) -> None:
        tenant = self._tenant
        if self._state is not StoreState.UP or tenant is None:
            return
        for location, kind, flags, entity, seq, at, aux, key, body in rows:
            self._entities.add(entity)
            if kind != SETTLED:  # what it buried stood before it
                before = self.pending_bytes
                tenant.relocate(kind, flags, entity, _unsigned(seq), _unsigned(at), _unsigned(aux), key, body, location)
                self._relocated.add(self._next >> 32, self.pending_bytes - before, len(body))
        if rows:
            self._read_head(rows[-1][0] + 1)
            return
        entities, self._entities = self._entities, set()
        before = self.pending_bytes
        tenant.segment_leaving(entities)
        self._relocated.add(self._next >> 32, self.pending_bytes - before, 0)
        self.when_durable(_Departure(self))
        self.flush()

    def remove_head(self) -> None:
        span = self._leaving
        self._spans.pop(span, None)
        self._relocated.drop(span)

        def remove() -> None:
            try:
                with self._writer:
                    self._writer.execute("DELETE FROM facts WHERE location < ?", (span + 1 << 32,))
                self._writer.executescript("PRAGMA incremental_vacuum")  # `execute` would stop after one page
            except sqlite3.Error as error:
                trouble = error
                self._call_loop(lambda: self._stop(trouble, []))
            else:
                self._call_loop(self._removed)

        self._writing.submit(remove)

    def _removed(self) -> None:
        self._leaving = 0
        self.step_compaction()

    def _stop(self, error: Exception, effects: list[Effect]) -> None:
        if self._state is StoreState.UP:
            self._state = StoreState.CORRUPT if isinstance(error, Corrupt) else StoreState.DOWN
            self._cause = str(error) or type(error).__name__
        refusal = self._refusal()
        refusal.__cause__ = error
        waiting = effects + self._waiters
        self._waiters = []
        self._rows = []
        self._pending_bytes = 0
        run_effects(waiting, refusal)

    def fail(self, cause: str) -> None:
        if self._state is StoreState.UP:
            self._stop(StoreUnavailable(cause), [])

    def check_stalled(self, stall_ms_max: int) -> None:
        """SQLite waits for its own locks; a stalled disk shows as DEGRADED only."""

    def reopen(self, tenant: Tenant) -> None:
        if self._state is StoreState.UP:
            raise StoreUnavailable("the store is up; only a store that stopped can be reopened")
        self._release()
        self._completed()
        self._state, self._cause = StoreState.RECOVERING, ""
        self.replay(tenant)

    def close(self) -> None:
        while self._state is StoreState.UP and (self._rows or self._waiters or self._flight is not None):
            if self._flight is None:
                self._hand_over()
            if not self._writing.stop(_STOP_SECONDS):
                self._stop(StoreUnavailable("the last commit did not return in time"), self._flight or [])
                return
            self._writing = self._new_worker("tandem-sqlite")
            self._completed()
        if self._state in (StoreState.UP, StoreState.RECOVERING):
            self._state, self._cause = StoreState.DOWN, "closed"
        self._release()

    def _release(self) -> None:
        if self._open:
            self._writing.stop(_STOP_SECONDS)
            self._writer.close()
            self._open = False
        if self._lock_descriptor >= 0:
            self._disk.unlock(self._lock_descriptor)
            self._lock_descriptor = -1

    def _call_loop(self, function: Callable[[], None]) -> None:
        try:
            self._loop_call(function)
        except RuntimeError:
            pass  # the loop is closed already; `close` looks for itself what is finished

    def _refusal(self) -> StoreUnavailable:
        return StoreUnavailable(f"{self._directory}: the store is {self._state.value}" + (f": {self._cause}" if self._cause else ""))


class _Departure(Effect):
    __slots__ = ("_store",)

    def __init__(self, store: SqliteStore) -> None:
        self._store = store

    def done(self, error: BaseException | None) -> None:
        if error is None:
            self._store.remove_head()
