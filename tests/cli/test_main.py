"""The command itself: help, version, exit codes, and how little it loads."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer

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


WITHOUT_JSON = {
    ("serve", "relay bridge", "relay expose", "issuer serve"): "runs until it is stopped",
    ("demo", "import"): "writes for people, or a file",
    ("store dump",): "prints lines of JSON anyway",
    ("context use", "context remove", "issuer rotate", "issuer client", "store reset", "store recover-metadata"): "says that it was done",
}


def test_every_command_that_prints_data_prints_it_as_json() -> None:
    without: set[str] = set()
    for name, (module, attribute, _) in COMMANDS.items():
        found = getattr(importlib.import_module(module), attribute)
        application = found if isinstance(found, typer.Typer) else typer.Typer(add_completion=False)
        if application is not found:
            application.command(name=name)(found)
        command: Any = typer.main.get_command(application)
        parts = {f"{name} {one}": part for one, part in command.commands.items()} if hasattr(command, "commands") else {name: command}
        without |= {one for one, part in parts.items() if not any("--json" in getattr(option, "opts", ()) for option in part.params)}
    allowed = {one for names in WITHOUT_JSON for one in names}
    assert {one for one in without if not one.startswith("cluster ")} <= allowed


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


def loaded_by(*arguments: str) -> list[str]:
    """The heavy packages that one call of the command loads."""
    heavy = [
        "rich",
        "pyspark",
        "pandas",
        "pyarrow",
        "azure",
        "aiohttp",
        "requests",
        "asyncio",
        "pydantic",
        "prometheus_client",
        "tandem.amqp",
        "tandem.spark",
        "tandem.server",
    ]
    code = (
        "import atexit, os, sys\n"
        "from tandem.cli.main import main\n"
        f"sys.argv = ['tandem', *{list(arguments)!r}]\n"
        f"atexit.register(lambda: print('LOADED', [name for name in {heavy!r} if name in sys.modules]))\n"
        "main()\n"
    )
    done = run("-c", code, module=False)
    return list(ast.literal_eval(done.stdout.rpartition("LOADED ")[2]))


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("queue", "list", "--help"), ("send", "--help"), ("cost", "--help")])
def test_help_loads_nothing_that_takes_time(arguments: tuple[str, ...]) -> None:
    assert loaded_by(*arguments) == []


def test_a_command_that_asks_the_brokers_pages_loads_neither_the_sdk_nor_the_broker() -> None:
    nobody = "Endpoint=sb://localhost:1;SharedAccessKeyName=k;SharedAccessKey=a2V5;UseDevelopmentEmulator=true"
    assert loaded_by("lock", "list", "orders", "-c", nobody) == []
    assert loaded_by("connection", "list", "-c", nobody) == []
    assert loaded_by("session", "list", "orders", "-c", nobody) == ["tandem.amqp"]  # asks over AMQP, with our engine


def test_a_command_that_administers_loads_the_sdk_and_neither_our_engine_nor_a_broker() -> None:
    nobody = "Endpoint=sb://localhost:1;SharedAccessKeyName=k;SharedAccessKey=a2V5;UseDevelopmentEmulator=true"
    assert set(loaded_by("queue", "list", "-c", nobody)) <= {"azure", "requests", "asyncio"}


def test_cost_with_figures_alone_needs_no_spark(tmp_path: Path) -> None:
    assert not {"pyspark", "pandas", "pyarrow"} & set(loaded_by("cost", "--messages", "1000000", "--json"))


def test_commands_and_options_complete_in_the_shell(tmp_path: Path) -> None:
    def completed(words: str) -> list[str]:
        environ = os.environ | {"_TANDEM_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
        return subprocess.check_output([sys.executable, "-m", "tandem"], text=True, env=environ, timeout=60).split()

    assert completed("tandem qu") == ["queue"]
    assert completed("tandem queue cr") == ["create"]
    assert "--property" in completed("tandem queue create --")


def test_installed_command_leads_to_main() -> None:
    project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())["project"]
    module, function = project["scripts"]["tandem"].split(":")
    assert callable(getattr(importlib.import_module(module), function))
