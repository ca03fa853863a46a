"""The disk of the engine is really full, that of its tables or that of its log: what is said, what goes on, and that nothing is lost."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from tandem.testing.postgres import give_away
from tests.cli.broker_process import BrokerProcess
from tests.cluster.nodes import Cluster, metrics_of, receive_all, until
from tests.postgres import make_cluster, running_engine

BODY = os.urandom(240_000)
CONFIG = (
    '[cluster]\nlease = "{lease}ms"\ndurability = "assumed"\nstall_deadline = "3s"\n'
    '[stores]\ncount = 1\nsegment_bytes = 8388608\n[[queue]]\nname = "q"\nlock_duration = "5s"\n'
)
FULL = "No space left on device"


class SmallDisk:
    """A file system of a few megabytes, where PostgreSQL finds it: pytest closes its own directories to others with each session."""

    def __init__(self, megabytes: int) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="tandem-disk-"))
        self._mount("-t", "tmpfs", "-o", f"size={megabytes}m", "none")
        give_away(self.path)

    def _mount(self, *arguments: str) -> None:
        done = subprocess.run(["mount", *arguments, str(self.path)], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"MISSING: a file system cannot be mounted here ({done.stderr.strip()}); needs root and CAP_SYS_ADMIN")

    def grow(self, megabytes: int) -> None:
        self._mount("-o", f"remount,size={megabytes}m")

    def close(self) -> None:
        subprocess.run(["umount", "-l", str(self.path)], check=False)
        self.path.rmdir()


@contextmanager
def small_disk(megabytes: int) -> Iterator[SmallDisk]:
    if os.geteuid():
        pytest.skip("MISSING: only root can mount the small disk that this test fills")
    disk = SmallDisk(megabytes)
    try:
        yield disk
    finally:
        disk.close()


class Sent:
    """Messages of one queue: which of them were accepted, and what whoever was refused was told."""

    def __init__(self) -> None:
        self.accepted: list[str] = []
        self.doubtful: set[str] = set()
        self._count = 0

    def send(self, broker: BrokerProcess, body: bytes = BODY, most: int = 1) -> str:
        """Why one was refused, which is the last one then; empty: none was."""
        try:
            with (
                ServiceBusClient.from_connection_string(broker.connection_string, retry_total=0) as client,
                client.get_queue_sender("q") as sender,
            ):
                for _ in range(most):
                    name, self._count = f"m{self._count}", self._count + 1
                    self.doubtful.add(name)
                    sender.send_messages(ServiceBusMessage(body, message_id=name))
                    self.doubtful.discard(name)
                    self.accepted.append(name)
        except (ServiceBusError, OSError) as error:
            return str(error)
        return ""

    def fill(self, broker: BrokerProcess) -> str:
        """Until one is refused; what was said."""
        return self.send(broker, most=1_000)


def take(broker: BrokerProcess, most: int = 1_000_000) -> list[str]:
    """Received and completed, by id."""
    found: list[str] = []
    with (
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_receiver("q", max_wait_time=5) as receiver,
    ):
        while len(found) < most and (batch := receiver.receive_messages(min(20, most - len(found)), max_wait_time=3)):
            for message in batch:
                receiver.complete_message(message)
                found.append(str(message.message_id))
    return found


def store_of(broker: BrokerProcess) -> Any:
    port = broker.line("ready: listening on ").partition(";")[0].rpartition(":")[2]
    try:
        with urllib.request.urlopen(f"http://localhost:{port}/$tandem/health", timeout=10) as answer:
            found = json.loads(answer.read())
    except urllib.error.HTTPError as error:
        found = json.loads(error.read())
    return found["namespaces"][0]["stores"][0]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_full_disk_takes_no_messages_and_has_those_settled_that_are_there(tmp_path: Path) -> None:
    with small_disk(40) as disk, running_engine() as engine:
        cluster = Cluster(tmp_path, engine.primary.dsn("small"), config=CONFIG)
        try:
            engine.primary.execute(f"CREATE TABLESPACE small LOCATION '{disk.path}'")
            engine.primary.execute("CREATE DATABASE small TABLESPACE small")
            make_cluster(cluster.dsn)
            broker, sent = cluster.start("a"), Sent()
            told = sent.fill(broker)
            assert FULL in told
            assert "takes no messages: the engine's disk is full" in told
            assert store_of(broker)["state"] == "degraded"
            assert FULL in store_of(broker)["cause"]
            assert 'tandem_store_up{namespace="tandem",store="0"} 2.0' in metrics_of(broker)
            done = take(broker, 20)
            assert len(done) == 20, "they are received and settled"
            broker.process.kill()
            broker = cluster.start("a")
            until(lambda: FULL in sent.send(broker, b"small"), what="the refusal of the next owner")
            disk.grow(80)
            until(lambda: not sent.send(broker, b"small"), what="a message that is taken")
            assert FULL in sent.fill(broker)
            done += take(broker)
            until(lambda: not sent.send(broker), what="a message that is taken because segments were dropped")
            done += take(broker)
            assert set(sent.accepted) - set(done) == set(), "lost"
            assert len(done) == len(set(done)), "doubled"
            assert set(done) - set(sent.accepted) <= sent.doubtful
            assert store_of(broker)["state"] == "up"
        finally:
            cluster.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_engine_whose_log_is_full_stops_and_goes_on_with_everything_when_there_is_room(tmp_path: Path) -> None:
    with small_disk(72) as disk, running_engine(wal=disk.path / "wal") as engine:
        cluster = Cluster(tmp_path, engine.primary.dsn("tandem"), config=CONFIG)
        server = engine.primary.process
        assert server is not None
        log = engine.primary.directory.parent / "primary.log"
        try:
            make_cluster(cluster.dsn)
            broker, sent = cluster.start("a"), Sent()
            sent.fill(broker)
            until(lambda: "PANIC" in log.read_text() and FULL in log.read_text())
            until(lambda: bool(sent.send(broker)) and store_of(broker)["state"] in ("suspended", "down", "degraded"))
            assert store_of(broker)["cause"]
            disk.grow(400)
            if server.poll() is not None:
                engine.primary.start()
            until(lambda: not sent.send(broker), 60, "a message that is taken")
            done = take(broker)
            assert set(sent.accepted) - set(done) == set(), "lost"
            assert len(done) == len(set(done)), "doubled"
            assert set(done) - set(sent.accepted) <= sent.doubtful
            until(lambda: store_of(broker)["state"] == "up")
            assert receive_all(broker.connection_string) == []
        finally:
            cluster.close()
