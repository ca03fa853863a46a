"""The stores of one namespace are with several nodes: each is placed, moved and taken over by itself, and clients find all anywhere."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from tandem import amqp
from tests.cluster.movers import Movers
from tests.cluster.nodes import Cluster, receive_all, try_send, until
from tests.cluster.steady_traffic import Traffic
from tests.conformance.raw import Raw
from tests.gateway.amqp.test_selectors import attach, select, texts

KILLS = int(os.environ.get("TANDEM_CLUSTER_KILLS", "2"))
PLAIN = [f"q{number}" for number in range(4)]
CONFIG = '[cluster]\nlease = "{lease}ms"\n[[queue]]\nname = "p"\nenable_partitioning = true\nlock_duration = "5s"\n' + "".join(
    f'[[queue]]\nname = "{name}"\nlock_duration = "5s"\n' for name in PLAIN
)
QUEUES = ["p", "q0", "q1", "q2"]
NOTHING = dict.fromkeys(QUEUES, (0, 0, 0))


@pytest.fixture
def cluster(tmp_path: Path, spread_dsn: str) -> Iterator[Cluster]:
    made = Cluster(tmp_path, spread_dsn, config=CONFIG, peers=True)
    yield made
    made.close()


def owners(cluster: Cluster) -> list[str]:
    with psycopg.connect(cluster.dsn, autocommit=True) as connection:
        return [row[0] for row in connection.execute("SELECT owner FROM tandem.store ORDER BY number")]


def spread_over(cluster: Cluster, *names: str) -> bool:
    found = owners(cluster)
    return set(found) == set(names) and max(map(found.count, names)) - min(map(found.count, names)) <= 1


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_node_that_is_added_gets_stores_one_at_a_time_while_clients_go_on(cluster: Cluster) -> None:
    nodes = {"a": cluster.start("a")}
    until(lambda: owners(cluster) == ["a"] * 4)
    traffic = Traffic(nodes, QUEUES, keyed=frozenset({"p"}))
    traffic.goes_on()
    nodes["b"] = cluster.start("b")
    seen: list[list[str]] = []

    def balanced() -> bool:
        found = owners(cluster)
        if not seen or found != seen[-1]:
            seen.append(found)
        return spread_over(cluster, "a", "b")

    until(balanced)
    assert all(sum(one != other for one, other in zip(before, after, strict=True)) == 1 for before, after in itertools.pairwise(seen))
    traffic.goes_on()
    assert traffic.end() == NOTHING


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_killed_node_takes_its_own_stores_along_for_a_moment_and_nothing_is_lost_or_doubled(cluster: Cluster) -> None:
    nodes = {name: cluster.start(name) for name in "abc"}
    until(lambda: spread_over(cluster, "a", "b", "c"))
    kept = {number: owner for number, owner in enumerate(owners(cluster)) if owner != "b"}
    traffic = Traffic(nodes, QUEUES, keyed=frozenset({"p"}))
    traffic.goes_on()
    nodes.pop("b").process.kill()
    until(lambda: "b" not in owners(cluster) and "" not in owners(cluster))
    found = owners(cluster)
    assert {number: found[number] for number in kept} == kept, "only the stores of the dead node move"
    traffic.goes_on()
    nodes["b"] = cluster.start("b")
    until(lambda: spread_over(cluster, "a", "b", "c"))
    traffic.goes_on()
    assert traffic.end() == NOTHING


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_one_store_is_moved_and_another_taken_while_clients_go_on_and_both_stay_where_they_were_put(cluster: Cluster) -> None:
    nodes = {name: cluster.start(name) for name in "ab"}
    until(lambda: spread_over(cluster, "a", "b"))
    traffic = Traffic(nodes, QUEUES, keyed=frozenset({"p"}))
    traffic.goes_on()
    of_b = [number for number, owner in enumerate(owners(cluster)) if owner == "b"]
    for number, command in zip(of_b, ("move", "take"), strict=True):
        cluster.command(command, f"tandem/{number}", "a")
        until(lambda number=number: owners(cluster)[number] == "a")  # type: ignore[misc]
        traffic.goes_on()
    until(lambda: [owners(cluster)[number] for number in range(4) if number not in of_b] == ["b", "b"])
    assert [owners(cluster)[number] for number in of_b] == ["a", "a"], "nobody moves what an operator has placed; the others make room"
    assert cluster.command("status", "--seconds", "1").count("put there by hand") == 2
    cluster.command("move", "tandem", "a")
    until(lambda: owners(cluster) == ["a"] * 4)
    cluster.command("spread", "tandem")
    until(lambda: spread_over(cluster, "a", "b"))
    assert traffic.end() == NOTHING


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_drained_node_gives_its_stores_away_and_gets_some_back_and_a_gathered_namespace_is_with_one(cluster: Cluster) -> None:
    nodes = {name: cluster.start(name) for name in "ab"}
    until(lambda: spread_over(cluster, "a", "b"))
    traffic = Traffic(nodes, QUEUES, keyed=frozenset({"p"}))
    cluster.command("drain", "a")
    until(lambda: owners(cluster) == ["b"] * 4)
    traffic.goes_on()
    cluster.command("drain", "a", "--end")
    until(lambda: spread_over(cluster, "a", "b"))
    traffic.goes_on()
    cluster.command("gather", "tandem")
    until(lambda: len(set(owners(cluster)) - {""}) == 1 and "" not in owners(cluster))
    traffic.goes_on()
    assert traffic.end() == NOTHING


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_selective_receiver_and_a_browser_find_what_every_node_has_and_what_a_killed_one_had(cluster: Cluster) -> None:
    nodes = {name: cluster.start(name) for name in "ab"}
    until(lambda: spread_over(cluster, "a", "b"))
    sent = [str(number) for number in range(12)]
    with ServiceBusClient.from_connection_string(nodes["a"].connection_string) as sdk, sdk.get_queue_sender("p") as sender:
        for text in sent:  # the SDK tries again while a store is still being opened
            thirds: dict[str | bytes, Any] = {"third": int(text) % 3 == 0}
            sender.send_messages(ServiceBusMessage(text, partition_key=f"key-{text}", application_properties=thirds))
    with Raw(nodes["a"].port) as near, Raw(nodes["b"].port) as far:
        for client in (near, far):
            assert sorted(texts(attach(client, "p", {}, mode="copy").drain(50))) == sorted(sent)
        receiver = select(near, "third", "p")
        (first,) = receiver.receive()
        receiver.settle(first, amqp.ACCEPTED)
        receiver.link.grant(1)
        near.until(lambda: bool(receiver.end.deliveries))
        nodes.pop("b").process.kill()
        until(lambda: set(owners(cluster)) == {"a"})
        found = {first.text}
        receiver.link.grant(10)
        near.until(lambda: found | set(texts(receiver.end.deliveries)) == {"0", "3", "6", "9"})
        assert first.text not in texts(receiver.end.deliveries), "what was completed does not come again"
        near.quiet()
        assert not {text for text in texts(receiver.end.deliveries) if int(text) % 3}
        browsed = texts(attach(near, "p", {}, mode="copy").drain(50))
        assert sorted(browsed, key=int) == [text for text in sent if int(text) % 3]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_everything_is_found_again_after_all_nodes_were_killed_at_once(cluster: Cluster) -> None:
    nodes = {name: cluster.start(name) for name in "ab"}
    until(lambda: spread_over(cluster, "a", "b"))
    for queue in ["p", *PLAIN]:
        for number in range(8):
            until(lambda queue=queue, number=number: try_send(nodes["ab"[number % 2]].connection_string, f"{queue}-{number}", queue))  # type: ignore[misc]
    for node in nodes.values():
        node.process.kill()
    nodes = {name: cluster.start(name) for name in "ab"}
    until(lambda: spread_over(cluster, "a", "b"))
    for queue in ["p", *PLAIN]:
        until(lambda queue=queue: try_send(nodes["a"].connection_string, f"{queue}-after", queue))  # type: ignore[misc]
        found = receive_all(nodes["b"].connection_string, queue)
        assert sorted(found) == sorted([*(f"{queue}-{number}" for number in range(8)), f"{queue}-after"])


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_transactions_over_several_nodes_are_whole_or_absent_whichever_is_killed(cluster: Cluster) -> None:
    nodes = {name: cluster.start(name) for name in "abc"}
    until(lambda: spread_over(cluster, "a", "b", "c"))
    movers = Movers(lambda: [node.port for node in list(nodes.values())], ["p", *PLAIN], 40, KILLS)
    until(lambda: all(try_send(nodes["a"].connection_string, "x", queue) for queue in ["p", *PLAIN]))
    for queue in ["p", *PLAIN]:
        assert receive_all(nodes["b"].connection_string, queue) == ["x"]
    movers.start()
    for name, _ in zip(itertools.cycle("bac"), range(KILLS), strict=False):
        moved = movers.moved
        until(lambda moved=moved: movers.moved > moved + 20, 90, "transactions")  # type: ignore[misc]
        nodes.pop(name).process.kill()
        moved = movers.moved
        until(lambda moved=moved: movers.moved > moved + 10, 90, "transactions of the others")  # type: ignore[misc]
        nodes[name] = cluster.start(name)
    assert movers.end(90) == movers.sent, "each once"
    assert movers.broken > 0, "the kills met nothing"
    assert movers.batches > 0, "none of them was over several nodes at once"
