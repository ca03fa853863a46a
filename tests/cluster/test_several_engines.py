"""Stores of one namespace in two engines: one that is away takes down its own stores only, and everything is there when it is back."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem.testing.postgres import PostgresEngine, programs
from tests.cluster.engines import TwoEngines
from tests.cluster.nodes import metrics_of, receive_all, try_send, until
from tests.postgres import MISSING

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresEngine]:
    if programs() is None:
        pytest.skip(MISSING)
    engine = PostgresEngine(Path(tmp_path_factory.mktemp("second")) / "engine")
    try:
        yield engine.start()
    finally:
        engine.stop()


@pytest.fixture
def cluster(tmp_path: Path, database: str, second: PostgresEngine) -> Iterator[TwoEngines]:
    name = f"second_{next(_numbers)}"
    second.primary.execute(f"CREATE DATABASE {name}", database="postgres")
    made = TwoEngines(tmp_path, database, second, name)
    made.init()
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_engine_that_is_away_takes_down_its_own_stores_only(cluster: TwoEngines) -> None:
    broker = cluster.start("a")
    until(lambda: cluster.owners() == ["a"] * 4)
    here, there = cluster.queue_in(0, 1), cluster.queue_in(2, 3)
    for queue in ("p", here, there):
        assert all(try_send(broker.connection_string, f"{queue}-{number}", queue) for number in range(6))
    with cluster.second_away():
        until(lambda: "engine second does not take our beats" in cluster.logs("a"))
        assert all(try_send(broker.connection_string, f"{here}-meanwhile-{number}", here) for number in range(3))
        assert all(try_send(broker.connection_string, f"p-meanwhile-{number}", "p") for number in range(6)), (
            "fragments of the first take them"
        )
        assert 'tandem_cluster_engine_up{engine="second"} 0.0' in metrics_of(broker)
        until(lambda: "store-2 is down" in cluster.logs("a") and "store-3 is down" in cluster.logs("a"))
        assert not try_send(broker.connection_string, "refused", there)
        found = receive_all(broker.connection_string, here)
        assert sorted(found) == sorted(
            [*(f"{here}-{number}" for number in range(6)), *(f"{here}-meanwhile-{number}" for number in range(3))]
        )
        some = receive_all(broker.connection_string, "p")
        assert {f"p-meanwhile-{number}" for number in range(6)} <= set(some), "receivers get what the first engine has"
    until(lambda: try_send(broker.connection_string, f"{there}-after", there))
    assert sorted(set(receive_all(broker.connection_string, there)) - {"refused"}) == sorted(
        [*(f"{there}-{number}" for number in range(6)), f"{there}-after"]
    )
    rest = receive_all(broker.connection_string, "p")
    assert sorted([*some, *rest]) == sorted([*(f"p-{number}" for number in range(6)), *(f"p-meanwhile-{number}" for number in range(6))])
    assert 'tandem_cluster_engine_up{engine="second"} 1.0' in metrics_of(broker)
