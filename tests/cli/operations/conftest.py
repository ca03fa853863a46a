"""A broker, and the command line called as a terminal would call it."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tandem.cli.main import main
from tests.cli.broker_process import BrokerProcess

Tandem = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def broker(module_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(module_path, "--port", "0", "--dev", "--data", "data") as running:
        yield running


def command_line(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """What a terminal would see, without the time a process takes to start."""
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        patch.setattr(sys, "argv", ["tandem", *arguments])
        patch.setattr(sys, "stdin", io.StringIO(stdin or ""))
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


@pytest.fixture(scope="module")
def tandem(broker: BrokerProcess) -> Tandem:
    def run(*arguments: str, expect: int = 0, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        done = command_line(*arguments, "-c", broker.connection_string, stdin=stdin)
        assert done.returncode == expect, done.stderr + done.stdout
        return done

    return run
