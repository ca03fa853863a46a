"""A PySpark that is missing or too old is named, with what to install, before anything else is tried."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tandem.spark
from tandem.model.errors import ConfigurationError
from tandem.spark.pyspark_version import need_pyspark

pyspark = pytest.importorskip("pyspark")
CONNECTION = "Endpoint=sb://localhost;SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=c2VjcmV0"


@pytest.mark.parametrize("version", ["3.5.9", "4.0.0", "4.1.4"])
def test_a_version_before_4_2_is_refused_with_what_to_install(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    session: Any = None
    with pytest.raises(ConfigurationError, match=rf"4\.2 or newer is needed, and this is {version}: pip install"):
        tandem.spark.register(session)


def test_without_pyarrow_that_is_what_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, package=None: None if name == "pyarrow" else find_spec(name, package))
    with pytest.raises(ConfigurationError, match=r"pyarrow is not installed: pip install 'tandem-bus\[spark\]'"):
        need_pyspark()


@pytest.mark.parametrize(
    "command",
    [
        ("reconcile", "--sent", "sent.jsonl"),
        ("availability", "--events", "events.jsonl"),
        ("cost", "--meters", "meters"),
        ("report", "--primary", "data", "--out", "report.html"),
        ("syphon", "--primary", CONNECTION, "--secondary", CONNECTION),
        ("demo",),
    ],
    ids=lambda command: command[0],
)
def test_without_pyspark_a_command_says_what_to_install(command: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util\n"
        "found = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, package=None: None if name == 'pyspark' else found(name, package)\n"
    )
    (tmp_path / "pyspark.py").write_text("raise ModuleNotFoundError(\"No module named 'pyspark'\", name='pyspark')\n")
    for name in ("sent.jsonl", "events.jsonl"):
        (tmp_path / name).touch()
    (tmp_path / "data").mkdir()
    (tmp_path / "meters").mkdir()
    path = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", ""), *(one for one in sys.path if one)))
    done = subprocess.run(
        [sys.executable, "-m", "tandem", *command],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert "PySpark is not installed: pip install 'tandem-bus[spark]'" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == 2
