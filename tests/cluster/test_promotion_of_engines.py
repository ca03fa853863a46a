"""Standbys of two engines end at different moments: what only one of them has heard of, and what `promote --force` does about it.

A standby that is behind is a copy of its database from an earlier moment.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from tandem.cli.promotion import NUMBERS_LEFT_OUT
from tandem.testing.postgres import PostgresEngine
from tests.cluster.engines import CONFIG, PLAIN, TwoEngines
from tests.cluster.nodes import receive_all, try_send, until
from tests.cluster.test_bad_input import refusal

LATE = [f"late{number}" for number in range(8)]


class Standbys:
    """Of one cluster, each as it was when it was copied."""

    def __init__(self, west: TwoEngines, postgres: PostgresEngine, directory: Path) -> None:
        self.west = west
        self._postgres = postgres
        self._directory = directory
        self.names = {"first": west.dsn.rpartition("/")[2], "second": west.second.rpartition("/")[2]}

    def copy(self, engine: str) -> None:
        """What happens to it from now on does not arrive."""
        behind = f"{self.names[engine]}_behind"
        self._postgres.primary.execute(f"CREATE DATABASE {behind} TEMPLATE {self.names[engine]}", database="postgres")
        self.names[engine] = behind

    def dsn(self, engine: str) -> str:
        return self._postgres.primary.dsn(self.names[engine])

    def promoting(self) -> list[str]:
        return ["cluster", "promote", "--engine", self.dsn("first"), "--engine", f"second={self.dsn('second')}"]

    def promote(self, *more: str) -> dict[int, Any]:
        """By number, what was said of each store."""
        return {one["store"]: one for one in json.loads(self.promote_as_text("--json", *more))["stores"]}

    def promote_as_text(self, *more: str) -> str:
        command = [sys.executable, "-m", "tandem", *self.promoting(), *more]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def east(self, config: str = CONFIG) -> TwoEngines:
        """The cluster that goes on with them."""
        directory = self._directory / "east"
        directory.mkdir()
        return TwoEngines(directory, self.dsn("first"), self._postgres, self.names["second"], config)

    def rows(self, engine: str, sql: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn(engine)) as connection:
            return connection.execute(sql).fetchall()


@pytest.fixture
def standbys(tmp_path: Path, database: str, postgres: PostgresEngine) -> Iterator[Standbys]:
    name = database.rpartition("/")[2] + "_second"
    postgres.primary.execute(f"CREATE DATABASE {name}", database="postgres")
    (tmp_path / "west").mkdir()
    west = TwoEngines(tmp_path / "west", database, postgres, name)
    west.init()
    yield Standbys(west, postgres, tmp_path)
    west.close()


def serve_once(cluster: TwoEngines, *queues: str) -> None:
    """A message to each of these; then it is stopped."""
    broker = cluster.start("a")
    until(lambda: cluster.owners() == ["a"] * 4)
    with ServiceBusClient.from_connection_string(broker.connection_string) as client:
        for queue in queues:
            with client.get_queue_sender(queue) as sender:
                sender.send_messages(ServiceBusMessage(f"old-{queue}"))
    cluster.close()


def numbers_in(connection_string: str, queue: str) -> list[int]:
    with ServiceBusClient.from_connection_string(connection_string) as client, client.get_queue_receiver(queue) as receiver:
        return [int(message.sequence_number or 0) for message in receiver.peek_messages(10)]


@pytest.mark.slow
def test_a_store_that_its_engine_has_not_heard_of_is_made_anew_by_force(standbys: Standbys) -> None:
    standbys.copy("second")
    serve_once(standbys.west, *PLAIN)
    here, there = standbys.west.queue_in(0, 1), standbys.west.queue_in(2, 3)
    said = refusal(standbys.west.directory, *standbys.promoting())
    assert "of namespace tandem is not in engine second" in said
    assert "--force makes it anew, and empty" in said
    stores = standbys.promote("--force")
    assert {number: (one["engine"], one["block"] > 0) for number, one in stores.items()} == {
        0: ("first", True),
        1: ("first", True),
        2: ("second", False),
        3: ("second", False),
    }
    ((journals,),) = standbys.rows("first", "SELECT array_agg(journal ORDER BY number) FROM tandem.placed")
    assert standbys.rows("second", "SELECT array_agg(journal ORDER BY number) FROM tandem.store") == [(journals,)], (
        "as the first knows them"
    )
    number = standbys.rows("first", f"SELECT store FROM tandem.entity WHERE path = '{there}'")[0][0]
    assert {"entity": there, "first": 1, "last": NUMBERS_LEFT_OUT - 1} in stores[number]["missing"]
    for store, one in stores.items():
        fragments = [gap for gap in one["missing"] if gap["entity"].startswith("p")]
        assert len(fragments) == 4, f"of 16 fragments over 4 stores, in store-{store}"
        assert {gap["first"] >> 48 for gap in fragments} == set(range(store, 16, 4))
    again = standbys.promote()
    assert again[number]["begins_at"] == stores[number]["begins_at"] + NUMBERS_LEFT_OUT, "now both have heard of it"
    east = standbys.east()
    try:
        broker = east.start("b")
        until(lambda: east.owners() == ["b"] * 4)
        assert try_send(broker.connection_string, "new", there)
        assert numbers_in(broker.connection_string, there) == [again[number]["begins_at"]]
        assert receive_all(broker.connection_string, there) == ["new"]
        assert receive_all(broker.connection_string, here) == [f"old-{here}"]
    finally:
        east.close()


@pytest.mark.slow
def test_stores_of_a_namespace_that_the_first_has_not_heard_of_are_struck_by_force(standbys: Standbys) -> None:
    standbys.copy("first")
    serve_once(standbys.west, *PLAIN)
    there = standbys.west.queue_in(2, 3)
    said = refusal(standbys.west.directory, *standbys.promoting())
    assert "is in engine second, and the first, which is further behind, does not know the namespace yet" in said
    assert "--force strikes it; its tables stay" in said
    tables = "SELECT tablename FROM pg_tables WHERE schemaname = 'tandem' AND tablename LIKE 'b\\_%' ORDER BY 1"
    before = standbys.rows("second", tables)
    assert before, "there is something that could be lost"
    assert standbys.promote("--force") == {}
    assert standbys.rows("second", "SELECT number FROM tandem.store") == []
    assert standbys.rows("second", tables) == before
    east = standbys.east()
    try:
        broker = east.start("b")
        until(lambda: east.owners() == ["b"] * 4)
        there = east.queue_in(2, 3)
        assert try_send(broker.connection_string, "new", there)
        assert receive_all(broker.connection_string, there) == ["new"]
        assert set(before) < set(standbys.rows("second", tables)), "nobody writes into the tables that stay"
    finally:
        east.close()


@pytest.mark.slow
@pytest.mark.parametrize("messages", [True, False], ids=["with messages", "that never had a message"])
def test_ids_of_entities_that_the_catalog_has_lost_are_given_to_nobody_else(standbys: Standbys, messages: bool) -> None:
    serve_once(standbys.west)
    standbys.copy("first")
    settings = standbys.west.directory / "tandem.toml"
    known = settings.read_text()
    settings.write_text(known + "".join(f'[[queue]]\nname = "{name}"\n' for name in LATE))
    serve_once(standbys.west, *(LATE if messages else PLAIN))  # journals are told of entities with the next write
    with psycopg.connect(standbys.west.dsn) as connection:
        sql = "SELECT id, store, path FROM tandem.entity WHERE store IN (2, 3) AND path LIKE 'late%' ORDER BY id"
        rows = connection.execute(sql).fetchall()
    lost = rows[-1][0]
    assert lost > standbys.rows("first", "SELECT highest_id FROM tandem.namespace")[0][0], "the first is behind"
    unknown = {number: one["unknown_entities"] for number, one in standbys.promote().items()}
    assert unknown == {number: [path for _, store, path in rows if store == number] for number in range(4)}
    assert standbys.rows("first", "SELECT highest_id FROM tandem.namespace") == [(lost,)]
    assert standbys.rows("second", "SELECT DISTINCT entity_max FROM tandem.numbers") == [(lost,)]
    if messages:
        said = f"  {rows[0][2]}: was made after what the first engine has, and is not known there: make it again"
        assert said in standbys.promote_as_text(), "and whoever runs it again is told again"
    east = standbys.east(CONFIG + "".join(f'[[queue]]\nname = "next{number}"\n' for number in range(4)))
    try:
        broker = east.start("b")
        until(lambda: east.owners() == ["b"] * 4)
        ids = standbys.rows("first", "SELECT id, path FROM tandem.entity WHERE path LIKE 'next%'")
        assert min(id_ for id_, _ in ids) > lost
        for _, queue in ids:
            assert try_send(broker.connection_string, f"new-{queue}", queue)
            assert receive_all(broker.connection_string, queue, 0.2) == [f"new-{queue}"]
    finally:
        east.close()
