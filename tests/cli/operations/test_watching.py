"""`tandem connection` and `tandem top` against a real broker."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
import urllib.request

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import MessageLockLostError, ServiceBusError

from tandem.model.sas_token import make_token
from tests.cli.broker_process import BrokerProcess
from tests.cli.operations.conftest import Tandem


@pytest.mark.slow
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


def test_locks_are_listed_with_their_holder_and_released(broker: BrokerProcess, tandem: Tandem) -> None:
    tandem("queue", "create", "held")
    tandem("send", "held", "x", "--count", "3")
    with ServiceBusClient.from_connection_string(broker.connection_string) as client, client.get_queue_receiver("held") as receiver:
        first, second, _ = receiver.receive_messages(3, max_wait_time=30)
        rows = json.loads(tandem("lock", "list", "held", "--json").stdout)
        assert [row["sequence_number"] for row in rows] == [1, 2, 3] and len({row["holder"] for row in rows}) == 1
        [connection] = json.loads(tandem("connection", "list", "--json").stdout)
        assert rows[0]["holder"] == connection["peer"] and rows[0]["holder"] in tandem("lock", "list", "held").stdout
        refused = tandem("lock", "release", "held", "1", "77", expect=2).stderr
        assert "Nothing was released" in refused
        assert "released 1" in tandem("lock", "release", "held", "1").stdout
        with pytest.raises(MessageLockLostError):
            receiver.complete_message(first)
        receiver.complete_message(second)
        assert json.loads(tandem("lock", "release", "held", "--all", "--yes", "--json").stdout)[0]["released"] == 1
        assert json.loads(tandem("lock", "list", "held", "--json").stdout) == []
        again = receiver.receive_messages(2, max_wait_time=30)
        assert [(one.sequence_number, one.delivery_count) for one in again] == [(1, 1), (3, 1)]
    assert "say what to release" in tandem("lock", "release", "held", expect=2).stderr


@pytest.mark.slow
def test_a_session_is_taken_from_its_holder(broker: BrokerProcess, tandem: Tandem) -> None:
    tandem("queue", "create", "in-sessions", "-p", "requires-session=true")
    tandem("send", "in-sessions", "x", "--session-id", "s1")
    with ServiceBusClient.from_connection_string(broker.connection_string) as client:
        with client.get_queue_receiver("in-sessions", session_id="s1") as receiver:
            [message] = receiver.receive_messages(1, max_wait_time=30)
            [row] = json.loads(tandem("lock", "list", "in-sessions", "--json").stdout)
            assert (row["session_id"], row["sequence_number"]) == ("s1", message.sequence_number)
            assert "release session 's1'" in tandem("lock", "release", "in-sessions", str(message.sequence_number), expect=2).stderr
            assert "released 1" in tandem("lock", "release", "in-sessions", "--session", "s1").stdout
            with pytest.raises(ServiceBusError):
                receiver.complete_message(message)
        with client.get_queue_receiver("in-sessions", session_id="s1") as another:
            assert another.receive_messages(1, max_wait_time=30)[0].delivery_count == 1


def test_top_shows_depth_and_rates(tandem: Tandem) -> None:
    tandem("queue", "create", "busy")
    tandem("send", "busy", "x", "--count", "7")
    shown = json.loads(tandem("top", "--json", "--every", "0.3").stdout)
    [row] = [one for one in shown["entities"] if one["entity"] == "busy"]
    assert (row["active"], row["dead_letters"], row["in_per_second"]) == (7, 0, 0.0)
    assert all(store.endswith(" up") for store in shown["stores"])
    assert "busy" in tandem("top", "--once", "--every", "0.3", "--sort", "entity").stdout
    assert "--sort" in tandem("top", "--once", "--sort", "colour", expect=2).stderr


def test_top_in_a_terminal_sorts_shows_one_entity_with_who_is_attached_and_ends(broker: BrokerProcess, tandem: Tandem) -> None:
    tandem("queue", "create", "aaa-first")
    with ServiceBusClient.from_connection_string(broker.connection_string) as client, client.get_queue_sender("aaa-first") as sender:
        sender.send_messages(ServiceBusMessage("x"))
        command = [sys.executable, "-m", "tandem", "top", "--every", "0.3", "-c", broker.connection_string]
        master, slave = pty.openpty()
        with subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=os.environ | {"TERM": "xterm", "COLUMNS": "160", "LINES": "40"}
        ) as top:
            os.close(slave)
            seen = read_until(master, "aaa-first")
            assert "oldest seconds" in seen and "consumers" in seen
            os.write(master, b"n")
            read_until(master, "entity ▾")
            os.write(master, b"\r")
            assert "sends" in read_until(master, "b: back")
            os.write(master, b"b")
            read_until(master, "dead letters")
            os.write(master, b"q")
            assert top.wait(30) == 0
        os.close(master)


def read_until(terminal: int, text: str) -> str:
    seen = ""
    deadline = time.monotonic() + 60
    while text not in seen:
        assert time.monotonic() < deadline, seen[-2_000:]
        if select.select([terminal], [], [], 1)[0]:
            seen += os.read(terminal, 65_536).decode(errors="replace")
    return seen


def test_paths_that_clients_report_as_failed_over_are_named(broker: BrokerProcess, tandem: Tandem) -> None:
    line = {"at_ms": 1_800_000_000_000, "source": "client", "who": "shop-1", "kind": "path-failed-over", "path": "orders", "detail": ""}
    parts = dict(part.partition("=")[::2] for part in broker.connection_string.split(";"))
    token = make_token(f"sb://localhost:{broker.port}/", parts["SharedAccessKeyName"], parts["SharedAccessKey"], 4_000_000_000_000)
    url = f"http://localhost:{broker.port}/$tandem/api/reports"
    headers = {"Authorization": token, "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps({"lines": [line]}).encode(), headers), timeout=30):
        pass
    shown = json.loads(tandem("top", "--json", "--every", "0.2").stdout)
    assert shown["failed_over"] == ["orders (shop-1)"]


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
