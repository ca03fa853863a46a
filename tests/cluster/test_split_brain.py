"""The engine in two halves, both writable: nothing is acknowledged by the old one, and nobody reads there."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem.testing.postgres import PostgresEngine, PostgresNode
from tests.cluster.nodes import Cluster, metrics_of, receive_all, try_send, until
from tests.cluster.test_engine_failover import Load
from tests.postgres import make_cluster, running_engine

CONFIG = """
[cluster]
lease = "{lease}ms"
stall_deadline = "12s"
[[queue]]
name = "q"
requires_duplicate_detection = true
[stores]
count = 1
"""


@pytest.fixture
def engine() -> Iterator[PostgresEngine]:
    with running_engine(standbys=1) as made:
        make_cluster(made.dsn())
        yield made


def blocks(server: PostgresNode) -> list[tuple[object, ...]]:
    return server.execute("SELECT number, epoch FROM tandem.b_1_1 ORDER BY number")


def started(server: PostgresNode) -> bool:
    """Not before the last process of the one that was killed has noticed."""
    try:
        server.start()
    except RuntimeError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_an_old_primary_that_is_still_writable_acknowledges_nothing_and_is_read_by_nobody(tmp_path: Path, engine: PostgresEngine) -> None:
    cluster = Cluster(tmp_path, engine.dsn(), config=CONFIG)
    old, new = engine.nodes
    try:
        broker, other = cluster.start("a"), cluster.start("b")
        load = Load(broker.connection_string)
        until(lambda: len(load.acknowledged) >= 5)
        new.execute("SELECT pg_promote(true, 60)")  # somebody believes that the old one is dead, and it is not
        before = len(load.acknowledged)
        until(lambda: len(load.acknowledged) > before + 5, 90)
        hanging = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name = 'tandem 1 1'"
        assert old.execute(hanging) == [(1,)], "the last block of the old primary waits for a standby for good"
        assert 'tandem_cluster_doubts_total{end="sent again"} 0.0' not in metrics_of(broker), "it was not there, and was sent again"
        last = len(blocks(old))
        old.stop(signal.SIGKILL)
        until(lambda: started(old), 60)  # it comes back as it was, and takes writes
        assert old.execute("SELECT pg_is_in_recovery()") == [(False,)]
        there = blocks(old)
        assert len(there) == last + 1, "and after its crash it shows that block, which nobody was told of"
        broker.process.kill()
        acknowledged = load.stop()
        until(lambda: try_send(other.connection_string, "after"), 60)
        assert [row[0] for row in new.execute("SELECT owner FROM tandem.store")] == ["b"]
        assert [row[0] for row in old.execute("SELECT owner FROM tandem.store")] == ["a"], "nothing was written to the old one"
        assert old.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'tandem %%'") == [(0,)]
        found = receive_all(other.connection_string)
        assert set(acknowledged) <= set(found), f"lost: {set(acknowledged) - set(found)}"
        assert len(found) == len(set(found)), "doubled"
        assert blocks(old) == there, "nobody has written there since"
    finally:
        cluster.close()


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_store_that_waits_for_the_old_primary_is_opened_at_the_new_one(tmp_path: Path, engine: PostgresEngine) -> None:
    """The old one answers no commit any more and hangs up on nobody; the new one is there when the store is being opened again already."""
    cluster = Cluster(tmp_path, engine.dsn(), config=CONFIG.replace("12s", "4s"))
    old, new = engine.nodes
    try:
        broker = cluster.start("a")
        assert try_send(broker.connection_string, "before")
        new.execute("ALTER SYSTEM SET primary_conninfo = 'host=127.0.0.1 port=1'")
        new.execute("SELECT pg_reload_conf()")
        opening = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name = 'tandem 1 2'"

        def is_being_opened() -> bool:
            assert not try_send(broker.connection_string, "nobody hears it")
            return old.execute(opening) == [(1,)]

        until(is_being_opened, 60)
        new.execute("SELECT pg_promote(true, 60)")
        until(lambda: try_send(broker.connection_string, "after"), 60)
        assert old.execute(opening) == [(1,)], "and the old one has still not answered"
        assert {"before", "after"} <= set(receive_all(broker.connection_string))
    finally:
        cluster.close()
