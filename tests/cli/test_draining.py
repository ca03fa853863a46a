"""SIGTERM: what clients have in hand is finished, nothing new begins, and the broker says how long that took."""

from __future__ import annotations

import re
import signal
import threading
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from tests.cli.broker_process import BrokerProcess

CONFIGURATION = 'drain_seconds = {seconds}\n\n[[queue]]\nname = "orders"\n\n[[queue]]\nname = "others"\n'


def start(directory: Path, seconds: int) -> BrokerProcess:
    (directory / "tandem.toml").write_text(CONFIGURATION.format(seconds=seconds))
    return BrokerProcess(directory, "--port", "0", "--dev", "--data", "data", "--config", "tandem.toml")


@pytest.mark.slow
def test_a_receiver_may_settle_what_it_has_while_nobody_new_is_let_in(tmp_path: Path) -> None:
    with start(tmp_path, 60) as broker, ServiceBusClient.from_connection_string(broker.connection_string, retry_total=0) as client:
        with client.get_queue_sender("orders") as sender:
            sender.send_messages([ServiceBusMessage(str(number)) for number in range(3)])
        with client.get_queue_receiver("orders", prefetch_count=0) as receiver:
            first, second, third = receiver.receive_messages(3, max_wait_time=30)
            receiver.complete_message(first)
            broker.process.send_signal(signal.SIGTERM)
            refused = None
            while refused is None:  # until the signal has arrived
                try:
                    with client.get_queue_sender("others") as late:
                        late.send_messages(ServiceBusMessage("late"))
                except ServiceBusError as error:
                    refused = error
            receiver.complete_message(second)
            assert broker.process.poll() is None
            receiver.abandon_message(third)
        _, said = broker.process.communicate(timeout=60)
    assert broker.process.returncode == 0
    assert re.search(r"drained in \d+\.\d\d s: 2 of 2 deliveries in hand were settled\n", said), said
    assert "stopped in" in said


@pytest.mark.slow
def test_what_is_not_settled_in_time_is_given_up_and_delivered_again(tmp_path: Path) -> None:
    with start(tmp_path, 1) as broker:
        with ServiceBusClient.from_connection_string(broker.connection_string) as client:
            with client.get_queue_sender("orders") as sender:
                sender.send_messages(ServiceBusMessage("slow"))
            with client.get_queue_receiver("orders") as receiver:
                [_] = receiver.receive_messages(1, max_wait_time=30)
                code, said = broker.stop()
        assert code == 0 and re.search(r"drained in 1\.\d\d s: 0 of 1 deliveries in hand were settled, 1 given up", said), said
    with (
        start(tmp_path, 1) as broker,
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_receiver("orders", receive_mode="receiveanddelete") as receiver,
    ):
        assert [str(one) for one in receiver.receive_messages(1, max_wait_time=30)] == ["slow"]


@pytest.mark.slow
def test_every_send_under_way_is_answered_rightly(tmp_path: Path) -> None:
    """What senders were told was accepted is there, and what they were told was refused is not: nobody has to send twice."""
    accepted: list[str] = []
    some_are_through = threading.Event()

    def send(name: str, connection_string: str) -> None:
        with (
            ServiceBusClient.from_connection_string(connection_string, retry_total=0) as client,
            client.get_queue_sender("orders") as sender,
        ):
            for number in range(100_000):
                try:
                    sender.send_messages(ServiceBusMessage(f"{name}-{number}"))
                except ServiceBusError:
                    return
                accepted.append(f"{name}-{number}")
                if len(accepted) > 50:
                    some_are_through.set()

    with start(tmp_path, 30) as broker:
        senders = [threading.Thread(target=send, args=(name, broker.connection_string)) for name in "abc"]
        for one in senders:
            one.start()
        assert some_are_through.wait(60)
        code, said = broker.stop()
        for one in senders:
            one.join(60)
        assert code == 0 and "drained in" in said
    stored: list[str] = []
    with (
        start(tmp_path, 1) as broker,
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_receiver("orders", receive_mode="receiveanddelete") as receiver,
    ):
        while batch := receiver.receive_messages(500, max_wait_time=2):
            stored += map(str, batch)
    assert sorted(stored) == sorted(accepted)


@pytest.mark.parametrize("seconds", ["-1", '"soon"'])
def test_a_wrong_drain_time_is_refused(tmp_path: Path, seconds: str) -> None:
    (tmp_path / "tandem.toml").write_text(f"drain_seconds = {seconds}\n")
    broker = BrokerProcess(tmp_path, "--port", "0", "--memory")
    _, said = broker.process.communicate(timeout=30)
    assert broker.process.returncode == 2 and "drain_seconds" in said
