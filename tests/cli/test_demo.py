"""The demo holds what it shows."""

from __future__ import annotations

import json
import subprocess
import sys

from tandem.cli.demo import judge


def test_demo_survives_its_own_kill_and_says_so() -> None:
    command = [sys.executable, "-m", "tandem", "demo", "--messages", "20", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, json.loads(done.stdout)) == (0, {"sent": 20, "delivered": 20, "lost": 0, "duplicated": 0})


def test_verdict_counts_what_is_missing_and_what_came_twice() -> None:
    assert judge(["a", "b", "c"], ["a", "b", "b"]) == {"sent": 3, "delivered": 2, "lost": 1, "duplicated": 1}
