"""A broker as its users run it: a process of its own, spoken to over its output and its ports."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import ClassVar


class BrokerProcess:
    """`with BrokerProcess(tmp_path, "--port", "0") as broker`: ready when entered, stopped when left."""

    program: ClassVar[tuple[str, ...]] = ("-m", "tandem")

    def __init__(
        self,
        directory: Path,
        *arguments: str,
        environ: Mapping[str, str] | None = None,
        log: Path | None = None,
        python: str | None = None,
    ) -> None:
        """`python`: of another environment, which has a Tandem of its own."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TANDEM_")}
        if python is not None:
            kept.pop("PYTHONPATH", None)
        self.process = subprocess.Popen(
            [python or sys.executable, *self.program, "serve", *arguments],
            cwd=directory,
            env=kept | dict(environ or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if log is None else log.open("w"),
            text=True,
        )
        self.directory = directory
        given = dict(itertools.pairwise(arguments))
        self.given_key = given.get("--key") or dict(environ or {}).get("TANDEM_KEY", "")
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
        """As printed by a development broker; else as `tandem keys` shows it, or with the key that was given."""
        printed = [line for line in self.lines if line.startswith("connection string:")]
        if printed:
            return printed[0].partition(": ")[2]
        where = self.line("keys:")
        if not where.startswith("tandem keys"):
            key = f"SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey={self.given_key}"
            return f"Endpoint={self.line('endpoint:')};{key};UseDevelopmentEmulator=true"
        command = [sys.executable, "-m", *shlex.split(where), "--json"]
        shown = json.loads(subprocess.check_output(command, cwd=self.directory, text=True))
        return str(next(item["connection_string"] for item in shown if item["key_name"] == "RootManageSharedAccessKey"))

    @property
    def port(self) -> int:
        return int(self.line("ready: listening on").split(";")[0].split(",")[0].rpartition(":")[2])

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """Exit code and what stood on standard error."""
        self.process.send_signal(number)
        _, error = self.process.communicate(timeout=30)
        return self.process.returncode, error
