"""Several engines that cannot work are refused before anything starts, with what to do about it."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from tandem.stores.postgres_schema import fingerprint
from tandem.testing.postgres import PostgresEngine
from tests.cluster.engines import CONFIG, TwoEngines
from tests.cluster.nodes import until
from tests.cluster.test_bad_input import refusal
from tests.postgres import SECRET


@pytest.fixture
def cluster(tmp_path: Path, database: str, postgres: PostgresEngine) -> TwoEngines:
    """Two databases of one server."""
    name = database.rpartition("/")[2] + "_second"
    postgres.primary.execute(f"CREATE DATABASE {name}", database="postgres")
    return TwoEngines(tmp_path, database, postgres, name)


def refused(cluster: TwoEngines, change: tuple[str, str] = ("", "")) -> str:
    """What a node says that does not start, with this changed in its file."""
    path = cluster.directory / "tandem.toml"
    text = path.read_text()
    path.write_text(text.replace(*change) if change[0] else text)
    try:
        return refusal(cluster.directory, "serve", *cluster.arguments("a"))
    finally:
        path.write_text(text)


def init_refused(cluster: TwoEngines) -> str:
    command = ("cluster", "init", "--config", "tandem.toml", "--engine", cluster.dsn, "--secret-file", "secret")
    return refusal(cluster.directory, *command)


def start_once(cluster: TwoEngines) -> None:
    cluster.start("a")
    cluster.close()


@pytest.mark.slow
def test_an_engine_that_was_not_prepared_and_one_that_was_left_out(cluster: TwoEngines, postgres: PostgresEngine) -> None:
    made = cluster.dsn.rpartition("/")[2]
    cluster.command("init", "--secret-file", str(cluster.directory / "secret"))
    assert "cluster.more_engines (second): was not prepared; once, with this file: tandem cluster init --config" in refused(cluster)
    assert "engine second is made: stores 2, 3" in cluster.init()
    assert "engine second is as it should be" in cluster.init()
    start_once(cluster)
    part = CONFIG[CONFIG.index("[[cluster.more") : CONFIG.index("[[queue]]")].replace("{second}", cluster.second)
    assert "this cluster has an engine second, and it is not configured here" in refused(cluster, (part, ""))
    said = refused(cluster, ("stores = [2, 3]", "stores = [2]"))
    assert "store-3 of namespace tandem lives in engine second, for good: name 3 in the stores of second" in said
    assert "store-1 of namespace tandem lives in the first engine, for good: take 1 out" in refused(cluster, ("[2, 3]", "[1, 2, 3]"))
    version = postgres.primary.execute("SELECT version FROM tandem.cluster", database=made)
    assert version == [(3,)], "an older version, which would make the stores of the second once more in the first, is refused"


@pytest.mark.slow
def test_a_database_that_is_not_the_one_that_was_prepared(cluster: TwoEngines, postgres: PostgresEngine) -> None:
    cluster.init()
    start_once(cluster)
    name = cluster.second.rpartition("/")[2]
    assert "has no cluster yet" in refused(cluster, (cluster.second, postgres.primary.dsn("postgres")))
    assert "is no engine that was prepared under a name" in refused(
        cluster, (cluster.second, cluster.dsn.replace("127.0.0.1", "localhost"))
    )
    postgres.primary.execute("DROP SCHEMA tandem CASCADE", database=name)
    cluster.init()
    said = refused(cluster)
    assert "store-2 of namespace tandem is not there any more: is it the right database? Else restore it from a backup" in said


def test_the_first_engine_again_under_another_name(cluster: TwoEngines) -> None:
    path = cluster.directory / "tandem.toml"
    path.write_text(path.read_text().replace(cluster.second, cluster.dsn.replace("127.0.0.1", "localhost")))
    assert "cluster.more_engines (second): is the first engine of a cluster (cluster.engine); allowed is another" in init_refused(cluster)
    with psycopg.connect(cluster.dsn, autocommit=True) as connection:
        assert connection.execute("SELECT count(*) FROM tandem.engine").fetchall() == [(0,)], "nothing is left of it"


@pytest.mark.slow
def test_a_second_region_and_commands_on_a_store_that_is_not_there(cluster: TwoEngines) -> None:
    cluster.init()
    start_once(cluster)
    missing = "this cluster has an engine second, and its standby is missing; give --standby second=postgresql://…"
    follow = ("cluster", "follow", "--engine", cluster.dsn, "--once", "--standby")
    assert missing in refusal(cluster.directory, *follow, cluster.dsn)
    assert missing.replace("--standby", "--engine") in refusal(cluster.directory, "cluster", "promote", "--engine", cluster.dsn)
    first, second = cluster.dsn, f"second={cluster.second}"
    assert "that of the first engine is missing" in refusal(cluster.directory, *follow, second)
    assert "engine second is there twice" in refusal(cluster.directory, *follow, first, "--standby", second, "--standby", second)
    assert "has no engine third; it has first, second" in refusal(
        cluster.directory, *follow, first, "--standby", second, "--standby", f"third={cluster.second}"
    )
    assert "is the engine second of its cluster, not the first" in refusal(cluster.directory, *follow, cluster.second)
    assert "is a standby of a first engine" in refusal(cluster.directory, *follow, first, "--standby", f"second={first}")
    with psycopg.connect(cluster.second, autocommit=True) as connection:
        connection.execute("UPDATE tandem.cluster SET secret = 'another'")
        assert "belongs to another cluster than the standby of the first" in refusal(cluster.directory, *follow, first, "--standby", second)
        connection.execute("UPDATE tandem.cluster SET secret = %s", (fingerprint(SECRET),))
        connection.execute("UPDATE tandem.store SET journal = '\\x00' WHERE number = 2")
        assert "store-2 of namespace tandem there is another cluster's" in refusal(cluster.directory, *follow, first, "--standby", second)
    assert "no namespace or store 'tandem/7'" in refusal(cluster.directory, "cluster", "move", "tandem/7", "a", "--engine", cluster.dsn)
    assert "was taken from its owner" in cluster.command("take", "tandem/2", "a")
    with psycopg.connect(cluster.second, autocommit=True) as connection:
        assert connection.execute("SELECT number, wanted FROM tandem.store ORDER BY 1").fetchall() == [(2, "a"), (3, "")]
    assert "all nodes run version" in cluster.command("upgrade", "--seconds", "0.1")


def test_making_a_cluster_needs_an_engine_and_a_secret(tmp_path: Path) -> None:
    assert "--engine is missing; give --engine and --secret-file, or --config" in refusal(tmp_path, "cluster", "init")
    (tmp_path / "tandem.toml").write_text("")
    assert "has no cluster.engine" in refusal(tmp_path, "cluster", "init", "--config", "tandem.toml")


@pytest.mark.slow
def test_an_engine_that_is_added_later_has_stores_of_new_namespaces(cluster: TwoEngines) -> None:
    path = cluster.directory / "tandem.toml"
    text = path.read_text()
    head = text[: text.index("[[cluster.more")]
    path.write_text(f'{head}[[namespace]]\nname = "old"\n')
    cluster.command("init", "--secret-file", str(cluster.directory / "secret"))
    start_once(cluster)
    added = f'[[cluster.more_engines]]\nname = "second"\nengine = "{cluster.second}"\nstores = [0, 1, 2, 3]\n'
    spaces = '[[namespace]]\nname = "old"\n[[namespace]]\nname = "new"\n[[namespace.queue]]\nname = "q"\n'
    path.write_text(head + added + spaces)
    assert "engine second is made" in cluster.init()
    assert "store-0 of namespace old lives in the first engine, for good: take 0 out of its stores" in refused(cluster)
    path.write_text(f'{head}{added}namespaces = ["new"]\n{spaces}')
    cluster.start("b")
    sql = "SELECT namespace, number, owner FROM tandem.store WHERE owner <> '' ORDER BY 1, 2"
    for dsn, namespace in ((cluster.dsn, "old"), (cluster.second, "new")):
        with psycopg.connect(dsn, autocommit=True) as connection:
            until(lambda: connection.execute(sql).fetchall() == [(namespace, number, "b") for number in range(4)])  # noqa: B023
    cluster.close()
