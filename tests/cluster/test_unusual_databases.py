"""Databases as their administrators make them: what works there, and what is refused with what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.model.clock import SystemClock
from tandem.stores.postgres_connection import EngineConnection, Hosts
from tandem.stores.postgres_nodes import PostgresNodes
from tandem.testing.postgres import PostgresEngine
from tests.cluster.nodes import Cluster
from tests.cluster.pooler import pooled
from tests.cluster.test_bad_input import refusal, serve
from tests.postgres import SECRET


def made(postgres: PostgresEngine, name: str, how: str) -> str:
    postgres.primary.execute(f"CREATE DATABASE {name} {how}", database="postgres")
    return postgres.primary.dsn(name)


def test_a_database_without_an_encoding_keeps_names_as_they_are(tmp_path: Path, postgres: PostgresEngine) -> None:
    dsn = made(postgres, "without_encoding", "ENCODING 'SQL_ASCII' TEMPLATE template0")
    cluster = Cluster(tmp_path, dsn)
    assert "the cluster is made" in cluster.command("init", "--secret-file", str(tmp_path / "secret"))
    connection = EngineConnection(Hosts(dsn), "test", SystemClock())
    PostgresNodes(connection).join("größe-日本", "", "1")
    connection.close()
    assert "node größe-日本: silent" in cluster.command("status", "--seconds", "0.1")


def test_a_database_that_lacks_characters_is_refused_before_anything_is_made(tmp_path: Path, postgres: PostgresEngine) -> None:
    dsn = made(postgres, "of_few_characters", "ENCODING 'LATIN1' TEMPLATE template0")
    (tmp_path / "secret").write_bytes(SECRET)
    assert "ENCODING 'UTF8' TEMPLATE template0" in refusal(tmp_path, "cluster", "init", "--engine", dsn, "--secret-file", "secret")
    assert postgres.primary.execute("SELECT to_regnamespace('tandem')", database="of_few_characters") == [(None,)]


@pytest.mark.parametrize("how", ["a standby", "default_transaction_read_only"])
def test_an_engine_that_cannot_be_written_says_so(tmp_path: Path, cluster_dsn: str, postgres: PostgresEngine, how: str) -> None:
    dsn, name = cluster_dsn, cluster_dsn.rpartition("/")[2]
    if how == "a standby":
        dsn = postgres.nodes[1].dsn(name)
    else:
        postgres.primary.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on", database="postgres")
    said = refusal(tmp_path, "cluster", "status", "--engine", dsn)
    assert "it is a standby, or default_transaction_read_only is on: name the primary too" in said


def test_a_pooler_that_lends_a_server_for_one_transaction_is_refused(tmp_path: Path, cluster_dsn: str, postgres: PostgresEngine) -> None:
    with pooled(postgres.primary.port) as port:
        dsn = cluster_dsn.replace(f":{postgres.primary.port}/", f":{port}/")
        assert "keeps no sessions" in serve(tmp_path, dsn)
        assert "pool_mode = session" in refusal(tmp_path, "cluster", "init", "--engine", dsn, "--secret-file", "secret")


def test_addresses_that_are_given_beside_names_are_used_and_stay_with_them() -> None:
    hosts = Hosts("host=pg1,pg2 hostaddr=127.0.0.1,127.0.0.2 port=5432,5433 dbname=tandem")
    hosts.hangs("pg1", 5432)
    found = hosts.parameters("test")
    assert (found["host"], found["hostaddr"], found["port"]) == ("pg2,pg1", "127.0.0.2,127.0.0.1", "5433,5432")
