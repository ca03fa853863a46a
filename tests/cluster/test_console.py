"""The console of a node shows the whole cluster, and the messages of a namespace that another node serves."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.broker_process import BrokerProcess
from tests.cluster.nodes import CONFIG, Cluster, receive_all, sender_of, until
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


@pytest.mark.slow
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
    until(lambda: console("GET", "overview")["latest"]["active"] == 3)
    seen = console("GET", "overview")
    alarms = [one for one in seen["alarms"] if one["level"] == "bad"]  # the others are of this machine: its disk, and how busy it is
    assert {one["state"] for one in seen["stores"]} == {"up"} and alarms == [], "of all nodes together"
    assert [(one["name"], one["answers"], one["active"]) for one in seen["workers"]] == [("a", True, 3), ("b", True, 0)]
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


@pytest.mark.slow
def test_stores_are_moved_and_a_node_is_drained_from_the_console_of_any_node(cluster: Cluster, browser: Browser) -> None:
    asked = cluster.start("a")
    cluster.start("b")
    console = ConsoleClient(asked.port)
    until(lambda: len(told(console)["nodes"]) == 2 and owners(console) == {"a"})
    with sender_of(asked.connection_string) as send:
        send("before")
        browser.open(f"http://localhost:{asked.port}/$tandem/console/#/cluster")
        browser.click("Move…")
        browser.choose("To node", "b")
        browser.click("Move…")
        browser.sees("Move all stores of tandem to node b? Clients wait while a store changes hands; nothing is lost.")
        browser.click("No")
        assert owners(console) == {"a"}, "nobody has said yes"
        browser.click("Move…")
        browser.choose("To node", "b")
        browser.click("Move…")
        browser.click("Move")
        browser.sees("tandem moves to node b")
        until(lambda: owners(console) == {"b"})
        send("after")
        browser.click("Drain b")
        browser.sees("Drain node b? It will serve nothing until you end that")
        browser.axe()
        browser.click("Drain")
        browser.sees("node b is drained: what it serves moves to others")
        until(lambda: owners(console) == {"a"})
        browser.sees("Drained: b serves nothing of this namespace")
        browser.click("End draining b")
        browser.sees("node b may serve again")
        browser.sees_not("Drained: b")
        send("at the end")
    assert receive_all(asked.connection_string) == ["before", "after", "at the end"]
    written = [json.loads(line) for line in (cluster.directory / "data-a" / "audit.jsonl").read_text().splitlines()]
    wishes = [line["detail"] for line in written if line["action"] == "changed" and "cluster/" in line.get("detail", "")]
    assert [wish.partition(", ")[2] for wish in wishes] == [
        "tandem moves to node b",
        "node b is drained: what it serves moves to others",
        "node b may serve again",
    ]
    browser.check_quiet()


def served_by(console: ConsoleClient, node: str) -> list[int]:
    return [one["store"] for one in told(console)["stores"] if one["served"] and one["owner"] == node]


@pytest.mark.slow
def test_one_store_is_moved_from_the_console_where_stores_are_spread(tmp_path: Path, spread_dsn: str, browser: Browser) -> None:
    cluster = Cluster(tmp_path, spread_dsn, peers=True)
    try:
        asked = cluster.start("a")
        cluster.start("b")
        console = ConsoleClient(asked.port)
        until(lambda: served_by(console, "a") and served_by(console, "b"))
        moved = served_by(console, "a")[0]
        browser.open(f"http://localhost:{asked.port}/$tandem/console/#/cluster")
        browser.click("Move…")
        browser.choose("What", str(moved))
        browser.choose("To node", "b")
        browser.click("Move…")
        browser.sees(f"Move store-{moved} to node b?")
        browser.click("Move")
        browser.sees(f"tandem/{moved} moves to node b")
        until(lambda: moved in served_by(console, "b"))
        browser.check_quiet()
    finally:
        cluster.close()


READER = '[[authorization_rule]]\nname = "reader"\nrights = ["Listen"]\nprimary_key = "look"\n'


def test_whoever_may_not_manage_and_what_is_not_there_are_refused(tmp_path: Path, cluster_dsn: str) -> None:
    cluster = Cluster(tmp_path, cluster_dsn, config=CONFIG + READER, peers=True)
    try:
        asked = cluster.start("a")
        reader = ConsoleClient(asked.port, {"key_name": "reader", "key": "look"})
        root = ConsoleClient(asked.port)
        for what in ("move", "drain"):
            with pytest.raises(Refusal, match="'Manage' is needed"):
                reader("POST", f"cluster/{what}", node="a")
            with pytest.raises(Refusal, match="there is no node 'nowhere'; known are a"):
                root("POST", f"cluster/{what}", node="nowhere")
        with pytest.raises(Refusal, match="'node' must be a str"):
            root("POST", "cluster/drain", node=7)
    finally:
        cluster.close()
