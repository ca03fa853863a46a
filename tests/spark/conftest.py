"""Brokers for all tests of this room, a Spark session for those that need one; entities have names of their own per test."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem.spark.connector.options import Where
from tandem.spark.java import missing_java
from tests.acceptance.brokers import Broker

SOURCE = Path(__file__).resolve().parents[2] / "src"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = missing_java()
    for item in items:
        if item.get_closest_marker("spark"):
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(300))  # Spark alone takes most of a minute to start on a busy machine
            if missing:
                item.add_marker(pytest.mark.skip(reason=f"MISSING: {missing}"))


@pytest.fixture(scope="session")
def west(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The primary. Never killed: tests that kill have brokers of their own."""
    broker = Broker(tmp_path_factory.mktemp("west"), "west").start()
    yield broker
    broker.stop()


@pytest.fixture(scope="session")
def east(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("east"), "east").start()
    yield broker
    broker.stop()


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[Broker]:
    """A broker of this test's own."""
    broker = Broker(tmp_path, "mortal").start()
    yield broker
    broker.stop()


@pytest.fixture
def mortal_too(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path, "mortal-too").start()
    yield broker
    broker.stop()


@pytest.fixture
def name() -> str:
    return f"q{uuid.uuid4().hex[:10]}"


def where(broker: Broker, timeout_seconds: int = 30) -> Where:
    return Where(connection_string=broker.connection_string, ca_file=None, timeout_seconds=timeout_seconds)


@pytest.fixture(scope="session")
def spark() -> Iterator[object]:
    """One session for all tests: starting it takes longer than most of them."""
    from tandem.spark import register
    from tandem.spark.session import open_session

    os.environ["PYSPARK_PYTHON"] = sys.executable
    conf = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g", "spark.python.worker.reuse": "true"}
    with open_session("tests", "local[2,4]", conf) as session:
        register(session)
        yield session
