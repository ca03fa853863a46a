"""Real brokers as processes of their own, to be killed, frozen and started again."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from tandem.client.tokens import SasCredential
from tandem.testing.ports import free_port

KEY = "SAS_KEY_VALUE"
KEY_NAME = "RootManageSharedAccessKey"


class Broker:
    """One `tandem serve` process on a port and a data directory that stay the same through every restart."""

    def __init__(self, home: Path, name: str) -> None:
        self.name = name
        self.port = free_port()
        self.data = home / name
        self.log = home / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def connection_string(self) -> str:
        return f"Endpoint=sb://localhost:{self.port};SharedAccessKeyName={KEY_NAME};SharedAccessKey={KEY};UseDevelopmentEmulator=true;"

    def string_for(self, key_name: str, key: str) -> str:
        return f"Endpoint=sb://localhost:{self.port};SharedAccessKeyName={key_name};SharedAccessKey={key};UseDevelopmentEmulator=true;"

    @property
    def ca(self) -> str:
        return str(self.data / "ca.pem")

    def start(self) -> Broker:
        """Returns once the broker says that it is ready."""
        self.launch()
        return self.wait_ready()

    def launch(self) -> None:
        command = [sys.executable, "-m", "tandem", "serve", "--port", str(self.port), "--data", str(self.data), "--dev"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)

    def wait_ready(self) -> Broker:
        assert self.process is not None and self.process.stdout is not None
        deadline = time.monotonic() + 30
        seen = b""
        while b"\nready" not in seen and not seen.startswith(b"ready"):
            readable, _, _ = select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            chunk = os.read(self.process.stdout.fileno(), 65_536) if readable else b""
            if not chunk:
                raise RuntimeError(f"{self.name} did not become ready: {seen!r}\n{self.log.read_text()}")
            seen += chunk
        return self

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """The power fails."""
        self._signal(signal.SIGKILL)
        assert self.process is not None
        self.process.wait()

    def freeze(self) -> None:
        """It still accepts connections and never answers: a black hole."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def inject(self, kind: str, **fields: object) -> None:
        """Make the broker misbehave on purpose, without touching its process."""
        self._faults("POST", {"kind": kind, **fields})

    def heal(self) -> None:
        self._faults("DELETE", None)

    def _faults(self, method: str, body: dict[str, object] | None) -> None:
        base = f"http://localhost:{self.port}/"
        token = asyncio.run(SasCredential(KEY_NAME, KEY).get_token(base)).token
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(base + "$tandem/faults", data, {"Authorization": token}, method=method)
        with urllib.request.urlopen(request, timeout=30) as reply:
            reply.read()

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()

    def _signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)
