"""A system that allows few open files: connections use none that the journals need."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from azure.servicebus import ServiceBusClient, ServiceBusMessage

from tests.cli.broker_process import BrokerProcess
from tests.waiting import wait_until

ALLOWED = 64
CONFIGURATION = '[stores]\nsegment_bytes = 1048576\n[[queue]]\nname = "orders"\n'


def test_connections_beyond_the_open_files_are_refused_and_those_there_are_go_on(tmp_path: Path) -> None:
    (tmp_path / "tandem.toml").write_text(CONFIGURATION)
    limited, log = tmp_path / "limited", tmp_path / "log.txt"
    limited.write_text(f'#!/bin/sh\nulimit -n {ALLOWED}\nexec {sys.executable} "$@"\n')
    limited.chmod(0o755)
    environ = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with (
        BrokerProcess(tmp_path, "--port", "0", "--dev", "--data", "data", log=log, python=str(limited), environ=environ) as broker,
        ServiceBusClient.from_connection_string(broker.connection_string) as bus,
        bus.get_queue_sender("orders") as sender,
        bus.get_queue_receiver("orders", max_wait_time=30) as receiver,
    ):
        sender.send_messages(ServiceBusMessage("first"))
        receiver.complete_message(receiver.receive_messages(1)[0])
        strangers = [socket.create_connection(("127.0.0.1", broker.port), 30) for _ in range(200)]
        for stranger in strangers:
            try:
                stranger.sendall(b"AMQP\x03\x01\x00\x00")
            except OSError:
                continue
        wait_until(
            lambda: f"the system allows {ALLOWED} open files, and the last 16 are kept for journals" in log.read_text(), "it is told"
        )
        for _ in range(100):  # several segments of a journal, each a new file
            sender.send_messages(ServiceBusMessage(b"x" * 60_000))
        got = 0
        while got < 100:
            for message in receiver.receive_messages(100):
                receiver.complete_message(message)
                got += 1
        for stranger in strangers:
            stranger.close()

        def newcomer_sends() -> bool:
            again = ServiceBusClient.from_connection_string(broker.connection_string, retry_total=5)
            with again as other, other.get_queue_sender("orders") as one:
                one.send_messages(ServiceBusMessage("last"))
            return True

        wait_until(newcomer_sends, "there is room again")
    assert "degraded" not in log.read_text() and "cannot be written" not in log.read_text()
