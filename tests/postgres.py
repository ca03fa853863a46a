"""One PostgreSQL for all tests of a session that want one, with a standby; a database of its own for each of them."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tandem.stores.postgres_connection import EngineConnection, Hosts
from tandem.stores.postgres_schema import Schema
from tandem.testing.postgres import PostgresEngine, programs
from tests.stores.harness import ManualClock

MISSING = "MISSING: PostgreSQL is not here (on Debian: apt-get install postgresql)"
SECRET = b"a secret of thirty-two characters"
_numbers = itertools.count(1)


@contextmanager
def running_engine(standbys: int = 0, wal: Path | None = None) -> Iterator[PostgresEngine]:
    """A PostgreSQL of one's own; whoever wants it is skipped where there is none.

    Not in a directory of pytest's: each session of tests that begins closes those of all others to other accounts, and PostgreSQL never
    runs as root.
    """
    pytest.importorskip("psycopg", reason="MISSING: psycopg")
    if programs() is None:
        pytest.skip(MISSING)
    with tempfile.TemporaryDirectory(prefix="tandem-postgres-") as directory:
        engine = PostgresEngine(Path(directory) / "engine", standbys, wal)
        try:
            yield engine.start()
        finally:
            engine.stop()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresEngine]:
    with running_engine(standbys=1) as engine:
        yield engine


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
