"""The command itself: help, version, exit codes, and how little it loads."""

from __future__ import annotations

import importlib
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tandem
from tandem.cli.application import COMMANDS


def run(*arguments: str, module: bool = True) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tandem", *arguments] if module else [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_version_is_the_packages() -> None:
    assert run("--version").stdout == f"tandem {tandem.__version__}\n"


def test_help_lists_every_command() -> None:
    done = run("--help")
    assert done.returncode == 0
    for name, (_, _, about) in COMMANDS.items():
        assert name in done.stdout and about in done.stdout


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_has_help_with_an_example(name: str) -> None:
    done = run(name, "--help")
    assert done.returncode == 0
    assert f"tandem {name}" in done.stdout


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_is_where_it_is_said_to_be(name: str) -> None:
    module, attribute, _ = COMMANDS[name]
    assert getattr(importlib.import_module(module), attribute) is not None


def test_unknown_command_is_wrong_usage() -> None:
    done = run("srve")
    assert done.returncode == 2
    assert "srve" in done.stderr


def test_serving_does_not_load_what_it_does_not_need() -> None:
    heavy = [
        "typer",
        "pydantic",
        "rich",
        "pyspark",
        "pandas",
        "pyarrow",
        "azure.servicebus",
        "aiohttp",
        "requests",
        "tandem.client",
        "tandem.spark",
        "tandem.testing",
        "tandem.simulator",
    ]
    code = (
        "import sys; import tandem.cli.main, tandem.cli.running, tandem.server.server, tandem.stores.engines, tandem.wire.tls;"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    assert run("-c", code, module=False).stdout == "[]\n"


def test_installed_command_leads_to_main() -> None:
    project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())["project"]
    module, function = project["scripts"]["tandem"].split(":")
    assert callable(getattr(importlib.import_module(module), function))
