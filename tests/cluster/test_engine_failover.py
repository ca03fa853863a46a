"""The engine's primary dies with its disk while messages are sent: nobody takes anything over, and nothing is lost."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tandem.testing.postgres import PostgresEngine
from tests.cluster.nodes import Cluster, receive_all, try_send, until
from tests.postgres import make_cluster, running_engine

CONFIG = '[cluster]\nlease = "{lease}ms"\nstall_deadline = "60s"\n[[queue]]\nname = "q"\n'


@pytest.fixture
def engine() -> Iterator[PostgresEngine]:
    """Its own: it does not survive."""
    with running_engine(standbys=2) as made:
        make_cluster(made.dsn())
        yield made


class Load:
    """Sends one message after the other, each until it is acknowledged."""

    def __init__(self, connection_string: str) -> None:
        self._connection_string = connection_string
        self.acknowledged: list[str] = []
        self.longest_pause = 0.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        last = time.monotonic()
        while not self._stopping.is_set():
            if try_send(self._connection_string, f"m{number}"):
                self.acknowledged.append(f"m{number}")
                number += 1
                self.longest_pause, last = max(self.longest_pause, time.monotonic() - last), time.monotonic()

    def stop(self) -> list[str]:
        self._stopping.set()
        self._thread.join(60)
        return self.acknowledged


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_failovers_of_the_engine_lose_nothing_and_move_nothing(tmp_path: Path, engine: PostgresEngine) -> None:
    """The primary dies with its disk, the next one is stopped at once (`-m immediate`), from the third one somebody switches over."""
    config = CONFIG.replace('name = "q"', 'name = "q"\nrequires_duplicate_detection = true')
    cluster = Cluster(tmp_path, engine.dsn(), config=config)
    try:
        broker = cluster.start("a")
        other = cluster.start("b")
        load = Load(broker.connection_string)
        until(lambda: len(load.acknowledged) >= 5)
        for how in (signal.SIGKILL, signal.SIGQUIT, signal.SIGINT):
            began = time.monotonic()
            lost = engine.fail_over(how=how)
            before = len(load.acknowledged)
            until(lambda before=before: len(load.acknowledged) > before + 5, 90)  # type: ignore[misc]
            assert time.monotonic() - began < 60
            if how is signal.SIGQUIT:
                engine.add_standby("another", lost.port)  # for the switchover
                engine.require_standby()
        acknowledged = load.stop()
        with psycopg.connect(engine.primary.dsn()) as connection:
            rows = connection.execute("SELECT DISTINCT owner, epoch FROM tandem.store").fetchall()
        assert rows == [("a", 1)], "no takeover: nobody aged while nobody could beat"
        found = receive_all(broker.connection_string)
        assert set(acknowledged) <= set(found), f"lost: {set(acknowledged) - set(found)}"
        assert len(found) == len(set(found)), "doubled"
        assert re.search("store-. is suspended", cluster.logs("a")) or load.longest_pause < 5, "it said why nothing happened"
        assert other.process.poll() is None
    finally:
        cluster.close()
