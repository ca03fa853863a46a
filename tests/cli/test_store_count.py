"""Another number of stores than a namespace had: it starts with all of its messages, or not at all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from tests.cli.broker_process import BrokerProcess

PLAIN = "".join(f'[[queue]]\nname = "q{number}"\n' for number in range(5))
PARTED = '[[queue]]\nname = "parted"\nenable_partitioning = true\n'
PARTED_TOPIC = '[[topic]]\nname = "parted"\nenable_partitioning = true\n[[topic.subscription]]\nname = "s"\n'
KEYS = 16


def arguments(stores: int, *more: str) -> tuple[str, ...]:
    return ("--dev", "--port", "0", "--data", "data", "--store-count", str(stores), *more)


def refusal(directory: Path, stores: int, *more: str) -> str:
    program = [sys.executable, "-m", "tandem", "serve", *arguments(stores, *more)]
    done = subprocess.run(program, cwd=directory, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    return done.stderr


def send(broker: BrokerProcess, messages: list[ServiceBusMessage], *, topic: bool = False, name: str = "parted") -> None:
    with (
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_topic_sender(name) if topic else client.get_queue_sender(name) as sender,
    ):
        for message in messages:
            sender.send_messages(message)


def keyed() -> list[ServiceBusMessage]:
    return [ServiceBusMessage("x", partition_key=f"key {number}") for number in range(KEYS)]


@pytest.mark.slow
@pytest.mark.parametrize(("topic", "more"), [(False, ()), (True, ("--workers", "2"))], ids=["queue", "topic and workers"])
def test_more_stores_are_refused_where_fragments_would_not_be_found(tmp_path: Path, topic: bool, more: tuple[str, ...]) -> None:
    (tmp_path / "tandem.toml").write_text(PARTED_TOPIC if topic else PARTED)
    with BrokerProcess(tmp_path, *arguments(2)) as broker:
        send(broker, keyed(), topic=topic)
        broker.stop()
    said = refusal(tmp_path, 3, *more)
    assert "of 'parted" in said
    assert "set stores.count to what it was" in said
    with BrokerProcess(tmp_path, *arguments(2)) as broker:
        with (
            ServiceBusClient.from_connection_string(broker.connection_string) as client,
            client.get_subscription_receiver("parted", "s") if topic else client.get_queue_receiver("parted") as receiver,
        ):
            assert len(receiver.peek_messages(2 * KEYS)) == KEYS
        broker.stop()


@pytest.mark.slow
def test_fewer_stores_are_refused_with_how_many_there_are(tmp_path: Path) -> None:
    (tmp_path / "tandem.toml").write_text(PLAIN)
    with BrokerProcess(tmp_path, *arguments(4)) as broker:
        broker.stop()
    assert "stores.count: found 3; allowed is at least 4: there are so many in " in refusal(tmp_path, 3)


@pytest.mark.slow
def test_more_stores_are_begun_where_everything_is_found(tmp_path: Path) -> None:
    (tmp_path / "tandem.toml").write_text(PLAIN + PARTED)
    with BrokerProcess(tmp_path, *arguments(2)) as broker:
        send(broker, [ServiceBusMessage("before")], name="q3")
        broker.stop()
    with BrokerProcess(tmp_path, *arguments(4)) as broker:
        send(broker, keyed())
        with ServiceBusClient.from_connection_string(broker.connection_string) as client, client.get_queue_receiver("q3") as receiver:
            assert [str(message) for message in receiver.peek_messages(2)] == ["before"]
        broker.stop()
