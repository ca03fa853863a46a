"""A region is lost whose cluster has two engines, each with a standby that is behind by something else: what is missing was said."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from tandem.testing.postgres import PostgresEngine, PostgresNode
from tests.cluster.engines import CONFIG, TwoEngines
from tests.cluster.nodes import metrics_of, receive_all, sender_of, until
from tests.cluster.test_bad_input import refusal
from tests.postgres import running_engine
from tests.spark.test_second_region import lag, page


class Region:
    """An engine here, and its asynchronous standby far away."""

    def __init__(self, near: PostgresEngine) -> None:
        self.near = near
        self.far: PostgresNode | None = None

    def add_far(self) -> None:
        self.far = self.near.add_standby("far")
        self.near.nodes.remove(self.far)

    @property
    def far_dsn(self) -> str:
        assert self.far is not None
        return self.far.dsn()

    def cut(self) -> None:
        """What comes from now on does not arrive."""
        far = self.far
        assert far is not None
        far.execute("ALTER SYSTEM SET primary_conninfo = ''")
        far.execute("SELECT pg_reload_conf()")
        until(lambda: far.execute("SELECT count(*) FROM pg_stat_wal_receiver") == [(0,)])

    def stop(self) -> None:
        if self.far is not None:
            self.far.stop(signal.SIGKILL)


@pytest.fixture
def regions() -> Iterator[tuple[Region, Region]]:
    with running_engine() as one, running_engine() as other:
        made = (Region(one), Region(other))
        yield made
        for region in made:
            region.stop()


@contextmanager
def follower(west: TwoEngines, standbys: list[str], state: Path) -> Iterator[str]:
    """Where it shows what it knows."""
    command = [sys.executable, "-m", "tandem", "cluster", "follow", "--engine", west.dsn, *standbys]
    more = ["--name", "far", "--port", "0", "--every", "0.2", "--state", str(state)]
    with subprocess.Popen([*command, *more], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().removeprefix("ready: ").strip().removesuffix("health")
        finally:
            process.kill()


def behind(address: str) -> dict[str, int]:
    """Messages, by engine."""
    return {name: one["lag_messages"] for name, one in lag(address).get("engines", {}).items()}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_region_with_two_engines_is_lost_and_what_is_missing_in_each_was_said(tmp_path: Path, regions: tuple[Region, Region]) -> None:
    first, second = regions
    (tmp_path / "west").mkdir()
    (tmp_path / "east").mkdir()
    west = TwoEngines(tmp_path / "west", first.near.primary.dsn(), second.near, "tandem")
    west.init()
    for region in regions:
        region.add_far()
    standbys = ["--standby", first.far_dsn, "--standby", f"second={second.far_dsn}"]
    state = tmp_path / "follow.json"
    try:
        broker = west.start("a")
        until(lambda: west.owners() == ["a"] * 4)
        here, there = west.queue_in(0, 1), west.queue_in(2, 3)
        with (
            sender_of(broker.connection_string, here) as send_here,
            sender_of(broker.connection_string, there) as send_there,
            follower(west, standbys, state) as address,
        ):
            for number in range(4):
                send_here(f"here-{number}")
                send_there(f"there-{number}")
            until(lambda: behind(address) == {"first": 0, "second": 0})
            promote = ["cluster", "promote", "--engine", first.far_dsn]
            assert "its standby is missing; give --engine second=" in refusal(tmp_path, *promote)
            assert "still receives from its primary" in refusal(tmp_path, *promote, "--engine", f"second={second.far_dsn}")
            second.cut()
            for number in range(5):
                send_there(f"late-there-{number}")
            send_here("here-4")
            until(lambda: behind(address) == {"first": 0, "second": 5})
            first.cut()
            for number in range(2):
                send_here(f"late-here-{number}")
            until(lambda: behind(address) == {"first": 2, "second": 5})
            assert lag(address)["lag_messages"] == 7
            assert 'tandem_follower_lag_messages{engine="second"} 5\n' in page(f"{address}metrics")
            until(lambda: 'tandem_cluster_follower_lag_messages{engine="second",follower="far"} 5.0' in metrics_of(broker))
            assert {one["engine"]: one["lag_messages"] for one in west.status()["followers"]} == {"first": 2, "second": 5}
            assert "follower far, engine second:" in west.command("status", "--seconds", "0.1")
            broker.process.kill()
            for region in regions:
                region.near.primary.stop(signal.SIGKILL)
            until(lambda: lag(address)["status"] == "primary away")
            assert behind(address) == {"first": 2, "second": 5}, "as was last known"
        done = subprocess.run(
            [sys.executable, "-m", "tandem", *promote, "--engine", f"second={second.far_dsn}", "--state", str(state), "--json"],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout)
    finally:
        west.close()
    assert said["known_missing"]["messages"] == 7
    assert {one["store"]: one["engine"] for one in said["stores"]} == {0: "first", 1: "first", 2: "second", 3: "second"}
    gaps = {gap["entity"]: gap for store in said["stores"] for gap in store["missing"]}
    assert (gaps[here]["first"], gaps[there]["first"]) == (6, 5)
    config = CONFIG.replace("{second}", second.far_dsn)
    assert second.far is not None
    far = PostgresEngine(tmp_path / "unused")
    far.nodes.append(second.far)
    east = TwoEngines(tmp_path / "east", first.far_dsn, far, "tandem", config=config)
    try:
        broker = east.start("b")
        until(lambda: east.owners() == ["b"] * 4)
        for queue in (here, there):
            with sender_of(broker.connection_string, queue) as send:
                send(f"new-{queue}")
        assert sorted(receive_all(broker.connection_string, here)) == sorted([*(f"here-{n}" for n in range(5)), f"new-{here}"])
        assert sorted(receive_all(broker.connection_string, there)) == sorted([*(f"there-{n}" for n in range(4)), f"new-{there}"])
        with psycopg.connect(first.far_dsn) as connection:
            assert str(second.far.port) in str(connection.execute("SELECT dsn FROM tandem.engine").fetchall()), "commands find it there"
    finally:
        east.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_store_that_one_standby_has_not_heard_of_is_refused_before_anything_is_promoted(tmp_path: Path, database: str) -> None:
    with running_engine() as engine:
        second = Region(engine)
        west = TwoEngines(tmp_path, database, engine, "tandem")
        west.init()
        try:
            second.add_far()
            second.cut()
            west.start("a")
            until(lambda: west.owners() == ["a"] * 4)
            west.close()
            promote = ["cluster", "promote", "--engine", database, "--engine", f"second={second.far_dsn}"]
            assert "of namespace tandem is not in engine second" in refusal(tmp_path, *promote)
            assert second.far is not None
            assert second.far.execute("SELECT pg_is_in_recovery()") == [(True,)], "it may still receive what it lacks"
        finally:
            west.close()
            second.stop()
