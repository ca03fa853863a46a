"""A broker with two stores, each with a queue of its own, whose files and disk can be tampered with; used by the tests of stores."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiver

from tandem.model.sas_token import make_token
from tests.cli.broker_process import BrokerProcess
from tests.waiting import wait_until

CONFIG = """
[stores]
count = 2
segment_bytes = 1048576
free_bytes_min = 3145728

[[queue]]
name = "first"

[[queue]]
name = "second"

[[queue]]
name = "spread"
enable_partitioning = true
"""
PATIENCE_SECONDS = 30
ARGUMENTS = ("--port", "0", "--dev", "--data", "data", "--config", "tandem.toml")


class House:
    def __init__(self, directory: Path, config: str = CONFIG) -> None:
        (directory / "tandem.toml").write_text(config)
        self.directory = directory
        self.seen: set[str] = set()
        self.start()

    def start(self) -> None:
        self.broker = BrokerProcess(self.directory, *ARGUMENTS).__enter__()
        self.client = ServiceBusClient.from_connection_string(self.broker.connection_string, retry_total=0)

    def stop(self) -> str:
        """What the broker said on standard error."""
        self.client.close()
        if self.broker.process.poll() is not None:
            return ""
        return self.broker.stop()[1]

    def store(self, queue: str) -> Path:
        """Where the queue's messages are: the stores take turns in the order of the configuration."""
        return next(self.directory.glob(f"data/*/store-{('first', 'second').index(queue)}"))

    def kill(self) -> None:
        """With kill -9."""
        self.client.close()
        self.broker.process.kill()
        self.broker.process.communicate(timeout=30)

    def page(self, name: str) -> str:
        """A page below `/$tandem/`."""
        base = f"http://localhost:{self.broker.port}/"
        token = make_token(base, "RootManageSharedAccessKey", "SAS_KEY_VALUE", int(time.time() * 1000) + 600_000)
        request = urllib.request.Request(f"{base}$tandem/{name}", headers={"Authorization": token})
        with urllib.request.urlopen(request, timeout=10) as reply:
            text: str = reply.read().decode()
            return text

    def health(self) -> list[dict[str, Any]]:
        stores: list[dict[str, Any]] = json.loads(self.page("health"))["namespaces"][0]["stores"]
        return stores

    def states(self) -> list[str]:
        return [store["state"] for store in self.health()]

    def await_states(self, *wanted: str) -> None:
        eventually(lambda: self.states() == list(wanted), lambda: f"stores are {self.health()}, not {wanted}")

    def await_cause(self, why: str) -> None:
        """The first store says so; while it is tried again it says that."""
        eventually(lambda: why in self.health()[0]["cause"], lambda: f"stores are {self.health()}, not so because '{why}'")

    def send(self, queue: str, count: int, size: int = 100) -> None:
        with self.client.get_queue_sender(queue) as sender:
            for number in range(count):
                sender.send_messages(ServiceBusMessage(b"x" * size, message_id=str(number)))

    def receive(self, queue: str, most: int) -> int:
        taken = 0
        with self.client.get_queue_receiver(queue, prefetch_count=0) as receiver:
            while taken < most and (found := self._some(receiver, min(most - taken, 50))):
                taken += found
        return taken

    def _some(self, receiver: ServiceBusReceiver, most: int) -> int:
        messages = receiver.receive_messages(most, max_wait_time=3)
        for message in messages:
            self.seen.add(str(message.message_id))
            receiver.complete_message(message)
        return len(messages)


def eventually(holds: Callable[[], bool], otherwise: Callable[[], str]) -> None:
    wait_until(holds, otherwise, PATIENCE_SECONDS)


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))
