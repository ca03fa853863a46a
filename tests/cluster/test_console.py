"""The console of a node shows the whole cluster, and the messages of a namespace that another node serves."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.broker_process import BrokerProcess
from tests.cluster.nodes import Cluster, sender_of, until
from tests.console.browser import Browser, a_browser
from tests.gateway.http.api.console_client import ConsoleClient, Refusal


@pytest.fixture
def cluster(tmp_path: Path, cluster_dsn: str) -> Iterator[Cluster]:
    made = Cluster(tmp_path, cluster_dsn, peers=True)
    yield made
    made.close()


@pytest.fixture
def browser() -> Iterator[Browser]:
    with a_browser() as running:
        yield running


def page_of(broker: BrokerProcess, name: str) -> str:
    with urllib.request.urlopen(f"http://localhost:{broker.port}/$tandem/{name}", timeout=30) as answer:
        return str(answer.read().decode())


def told(console: ConsoleClient) -> Any:
    try:
        return console("GET", "cluster")
    except (Refusal, OSError):
        return {"nodes": [], "stores": []}


def owners(console: ConsoleClient) -> set[str]:
    return {one["owner"] if one["served"] else "" for one in told(console)["stores"]}


def test_a_node_that_serves_nothing_shows_all_of_them_and_what_another_has(cluster: Cluster, browser: Browser) -> None:
    owner = cluster.start("a")
    other = cluster.start("b")
    console = ConsoleClient(other.port)
    until(lambda: len(told(console)["nodes"]) == 2 and owners(console) == {"a"})
    with sender_of(other.connection_string) as send:
        for number in range(3):
            send(f"{number}")
        seen = told(console)
        assert {one["name"]: one["lives"] for one in seen["nodes"]} == {"a": True, "b": True}
        assert seen["figures"]["b"]["carried_links"] == {"a": 1} and seen["figures"]["a"]["carried_links"] == {}
        assert seen["figures"]["a"]["commits"] > 0 and seen["figures"]["a"]["commit_ms"] > 0, "asked of the other node"
        assert 'tandem_cluster_carried_links{namespace="tandem",node="a"} 1.0' in page_of(other, "metrics")
        health = json.loads(page_of(other, "health"))["cluster"]
        assert health["carried_links"] == {"tandem": {"a": 1}} and {one["owner"] for one in health["stores"]} == {"a"}
    assert [row["message_id"] for row in console("POST", "messages", path="q")["messages"]] == ["0", "1", "2"]
    assert console("POST", "entity", path="q")["counts"]["active"] == 3
    browser.open(f"http://localhost:{other.port}/$tandem/console/#/cluster")
    browser.sees("this one")
    browser.goto("#/entity/q/messages")
    browser.sees("Sequence number")
    browser.sees("Page 1")
    owner.process.kill()
    until(lambda: owners(console) == {"b"})
    until(lambda: told(console)["figures"]["b"]["takeovers"] == len(told(console)["stores"]))
    browser.goto("#/cluster")
    browser.sees("node a is dead")
    assert console("POST", "entity", path="q")["counts"]["active"] == 3
    browser.axe()
