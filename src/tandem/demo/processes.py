"""Who plays in the demo: brokers as processes, paired senders, receivers; each writes down what it did."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusError

from tandem.aio import PairedNamespaces
from tandem.client.errors import describe
from tandem.testing.ports import free_port

QUEUES: Final = ("orders", "payments")
_KEY: Final = "SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
_CONFIGURATION: Final = """
[stores]
count = 2
audit_retention = "1d"

[[namespace]]
name = "{name}"
"""
_QUEUE: Final = """
[[namespace.queue]]
name = "{name}"
requires_duplicate_detection = true
"""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def connection_string(port: int) -> str:
    return f"Endpoint=sb://localhost:{port};{_KEY}"


class BrokerProcess:
    """One `tandem serve` on a port that stays the same through every restart."""

    def __init__(self, home: Path, name: str, queues: tuple[str, ...]) -> None:
        self.name = name
        self.home = home / name
        self.home.mkdir(exist_ok=True)
        self.port = free_port()
        self.process: subprocess.Popen[str] | None = None
        (self.home / "tandem.toml").write_text(self._configuration(queues), encoding="utf-8")

    def _configuration(self, queues: tuple[str, ...]) -> str:
        return _CONFIGURATION.format(name=self.name) + "".join(_QUEUE.format(name=queue) for queue in queues)

    @property
    def data(self) -> Path:
        return self.home / "data"

    @property
    def connection_string(self) -> str:
        return connection_string(self.port)

    @property
    def up(self) -> bool:
        return self.process is not None and self.process.poll() is None

    async def start(self) -> None:
        await asyncio.to_thread(self._start)

    def _start(self) -> None:
        command = [sys.executable, "-m", "tandem", "serve", "--dev", "--port", str(self.port), "--data", str(self.data)]
        with (self.home / "broker.log").open("a", encoding="utf-8") as log:
            self.process = subprocess.Popen(command, cwd=self.home, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("ready"):
                return
        said = (self.home / "broker.log").read_text(encoding="utf-8")
        raise RuntimeError(f"the broker {self.name} ended with {self.process.wait()}: {said[-2_000:]}")

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    async def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                await asyncio.to_thread(self.process.wait, 20)
            except subprocess.TimeoutExpired:
                self.kill()


class MessageLedger:
    """Lines of JSON: what was sent, or received, in order."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("w", encoding="utf-8")
        self._number = 0

    def add(self, message_id: str, path: str) -> None:
        self._number += 1
        self._file.write(json.dumps({"message_id": message_id, "path": path, "at_ms": now_ms(), "number": self._number}) + "\n")

    def close(self) -> None:
        self._file.close()


@dataclass(slots=True)
class TrafficCount:
    """What everybody has done so far."""

    sent: int = 0
    failed: int = 0
    received: int = 0
    sent_by: dict[str, int] = field(default_factory=dict)
    received_by: dict[str, int] = field(default_factory=dict)


