"""What every benchmark of the running broker shares: builds to compare, a broker process, the load generator, a table."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).resolve().parent.parent
KEY_NAME = "RootManageSharedAccessKey"
KEY = "SAS_KEY_VALUE"
_TICKS = os.sysconf("SC_CLK_TCK")
_READY_SECONDS_MAX = 300


@dataclasses.dataclass(frozen=True, slots=True)
class Build:
    """One Tandem to measure: a directory that holds the package, or None for the installed one."""

    label: str
    path: Path | None

    def environ(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TANDEM_") and name != "PYTHONPATH"}
        return kept | ({"PYTHONPATH": str(self.path)} if self.path else {})

    def is_compiled(self) -> bool | None:
        """None: there is no Tandem there."""
        code = "import tandem.amqp.connection as c; print(c.__file__)"
        found = subprocess.run([sys.executable, "-c", code], env=self.environ(), cwd="/", capture_output=True, text=True)
        return None if found.returncode else not found.stdout.strip().endswith(".py")


def parser(text: str | None) -> argparse.ArgumentParser:
    """With the options all benchmarks have."""
    made = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--amqpload", default=os.environ.get("TANDEM_AMQPLOAD", "amqpload"), help="the load generator [env TANDEM_AMQPLOAD]")
    made.add_argument("--build", action="append", default=[], metavar="LABEL=DIR", help="measure the package in DIR; may be repeated")
    made.add_argument("--directory", type=Path, help="where data goes; on the disk to be measured [default: the temporary directory]")
    made.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    return made


def builds(arguments: argparse.Namespace) -> list[Build]:
    """Those asked for; else the source tree, and the installed package if there is one."""
    wanted = [Build(label, Path(path).resolve()) for label, _, path in (text.partition("=") for text in arguments.build)]
    if not wanted:
        wanted = [Build("source", ROOT / "src"), Build("installed", None)]
    found = []
    for build in wanted:
        compiled = build.is_compiled()
        if compiled is not None:
            found.append(dataclasses.replace(build, label=f"{build.label} ({'compiled' if compiled else 'uncompiled'})"))
        elif arguments.build:
            raise SystemExit(f"no Tandem can be imported from {build.path}")
    return found


@contextmanager
def workplace(arguments: argparse.Namespace) -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="tandem-bench-", dir=arguments.directory))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


class Broker:
    """`tandem serve` as users run it. Use as a context manager; `kill` and `start` again in between."""

    def __init__(
        self, build: Build, directory: Path, config: str, environ: Mapping[str, str] | None = None, under: Sequence[str] = ()
    ) -> None:
        self._build = build
        self.under = list(under)
        """The command that runs it, as `valgrind` does; may change between two starts."""
        self._directory = directory
        self._environ = dict(environ or {})
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "tandem.toml").write_text(config)
        self._stalls = directory / "stalls.jsonl"
        self._process: subprocess.Popen[str] | None = None
        self.port = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def start(self) -> float:
        """Seconds until it was ready."""
        serve = ["serve", "--dev", "--config", "tandem.toml", "--data", "data", "--port", str(self.port)]
        command = [*self.under, sys.executable, "-m", "tandem", *serve]
        environ = self._build.environ() | {"TANDEM_STALLS": str(self._stalls)} | self._environ
        began = time.monotonic()
        with (self._directory / "stderr.txt").open("a") as errors:
            self._process = subprocess.Popen(command, cwd=self._directory, env=environ, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("connection string:"):
                self.port = int(line.split(";")[0].rpartition(":")[2])
            if line.startswith("ready"):
                return time.monotonic() - began
        raise SystemExit(f"the broker did not start: {(self._directory / 'stderr.txt').read_text()[-2000:]}")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def connection_string(self) -> str:
        return f"Endpoint=sb://localhost:{self.port};SharedAccessKeyName={KEY_NAME};SharedAccessKey={KEY};UseDevelopmentEmulator=true;"

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def cpu_seconds(self) -> float:
        """Of all its threads, user and system, so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def wants_processor(self) -> bool:
        """Does any of its threads run, or wait for its turn to?"""
        for stat in Path(f"/proc/{self.pid}/task").glob("*/stat"):
            try:
                if stat.read_text().rpartition(")")[2].split()[0] == "R":
                    return True
            except (FileNotFoundError, ProcessLookupError):
                continue  # the thread has ended
        return False

    def memory_mb(self) -> float:
        """Resident now."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        return 0.0

    def stalls(self) -> dict[str, Any]:
        """What the broker measured inside since it was asked last."""
        had = len(self._lines())
        os.kill(self.pid, signal.SIGUSR1)
        deadline = time.monotonic() + 30
        while len(self._lines()) == had:
            if time.monotonic() > deadline:
                raise SystemExit("the broker does not report its stalls")
            time.sleep(0.01)
        found: dict[str, Any] = json.loads(self._lines()[-1])
        return found

    def _lines(self) -> list[str]:
        return [line for line in self._stalls.read_text().splitlines() if line.endswith("}")] if self._stalls.exists() else []


class Load:
    """The load generator of another language, so that it costs next to nothing beside the broker."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        found = shutil.which(arguments.amqpload)
        if found is None:
            raise SystemExit(f"the load generator {arguments.amqpload!r} is not there: name it with --amqpload or TANDEM_AMQPLOAD")
        self._program = found

    def run(self, broker: Broker, mode: str, queue: str, **options: object) -> dict[str, Any]:
        """The generator's own figures, with `broker_cpu_s` and `wall_s` added."""
        before, began = broker.cpu_seconds(), time.monotonic()
        done = subprocess.run(self._command(broker.port, mode, queue, options), capture_output=True, text=True)
        after, ended = broker.cpu_seconds(), time.monotonic()
        if done.returncode:
            raise SystemExit(f"the load generator failed ({mode}): {done.stderr[-1000:] or done.stdout[-1000:]}")
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found | {"broker_cpu_s": after - before, "wall_s": ended - began}

    def start(self, broker: Broker, mode: str, queue: str, **options: object) -> subprocess.Popen[str]:
        command = self._command(broker.port, mode, queue, options)
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def _command(self, port: int, mode: str, queue: str, options: Mapping[str, object]) -> list[str]:
        command = [self._program, mode, "--port", str(port), "--addr", queue, "--sasl", "plain", "--user", KEY_NAME, "--pass", KEY]
        for name, value in options.items():
            command.append(f"-{name}" if len(name) == 1 else f"--{name.replace('_', '-')}")
            if value is not True:
                command.append(str(value))
        return command


