"""What promoting says and refuses; the loss of a whole region is in tests/spark/test_second_region.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tandem.broker.facts import COUNTER, ENQUEUED
from tandem.cli.promotion import NUMBERS_LEFT_OUT, Promotion, known_missing
from tandem.model.clock import SystemClock
from tandem.model.errors import ConfigurationError, EngineAway
from tandem.stores import LogSettings
from tandem.stores.postgres_connection import EngineConnection, Hosts
from tandem.stores.postgres_events import EngineEvents
from tandem.stores.postgres_follower import Follower
from tests.cluster.nodes import Cluster, until
from tests.stores.harness import Loop, Note, Sink
from tests.stores.ledgers import ledger, ledger_store

QUEUE, FRAGMENT = 4 * 1, 3


def with_messages(dsn: str) -> None:
    """A store with a queue that gave numbers up to 7, a partition of another one up to 2, and a queue that never had a message."""
    loop = Loop()
    store = ledger_store(dsn, loop.call, LogSettings(), SystemClock())
    store.reopen(Sink())
    log: list[tuple[str, BaseException | None]] = []
    store.append(ENQUEUED, 0, QUEUE, 5, 1_000, 0, b"\0" * 16, b"body")
    store.append(COUNTER, 0, QUEUE, 0, 2_000, 8, b"", b"")
    store.append(ENQUEUED, 0, FRAGMENT << 26 | 4 * 2, (FRAGMENT << 48) + 2, 1_500, 0, b"\0" * 16, b"body")
    store.when_durable(Note(log, "kept"))
    store.flush()
    loop.run_until(lambda: bool(log))
    store.close()
    with psycopg.connect(dsn, autocommit=True) as connection:
        for id_, name in ((1, "Orders"), (2, "Parts"), (3, "Quiet")):
            text = json.dumps({"entity": json.dumps({"name": name}), "rules": []})
            connection.execute(
                "INSERT INTO tandem.entity (namespace, id, kind, path, store, description, revision) "
                "VALUES ('tandem', %s, 'queue', %s, 0, %s, 1)",
                (id_, name.casefold(), text),
            )
        connection.execute("UPDATE tandem.namespace SET highest_id = 3")


def test_it_says_where_each_entity_ends_and_numbers_go_on_behind_what_may_be_lost(cluster_dsn: str) -> None:
    with_messages(cluster_dsn)
    (store,) = Promotion(cluster_dsn).run(force=False)
    assert (store.block, store.instant_ms, store.begins_at) == (1, 2_000, 7 + NUMBERS_LEFT_OUT)
    base = FRAGMENT << 48
    assert [(gap.entity, gap.first, gap.last) for gap in store.gaps] == [
        ("Orders", 8, store.begins_at - 1),
        ("Parts", 1, store.begins_at - 1),
        ("Quiet", 1, store.begins_at - 1),
        (f"Parts (partition {FRAGMENT})", base + 3, base + store.begins_at - 1),
    ]
    row = ledger(cluster_dsn).acquire()
    assert (row.begins_at, row.entity_max, row.epoch) == (store.begins_at, 3, 3), "whoever had it is deposed"
    (again,) = Promotion(cluster_dsn).run(force=False)
    assert again.begins_at == store.begins_at + NUMBERS_LEFT_OUT, "a second disaster"
    state = {"at_ms": 9, "stores": [{"namespace": "tandem", "store": 0, "block": 4, "missing": [[1, 9], [2, 3], [4, 2]]}]}
    assert known_missing([store], state)["stores"] == [{"namespace": "tandem", "store": 0, "blocks": 3, "messages": 5}]
    with pytest.raises(ConfigurationError, match="not what tandem cluster follow writes"):
        known_missing([store], {"stores": 1})


@pytest.mark.slow
def test_a_cluster_that_lives_is_not_promoted(tmp_path: Path, cluster_dsn: str) -> None:
    cluster = Cluster(tmp_path, cluster_dsn)
    try:
        cluster.start("a")
        command = [sys.executable, "-m", "tandem", "cluster", "promote", "--engine", cluster_dsn]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 2
        assert "nodes serve on it (a): there is nothing to promote" in done.stderr
        assert cluster.owner() == "a"
    finally:
        cluster.close()
    (tmp_path / "state").write_text("[]")
    done = subprocess.run([*command, "--state", str(tmp_path / "state")], capture_output=True, text=True, check=False, timeout=60)
    assert "is not what tandem cluster follow writes" in done.stderr


def test_a_primary_follows_nobody(cluster_dsn: str) -> None:
    hosts = Hosts(cluster_dsn)
    follower = Follower("f", EngineConnection(hosts, "test", SystemClock()), EngineConnection(hosts, "test", SystemClock()))
    with pytest.raises(EngineAway, match="follows nobody"):
        follower.look()
    follower.close()


def test_events_of_a_node_are_in_the_engine_once_however_often_they_had_to_be_written(cluster_dsn: str) -> None:
    connection = EngineConnection(Hosts(cluster_dsn), "test", SystemClock())
    with psycopg.connect(cluster_dsn, autocommit=True) as other:
        other.execute("ALTER TABLE tandem.event RENAME TO away")
        events = EngineEvents(connection, "a", 1)
        events.add((1, 10, "store-down", "store-0", "gone"))
        events.add((2, 20, "store-up", "store-0", ""))
        assert not events.flush(0.2)
        other.execute("ALTER TABLE tandem.away RENAME TO event")
        assert events.flush(30)
        EngineEvents(connection, "a", 1).add((2, 20, "store-up", "store-0", ""))
        read = "SELECT number, kind FROM tandem.event ORDER BY number"
        until(lambda: other.execute(read).fetchall() == [(1, "store-down"), (2, "store-up")])
