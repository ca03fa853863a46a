"""The jobs on a cluster with several engines: told of the first, they read all of them, and nothing twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.model.errors import ConfigurationError
from tandem.spark.analytics.engines import counted_in, every_engine, find_ranges, must_answer
from tandem.testing.postgres import PostgresEngine
from tests.cluster.engines import TwoEngines
from tests.cluster.nodes import try_send, until


@pytest.mark.slow
def test_whoever_names_the_first_engine_reads_the_others_too_and_each_once(tmp_path: Path, database: str, postgres: PostgresEngine) -> None:
    name = database.rpartition("/")[2] + "_second"
    postgres.primary.execute(f"CREATE DATABASE {name}", database="postgres")
    cluster = TwoEngines(tmp_path, database, postgres, name)
    cluster.init()
    broker = cluster.start("a")
    until(lambda: cluster.owners() == ["a"] * 4)
    queues = [cluster.queue_in(number) for number in range(4)]
    assert all(try_send(broker.connection_string, "one", queue) for queue in queues)
    broker.process.terminate()
    broker.process.wait(60)
    cluster.close()
    for given in ([cluster.dsn], [cluster.dsn, cluster.second], [cluster.second, cluster.dsn]):
        must_answer(given)
        found = list(find_ranges(given))
        assert sorted(one.store for one, _ in found) == [f"store-{number}" for number in range(4)]
        assert all(set(queues) <= set(names.values()) for _, names in found), "entities are known by the first"
        counted = [counted_in(dsn).rows.to_pylist() for dsn in every_engine(given)]
        sent = sorted(row["entity"] for rows in counted for row in rows if row["operation"] == "send")
        assert sent == queues, "each is counted where its store lives"
    postgres.primary.execute(f"DROP DATABASE {name} WITH (FORCE)", database="postgres")
    with pytest.raises(ConfigurationError, match="is it up"):
        must_answer([cluster.dsn])
