"""The syphon as a job: once, as a service that is stopped, through brokers that die, and as the command `tandem syphon`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tandem.engine_client.message_encoding import encode_row
from tandem.spark.connector.connections import drop
from tandem.spark.connector.options import OptionError
from tandem.spark.syphon.job import SyphonSettings, run
from tandem.spark.syphon.progress import Progress, write_metrics
from tests.acceptance.brokers import Broker
from tests.spark.house import BACKLOG, EXACT, connect, counts, create_queue, diverted, ids, send, take_all, verdict
from tests.waiting import wait_until

QUICK = SyphonSettings(primary_namespace="contoso", poll_ms=200, retry_ms=200, operation_timeout_seconds=10)
STARVED = "Python worker failed to connect back"
"""Spark gives a Python process ten seconds to come up, which are too few on a machine that is starved: none of our doing."""


@pytest.fixture(autouse=True)
def no_connection_outlives_its_test() -> Iterator[None]:
    from tandem.spark.connector import connections

    yield
    for one in list(connections._cached):
        drop(one)


@pytest.mark.slow
def test_wrong_arguments_are_named_before_spark_starts(west: Broker, east: Broker) -> None:
    with pytest.raises(OptionError, match=r"option 'primary'.*Endpoint"):
        run("nonsense=1", east.connection_string)
    with pytest.raises(OptionError, match="option 'secondary': is the primary itself"):
        run(west.connection_string, west.connection_string)
    with pytest.raises(OptionError, match=r"option 'primary_namespace'.*no-such-name/x-servicebus-transfer/0"):
        run(west.connection_string, east.connection_string, settings=SyphonSettings(primary_namespace="no-such-name"))
    with pytest.raises(OptionError, match="option 'secondary'"):
        run(west.connection_string, east.string_for("RootManageSharedAccessKey", "wrong"), settings=QUICK)


def test_metrics_are_replaced_as_a_whole(tmp_path: Path) -> None:
    file = tmp_path / "syphon.prom"
    for moved in (1, 2):
        write_metrics(file, Progress(moved=moved, remaining=5, by_path={'a"b': moved}))
    text = file.read_text()
    assert "tandem_syphon_moved_total 2\n" in text
    assert "tandem_syphon_remaining 5\n" in text
    assert 'tandem_syphon_moved_by_path_total{path="a\\"b"} 2\n' in text
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.spark
def test_once_moves_everything_reports_it_and_ends(spark: Any, mortal: Broker, mortal_too: Broker, tmp_path: Path) -> None:
    create_queue(mortal, "orders", requires_duplicate_detection=True)
    create_queue(mortal, "sessions", requires_session=True)
    create_queue(mortal_too, *(f"{BACKLOG}/{n}" for n in range(3)))
    for queue in range(3):
        send(mortal_too, f"{BACKLOG}/{queue}", diverted(400, "orders", f"o{queue}-"))
        send(mortal_too, f"{BACKLOG}/{queue}", diverted(100, "sessions", f"s{queue}-", sessions=4))
    send(mortal_too, f"{BACKLOG}/1", [encode_row(b"", "poison")])
    seen: list[Progress] = []
    last = run(
        mortal.connection_string, mortal_too.connection_string, once=True, spark=spark, settings=QUICK, on_progress=seen.append,
        metrics_file=tmp_path / "metrics",
    )  # fmt: skip
    assert (last.moved, last.dead_lettered, last.remaining, last.finished) == (1_500, 1, 0, True)
    assert last.by_path == {"orders": 1_200, "sessions": 300}
    assert [progress.moved for progress in seen] == sorted(progress.moved for progress in seen)
    assert "tandem_syphon_moved_total 1500\n" in (tmp_path / "metrics").read_text()
    wanted = (f"o{queue}-{n}" for queue in range(3) for n in range(400))
    assert verdict(wanted, ids(take_all(mortal, "orders"))) == EXACT
    assert len(take_all(mortal, "sessions")) == 300
    dead = take_all(mortal_too, f"{BACKLOG}/1/$DeadLetterQueue")
    assert (ids(dead), dead.column("dead_letter_reason")) == (["poison"], ["no queue path"])


@pytest.mark.spark
def test_a_service_waits_for_a_dead_primary_carries_on_when_it_is_back_and_stops_when_told(
    spark: Any, mortal: Broker, mortal_too: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    create_queue(mortal, "orders", requires_duplicate_detection=True)
    create_queue(mortal_too, f"{BACKLOG}/0", f"{BACKLOG}/1")
    mortal.kill()
    send(mortal_too, f"{BACKLOG}/0", diverted(500, "orders", "a"))
    stop = threading.Event()
    seen: list[Progress] = []
    found: list[Progress] = []

    def serve() -> None:
        found.append(
            run(
                mortal.connection_string,
                mortal_too.connection_string,
                spark=spark,
                settings=QUICK,
                on_progress=seen.append,
                stop=stop,
                checkpoint=tmp_path / "checkpoint",
            )
        )

    service = threading.Thread(target=serve)
    service.start()
    wait_until(lambda: any(progress.waiting == 500 for progress in seen), "an attempt without the primary", 120)
    mortal.start()
    wait_until(lambda: seen[-1].moved == 500, "the messages of the outage", 60)
    send(mortal_too, f"{BACKLOG}/1", diverted(50, "orders", "b"))
    wait_until(lambda: seen[-1].moved == 550, "what comes later", 60)
    wait_until(lambda: seen[-1].remaining == 0, "the news that nothing is left, although no batch comes after the last", 60)
    stop.set()
    service.join(60)
    assert not service.is_alive()
    starved = sum(STARVED in record.getMessage() for record in caplog.records)
    assert (found[0].moved, found[0].remaining, found[0].restarts) == (550, 0, starved)
    assert verdict([*(f"a{n}" for n in range(500)), *(f"b{n}" for n in range(50))], ids(take_all(mortal, "orders"))) == EXACT


@pytest.mark.spark
def test_the_command_drains_is_killed_and_goes_on_from_its_checkpoint(mortal: Broker, mortal_too: Broker, tmp_path: Path) -> None:
    create_queue(mortal, "orders", requires_duplicate_detection=True)
    create_queue(mortal_too, f"{BACKLOG}/0")
    total = 10_000
    send(mortal_too, f"{BACKLOG}/0", diverted(total, "orders", size=500))
    command = [
        sys.executable, "-m", "tandem", "syphon", "--primary", mortal.connection_string, "--secondary", mortal_too.connection_string,
        "--name", "contoso", "--once", "--json", "--checkpoint", str(tmp_path / "checkpoint"), "--master", "local[2,4]", "--batch", "1000",
    ]  # fmt: skip
    with (tmp_path / "log").open("wb") as log:
        first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, start_new_session=True)
        wait_until(lambda: counts(mortal_too, f"{BACKLOG}/0")["total"] < total, "the first moved message", 150)
        os.killpg(first.pid, signal.SIGKILL)
        first.communicate()
        left = counts(mortal_too, f"{BACKLOG}/0")["total"]
        assert 0 < left < total
        second = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, timeout=200, check=False)
    assert second.returncode == 0, (tmp_path / "log").read_text()[-3000:]
    last = json.loads(second.stdout.splitlines()[-1])
    assert (last["remaining"], last["finished"]) == (0, True)
    assert verdict((f"m{n}" for n in range(total)), ids(take_all(mortal, "orders"))) == EXACT
    with connect(mortal_too) as client:
        assert client.request(f"{BACKLOG}/0", "com.tandem:list-leases", {}) is None


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--primary", "x", "--secondary", "y"], "--primary: option 'primary'"),
        (["--primary", "WEST", "--secondary", "EAST", "--name", "no-such"], "--name: option 'primary_namespace'"),
    ],
)
def test_the_command_says_what_is_wrong_and_ends_with_code_2(west: Broker, east: Broker, arguments: list[str], said: str) -> None:
    known = {"WEST": west.connection_string, "EAST": east.connection_string}
    command = [sys.executable, "-m", "tandem", "syphon", *(known.get(one, one) for one in arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
