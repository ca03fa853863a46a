"""A standalone Spark cluster on loopback, from the pip-installed package: one master, two workers, and their processes to be killed."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

import pyspark

from tandem.testing.ports import free_port

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"


class Cluster:
    """`with Cluster(tmp_path) as cluster`: `cluster.master` is the URL; everything it started ends with it."""

    def __init__(self, home: Path, workers: int = 2, cores: int = 1) -> None:
        self._home = home
        self._workers = workers
        self._cores = cores
        self._processes: list[subprocess.Popen[bytes]] = []
        self.port = free_port()
        self.master = f"spark://127.0.0.1:{self.port}"

    def _start(self, name: str, *arguments: str) -> None:
        environ = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, "SPARK_DAEMON_MEMORY": "256m"}
        with (self._home / f"{name}.log").open("wb") as log:
            command = [str(SPARK_CLASS), *arguments]
            self._processes.append(subprocess.Popen(command, env=environ, stdout=log, stderr=log, start_new_session=True))

    def __enter__(self) -> Cluster:
        master = "org.apache.spark.deploy.master.Master"
        self._start("master", master, "--host", "127.0.0.1", "--port", str(self.port), "--webui-port", "0")
        self._wait_for(lambda: _listens(self.port), "the master")
        worker = "org.apache.spark.deploy.worker.Worker"
        for number in range(self._workers):
            # Addresses of their own: Spark never runs a second attempt on the host of the first.
            place = ("--work-dir", str(self._home / f"work-{number}"), "--webui-port", "0", "--host", f"127.0.0.{number + 1}")
            self._start(f"worker-{number}", worker, "--cores", str(self._cores), "--memory", "1500m", *place, self.master)
        for number in range(self._workers):
            log = self._home / f"worker-{number}.log"
            self._wait_for(lambda log=log: "Successfully registered with master" in log.read_text(), f"worker {number}")
        return self

    def _wait_for(self, condition: object, what: str) -> None:
        assert callable(condition)
        deadline = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < deadline, f"{what} did not come up: see {self._home}"
            assert all(process.poll() is None for process in self._processes), f"{what} ended: see {self._home}"
            time.sleep(0.1)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        mine = [pid for process in self._processes for pid in (process.pid, *_descendants(process.pid))]
        for pid in mine:
            _kill(pid)
        for process in self._processes:
            process.wait()

    # -- what runs on it ---------------------------------------------------------------------

    def _below(self, word: str) -> list[int]:
        return [pid for process in self._processes for pid in _descendants(process.pid) if word in _command_line(pid)]

    def executors(self) -> list[int]:
        return self._below("CoarseGrainedExecutorBackend")

    def python_workers(self) -> list[int]:
        """Not the daemons that fork them: those whose parent is one."""
        daemons = set(self._below("pyspark"))
        return [pid for pid in daemons if _parent(pid) in daemons]

    def stop_python_worker(self) -> int:
        """One that is at work: its process id, for `go_on`."""
        pid = self.python_workers()[0]
        os.kill(pid, signal.SIGSTOP)
        return pid

    def go_on(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # Spark may have killed it when the other attempt was done
            os.kill(pid, signal.SIGCONT)

    def kill_executor(self) -> bool:
        return any(_kill(pid) for pid in self.executors()[:1])

    def kill_python_worker(self) -> bool:
        return any(_kill(pid) for pid in self.python_workers()[:1])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            children.setdefault(_parent(int(entry.name)), []).append(int(entry.name))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        for child in children.get(waiting.pop(), []):
            found.append(child)
            waiting.append(child)
    return found