class Traffic(ABC):
    """Senders and a receiver for each queue, until they are told to stop."""

    def __init__(self, connection_string: str, rate: float, directory: Path) -> None:
        """`connection_string`: where receivers go."""
        self._connection_string = connection_string
        self._pause = len(QUEUES) / rate
        self.tally = TrafficCount()
        self.sent = MessageLedger(directory / "sent.jsonl")
        self.received = MessageLedger(directory / "received.jsonl")
        self._sent_ids: set[str] = set()
        self._seen: set[tuple[str, int]] = set()
        self._received_ids: set[str] = set()
        self._quiet = asyncio.Event()
        self._done = asyncio.Event()
        self._senders: list[asyncio.Task[None]] = []
        self._receivers: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._senders = [asyncio.ensure_future(self._send(queue)) for queue in QUEUES]
        self._receivers = [asyncio.ensure_future(self._receive(queue)) for queue in QUEUES]

    async def stop_sending(self) -> None:
        self._quiet.set()
        await asyncio.gather(*self._senders)

    @property
    def outstanding(self) -> int:
        """Sent and not received yet."""
        return len(self._sent_ids - self._received_ids)

    @property
    def duplicated(self) -> int:
        """Copies beyond the first."""
        return len(self._seen) - len(self._received_ids)

    async def finish(self, patience: float) -> None:
        """Until everything sent has come, or nothing has come for so many seconds."""
        last, since = self.tally.received, time.monotonic()
        while self.outstanding and time.monotonic() - since < patience:
            await asyncio.sleep(0.1)
            if self.tally.received != last:
                last, since = self.tally.received, time.monotonic()
        self._done.set()
        await asyncio.gather(*self._receivers)
        self.sent.close()
        self.received.close()

    @abstractmethod
    async def _send(self, queue: str) -> None:
        """Steadily, until `_quiet`; every message until it is accepted."""

    async def _due(self, queue: str) -> AsyncIterator[str]:
        """Ids of messages, each when it is time to send it."""
        due = time.monotonic()
        number = 0
        while not self._quiet.is_set():
            number += 1
            yield f"{queue}-{number:06d}"
            due = max(due + self._pause, time.monotonic() - 1.0)
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _send_one(self, sender: Any, queue: str, message_id: str) -> None:
        """As an application does it: what was refused is sent again under the same id, until it is accepted."""
        message = ServiceBusMessage(f'{{"{queue}": "{message_id}"}}', message_id=message_id)
        while True:
            try:
                await sender.send_messages(message)
                break
            except ServiceBusError as error:
                self._failed(queue, message_id, error)
                await asyncio.sleep(0.2)
        self.sent.add(message_id, queue)
        self._sent_ids.add(message_id)
        self.tally.sent += 1
        self.tally.sent_by[queue] = self.tally.sent_by.get(queue, 0) + 1

    def _failed(self, queue: str, message_id: str, error: ServiceBusError) -> None:
        """It is sent again."""
        self.tally.failed += 1

    async def _receive(self, queue: str) -> None:
        while not self._done.is_set():
            try:
                async with (
                    ServiceBusClient.from_connection_string(self._connection_string, retry_total=0) as client,
                    client.get_queue_receiver(queue, prefetch_count=100) as receiver,
                ):
                    while not self._done.is_set():
                        for message in await receiver.receive_messages(max_message_count=100, max_wait_time=1):
                            self._note(queue, str(message.message_id), message.sequence_number or 0)
                            await receiver.complete_message(message)
            except ServiceBusError:
                await asyncio.sleep(0.5)  # the primary is away; receivers have nobody else to ask

    def _note(self, queue: str, message_id: str, sequence_number: int) -> None:
        """The same number again is the same copy, handed out again because its completion was cut off; another number is a double."""
        if (message_id, sequence_number) in self._seen:
            return
        self._seen.add((message_id, sequence_number))
        self._received_ids.add(message_id)
        self.received.add(message_id, queue)
        self.tally.received += 1
        self.tally.received_by[queue] = self.tally.received_by.get(queue, 0) + 1


class PairedTraffic(Traffic):
    """Sent through a pair; received from the primary."""

    def __init__(self, primary: BrokerProcess, pair: PairedNamespaces, rate: float, directory: Path) -> None:
        super().__init__(primary.connection_string, rate, directory)
        self._pair = pair

    async def _send(self, queue: str) -> None:
        """A send that takes long is not waited for by the next one."""
        under_way: set[asyncio.Task[None]] = set()
        async with self._pair.get_queue_sender(queue) as sender:
            async for message_id in self._due(queue):
                task = asyncio.ensure_future(self._send_one(sender, queue, message_id))
                under_way.add(task)
                task.add_done_callback(under_way.discard)
            if under_way:
                await asyncio.wait(under_way)

    def _failed(self, queue: str, message_id: str, error: ServiceBusError) -> None:
        super()._failed(queue, message_id, error)
        self._pair.events.tell("send-failed", queue, f"{message_id}: {describe(error)}", error)
