"""A cluster that cannot work is refused before anything starts, with what to do about it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from tandem.model.clock import SystemClock
from tandem.model.errors import ConfigurationError
from tandem.stores.postgres_connection import EngineConnection, Hosts
from tandem.stores.postgres_nodes import PostgresNodes
from tandem.stores.postgres_schema import Schema
from tandem.testing.postgres import PostgresEngine
from tests.cluster.nodes import CONFIG, Cluster, receive_all, try_send, until
from tests.postgres import SECRET


def refusal(directory: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tandem", *arguments], cwd=directory, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.count("\n") == 1, "one line"
    return done.stderr


def serve(directory: Path, dsn: str, *more: str) -> str:
    (directory / "secret").write_bytes(SECRET)
    return refusal(directory, "serve", "--dev", "--port", "0", "--cluster", dsn, "--secret-file", "secret", "--node", "a", *more)


def test_settings_that_do_not_go_together_say_which(tmp_path: Path) -> None:
    assert "needs cluster.engine (--cluster)" in refusal(tmp_path, "serve", "--node", "a")
    assert "needs cluster.secret_file" in refusal(tmp_path, "serve", "--cluster", "postgresql://h/d")
    assert "cannot be read" in refusal(tmp_path, "serve", "--cluster", "postgresql://127.0.0.1:1/d", "--secret-file", "none")
    (tmp_path / "short").write_text("x")
    assert "allowed are 16 or more" in refusal(tmp_path, "serve", "--cluster", "postgresql://127.0.0.1:1/d", "--secret-file", "short")


@pytest.mark.parametrize(
    ("dsn", "says"),
    [
        ("postgresql://127.0.0.1:1/tandem", "is PostgreSQL up"),
        ("mysql://somewhere", "not a connection string of PostgreSQL"),
        ("postgresql://", "names no host"),
        ("host=127.0.0.1,127.0.0.2 port=1,2,3 dbname=tandem", "has 2 hosts, 3 ports"),
        ("postgresql://\udcff@127.0.0.1/tandem", "not a connection string of PostgreSQL"),
    ],
)
def test_a_connection_string_that_leads_nowhere(tmp_path: Path, dsn: str, says: str) -> None:
    assert says in serve(tmp_path, dsn)


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://tandem:hush%hush@127.0.0.1:1/tandem",
        "postgresql://tandem:p@hush@127.0.0.1:1/tandem",
        "postgresql://tandem:a/hush:c@127.0.0.1:1/tandem",
        "postgresql://tandem:hush@[::1/tandem",
        "host=127.0.0.1 password=very hush dbname=tandem",
    ],
)
def test_a_password_that_spoils_its_connection_string_is_not_told(tmp_path: Path, dsn: str) -> None:
    said = refusal(tmp_path, "cluster", "status", "--engine", dsn)
    assert "hush" not in said
    assert "In a password @ : / ? # % are written %40 %3A" in said


def test_of_several_hosts_it_is_told_what_each_of_them_said(tmp_path: Path, cluster_dsn: str, postgres: PostgresEngine) -> None:
    standby = postgres.nodes[1].port
    dsn = cluster_dsn.replace(f":{postgres.primary.port}/", f":1,127.0.0.1:{standby}/")
    said = refusal(tmp_path, "cluster", "status", "--engine", dsn)
    assert "port 1 failed: Connection refused" in said
    assert f"port {standby} failed: session is read-only" in said
    assert "name the primary too" not in said, "it is named"


@pytest.mark.slow
def test_a_database_without_a_cluster_and_one_of_a_newer_version(tmp_path: Path, database: str, postgres: PostgresEngine) -> None:
    assert "tandem cluster init" in serve(tmp_path, database)
    (tmp_path / "secret").write_bytes(SECRET)
    name = database.rpartition("/")[2]
    done = Cluster(tmp_path, database)
    done.command("init", "--secret-file", str(tmp_path / "secret"))
    assert "was there already" in done.command("init", "--secret-file", str(tmp_path / "secret"))
    (tmp_path / "other").write_bytes(b"another secret of enough length")
    assert "not the secret of this cluster" in serve(tmp_path, database, "--secret-file", "other")
    postgres.primary.execute("UPDATE tandem.cluster SET version = 99", database=name)
    assert "made by a newer Tandem" in serve(tmp_path, database)


def test_nothing_is_given_to_a_node_that_is_drained_or_to_whoever_only_follows(tmp_path: Path, spread_dsn: str) -> None:
    connection = EngineConnection(Hosts(spread_dsn), "test", SystemClock())
    Schema(spread_dsn, connection).ensure_stores("tandem", 2)
    nodes = PostgresNodes(connection)
    nodes.join("a", "a:1", "1")
    nodes.drain("a", True)
    connection.execute("INSERT INTO tandem.follower (name, at_ms, lag_ms, messages, blocks) VALUES ('far', 0, 0, 0, 0)")
    for command in (("move", "tandem"), ("take", "tandem/1")):
        asked = ("cluster", *command)
        assert "node a is drained, and gets no stores; first, tandem cluster drain a --end" in refusal(
            tmp_path, *asked, "a", "--engine", spread_dsn
        )
        assert "there is no node 'far'; known are a" in refusal(tmp_path, *asked, "far", "--engine", spread_dsn)
    assert "there is no node 'far'; known are a" in refusal(tmp_path, "cluster", "drain", "far", "--engine", spread_dsn)
    assert {(row.owner, row.wanted, row.epoch) for row in nodes.look()[1]} == {("", "", 0)}, "nothing was done"
    assert "node far is forgotten" in Cluster(tmp_path, spread_dsn).command("forget", "far")
    connection.close()


def test_an_engine_that_does_not_commit_on_two_machines(tmp_path: Path, cluster_dsn: str, postgres: PostgresEngine) -> None:
    name = cluster_dsn.rpartition("/")[2]
    postgres.primary.execute(f"ALTER DATABASE {name} SET synchronous_commit = local", database="postgres")
    said = serve(tmp_path, cluster_dsn)
    assert "synchronous_commit is local: set it to on" in said
    assert 'durability = "assumed"' in said


def test_a_user_without_rights_is_told_what_to_grant(tmp_path: Path, database: str, postgres: PostgresEngine) -> None:
    name = database.rpartition("/")[2]
    postgres.primary.execute(f"CREATE ROLE guest_{name} LOGIN", database="postgres")
    dsn = database.replace("tandem@", f"guest_{name}@")
    (tmp_path / "secret").write_bytes(SECRET)
    said = refusal(tmp_path, "cluster", "init", "--engine", dsn, "--secret-file", "secret", "--durability", "assumed")
    assert "GRANT CREATE ON DATABASE" in said


@pytest.mark.parametrize("seconds", ["-1", "nan", "1e99"])
def test_nobody_listens_for_beats_backwards_or_for_ever(tmp_path: Path, cluster_dsn: str, seconds: str) -> None:
    assert "allowed are 0 to 3600" in refusal(tmp_path, "cluster", "status", "--engine", cluster_dsn, "--seconds", seconds)


def test_a_secret_that_cannot_be_kept_is_refused(tmp_path: Path, database: str) -> None:
    for path, why in (("nowhere/secret", "No such file or directory"), (".", "Is a directory")):
        assert why in refusal(tmp_path, "cluster", "init", "--engine", database, "--secret-file", path)


@pytest.mark.slow
def test_a_secret_that_everybody_can_read_is_told(tmp_path: Path, cluster_dsn: str) -> None:
    cluster = Cluster(tmp_path, cluster_dsn)
    try:
        for mode in (0o644, 0o640):
            (tmp_path / "secret").chmod(mode)
            cluster.start("open" if mode == 0o644 else "closed")
        assert "/secret, and join the cluster with it: chmod o= secret" in cluster.logs("open")
        assert "chmod" not in cluster.logs("closed")
    finally:
        cluster.close()


@pytest.mark.slow
def test_another_number_of_stores_than_the_cluster_has(tmp_path: Path, cluster_dsn: str) -> None:
    cluster = Cluster(tmp_path, cluster_dsn)
    try:
        cluster.start("a").process.terminate()
        assert "has 4 stores in this cluster, for good" in serve(tmp_path, cluster_dsn, "--store-count", "5")
    finally:
        cluster.close()


def test_a_user_that_may_not_read_the_schema_is_told_before_anything_starts(
    tmp_path: Path, cluster_dsn: str, postgres: PostgresEngine
) -> None:
    name = cluster_dsn.rpartition("/")[2]
    postgres.primary.execute(f"CREATE ROLE reader_{name} LOGIN", database="postgres")
    assert "the user needs to own the schema" in serve(tmp_path, cluster_dsn.replace("tandem@", f"reader_{name}@"))


@pytest.mark.parametrize(("off_ms", "says"), [(-300_000, "300 s behind the engine's"), (300_000, "300 s ahead of the engine's")])
def test_a_clock_that_is_minutes_off_keeps_a_node_from_starting(cluster_dsn: str, off_ms: int, says: str) -> None:
    connection = EngineConnection(Hosts(cluster_dsn), "test", SystemClock())
    schema = Schema(cluster_dsn, connection)
    with pytest.raises(ConfigurationError) as refused:
        schema.must_be_durable("quorum", lambda: SystemClock().now_ms() + off_ms)
    connection.close()
    assert "set both by NTP" in str(refused.value)
    assert says in str(refused.value) or str(int(says.split()[0]) - 1) in str(refused.value), "rounded to a second"


@pytest.mark.slow
def test_an_engine_that_is_full_takes_no_messages_and_gives_those_it_has(tmp_path: Path, cluster_dsn: str) -> None:
    cluster = Cluster(tmp_path, cluster_dsn)
    try:
        first = cluster.start("a")
        assert all(try_send(first.connection_string, text) for text in ("one", "two"))
        first.process.terminate()
        first.process.wait(60)
        full = Cluster(tmp_path, cluster_dsn, config=CONFIG.replace("[cluster]", "[cluster]\nengine_bytes_max = 1"))
        try:
            broker = full.start("a")
            until(lambda: "cluster.engine_bytes_max allows 1: make room there, or allow more" in refusal_of_send(broker.connection_string))
            assert sorted(set(receive_all(broker.connection_string)) & {"one", "two"}) == ["one", "two"], "settling goes on"
        finally:
            full.close()
    finally:
        cluster.close()


def refusal_of_send(connection_string: str) -> str:
    try:
        with ServiceBusClient.from_connection_string(connection_string, retry_total=0) as client, client.get_queue_sender("q") as sender:
            sender.send_messages(ServiceBusMessage("too much"))
    except ServiceBusError as error:
        return str(error)
    return ""
