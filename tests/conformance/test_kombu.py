"""Kombu, which carries Celery, against a broker process: its URL has no port, wants a name that ends in .net, and speaks TLS only."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.broker_process import BrokerProcess
from tests.conformance.house import ROOT_KEY, ROOT_NAME

pytestmark = pytest.mark.skipif(importlib.util.find_spec("kombu") is None, reason="MISSING: the package kombu (extra `dev`)")

NAME = "bus.tandem-test.net"
STORY = Path(__file__).with_name("kombu_story.py")


def trusting(directory: Path, authority: str) -> Path:
    """A directory with a certifi of its own that trusts the broker, as `cat ca.pem >> $(python -m certifi)` would make it."""
    import certifi

    package = Path(certifi.__file__).parent
    copy = directory / "packages" / "certifi"
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
    with (copy / "cacert.pem").open("a") as bundle:
        bundle.write(Path(authority).read_text())
    return copy.parent


def test_kombu_finds_a_broker_that_has_a_name_two_ports_and_a_certificate_it_trusts(tmp_path: Path) -> None:
    (tmp_path / "tandem.toml").write_text(f'[tls]\nnames = ["{NAME}"]\n')
    with BrokerProcess(tmp_path, "--port", "0", "--data", "data", "--dev", "--config", "tandem.toml") as broker:
        paths = [str(trusting(tmp_path, broker.line("CA file:"))), *filter(None, [os.environ.get("PYTHONPATH")])]
        command = [sys.executable, str(STORY), f"azureservicebus://{ROOT_NAME}:{ROOT_KEY}@{NAME}", NAME, str(broker.port)]
        kept = {name: value for name, value in os.environ.items() if not name.endswith(("_BUNDLE", "_PROXY", "_proxy"))}
        environ = kept | {"PYTHONPATH": os.pathsep.join(paths)}
        done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"bodies": [1, 2], "administration": [3, 3, 0, False], "dialled": [443, 5671]}
