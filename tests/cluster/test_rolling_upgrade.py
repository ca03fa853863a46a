"""One node after the other becomes a newer version, under traffic; then, and not before, older ones are locked out."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem.cluster.peers import NODE_PROPERTY, PEER_VERSION, VERSION_PROPERTY, unfit_version
from tests.cli.broker_process import BrokerProcess
from tests.cluster.nodes import Cluster, receive_all, try_send, until

NEWER = """
import tandem, tandem.cluster.peers, tandem.stores.postgres_ledger
tandem.__version__ = "99.0"
tandem.cluster.peers.PEER_VERSION += 1
tandem.stores.postgres_ledger.FORMAT += 1
from tandem.cli.main import main
main()
"""
"""A version of the future: it calls itself so, speaks the next version between nodes, and could write the next format."""
CONFIG = '[cluster]\nlease = "{lease}ms"\n[[queue]]\nname = "q"\nrequires_duplicate_detection = true\n'


class NewerNode(BrokerProcess):
    program = ("-c", NEWER)


class Upgraded(Cluster):
    node_class = NewerNode


@pytest.fixture
def old(tmp_path: Path, cluster_dsn: str) -> Iterator[Cluster]:
    made = Cluster(tmp_path, cluster_dsn, config=CONFIG, peers=True)
    yield made
    made.close()


@pytest.fixture
def new(tmp_path: Path, cluster_dsn: str) -> Iterator[Cluster]:
    made = Upgraded(tmp_path, cluster_dsn, config=CONFIG, peers=True)
    yield made
    made.close()


def upgrade(dsn: str, newer: bool = True) -> tuple[int, str]:
    program = ["-c", NEWER] if newer else ["-m", "tandem"]
    command = [sys.executable, *program, "cluster", "upgrade", "--engine", dsn, "--seconds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout + done.stderr


class Traffic:
    """Each message is sent to one node or the other until one takes it."""

    def __init__(self, nodes: dict[str, BrokerProcess]) -> None:
        self._nodes = nodes
        self.accepted: list[str] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        tries = 0
        while not self._stopping.is_set():
            name = sorted(self._nodes)[tries % len(self._nodes)]
            tries += 1
            if try_send(self._nodes[name].connection_string, f"m{len(self.accepted)}"):
                self.accepted.append(f"m{len(self.accepted)}")

    def goes_on(self) -> None:
        before = len(self.accepted)
        until(lambda: len(self.accepted) > before + 2, 60)

    def stop(self) -> list[str]:
        self._stopping.set()
        self._thread.join(60)
        return self.accepted


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_rolling_upgrade_with_traffic_loses_nothing_and_ends_with_a_word(old: Cluster, new: Cluster, cluster_dsn: str) -> None:
    nodes = {name: old.start(name) for name in "ab"}
    traffic = Traffic(nodes)
    traffic.goes_on()
    for name in "ab":
        other = "b" if name == "a" else "a"
        old.command("drain", name)
        until(lambda other=other: old.owner() == other)  # type: ignore[misc]
        nodes[name].process.terminate()
        assert nodes[name].process.wait(60) == 0
        nodes[name] = new.start(name)
        old.command("drain", name, "--end")
        traffic.goes_on()
        if name == "a":
            code, said = upgrade(cluster_dsn)
            assert (code, "node b runs version" in said, "tandem cluster drain b" in said) == (2, True, True)
    code, said = upgrade(cluster_dsn, newer=False)
    assert code == 2 and "node a runs version 99.0" in said, "an older command says nothing for newer nodes"
    code, said = upgrade(cluster_dsn)
    assert (code, said) == (0, "all nodes run version 99.0: a, b\nolder versions cannot join any more\n")
    assert upgrade(cluster_dsn)[1].endswith("nothing has to be changed\n")
    traffic.goes_on()
    accepted = traffic.stop()
    command = [sys.executable, "-m", "tandem", "serve", *old.arguments("c")]
    late = subprocess.run(command, cwd=old.directory, capture_output=True, text=True, check=False, timeout=60)
    assert late.returncode == 2 and "Start the newer version" in late.stderr
    assert sorted(receive_all(nodes["a"].connection_string)) == sorted(accepted), "lost = duplicated = 0"


@pytest.mark.slow
def test_a_silent_node_of_another_version_is_named_with_what_to_do(old: Cluster, cluster_dsn: str) -> None:
    old.start("gone").process.kill()
    code, said = upgrade(cluster_dsn)
    assert code == 2
    assert "node gone is silent" in said and "tandem cluster forget gone" in said
    old.command("forget", "gone")
    assert upgrade(cluster_dsn)[0] == 0


@pytest.mark.parametrize(("version", "fits"), [(-1, True), (0, True), (1, True), (2, False), (-2, False)])
def test_nodes_speak_with_the_version_before_theirs_and_the_one_after(version: int, fits: bool) -> None:
    said = unfit_version({VERSION_PROPERTY: PEER_VERSION + version, NODE_PROPERTY: "b"})
    assert (said == "") is fits
    if not fits:
        assert "node 'b' speaks version" in said and "upgrade one node after the other" in said
