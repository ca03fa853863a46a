"""Counted operations as rows in PostgreSQL: written under the epoch of the store that counted them, repeatable without doubling a line."""

from __future__ import annotations

import threading
from typing import Final, Protocol

from tandem.model.errors import EngineAway
from tandem.model.meter_line import MeterLine
from tandem.stores.ledger import Deposed
from tandem.stores.postgres_connection import EngineConnection

_PATIENCE_SECONDS: Final = 15.0
"""Longer than that nobody waits for an engine that hangs: the rows stay in the journal, and are tried again."""

# What was written just before a crash comes again, and the old goes. `version` is of the look before: of a statement that was given up and
# arrives after its successor, or between the look and the write, nothing remains, and nothing is taken away by it.
_REPLACE: Final = (
    "WITH mine AS (SELECT 1 FROM tandem.store WHERE id = %s AND epoch = %s FOR SHARE), "
    "turn AS (UPDATE tandem.metered SET version = version + 1 FROM mine WHERE store = %s AND version = %s RETURNING store), "
    "gone AS (DELETE FROM tandem.meter m USING turn WHERE m.store = turn.store AND (m.file > %s OR (m.file = %s AND m.line >= %s))) "
    "INSERT INTO tandem.meter (store, file, line, minute_ms, entity, operation, outcome, unit, count, bytes) "
    "SELECT turn.store, %s, %s + l.at - 1, l.minute_ms, l.entity, l.operation, l.outcome, l.unit, l.count, l.bytes FROM turn, "
    "unnest(%s::bigint[], %s::text[], %s::text[], %s::text[], %s::int[], %s::bigint[], %s::bigint[]) "
    "WITH ORDINALITY AS l(minute_ms, entity, operation, outcome, unit, count, bytes, at)"
)


class MeterFence(Protocol):
    """A store that is ours, or was."""

    where: str

    def fence(self) -> tuple[int, int]:
        """(its id, the epoch under which it is ours)."""
        ...


class PostgresMeters:
    """Of one store. Blocks: called from a thread, once a minute."""

    def __init__(self, connection: EngineConnection, store: MeterFence) -> None:
        self._connection = connection
        self._store = store
        self._mutex = threading.Lock()

    def append(self, number: int, length: int, lines: list[MeterLine]) -> int:
        """`length` counts lines."""
        if not lines:
            return length
        with self._mutex:
            patience = threading.Timer(_PATIENCE_SECONDS, self._connection.shut)
            patience.daemon = True
            patience.start()
            try:
                self._replace(number, length, lines)
            finally:
                patience.cancel()
                self._connection.close()  # a minute is long
        return length + len(lines)

    def _replace(self, number: int, length: int, lines: list[MeterLine]) -> None:
        connection = self._connection
        id_, epoch = self._store.fence()
        if not epoch:
            raise Deposed(f"{self._store.where}: it was never ours")
        connection.execute("INSERT INTO tandem.metered (store) VALUES (%s) ON CONFLICT DO NOTHING", (id_,))
        found = connection.execute("SELECT version FROM tandem.metered WHERE store = %s", (id_,)).fetchone()
        columns = [list(column) for column in zip(*lines, strict=True)]
        values = (id_, epoch, id_, found[0] if found is not None else 0, number, number, length, number, length, *columns)
        written = connection.execute(_REPLACE, values, prepare=False).rowcount
        if written == len(lines):
            return
        still = connection.execute("SELECT epoch FROM tandem.store WHERE id = %s", (id_,)).fetchone()
        if still is None or still[0] != epoch:
            raise Deposed(f"{self._store.where}: another node has taken the store over; it finds what was counted in the journal")
        raise EngineAway(f"{self._store.where}: meters are being written by a statement that was given up; tried again")
