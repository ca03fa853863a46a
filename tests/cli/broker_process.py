"""A broker as its users run it: a process of its own, spoken to over its output and its ports."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType


class BrokerProcess:
    """`with BrokerProcess(tmp_path, "--port", "0") as broker`: ready when entered, stopped when left."""

    def __init__(self, directory: Path, *arguments: str, environ: Mapping[str, str] | None = None) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TANDEM_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tandem", "serve", *arguments],
            cwd=directory,
            env=kept | dict(environ or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.directory = directory
        self.lines: list[str] = []

    def __enter__(self) -> BrokerProcess:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            if line.startswith("ready"):
                return self
        _, error = self.process.communicate(timeout=30)
        raise AssertionError(f"the broker ended with {self.process.returncode} before it was ready: {error}")

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=30)

    def line(self, start: str) -> str:
        """The rest of the first line that starts so."""
        return next(line[len(start) :].strip() for line in self.lines if line.startswith(start))

    @property
    def connection_string(self) -> str:
        return self.line("connection string:")

    @property
    def port(self) -> int:
        return int(self.connection_string.split(";")[0].rpartition(":")[2])

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """Exit code and what stood on standard error."""
        self.process.send_signal(number)
        _, error = self.process.communicate(timeout=30)
        return self.process.returncode, error
