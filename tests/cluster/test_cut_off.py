"""What a node does that cannot reach the engine, and an engine that cannot reach its standby."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem.testing.ports import free_port
from tandem.testing.postgres import PostgresEngine
from tests.acceptance.proxy import SlowNetwork
from tests.cluster.nodes import CONFIG, Cluster, metrics_of, receive_all, try_send, until

GONE_SECONDS = int(os.environ.get("TANDEM_CLUSTER_GONE_SECONDS", "1"))
"""How long the standby is away; 60 in the long form."""


class Line:
    """The network between one node and the engine, on a loop of its own."""

    def __init__(self, port: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._network = self._run(self._open(port))
        self.port = self._network.port

    async def _open(self, port: int) -> SlowNetwork:
        return await SlowNetwork(port).__aenter__()

    def _run(self, work: object) -> SlowNetwork:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)  # type: ignore[arg-type]

    def hold(self) -> None:
        """Nothing comes through, and nobody is told."""
        self._loop.call_soon_threadsafe(self._network.flowing.clear)

    def let_go(self) -> None:
        self._loop.call_soon_threadsafe(self._network.flowing.set)

    def close(self) -> None:
        self._run(self._network.__aexit__())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@pytest.fixture
def line(postgres: PostgresEngine) -> Iterator[Line]:
    made = Line(postgres.primary.port)
    yield made
    made.close()


@pytest.mark.slow
def test_an_owner_cut_off_from_the_engine_loses_its_stores_and_finds_out(
    tmp_path: Path, cluster_dsn: str, postgres: PostgresEngine, line: Line
) -> None:
    cluster = Cluster(tmp_path, cluster_dsn)
    try:
        cut = cluster.start("a", "--cluster", cluster_dsn.replace(f":{postgres.primary.port}/", f":{line.port}/"))
        assert try_send(cut.connection_string, "before")
        other = cluster.start("b")
        line.hold()
        until(lambda: cluster.owner() == "b")
        until(lambda: try_send(other.connection_string, "after"))
        until(lambda: "suspended" in cluster.logs("a") or "is down" in cluster.logs("a"))
        line.let_go()
        until(lambda: "elsewhere" in cluster.logs("a"))
        assert not try_send(cut.connection_string, "nobody takes it")
        assert cluster.owner() == "b"
        assert sorted(receive_all(other.connection_string)) == ["after", "before"]
    finally:
        cluster.close()


@pytest.mark.slow
def test_an_owner_cut_off_from_its_peers_only_keeps_its_stores(tmp_path: Path, cluster_dsn: str) -> None:
    cluster = Cluster(tmp_path, cluster_dsn, peers=True)
    port = free_port()
    between = Line(port)
    try:
        owner = cluster.start(
            "a", environ={"TANDEM_CLUSTER_LISTEN": f"127.0.0.1:{port}", "TANDEM_CLUSTER_ADVERTISE": f"127.0.0.1:{between.port}"}
        )
        other = cluster.start("b")
        assert try_send(other.connection_string, "carried")
        between.hold()
        assert not try_send(other.connection_string, "nobody hears it"), "refused, and to be tried again"
        assert try_send(owner.connection_string, "directly")
        assert [(store["owner"], store["epoch"]) for store in cluster.status()["namespaces"][0]["stores"]] == [("a", 1)] * 4
        between.let_go()
        until(lambda: try_send(other.connection_string, "carried again"))
        found = receive_all(other.connection_string)
        assert sorted(set(found) - {"nobody hears it"}) == ["carried", "carried again", "directly"]
        assert len(found) == len(set(found))
    finally:
        cluster.close()
        between.close()


@pytest.mark.slow
def test_an_engine_whose_last_standby_is_gone_is_waited_for_and_nothing_is_accepted_meanwhile(
    tmp_path: Path, cluster_dsn: str, postgres: PostgresEngine
) -> None:
    cluster = Cluster(tmp_path, cluster_dsn, config=CONFIG.replace("[cluster]", '[cluster]\nstall_deadline = "4s"'))
    sent: list[bool] = []
    try:
        broker = cluster.start("a")
        assert try_send(broker.connection_string, "before")
        postgres.require_missing_standby()
        try:
            thread = threading.Thread(target=lambda: sent.append(try_send(broker.connection_string, "while it was gone")))
            thread.start()
            until(lambda: "is suspended" in cluster.logs("a"))
            time.sleep(GONE_SECONDS)  # nothing happens, which is what is looked for
            assert sent == []
        finally:
            postgres.require_standby()
        thread.join(60)
        assert sent == [True], "and it goes on by itself"
        assert sorted(receive_all(broker.connection_string)) == ["before", "while it was gone"]
        told = cluster.command("status", "--seconds", "0")
        assert "epoch 2" not in told, "without a takeover"
        assert "silent for 0 s" in told, "nobody is called silent who was not listened to"
        assert 'tandem_cluster_doubts_total{end="landed"} 0.0' not in metrics_of(broker), "what nobody was told of had landed"
    finally:
        cluster.close()


@pytest.mark.slow
def test_a_node_that_is_stopped_while_the_last_standby_is_gone_ends_and_another_has_everything(
    tmp_path: Path, cluster_dsn: str, postgres: PostgresEngine
) -> None:
    cluster = Cluster(tmp_path, cluster_dsn, config=CONFIG.replace("[cluster]", '[cluster]\nstall_deadline = "60s"'))
    try:
        broker = cluster.start("a")
        assert try_send(broker.connection_string, "before")
        postgres.require_missing_standby()
        try:
            thread = threading.Thread(target=lambda: try_send(broker.connection_string, "while it was gone"))
            thread.start()
            until(lambda: "is suspended" in cluster.logs("a"))
            broker.process.send_signal(signal.SIGTERM)
            assert broker.process.wait(55) == 0, "before a service manager loses its patience"
        finally:
            postgres.require_standby()
        thread.join(60)
        found = receive_all(cluster.start("b").connection_string)
        assert "before" in found
        assert len(found) == len(set(found))
    finally:
        cluster.close()
