"""Rows that are missing in the metadata: messages that nobody can reach any more are told, and are there again with the right metadata."""

from __future__ import annotations

import json
import shutil
import sqlite3
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from tests.cli.broker_process import BrokerProcess

BEFORE = '[[queue]]\nname = "kept"\n[[queue]]\nname = "lost"\n[[topic]]\nname = "t"\n[[topic.subscription]]\nname = "s"\n'
AFTER = '[[queue]]\nname = "kept"\n'
COUNT = 5


def start(directory: Path, config: str) -> BrokerProcess:
    (directory / "tandem.toml").write_text(config)
    return BrokerProcess(directory, "--port", "0", "--dev", "--data", "data", log=directory / "log")


def receive(client: ServiceBusClient, count: int) -> None:
    with client.get_queue_receiver("lost") as receiver:
        got: list[Any] = []
        while len(got) < count:
            got += receiver.receive_messages(count - len(got), max_wait_time=20)
        for message in got:
            receiver.complete_message(message)


def notes_of(broker: BrokerProcess) -> list[str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.port}/$tandem/health", timeout=20) as answer:
        return [note for store in json.load(answer)["namespaces"][0]["stores"] for note in store["notes"]]


@pytest.mark.slow
def test_messages_whose_entity_the_metadata_does_not_have_are_told_and_can_be_had_back(tmp_path: Path) -> None:
    with start(tmp_path, BEFORE) as broker:
        with ServiceBusClient.from_connection_string(broker.connection_string) as client:
            for queue in ("kept", "lost"):
                with client.get_queue_sender(queue) as sender:
                    sender.send_messages([ServiceBusMessage(f"{number}") for number in range(COUNT + 2)])
            receive(client, 2)
            with client.get_topic_sender("t") as topic:
                topic.send_messages([ServiceBusMessage(f"{number}") for number in range(COUNT)])
        broker.stop()
    metadata = tmp_path / "data" / "tandem" / "metadata.sqlite"
    shutil.copy(metadata, tmp_path / "backup")
    with sqlite3.connect(metadata) as rows:
        rows.execute("DELETE FROM entities WHERE path IN ('lost', 't/subscriptions/s')")
    rows.close()
    wanted = [f"{COUNT} messages of the queue 'lost'", f"{COUNT} messages of the subscription 't/Subscriptions/s'"]
    with start(tmp_path, AFTER) as broker:
        told = notes_of(broker)
        assert [any(note.startswith(what) for note in told) for what in wanted] == [True, True], told
        with urllib.request.urlopen(f"http://127.0.0.1:{broker.port}/$tandem/metrics", timeout=20) as answer:
            assert (
                sum(float(line.split()[-1]) for line in answer.read().decode().splitlines() if line.startswith("tandem_store_notes{")) == 2
            )
        broker.stop()
    assert all(what in (tmp_path / "log").read_text() for what in wanted)
    events = [json.loads(line) for line in (tmp_path / "data" / "events.jsonl").read_text().splitlines()]
    assert sorted(one["detail"][:10] for one in events if one["kind"] == "store-dropped") == ["5 messages"] * 2
    shutil.copy(tmp_path / "backup", metadata)
    with start(tmp_path, AFTER) as broker:
        assert notes_of(broker) == []
        with ServiceBusClient.from_connection_string(broker.connection_string) as client:
            receive(client, COUNT)
        broker.stop()


@pytest.mark.slow
def test_an_entity_that_was_deleted_as_it_should_be_is_no_news(tmp_path: Path) -> None:
    from tests.cli.operations.conftest import command_line

    with start(tmp_path, BEFORE) as broker:
        with ServiceBusClient.from_connection_string(broker.connection_string) as client, client.get_queue_sender("lost") as sender:
            sender.send_messages([ServiceBusMessage("x") for _ in range(COUNT)])
        assert command_line("queue", "delete", "lost", "--yes", "-c", broker.connection_string).returncode == 0
        broker.stop()
    with start(tmp_path, AFTER) as broker:
        assert notes_of(broker) == []
        broker.stop()
