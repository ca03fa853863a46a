"""The demo holds what it shows."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tandem.cli.small_demo import judge


def test_small_demo_survives_its_own_kill_and_says_so() -> None:
    command = [sys.executable, "-m", "tandem", "demo", "--small", "--messages", "20", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, json.loads(done.stdout)) == (0, {"sent": 20, "delivered": 20, "lost": 0, "duplicated": 0})


def test_verdict_counts_what_is_missing_and_what_came_twice() -> None:
    assert judge(["a", "b", "c"], ["a", "b", "b"]) == {"sent": 3, "delivered": 2, "lost": 1, "duplicated": 1}


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("java") is None, reason="needs a Java runtime 17 or newer")
def test_whole_demo_diverts_brings_home_and_proves_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tandem", "demo", "--json", "--rate", "40", "--before", "3", "--outage", "4", "--report", "demo.html"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=550, check=False)
    assert done.returncode == 0, done.stderr[-4_000:]
    verdict = json.loads(done.stdout)
    assert (verdict["lost"], verdict["duplicated"], verdict["held"]) == (0, 0, True)
    assert verdict["diverted"] > 0 and verdict["delivered"] == verdict["sent"] > verdict["diverted"]
    assert verdict["operations"] >= 2 * verdict["sent"] + 2 * verdict["diverted"]
    assert "Nothing was lost" in (tmp_path / "demo.html").read_text()
