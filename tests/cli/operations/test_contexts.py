"""Contexts: a name instead of a key."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from tests.cli.broker_process import BrokerProcess
from tests.cli.operations.conftest import command_line as tandem


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "home" / "contexts.json"


@pytest.fixture(autouse=True)
def only_this_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_CONTEXTS", str(file))
    monkeypatch.delenv("TANDEM_CONNECTION_STRING", raising=False)
    monkeypatch.delenv("TANDEM_CONTEXT", raising=False)


@pytest.mark.slow
def test_a_context_stands_for_its_connection_string_and_its_file_is_for_its_owner_only(broker: BrokerProcess, file: Path) -> None:
    added = tandem("context", "add", "here", "--connection-string-file", "-", stdin=broker.connection_string + "\n")
    assert (added.returncode, added.stdout) == (0, "context here (current)\n"), added.stderr
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert tandem("queue", "create", "of-context").returncode == 0
    assert tandem("send", "of-context", "x", "--context", "here").stdout == "sent 1\n"
    [one] = json.loads(tandem("context", "list", "--json").stdout)
    assert (one["name"], one["current"]) == ("here", "*")
    assert "SAS_KEY_VALUE" not in tandem("context", "list").stdout, "no key is shown"
    assert tandem("context", "remove", "here").returncode == 0
    assert "which namespace?" in tandem("queue", "list").stderr


def test_what_is_wrong_with_contexts_is_said(file: Path) -> None:
    nobody = tandem("queue", "list", "--context", "nobody")
    assert (nobody.returncode, "there is no context 'nobody'" in nobody.stderr) == (2, True)
    wrong = tandem("context", "add", "x", "--connection-string", "nonsense")
    assert (wrong.returncode, "connection string" in wrong.stderr) == (2, True)
    unnamed = tandem("context", "add", "", "--connection-string", "Endpoint=sb://h;SharedAccessKeyName=n;SharedAccessKey=k")
    assert (unnamed.returncode, "a context has a name" in unnamed.stderr) == (2, True)
    file.parent.mkdir()
    file.write_text('{"current": null, "contexts": {}}')
    file.chmod(0o644)
    open_to_all = tandem("context", "list")
    assert (open_to_all.returncode, "chmod 600" in open_to_all.stderr) == (2, True)
