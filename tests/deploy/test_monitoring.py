"""Alert rules and dashboard: checked by Prometheus' own tools, and fired by a real one when a broker fails."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tandem.testing.ports import free_port
from tests.cli.broker_process import BrokerProcess

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy" / "prometheus" / "tandem.rules.yml"
MISSING = shutil.which("prometheus") is None or shutil.which("promtool") is None
needs_prometheus = pytest.mark.skipif(MISSING, reason="MISSING: prometheus and promtool")


@needs_prometheus
def test_promtool_accepts_the_rules() -> None:
    checked = subprocess.run(["promtool", "check", "rules", str(RULES)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_every_alert_has_a_runbook_that_exists() -> None:
    yaml = pytest.importorskip("yaml", reason="MISSING: PyYAML")
    page = (ROOT / "docs" / "guide" / "monitor.md").read_text()
    for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]:
        file, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert (ROOT / file).is_file()
        assert f"### {rule['alert']}\n" in page and anchor == rule["alert"].lower()


def test_the_dashboard_is_what_its_table_makes() -> None:
    path = ROOT / "deploy" / "grafana"
    spec = importlib.util.spec_from_file_location("make_dashboard", path / "make_dashboard.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (path / "tandem.json").read_text() == module.text()


class Prometheus:
    """A real one, which looks every two seconds and waits for nothing before it fires."""

    def __init__(self, directory: Path, target: int) -> None:
        self.port = free_port()
        (directory / "rules.yml").write_text(
            "\n".join("        for: 0s" if line.strip().startswith("for:") else line for line in RULES.read_text().splitlines())
        )
        (directory / "prometheus.yml").write_text(
            "global: {scrape_interval: 2s, scrape_timeout: 2s, evaluation_interval: 500ms}\n"
            "rule_files: [rules.yml]\n"
            "scrape_configs:\n"
            f"  - {{job_name: tandem, metrics_path: /$tandem/metrics, static_configs: [{{targets: ['localhost:{target}']}}]}}\n"
        )
        self._process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={directory / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{self.port}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def ask(self, path: str) -> Any:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/{path}", timeout=5) as reply:
                return json.loads(reply.read())["data"]
        except (urllib.error.URLError, ConnectionError):
            return {}

    def firing(self) -> set[str]:
        return {one["labels"]["alertname"] for one in self.ask("alerts").get("alerts", []) if one["state"] == "firing"}

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def wait_until(true: Callable[[], bool], what: str, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"still waiting for {what}"
        time.sleep(0.2)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path, "--port", "0", "--dev", "--data", "data") as running:
        yield running


@pytest.mark.slow
@needs_prometheus
def test_the_alerts_of_an_outage_fire_and_end(broker: BrokerProcess, tmp_path: Path) -> None:
    prometheus = Prometheus(tmp_path, broker.port)
    try:
        wait_until(lambda: bool(prometheus.ask("query?query=tandem_store_up").get("result")), "the first scrape")
        down = {"TandemDown", "TandemStoreDown"}
        wait_until(lambda: not prometheus.firing() & down, "no alert while nothing is wrong")  # a starved machine misses a scrape
        from tests.cli.operations.conftest import command_line

        assert command_line("fault", "inject", "store-down", "--store", "0", "-c", broker.connection_string).returncode == 0
        wait_until(lambda: "TandemStoreDown" in prometheus.firing(), "the alert of a store that is down")
        assert command_line("fault", "heal", "-c", broker.connection_string).returncode == 0
        wait_until(lambda: "TandemStoreDown" not in prometheus.firing(), "the end of it")
        broker.process.kill()
        wait_until(lambda: "TandemDown" in prometheus.firing(), "the alert of a broker that is gone")
    finally:
        prometheus.close()
