"""What was counted is in the engine once, whoever wrote it how often, and nobody who was deposed adds or takes away."""

from __future__ import annotations

import psycopg
import pytest

from tandem.model.errors import EngineAway
from tandem.model.meter_line import MeterLine
from tandem.stores.ledger import Deposed
from tandem.stores.postgres_connection import EngineConnection, Hosts
from tandem.stores.postgres_ledger import PostgresLedger
from tandem.stores.postgres_meters import PostgresMeters
from tandem.stores.postgres_nodes import PostgresNodes
from tandem.stores.postgres_schema import Schema
from tests.stores.harness import ManualClock
from tests.stores.ledgers import ledger


def owner(dsn: str, node: str) -> PostgresLedger:
    held = ledger(dsn, node)
    held.acquire()
    return held


def meters(dsn: str, held: PostgresLedger) -> PostgresMeters:
    return PostgresMeters(EngineConnection(Hosts(dsn), "test meters", ManualClock()), held)


def line(minute: int, count: int, entity: str = "q") -> MeterLine:
    return (60_000 * minute, entity, "send", "ok", 1, count, 100 * count)


def kept(dsn: str) -> list[tuple[int, int, int, int]]:
    with psycopg.connect(dsn) as connection:
        return connection.execute("SELECT file, line, minute_ms / 60000, count FROM tandem.meter ORDER BY file, line").fetchall()


def test_what_comes_again_replaces_what_stood_there(cluster_dsn: str) -> None:
    held = owner(cluster_dsn, "a")
    written = meters(cluster_dsn, held)
    assert written.append(1, 0, [line(1, 5), line(1, 6, 'a "queue", of sorts\n')]) == 2
    assert written.append(1, 2, [line(2, 7)]) == 3
    # a crash: the journal says that two lines are accounted for, and has counted more since
    assert written.append(1, 2, [line(2, 7), line(2, 1, "r"), line(3, 8)]) == 5
    assert kept(cluster_dsn) == [(1, 0, 1, 5), (1, 1, 1, 6), (1, 2, 2, 7), (1, 3, 2, 1), (1, 4, 3, 8)]
    assert written.append(2, 0, [line(4, 9)]) == 1
    assert written.append(1, 5, [line(4, 9)]) == 6, "the next file was begun just before a crash"
    assert [row[:2] for row in kept(cluster_dsn)] == [(1, number) for number in range(6)]
    assert written.append(1, 6, []) == 6
    held.close()


def test_a_deposed_owner_counts_nothing_and_takes_nothing_away(cluster_dsn: str) -> None:
    old = owner(cluster_dsn, "a")
    late = meters(cluster_dsn, old)
    late.append(1, 0, [line(1, 5)])
    new = owner(cluster_dsn, "b")
    with pytest.raises(Deposed):
        late.append(1, 0, [line(1, 1)])
    meters(cluster_dsn, new).append(1, 0, [line(1, 5), line(2, 6)])
    assert kept(cluster_dsn) == [(1, 0, 1, 5), (1, 1, 2, 6)]
    old.close()
    new.close()


def test_a_statement_that_was_given_up_and_comes_late_changes_nothing(cluster_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    held = owner(cluster_dsn, "a")
    written, again = meters(cluster_dsn, held), meters(cluster_dsn, held)
    real = EngineConnection.execute

    def late(self: EngineConnection, sql: str, values: tuple[object, ...] = (), **how: bool) -> object:
        """The successor is done between the look and the write."""
        if self is written._connection and "WITH mine" in sql:
            monkeypatch.undo()
            again.append(1, 0, [line(1, 5), line(2, 6)])
        return real(self, sql, values, **how)

    monkeypatch.setattr(EngineConnection, "execute", late)
    with pytest.raises(EngineAway):
        written.append(1, 0, [line(1, 5)])
    assert kept(cluster_dsn) == [(1, 0, 1, 5), (1, 1, 2, 6)]
    held.close()


def test_a_cluster_of_an_older_version_gets_the_tables_that_it_lacks(cluster_dsn: str) -> None:
    with psycopg.connect(cluster_dsn, autocommit=True) as connection:
        connection.execute("DROP TABLE tandem.meter, tandem.follower")
    assert PostgresNodes(EngineConnection(Hosts(cluster_dsn), "test", ManualClock())).followers() == []
    schema = Schema(cluster_dsn, EngineConnection(Hosts(cluster_dsn), "test", ManualClock()))
    schema.complete()
    schema.complete()
    assert kept(cluster_dsn) == []
