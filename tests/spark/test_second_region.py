"""A region is lost with its disks while the standby of another one is behind: what is missing there is what was said, and nothing else."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from azure.servicebus import ServiceBusClient

from tandem.stores.postgres_connection import EngineConnection, Hosts
from tandem.stores.postgres_schema import Schema
from tandem.testing.postgres import PostgresEngine, PostgresNode
from tests.cluster.nodes import CONFIG, Cluster, sender_of, until
from tests.postgres import SECRET, running_engine
from tests.stores.harness import ManualClock

EARLY = [f"early-{number}" for number in range(8)]
LATE = [f"late-{number}" for number in range(5)]


class Regions:
    """A primary with its synchronous standby here, an asynchronous one far away."""

    def __init__(self, near: PostgresEngine) -> None:
        self.near = near
        connection = EngineConnection(Hosts(self.near.dsn()), "test", ManualClock())
        Schema(self.near.dsn(), connection).initialize(SECRET)
        connection.close()
        self.far: PostgresNode = self.near.add_standby("far")
        self.near.nodes.remove(self.far)

    def cut(self) -> None:
        """What comes from now on does not arrive."""
        self._set("primary_conninfo")
        until(lambda: self.far.execute("SELECT count(*) FROM pg_stat_wal_receiver") == [(0,)])

    def _set(self, name: str) -> None:
        self.far.execute(f"ALTER SYSTEM SET {name} = ''")
        self.far.execute("SELECT pg_reload_conf()")

    def lose(self) -> None:
        for node in self.near.nodes:
            node.stop(signal.SIGKILL)
            shutil.rmtree(node.directory)

    def forget_standbys(self) -> None:
        self._set("synchronous_standby_names")
        until(lambda: self.far.execute("SHOW synchronous_standby_names") == [("",)])

    def stop(self) -> None:
        self.far.stop(signal.SIGKILL)


@pytest.fixture
def regions() -> Iterator[Regions]:
    with running_engine(standbys=1) as near:
        made = Regions(near)
        yield made
        made.stop()


@contextmanager
def follower(regions: Regions, state: Path) -> Iterator[str]:
    """Where it shows what it knows."""
    command = [sys.executable, "-m", "tandem", "cluster", "follow", "--engine", regions.near.dsn(), "--standby", regions.far.dsn()]
    more = ["--name", "far", "--port", "0", "--every", "0.2", "--state", str(state)]
    with subprocess.Popen([*command, *more], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            yield line.removeprefix("ready: ").strip().removesuffix("health")
        finally:
            process.kill()


def page(address: str) -> str:
    try:
        with urlopen(address, timeout=30) as answer:
            return str(answer.read().decode())
    except HTTPError as error:
        return str(error.read().decode())


def lag(address: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(page(f"{address}health"))
    return found["follower"] | {"status": found["status"]}


def promote(regions: Regions, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tandem", "cluster", "promote", "--engine", regions.far.dsn(), "--json", *more]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def received(connection_string: str, count: int) -> dict[str, int]:
    """So many, completed: their ids and sequence numbers."""
    found: dict[str, int] = {}
    with (
        ServiceBusClient.from_connection_string(connection_string) as client,
        client.get_queue_receiver("q", max_wait_time=5) as receiver,
    ):
        while len(found) < count and (batch := receiver.receive_messages(count - len(found), max_wait_time=5)):
            for message in batch:
                found[str(message.message_id)] = message.sequence_number or 0
                receiver.complete_message(message)
    return found


def waiting(connection_string: str) -> dict[str, int]:
    with ServiceBusClient.from_connection_string(connection_string) as client, client.get_queue_receiver("q") as receiver:
        return {str(message.message_id): message.sequence_number or 0 for message in receiver.peek_messages(100)}


def write_ledger(path: Path, ids: list[str]) -> str:
    path.write_text("".join(json.dumps({"message_id": one, "path": "q", "at_ms": number}) + "\n" for number, one in enumerate(ids)))
    return str(path)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_region_is_lost_while_the_other_one_is_behind_and_what_is_missing_was_said(tmp_path: Path, regions: Regions, spark: Any) -> None:
    state = tmp_path / "follow.json"
    (tmp_path / "west").mkdir()
    (tmp_path / "east").mkdir()
    west = Cluster(tmp_path / "west", regions.near.dsn())
    try:
        broker = west.start("a")
        with sender_of(broker.connection_string) as send, follower(regions, state) as address:
            for body in EARLY:
                send(body)
            numbers = received(broker.connection_string, 2)
            until(lambda: (lag(address)["lag_messages"], lag(address)["lag_blocks"]) == (0, 0))
            refused = promote(regions)
            assert refused.returncode == 2
            assert "still receives from its primary" in refused.stderr
            regions.cut()
            for body in LATE:
                send(body)
            numbers |= waiting(broker.connection_string)
            again = received(broker.connection_string, 1)
            until(lambda: lag(address)["lag_messages"] == len(LATE))
            assert lag(address)["lag_seconds"] > 0 and lag(address)["counted"]
            assert f'tandem_follower_lag_messages{{engine="first"}} {len(LATE)}\n' in page(f"{address}metrics")
            (shown,) = west.status()["followers"]
            assert (shown["name"], shown["lag_messages"]) == ("far", len(LATE))
            node = f"http://{broker.connection_string.partition('sb://')[2].partition(';')[0].rstrip('/')}/$tandem/"
            until(lambda: f'tandem_cluster_follower_lag_messages{{engine="first",follower="far"}} {len(LATE)}.0' in page(f"{node}metrics"))
            assert json.loads(page(f"{node}health"))["cluster"]["followers"][0]["lag_messages"] == len(LATE)
            broker.process.kill()
            regions.lose()
            until(lambda: lag(address)["status"] == "primary away")
            assert lag(address)["lag_messages"] == len(LATE), "as was last known"
        assert "every commit would wait for ever" in promote(regions).stderr, "it came with the copy of the primary's settings"
        regions.forget_standbys()
        done = promote(regions, "--state", str(state))
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout)
    finally:
        west.close()
    assert said["known_missing"]["messages"] == len(LATE)
    (gap,) = [one for store in said["stores"] for one in store["missing"] if one["entity"] == "q"]
    assert {one for one, number in numbers.items() if gap["first"] <= number <= gap["last"]} == set(LATE)
    east = Cluster(tmp_path / "east", regions.far.dsn(), config=CONFIG.replace("[cluster]", '[cluster]\ndurability = "assumed"', 1))
    try:
        broker = east.start("b")
        with sender_of(broker.connection_string) as send:
            send("new")
        found = received(broker.connection_string, 100)
    finally:
        east.close()
    assert found.keys() == (set(EARLY) - (numbers.keys() - again.keys() - set(LATE) - found.keys())) | {"new"}
    assert found["new"] > gap["last"], "no number is given twice"
    assert again.keys() <= found.keys(), "what was completed after the last block that arrived comes again, as was said"
    from tandem.spark.analytics.reconcile import reconcile

    sent = write_ledger(tmp_path / "sent.jsonl", [*EARLY, *LATE, "new"])
    got = write_ledger(tmp_path / "received.jsonl", [*(numbers.keys() - set(LATE) - found.keys()), *again, *found])
    proof = reconcile(spark, journals=[regions.far.dsn()], sent=sent, received=got, findings_max=100)
    assert {one.message_id for one in proof.findings if one.problem == "lost"} == set(LATE)
    assert {one.message_id for one in proof.findings if one.problem == "duplicated"} == again.keys()
