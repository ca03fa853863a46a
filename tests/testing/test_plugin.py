"""The fixture as a user of an installed Tandem gets it: a test file, pytest, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
GUIDE = ROOT / "docs" / "guide" / "testing.md"

pytestmark = pytest.mark.compiled_too

USERS_TEST = """
from azure.servicebus import ServiceBusClient, ServiceBusMessage

def test_one(tandem_bus):
    tandem_bus.create_queue("orders", lock_duration=30)
    with ServiceBusClient.from_connection_string(tandem_bus.connection_string) as client:
        with client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("hello"))
    assert tandem_bus.counts("orders").active == 1

def test_each_test_has_a_bus_of_its_own(tandem_bus):
    tandem_bus.create_queue("orders")
    assert tandem_bus.counts("orders").total == 0
"""


@pytest.mark.slow
def test_fixture_works_in_a_directory_without_any_configuration(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(USERS_TEST)
    (tmp_path / "test_documented.py").write_text(GUIDE.read_text().partition("```python\n")[2].partition("```")[0])
    named = "tandem.testing.plugin" in {point.value for point in entry_points(group="pytest11")}
    options = [] if named else ["-p", "tandem.testing.plugin"]  # from the source tree there is no installed entry point
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, "test_mine.py", "test_documented.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert "4 passed" in run.stdout, run.stdout + run.stderr


def test_entry_point_names_the_plugin() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    assert declared == {"tandem": "tandem.testing.plugin"}
    assert hasattr(import_module(declared["tandem"]), "tandem_bus")


def test_plugin_costs_nothing_until_the_fixture_is_used(tmp_path: Path) -> None:
    code = "import tandem.testing.plugin, sys; sys.exit('tandem.server.server' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, timeout=60).returncode == 0


def test_fixture_is_known_to_our_own_tests(request: pytest.FixtureRequest) -> None:
    assert request.getfixturevalue("tandem_bus").port > 0
