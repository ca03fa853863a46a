"""A command on Spark says what it was asked for, and nothing about Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tandem.spark.session import _quiet_start


def ledger(path: Path, name: str) -> str:
    rows = [{"message_id": f"m{number}", "path": "orders", "at_ms": 1_700_000_000_000 + number} for number in range(3)]
    (path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return name


@pytest.mark.spark
def test_a_report_is_all_that_a_command_on_spark_prints(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tandem", "reconcile"]
    command += ["--sent", ledger(tmp_path, "sent.jsonl"), "--received", ledger(tmp_path, "received.jsonl")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=250, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split() for line in done.stdout.splitlines()][:2] == [
        ["entity", "sent", "delivered", "diverted", "lost", "duplicated"],
        ["orders", "3", "3", "0", "0", "0"],
    ]


@pytest.mark.spark
def test_what_goes_wrong_in_java_is_still_said(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tandem", "reconcile", "--sent", ledger(tmp_path, "sent.jsonl"), "--master", "nonsense"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode != 0
    assert "SparkException: Master must" in done.stderr


def test_programs_started_with_spark_lose_one_line_of_their_standard_error_and_no_other(capfd: pytest.CaptureFixture[str]) -> None:
    lines = "one\\nWARNING: Using incubator modules: jdk.incubator.vector\\ntwo\\n"
    with _quiet_start():
        assert os.environ["LOG4J_CONFIGURATION_FILE"].endswith("log4j2.properties")
        subprocess.run(["printf", lines], stdout=2, check=True)
    said = ""
    while "two" not in said:
        said += capfd.readouterr().err
    assert said == "one\ntwo\n"
    assert "LOG4J_CONFIGURATION_FILE" not in os.environ


def test_logging_that_the_user_configured_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "log4j2.properties").touch()
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    with _quiet_start():
        assert "LOG4J_CONFIGURATION_FILE" not in os.environ
