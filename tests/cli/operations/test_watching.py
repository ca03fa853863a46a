"""`tandem connection` and `tandem top` against a real broker."""

from __future__ import annotations

import json

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from tests.cli.broker_process import BrokerProcess
from tests.cli.operations.conftest import Tandem


def test_connections_are_listed_with_their_links_and_one_can_be_closed(broker: BrokerProcess, tandem: Tandem) -> None:
    tandem("queue", "create", "watched")
    with ServiceBusClient.from_connection_string(broker.connection_string) as client, client.get_queue_sender("watched") as sender:
        sender.send_messages(ServiceBusMessage("x"))
        [one] = json.loads(tandem("connection", "list", "--json").stdout)
        assert [(link["entity"], link["role"]) for link in one["links"]] == [("watched", "sends")]
        assert one["authenticated"] and "azsdk-python" in one["client"]
        assert "sends watched" in tandem("connection", "list").stdout
        assert one["peer"] in tandem("connection", "close", one["peer"]).stdout
        sender.send_messages(ServiceBusMessage("y"))  # the SDK connects again
        [again] = json.loads(tandem("connection", "list", "--json").stdout)
        assert again["peer"] != one["peer"]
    assert "There is no connection" in tandem("connection", "close", "1.2.3.4:5", expect=2).stderr


def test_top_shows_depth_and_rates(tandem: Tandem) -> None:
    tandem("queue", "create", "busy")
    tandem("send", "busy", "x", "--count", "7")
    shown = json.loads(tandem("top", "--json", "--every", "0.3").stdout)
    [row] = [one for one in shown["entities"] if one["entity"] == "busy"]
    assert (row["active"], row["dead_letters"], row["in_per_second"]) == (7, 0, 0.0)
    assert all(store.endswith(" up") for store in shown["stores"])
    assert "busy" in tandem("top", "--once", "--every", "0.3", "--sort", "entity").stdout
    assert "--sort" in tandem("top", "--once", "--sort", "colour", expect=2).stderr


def test_rates_are_what_came_between_two_looks() -> None:
    from tandem.cli.operations.top import TopSnapshot

    before = TopSnapshot(10.0, {"a": {"in": 5.0, "out": 1.0}})
    now = TopSnapshot(12.0, {"a": {"in": 25.0, "out": 1.0, "active": 24.0}, "b": {"active": 1.0}})
    assert [(row["entity"], row["in_per_second"], row["active"]) for row in now.rows(before, "active")] == [("a", 10.0, 24), ("b", 0.0, 1)]
    assert [row["entity"] for row in now.rows(before, "entity")] == ["a", "b"]


@pytest.mark.parametrize("page", ["connections"])
def test_connections_need_manage(broker: BrokerProcess, page: str) -> None:
    from tests.gateway.http.test_pages import ask

    assert ask(broker.port, f"/$tandem/{page}")[0] == 401
