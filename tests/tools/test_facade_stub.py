"""What type checkers know of the classes without `await`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools import facade_stub

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM = """
import tandem
from typing import reveal_type

reveal_type(tandem.PairedNamespaces)
with tandem.PairedNamespaces("primary", "secondary") as pair:
    reveal_type(pair)
    reveal_type(pair.get_queue_sender("q"))
    reveal_type(pair.get_queue_sender("q").send_messages)
    reveal_type(pair.counters)
reveal_type(tandem.Outbox.pending)
pair.get_kew_sender("q")
tandem.PairedNamespace
"""


@pytest.mark.slow
def test_the_stubs_in_the_tree_are_those_the_classes_give() -> None:
    stale = [path.name for path, text in facade_stub.stubs().items() if path.read_text(encoding="utf-8") != text]
    assert stale == [], "python tools/facade_stub.py writes them again"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_type_checkers_see_classes_and_calls_that_return_what_is_waited_for(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(tmp_path), str(program)]
    environ = os.environ | {"MYPYPATH": str(ROOT / "src")}
    said = subprocess.run(command, env=environ, capture_output=True, text=True, cwd=tmp_path, check=False).stdout
    revealed = [line.partition('Revealed type is "')[2].rstrip('"') for line in said.splitlines() if "Revealed type" in line]
    made, pair, sender, send, counters, pending = (text.replace("tandem.client.sync.", "") for text in revealed)
    assert made.startswith("def (primary: ") and made.endswith(") -> PairedNamespaces"), "a class"
    assert (pair, sender, counters) == ("PairedNamespaces", "PairedSender", "tandem.client.events.Counters")
    assert send.startswith("def (message: Any, ") and "->" not in send, "nothing to await"
    assert pending.startswith("def (self: Outbox) -> ") and pending.endswith("int")
    errors = [line.partition("error: ")[2].partition("  [")[0] for line in said.splitlines() if "error: " in line]
    assert [text.partition(";")[0] for text in errors] == [
        '"PairedNamespaces" has no attribute "get_kew_sender"',
        'Module has no attribute "PairedNamespace"',
    ]
