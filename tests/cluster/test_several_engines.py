"""Stores of one namespace in two engines: one that is away takes down its own stores only, and everything is there when it is back."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem.testing.postgres import PostgresEngine
from tests.cluster.engines import TwoEngines
from tests.cluster.nodes import metrics_of, receive_all, try_send, until
from tests.cluster.steady_traffic import Traffic
from tests.cluster.test_bad_input import refusal
from tests.cluster.test_cut_off import Line
from tests.postgres import running_engine

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def second() -> Iterator[PostgresEngine]:
    with running_engine() as engine:
        yield engine


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


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_under_traffic_nothing_is_lost_or_doubled_and_nothing_moves_while_an_engine_is_away(cluster: TwoEngines) -> None:
    nodes = {name: cluster.start(name) for name in "ab"}
    until(lambda: sorted(cluster.owners()) == ["a", "a", "b", "b"])
    before = cluster.owners()
    here, there = cluster.queue_in(0, 1), cluster.queue_in(2, 3)
    traffic = Traffic(nodes, ["p", here, there])
    traffic.goes_on()
    with cluster.second_away():
        until(
            lambda: all(
                "store-3 is down" in cluster.logs(name) or "store-2 is down" in cluster.logs(name) for name in "ab" if _has(before, name)
            )
        )
        elsewhere = dict(traffic.counted)
        del traffic.counted[there]
        traffic.goes_on()
        traffic.counted = elsewhere
    traffic.goes_on()
    assert cluster.owners() == before, "nobody takes over what nobody can reach"
    assert traffic.end() == dict.fromkeys(["p", here, there], (0, 0, 0))


def _has(owners: list[str], name: str) -> bool:
    """Of the stores in the second engine."""
    return name in owners[2:]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_killed_node_is_followed_by_another_in_both_engines(cluster: TwoEngines) -> None:
    nodes = {name: cluster.start(name) for name in "ab"}
    until(lambda: sorted(cluster.owners()) == ["a", "a", "b", "b"])
    for number, name in enumerate("abba"):
        cluster.command("move", f"tandem/{number}", name)
    until(lambda: cluster.owners() == ["a", "b", "b", "a"])
    queues = ["p", cluster.queue_in(0), cluster.queue_in(1), cluster.queue_in(2), cluster.queue_in(3)]
    traffic = Traffic(nodes, queues, keyed=frozenset({"p"}))
    traffic.goes_on()
    nodes.pop("b").process.kill()
    until(lambda: cluster.owners() == ["a"] * 4)
    traffic.goes_on()
    assert traffic.end() == dict.fromkeys(queues, (0, 0, 0))
    assert "store-1: node a takes over from b" in cluster.logs("a")
    assert "store-2: node a takes over from b" in cluster.logs("a")
    cluster.command("forget", "b")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_node_starts_while_an_engine_is_away_and_status_says_which(cluster: TwoEngines) -> None:
    broker = cluster.start("a")
    until(lambda: cluster.owners() == ["a"] * 4)
    here, there = cluster.queue_in(0, 1), cluster.queue_in(2, 3)
    assert try_send(broker.connection_string, "kept", there)
    with cluster.second_away():
        broker.process.kill()
        broker = cluster.start("a")
        until(lambda: try_send(broker.connection_string, "sent", here))
        assert not try_send(broker.connection_string, "refused", there)
        found = cluster.status()
        assert [(one["name"], one["answers"]) for one in found["engines"]] == [("first", True), ("second", False)]
        stores = found["namespaces"][0]["stores"]
        assert [(one["engine"], one["answers"]) for one in stores] == [("first", True)] * 2 + [("second", False)] * 2
        said = cluster.command("status", "--seconds", "0.1")
        assert "engine second: does not answer" in said
        assert "tandem store-2: not known, engine second does not answer" in said
        (cluster.directory / "secret").write_bytes(b"not the secret of this cluster")
        assert "not the secret" in refusal(cluster.directory, "serve", *cluster.arguments("b"))
    until(lambda: receive_all(broker.connection_string, there) == ["kept"])
    assert "tandem store-2: node a, epoch" in cluster.command("status", "--seconds", "0.1")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_node_that_hears_nothing_of_one_engine_keeps_its_stores_in_the_other(cluster: TwoEngines) -> None:
    line = Line(cluster.engine.primary.port)
    try:
        text = (cluster.directory / "tandem.toml").read_text()
        (cluster.directory / "far.toml").write_text(text.replace(f":{cluster.engine.primary.port}/", f":{line.port}/"))
        nodes = {"a": cluster.start("a", "--config", "far.toml"), "b": cluster.start("b")}
        until(lambda: sorted(cluster.owners()) == ["a", "a", "b", "b"])
        for number, name in enumerate("abab"):
            cluster.command("move", f"tandem/{number}", name)
        until(lambda: cluster.owners() == ["a", "b", "a", "b"])
        traffic = Traffic(nodes, ["p", cluster.queue_in(0), cluster.queue_in(2)])
        traffic.goes_on()
        line.hold()
        until(lambda: cluster.owners()[2:] == ["b", "b"])
        traffic.goes_on()
        assert cluster.owners()[0] == "a"
        line.let_go()
        until(lambda: "engine second takes our beats again" in cluster.logs("a"))
        traffic.goes_on()
        assert traffic.end() == dict.fromkeys(traffic.counted, (0, 0, 0))
        cluster.command("move", "tandem/3", "a")
        until(lambda: cluster.owners()[3] == "a")
        line.hold()
        began = time.monotonic()
        nodes["a"].process.terminate()
        assert nodes["a"].process.wait(60) == 0
        assert time.monotonic() - began < 30, "it stops although the engine of one of its stores hangs"
    finally:
        line.close()
