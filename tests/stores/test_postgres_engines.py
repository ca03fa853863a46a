"""Engines beside the first: what the first remembers of them, and how a wrong or emptied database is noticed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from tandem.model.errors import ConfigurationError, EngineAway
from tandem.stores.postgres_connection import EngineConnection, Hosts
from tandem.stores.postgres_engines import EngineParts, EngineRegistry, PostgresOther, is_away, to_keep
from tandem.stores.postgres_schema import ENGINES_VERSION, SCHEMA_VERSION, Schema, fingerprint
from tandem.testing.postgres import PostgresEngine
from tests.postgres import SECRET
from tests.stores.harness import ManualClock

PLACE = ("tandem", 2)


def connected(dsn: str) -> EngineConnection:
    return EngineConnection(Hosts(dsn), "test", ManualClock())


class Two:
    """A first engine with a cluster, and an empty database."""

    def __init__(self, first: str, second: str) -> None:
        self.first_dsn, self.second_dsn = first, second
        self.first, self.second = connected(first), connected(second)
        self.registry = EngineRegistry(self.first)
        self.parts = EngineParts("second", second, self.second)

    def init(self) -> None:
        self.registry.add("second", self.second_dsn)
        self.parts.initialize(SECRET)


@pytest.fixture
def two(spread_dsn: str, postgres: PostgresEngine) -> Iterator[Two]:
    name = spread_dsn.rpartition("/")[2] + "_second"
    postgres.primary.execute(f"CREATE DATABASE {name}", database="postgres")
    made = Two(spread_dsn, postgres.primary.dsn(name))
    with closing(made.first), closing(made.second):
        yield made


def refusal(call: object, *arguments: object) -> str:
    with pytest.raises(ConfigurationError) as refused:
        call(*arguments)  # type: ignore[operator]
    return str(refused.value)


def test_what_is_written_down_of_a_connection_string_is_no_password() -> None:
    kept = to_keep("postgresql://u:hidden@h1,h2/d?sslpassword=hidden&sslmode=require")
    assert "hidden" not in kept
    assert Hosts(kept).parameters("x")["host"] == "h1,h2"
    assert Hosts(kept).parameters("x")["sslmode"] == "require"


def test_a_store_is_made_once_and_the_first_engine_remembers_where(two: Two) -> None:
    two.init()
    for _ in range(2):
        two.parts.ensure_stores(two.registry, [PLACE, ("tandem", 3)])
    assert two.registry.placed() == {PLACE: "second", ("tandem", 3): "second"}
    assert two.second.execute("SELECT number FROM tandem.store ORDER BY 1").fetchall() == [(2,), (3,)]
    assert two.first.execute("SELECT number FROM tandem.store").fetchall() == []


def test_whoever_was_interrupted_while_a_store_was_made_goes_on(two: Two) -> None:
    two.init()
    two.registry.place(PLACE, "second")
    two.parts.ensure_stores(two.registry, [PLACE])
    journal, made = two.registry.place(PLACE, "second")
    assert made
    assert two.second.execute("SELECT journal FROM tandem.store").fetchall() == [(journal,)]


def test_a_database_that_was_emptied_is_noticed_and_no_empty_store_is_made_in_it(two: Two) -> None:
    two.init()
    two.parts.ensure_stores(two.registry, [PLACE])
    two.second.execute("DELETE FROM tandem.store")
    assert "store-2 of namespace tandem is not there any more" in refusal(two.parts.ensure_stores, two.registry, [PLACE])
    two.second.execute("INSERT INTO tandem.store (namespace, number, journal, format) VALUES ('tandem', 2, %s, 2)", (bytes(16),))
    assert "is another cluster's" in refusal(two.parts.ensure_stores, two.registry, [PLACE])


def test_the_first_engine_under_another_name_is_refused(two: Two) -> None:
    two.registry.add("second", two.first_dsn)
    alias = EngineParts("second", two.first_dsn, two.first)
    assert "is the first engine of a cluster" in refusal(alias.initialize, SECRET)


def test_one_engine_under_two_names_is_refused(two: Two) -> None:
    two.init()
    third = EngineParts("third", two.second_dsn, two.second)
    assert "is the engine second of its cluster" in refusal(third.initialize, SECRET)
    assert "is the engine second of its cluster" in refusal(third.check, SECRET, "assumed", lambda: ManualClock().now_ms())


def test_a_database_of_another_cluster_is_refused(two: Two) -> None:
    other = Schema(two.second_dsn, two.second)
    other.initialize(b"a secret of others, long enough")
    assert "belongs to a cluster with another secret" in refusal(two.parts.initialize, SECRET)
    two.second.execute("UPDATE tandem.cluster SET secret = %s", (fingerprint(SECRET),))
    other.ensure_stores("tandem", 4)
    assert "holds a cluster of its own" in refusal(two.parts.initialize, SECRET)


def test_a_database_that_nobody_prepared_is_refused_and_says_so(two: Two) -> None:
    assert "has no cluster yet" in refusal(two.parts.check, SECRET, "assumed", lambda: 0)
    Schema(two.second_dsn, two.second).initialize(SECRET)
    assert "is no engine that was prepared under a name" in refusal(two.parts.check, SECRET, "assumed", lambda: 0)


def test_what_a_node_is_told_has_to_fit_what_the_cluster_has(two: Two) -> None:
    fit = two.registry.must_fit
    stores = [(PLACE, "second"), (("tandem", 0), "")]
    fit({}, [(PLACE, "")])
    assert "was not prepared; once, with this file: tandem cluster init" in refusal(fit, {"second": two.second_dsn}, stores)
    two.init()
    fit({"second": two.second_dsn}, stores)
    assert "has an engine second, and it is not configured here" in refusal(fit, {}, stores)
    two.parts.ensure_stores(two.registry, [PLACE])
    said = refusal(fit, {"second": two.second_dsn}, [(PLACE, "")])
    assert "store-2 of namespace tandem lives in engine second, for good: name 2 in the stores of second" in said
    Schema(two.first_dsn, two.first).ensure_stores("tandem", 4, elsewhere=[2])
    said = refusal(fit, {"second": two.second_dsn}, [(("tandem", 1), "second")])
    assert (
        said == "cluster.more_engines (second): store-1 of namespace tandem lives in the first engine, for good: "
        "take 1 out of its stores, or say with namespaces for which it is"
    )


def test_where_an_engine_is_now_is_written_down(two: Two) -> None:
    two.init()
    two.registry.must_fit({"second": "postgresql://u:p@elsewhere/d"}, [])
    assert "elsewhere" in two.registry.engines()["second"]


def test_older_versions_are_refused_as_soon_as_there_are_several_engines(two: Two) -> None:
    schema = Schema(two.first_dsn, two.first)
    schema.must_be_upgraded()
    schema.has_several_engines()
    assert two.first.execute("SELECT version FROM tandem.cluster").fetchone() == (ENGINES_VERSION,)
    schema.check(SECRET)
    assert not schema.upgrade()
    two.first.execute("UPDATE tandem.cluster SET version = %s", (SCHEMA_VERSION - 1,))
    assert "first, tandem cluster upgrade" in refusal(schema.must_be_upgraded)


def test_one_that_does_not_answer_is_away_and_one_that_refuses_is_not(two: Two) -> None:
    nowhere = "postgresql://127.0.0.1:1/tandem"
    with pytest.raises(EngineAway) as away:
        connected(nowhere).execute("SELECT 1")
    assert is_away(away.value)
    parts = EngineParts("second", nowhere, connected(nowhere))
    other = PostgresOther("second", Hosts(nowhere), connected(nowhere), ("a", 1, "1"), lambda _: parts.schema.check(SECRET))
    with pytest.raises(EngineAway):
        other.prepare()
    refusing = PostgresOther("second", Hosts(nowhere), connected(nowhere), ("a", 1, "1"), lambda _: two.parts.schema.check(SECRET))
    with pytest.raises(ConfigurationError):
        refusing.prepare()


def test_nodes_beat_there_too(two: Two) -> None:
    two.init()
    two.parts.ensure_stores(two.registry, [PLACE])
    other = PostgresOther("second", Hosts(two.second_dsn), connected(two.second_dsn), ("a", 7, "1"), lambda _: None)
    for beat in (1, 2):
        other.beat()
        nodes, stores = other.look()
        assert nodes == {"a": (7, beat)}
    assert [(row.number, row.engine) for row in stores] == [(2, "second")]
    other.close()
