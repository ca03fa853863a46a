"""The demo holds what it shows."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tandem.demo.small import judge
from tandem.spark.java import java_version, missing_java
from tandem.testing.postgres import programs
from tests.postgres import MISSING


@pytest.mark.slow
def test_small_demo_survives_its_own_kill_and_says_so() -> None:
    command = [sys.executable, "-m", "tandem", "demo", "--small", "--messages", "20", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, json.loads(done.stdout)) == (0, {"sent": 20, "delivered": 20, "lost": 0, "duplicated": 0})


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(programs() is None, reason=MISSING)
def test_the_demo_of_a_cluster_survives_the_death_of_a_node_and_of_the_primary() -> None:
    command = [sys.executable, "-m", "tandem", "demo", "--cluster", "--rate", "40", "--before", "1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-4_000:]
    verdict = json.loads(done.stdout)
    assert (verdict["lost"], verdict["duplicated"], verdict["held"]) == (0, 0, True)
    assert verdict["delivered"] == verdict["sent"] > 40
    assert verdict["killed"] in ("a", "b", "c")
    assert verdict["seconds_without_node"] > verdict["lease"] / 2, "a dead node is missed"


def test_the_demo_of_a_cluster_without_postgresql_says_where_to_get_it(tmp_path: Path) -> None:
    script = "import sys; from tandem.testing import postgres; postgres.programs = lambda: None; from tandem.cli.main import main; main()"
    command = [sys.executable, "-c", script, "demo", "--cluster"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert "apt-get install postgresql" in line and "cluster-dev" in line


@pytest.mark.slow
def test_the_story_of_the_issuer_shows_who_goes_on_how_long() -> None:
    command = [sys.executable, "-m", "tandem", "demo", "--story", "issuer", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    verdict = json.loads(done.stdout)
    assert verdict["held"] and verdict["sent_without_issuer"] > 0 and verdict["sent_past_the_end"] == 0


def test_a_story_that_nobody_knows_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tandem", "demo", "--story", "flood"], capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "allowed is broker or issuer" in done.stderr


def test_verdict_counts_what_is_missing_and_what_came_twice() -> None:
    assert judge(["a", "b", "c"], ["a", "b", "b"]) == {"sent": 3, "delivered": 2, "lost": 1, "duplicated": 1}


def test_without_java_the_demo_says_what_to_install_in_one_line_and_plays_no_other_story(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tandem", "demo"]
    environment = {**os.environ, "JAVA_HOME": "", "PATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert "apt-get install" in line and "--small" in line


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ('openjdk version "21.0.2" 2024-01-16', 21),
        ('java version "1.8.0_402"', 8),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "17" 2021-09-14', 17),
        ("no such thing", 0),
    ],
)
def test_the_release_of_java_is_read_from_what_it_says(said: str, version: int) -> None:
    assert java_version(said) == version


def test_a_java_that_is_too_old_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert "is Java 11, and Spark needs Java 17" in missing_java()


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(bool(missing_java()), reason=f"MISSING: {missing_java()}")
def test_whole_demo_diverts_brings_home_and_proves_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tandem", "demo", "--json", "--rate", "40", "--before", "3", "--outage", "4", "--report", "demo.html"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=550, check=False)
    assert done.returncode == 0, done.stderr[-4_000:]
    verdict = json.loads(done.stdout)
    assert (verdict["lost"], verdict["duplicated"], verdict["held"]) == (0, 0, True)
    assert verdict["diverted"] > 0 and verdict["delivered"] == verdict["sent"] > verdict["diverted"]
    assert verdict["operations"] >= 2 * verdict["sent"] + 2 * verdict["diverted"]
    assert "Nothing was lost" in (tmp_path / "demo.html").read_text()
    assert verdict["seconds_to_drain"] < 15, "the syphon was warm; on an idle machine it takes two"
    assert "path-" not in done.stderr, "what clients log is not for the terminal"


def test_what_the_libraries_log_goes_to_a_file_and_not_between_the_lines_of_the_view(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from tandem.client.events import EventHub
    from tandem.demo.story import _logs_to
    from tandem.demo.view import PlainView

    hub = EventHub(lambda: 0)
    hub.subscribe(PlainView().event)
    with _logs_to(tmp_path / "client.log"):
        hub.tell("path-failed-over", "orders", "gone")
    seen = capfd.readouterr()
    assert seen.out.count("path-failed-over") == 1 and seen.err == ""
    assert "path-failed-over orders: gone" in (tmp_path / "client.log").read_text()


async def test_a_story_that_fails_stops_its_syphon_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tandem.demo.story import _Syphon
    from tandem.demo.view import PlainView

    monkeypatch.setattr(_Syphon, "_run", lambda self, spark: self._stop.wait(60))
    syphon = _Syphon(None, None, tmp_path, PlainView())  # type: ignore[arg-type]
    with pytest.raises(TimeoutError, match="did not drain"):
        async with syphon:
            syphon._running = asyncio.ensure_future(asyncio.to_thread(syphon._run, None))  # type: ignore[arg-type]
            raise TimeoutError("did not drain")
    assert syphon._running.done()
