"""Nodes of a cluster as their users run them: processes of their own, killed and stopped like those."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import psycopg
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from tandem.testing.ports import free_port
from tests.cli.broker_process import BrokerProcess
from tests.postgres import SECRET

LEASE_MS = 2_500
CONFIG = '[cluster]\nlease = "{lease}ms"\n[[queue]]\nname = "q"\n[[queue]]\nname = "sessions"\nrequires_session = true\n'


class Cluster:
    """Starts nodes that share one database."""

    node_class: ClassVar[type[BrokerProcess]] = BrokerProcess

    def __init__(self, directory: Path, dsn: str, lease_ms: int = LEASE_MS, config: str = CONFIG, peers: bool = False) -> None:
        self.directory = directory
        self.dsn = dsn
        self._peers = peers
        """They listen for each other."""
        self._stack = contextlib.ExitStack()
        secret = directory / "secret"
        secret.touch(mode=0o600)
        secret.write_bytes(SECRET)
        (directory / "tandem.toml").write_text(config.replace("{lease}", str(lease_ms)))

    def arguments(self, name: str, *more: str) -> list[str]:
        files = ["--config", "tandem.toml", "--data", f"data-{name}", "--secret-file", "secret"]
        return ["--dev", "--port", "0", *files, "--cluster", self.dsn, "--node", name, *more]

    def start(self, name: str, *more: str, environ: dict[str, str] | None = None) -> BrokerProcess:
        environ = {"TANDEM_CLUSTER_LISTEN": f"127.0.0.1:{free_port()}"} | (environ or {}) if self._peers else environ
        log = self.directory / f"{name}-{time.monotonic_ns()}.log"
        broker = self.node_class(self.directory, *self.arguments(name, *more), environ=environ, log=log)
        return self._stack.enter_context(broker)

    def logs(self, name: str) -> str:
        return "".join(path.read_text() for path in sorted(self.directory.glob(f"{name}-*.log")))

    def command(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "tandem", "cluster", *arguments, "--engine", self.dsn], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def owner(self) -> str:
        """Of all stores; empty while they are between owners."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            owners = {row[0] for row in connection.execute("SELECT owner FROM tandem.store")}
        return owners.pop() if len(owners) == 1 else ""

    def status(self) -> Any:
        return json.loads(self.command("status", "--json", "--seconds", "1"))

    def close(self) -> None:
        self._stack.close()


def until(condition: Callable[[], bool], seconds: float = 40, what: str = "it") -> float:
    """How long it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, f"{what} did not happen"
        time.sleep(0.05)
    return time.monotonic() - began


def try_send(connection_string: str, body: str, queue: str = "q") -> bool:
    try:
        with ServiceBusClient.from_connection_string(connection_string, retry_total=0) as client, client.get_queue_sender(queue) as sender:
            sender.send_messages(ServiceBusMessage(body, message_id=body))
    except (ServiceBusError, OSError):
        return False
    return True


@contextlib.contextmanager
def sender_of(connection_string: str, queue: str = "q") -> Iterator[Callable[[str], None]]:
    with ServiceBusClient.from_connection_string(connection_string) as client, client.get_queue_sender(queue) as sender:
        yield lambda body: sender.send_messages(ServiceBusMessage(body, message_id=body))


def receive_all(connection_string: str, queue: str = "q", wait: float = 2) -> list[str]:
    """Everything, completed."""
    found: list[str] = []
    with (
        ServiceBusClient.from_connection_string(connection_string) as client,
        client.get_queue_receiver(queue, max_wait_time=wait) as receiver,
    ):
        while batch := receiver.receive_messages(200, max_wait_time=wait):
            for message in batch:
                found.append(str(message))
                receiver.complete_message(message)
    return found


def metrics_of(broker: BrokerProcess) -> str:
    port = broker.line("ready: listening on ").partition(";")[0].rpartition(":")[2]
    with urllib.request.urlopen(f"http://localhost:{port}/$tandem/metrics", timeout=10) as answer:
        return str(answer.read().decode())
