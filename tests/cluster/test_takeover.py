"""Nodes die, sleep and move; what was acknowledged is there, once, wherever it is served."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psycopg
import pytest

from tests.cluster.nodes import LEASE_MS, Cluster, receive_all, sender_of, try_send, until
from tests.conformance.raw import Raw

ROUNDS = int(os.environ.get("TANDEM_CLUSTER_KILLS", "1"))
"""How often a node is killed; 100 in the long form."""


@pytest.fixture
def cluster(tmp_path: Path, cluster_dsn: str) -> Iterator[Cluster]:
    made = Cluster(tmp_path, cluster_dsn)
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.timeout(180 + 60 * ROUNDS)
def test_a_node_that_is_killed_is_followed_by_another_with_everything_that_was_acknowledged(cluster: Cluster) -> None:
    brokers = {name: cluster.start(name) for name in ("a", "b")}
    sent: list[str] = []
    for round_ in range(ROUNDS):
        until(lambda: cluster.owner() in brokers)
        owner = cluster.owner()
        with sender_of(brokers[owner].connection_string) as send:
            for number in range(20):
                send(f"{round_}-{number}")
                sent.append(f"{round_}-{number}")
        survivor = next(name for name in brokers if name != owner)
        brokers[owner].process.kill()
        sent.append(f"{round_}-after")
        took = until(partial(try_send, brokers[survivor].connection_string, sent[-1]))
        assert took < LEASE_MS / 1000 + 5 + 5, "a slow machine is given as much again"
        brokers[owner] = cluster.start(owner)
        assert cluster.owner() == survivor, "what has a new owner stays there"
    found = receive_all(brokers[cluster.owner()].connection_string)
    assert sorted(found) == sorted(sent), "lost = duplicated = 0"
    last = brokers[cluster.owner()]
    last.process.kill()
    survivor = next(name for name in brokers if brokers[name] is not last)
    until(lambda: try_send(brokers[survivor].connection_string, "again"))
    assert receive_all(brokers[survivor].connection_string) == ["again"], "nothing that was completed returns"


@pytest.mark.slow
def test_an_owner_that_sleeps_through_its_lease_wakes_up_to_find_that_it_may_do_nothing(cluster: Cluster) -> None:
    brokers = {"a": cluster.start("a")}
    assert try_send(brokers["a"].connection_string, "before")
    brokers["b"] = cluster.start("b")
    brokers["a"].process.send_signal(signal.SIGSTOP)
    until(lambda: cluster.owner() == "b")
    until(lambda: try_send(brokers["b"].connection_string, "while it slept"))
    brokers["a"].process.send_signal(signal.SIGCONT)
    assert not try_send(brokers["a"].connection_string, "too late")
    until(lambda: "elsewhere" in cluster.logs("a"))
    assert cluster.owner() == "b"
    assert sorted(receive_all(brokers["b"].connection_string)) == ["before", "while it slept"]


@pytest.mark.slow
def test_clients_of_an_owner_that_slept_are_told_when_it_wakes_and_only_one_holds_the_lock(cluster: Cluster, cluster_dsn: str) -> None:
    sleeper = cluster.start("a")
    assert try_send(sleeper.connection_string, "work")
    other = cluster.start("b")
    with Raw(int(sleeper.line("ready: listening on ").partition(";")[0].rpartition(":")[2])) as client:
        receiver = client.receiver("q")
        (held,) = receiver.receive()
        assert held.text == "work"
        sleeper.process.send_signal(signal.SIGSTOP)
        until(lambda: cluster.owner() == "b")
        until(lambda: try_send(other.connection_string, "more"))
        sleeper.process.send_signal(signal.SIGCONT)
        client.until(lambda: receiver.end.gone)
        assert receiver.end.error is not None
        assert receiver.end.error.condition == "amqp:internal-error", "which SDKs try again"
    assert sorted(receive_all(other.connection_string)) == ["more", "work"], "the lock went with its owner"
    with psycopg.connect(cluster_dsn) as connection:
        rows = connection.execute("SELECT id, owner, epoch FROM tandem.store").fetchall()
        assert {(owner, epoch) for _, owner, epoch in rows} == {("b", 2)}
        for store, _, _ in rows:
            if connection.execute("SELECT to_regclass(%s)", (f"tandem.b_{store}_1",)).fetchone() != (None,):
                epochs = [row[0] for row in connection.execute(f"SELECT epoch FROM tandem.b_{store}_1 ORDER BY number").fetchall()]
                assert epochs == sorted(epochs), "nothing of the sleeper came after the takeover"


@pytest.mark.slow
def test_a_namespace_moves_when_it_is_told_to_and_when_its_node_is_drained(cluster: Cluster) -> None:
    brokers = {"a": cluster.start("a")}
    with sender_of(brokers["a"].connection_string) as send:
        for number in range(10):
            send(f"{number}")
    brokers["b"] = cluster.start("b")
    assert [(node["name"], node["beats"]) for node in cluster.status()["nodes"]] == [("a", True), ("b", True)]
    cluster.command("move", "tandem", "b")
    assert until(lambda: cluster.owner() == "b") < 20
    until(lambda: try_send(brokers["b"].connection_string, "10"))
    cluster.command("drain", "b")
    until(lambda: cluster.owner() == "a")
    until(lambda: try_send(brokers["a"].connection_string, "11"))
    cluster.command("drain", "b", "--end")
    cluster.command("take", "tandem", "b")
    until(lambda: cluster.owner() == "b")
    until(lambda: try_send(brokers["b"].connection_string, "12"))
    assert sorted(receive_all(brokers["b"].connection_string), key=int) == [str(number) for number in range(13)]


@pytest.mark.slow
def test_of_two_processes_under_one_name_the_older_one_stops(cluster: Cluster) -> None:
    first = cluster.start("a")
    assert try_send(first.connection_string, "one")
    (cluster.directory / "elsewhere").mkdir()
    second = cluster.start("a", "--data", "elsewhere/data")
    first.process.wait(30)
    assert "another process runs as node a" in cluster.logs("a")
    until(lambda: try_send(second.connection_string, "two"))
    assert sorted(receive_all(second.connection_string)) == ["one", "two"]


@pytest.mark.slow
def test_a_living_node_that_is_struck_says_so_and_what_happens_to_it_later_is_kept(cluster: Cluster) -> None:
    first = cluster.start("a")
    cluster.command("forget", "a")
    first.process.wait(30)
    assert "node a was struck from the cluster (tandem cluster forget): if it is still wanted, start it again" in cluster.logs("a")
    assert "another process" not in cluster.logs("a")
    cluster.start("a")
    with psycopg.connect(cluster.dsn, autocommit=True) as connection:
        of_both = "SELECT count(DISTINCT incarnation) FROM tandem.event WHERE node = 'a'"
        until(lambda: connection.execute(of_both).fetchone() == (2,), what="an event of the second process")
