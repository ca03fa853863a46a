"""One PostgreSQL for all tests of a session that want one, with a standby; a database of its own for each of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem.stores.postgres_connection import EngineConnection, Hosts
from tandem.stores.postgres_schema import Schema
from tandem.testing.postgres import PostgresEngine, programs
from tests.stores.harness import ManualClock

MISSING = "MISSING: PostgreSQL is not here (on Debian: apt-get install postgresql)"
SECRET = b"a secret of thirty-two characters"
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresEngine]:
    if programs() is None:
        pytest.skip(MISSING)
    engine = PostgresEngine(Path(tmp_path_factory.mktemp("postgres")) / "engine", standbys=1)
    try:
        yield engine.start()
    finally:
        engine.stop()


@pytest.fixture
def database(postgres: PostgresEngine) -> str:
    """DSN of an empty database."""
    name = f"test_{next(_numbers)}"
    postgres.primary.execute(f"CREATE DATABASE {name}", database="postgres")
    return postgres.primary.dsn(name)


def make_cluster(dsn: str, secret: bytes = SECRET) -> None:
    """As `tandem cluster init` does."""
    connection = EngineConnection(Hosts(dsn), "test", ManualClock())
    Schema(dsn, connection).initialize(secret)
    connection.close()


@pytest.fixture
def spread_dsn(database: str) -> str:
    """DSN of a database with a cluster's schema."""
    make_cluster(database)
    return database


@pytest.fixture
def cluster_dsn(spread_dsn: str, postgres: PostgresEngine) -> str:
    """The same, of a cluster in which all stores of the namespace are with one node."""
    postgres.primary.execute("INSERT INTO tandem.gathered (namespace) VALUES ('tandem')", database=spread_dsn.rpartition("/")[2])
    return spread_dsn