class PeakMemory:
    """Looks at a broker's resident memory ten times a second."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.peak_mb = 0.0

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.1):
            self.peak_mb = max(self.peak_mb, self._broker.memory_mb())


class Table:
    """Rows of (what, figure per build, target)."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._rows: dict[str, dict[str, Any]] = {}
        self._targets: dict[str, str] = {}
        self._columns: list[str] = []

    def add(self, build: str, what: str, figure: object, target: str = "") -> None:
        if build not in self._columns:
            self._columns.append(build)
        self._rows.setdefault(what, {})[build] = figure
        if target:
            self._targets[what] = target

    def show(self, as_json: bool) -> None:
        if as_json:
            print(json.dumps({"benchmark": self._title, "figures": self._rows, "targets": self._targets}))
            return
        lines = [["", *self._columns, "target"]]
        for what, figures in self._rows.items():
            lines.append([what, *(_shown(figures.get(column, "")) for column in self._columns), self._targets.get(what, "")])
        widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))]
        print(self._title)
        for line in lines:
            print(
                "  "
                + "  ".join(
                    cell.ljust(width) if place == 0 else cell.rjust(width)
                    for place, (cell, width) in enumerate(zip(line, widths, strict=True))
                )
            )


def _shown(figure: object) -> str:
    if isinstance(figure, float):
        return f"{figure:,.0f}" if figure >= 1000 else f"{figure:.3g}" if figure < 10 else f"{figure:.1f}"
    return f"{figure:,}" if isinstance(figure, int) else str(figure)


class Yardstick:
    """A fixed piece of work, measured in CPU time while the benchmark goes on: how much slower this machine is just now than at its best.

    Neighbours on the same cores make every instruction dearer, and no clock shows that.
    """

    def __init__(self) -> None:
        self._over = threading.Event()
        self._pieces: list[float] = []
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Yardstick:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def us(self) -> float:
        """CPU microseconds of one piece, typically."""
        return percentile(self._pieces, 50) if self._pieces else 0.0

    def _work(self) -> None:
        while not self._over.wait(0.05):
            began = time.thread_time_ns()
            table: dict[int, bytes] = {}
            for number in range(2_000):
                table[number & 255] = number.to_bytes(8, "big")[4:]
            self._pieces.append((time.thread_time_ns() - began) / 1000)


def percentile(samples: Sequence[float], percent: float) -> float:
    ordered = sorted(samples)
    return ordered[min(int(len(ordered) * percent / 100), len(ordered) - 1)]
