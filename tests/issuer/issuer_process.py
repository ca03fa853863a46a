"""An issuer as its users run it: a process of its own, and the commands beside it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from tandem.testing.ports import free_port


def tandem(directory: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tandem", *arguments], cwd=directory, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def add_client(directory: Path, client_id: str, *options: str) -> str:
    """Its secret."""
    shown = json.loads(tandem(directory, "issuer", "client", "add", client_id, "--data", "issuer", "--json", *options))
    return str(shown["client_secret"])


class IssuerProcess:
    """`with IssuerProcess(tmp_path) as issuer`: ready when entered; may be killed and started again on the same port."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.directory = directory
        self.port = free_port()
        self._arguments = arguments
        self.lines: list[str] = []
        self.log = directory / "issuer-stderr.txt"
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "tandem", "issuer", "serve", "--data", "issuer", "--port", str(self.port), *self._arguments]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TANDEM_")}
        self.process = subprocess.Popen(
            command, cwd=self.directory, env=kept, stdout=subprocess.PIPE, stderr=self.log.open("a"), text=True, bufsize=1
        )
        assert self.process.stdout is not None
        self.lines = []
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            if line.startswith("ready"):
                return
        raise AssertionError(f"the issuer ended with {self.process.wait(30)}: {self.log.read_text()}")

    def kill(self, number: signal.Signals = signal.SIGKILL) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def __enter__(self) -> IssuerProcess:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()

    def line(self, start: str) -> str:
        return next(line[len(start) :].strip() for line in self.lines if line.startswith(start))

    @property
    def authority(self) -> str:
        return self.line("authority:")

    @property
    def ca(self) -> str:
        return str(self.directory / self.line("CA file:"))

    @property
    def audit(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in (self.directory / "issuer" / "audit.jsonl").read_text().splitlines()]

    def trusted(self, *more: str) -> str:
        """For a broker's tandem.toml."""
        lines = [
            "[[trusted_issuer]]",
            f'issuer = "{self.line("issuer:")}"',
            f'jwks_url = "{self.line("keys:")}"',
            f'ca = "{self.ca}"',
            *more,
        ]
        return "\n".join(lines) + "\n"
