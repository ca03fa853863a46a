"""The walk of one accepted send: `python tools/walk_figures.py [CHECKOUT ...]` traces it, side by side for several checkouts.

A broker is run from each checkout's source (`tandem serve`, in a process of its own), a connection sends until all is steady, and then one
message of 1 KB at a time is traced, from its bytes to the bytes that say "accepted". What a store's thread does after it has told the
loop is not on the walk: nobody waits for it. The shortest of some walks is shown: the others met a timer or a grant of credit.

files       of the source in which a function was entered
functions   different ones that were entered
entries     calls of them, one after the other
crossings   entries that come from another room than the entry before

Who takes the walk by hand reads each function once, and passes over clocks, constructors and what only answers a question: such a count
is about three quarters of `functions`.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

HERE = Path(__file__).resolve().parent.parent
KEY = "SAS_KEY_VALUE"
KEY_NAME = "RootManageSharedAccessKey"
CONFIG = '[[queue]]\nname = "walk"\n'
CONFIG_PARTITIONED = CONFIG + "enable_partitioning = true\n"
LAST_WORDS = ("_SelectorSocketTransport.write", "BaseEventLoop.call_soon_threadsafe")
STEADY = 40
ROUNDS = 7
QUIET_SECONDS = 0.15


@dataclasses.dataclass(frozen=True)
class Walk:
    steps: tuple[tuple[str, str], ...]
    """(file, function) of each entry, in order."""

    @property
    def figures(self) -> dict[str, int]:
        rooms = [file.partition("/")[0] for file, _ in self.steps]
        return {
            "files": len({file for file, _ in self.steps}),
            "functions": len(set(self.steps)),
            "entries": len(self.steps),
            "crossings": sum(1 for before, after in itertools.pairwise(rooms) if before != after),
        }


# -- inside the broker -----------------------------------------------------------------------


class Tracer:
    """Writes what was entered since the last signal into a file, one JSON array for each."""

    def __init__(self, source: str, file: Path) -> None:
        self._source = source + os.sep
        self._file = file
        self._steps: list[tuple[int, str, str]] = []
        self._said: dict[int, int] = {}
        """By thread: how many steps there were when it last wrote to the network, or handed something to the loop."""
        signal.signal(signal.SIGUSR2, self._tell)

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code.co_filename.startswith(self._source):
            if not code.co_name.startswith("<"):
                self._steps.append((threading.get_ident(), code.co_filename[len(self._source) :], code.co_qualname))
        elif code.co_qualname in LAST_WORDS:
            self._said[threading.get_ident()] = len(self._steps)

    def _tell(self, *_: object) -> None:
        walk = [(file, function) for at, (thread, file, function) in enumerate(self._steps) if at < self._said.get(thread, 0)]
        self._steps = []
        self._said = {}
        with self._file.open("a") as out:
            out.write(json.dumps(walk) + "\n")


def serve(source: str, file: Path, arguments: list[str]) -> None:
    """`tandem serve`, with everybody watched."""
    sys.path.insert(0, source)
    sys.modules["uvloop"] = None  # type: ignore[assignment] # the loop of the standard library shows when it is called
    tracer = Tracer(os.path.join(source, "tandem"), file)
    threading.setprofile(tracer)
    sys.setprofile(tracer)
    sys.argv = ["tandem", *arguments]
    runpy.run_module("tandem", run_name="__main__")


# -- outside ---------------------------------------------------------------------------------


class Watched:
    """A broker that tells what it entered."""

    def __init__(self, process: subprocess.Popen[str], port: int, file: Path) -> None:
        self._process = process
        self.port = port
        self._file = file
        self._heard = 0
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("ready"):
                return
        raise SystemExit("the broker did not start")

    def steps(self) -> tuple[tuple[str, str], ...]:
        """Since it was asked last."""
        os.kill(self._process.pid, signal.SIGUSR2)
        while len(lines := self._lines()) <= self._heard:
            time.sleep(0.01)
        self._heard += 1
        return tuple((file, function) for file, function in json.loads(lines[-1]))

    def _lines(self) -> list[str]:
        return [line for line in self._file.read_text().splitlines() if line.endswith("]")] if self._file.exists() else []


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        found: int = probe.getsockname()[1]
        return found


@contextmanager
def watched(checkout: Path, memory: bool, partitioned: bool) -> Iterator[Watched]:
    with tempfile.TemporaryDirectory(prefix="tandem-walk-") as name:
        directory = Path(name)
        (directory / "tandem.toml").write_text(CONFIG_PARTITIONED if partitioned else CONFIG)
        where = ["--memory"] if memory else ["--data", "data"]
        port = free_port()
        serve = ["serve", "--key", KEY, "--config", "tandem.toml", "--port", str(port), *where]
        command = [sys.executable, __file__, "--inside", str(checkout / "src"), str(directory / "walks"), *serve]
        kept = {key: value for key, value in os.environ.items() if not key.startswith("TANDEM_") and key != "PYTHONPATH"}
        process = subprocess.Popen(command, cwd=directory, env=kept, stdout=subprocess.PIPE, text=True)
        try:
            yield Watched(process, port, directory / "walks")
        finally:
            process.kill()
            process.wait()


def walk(checkout: Path, memory: bool, partitioned: bool) -> Walk:
    from tandem.amqp import encode_message
    from tandem.engine_client.blocking import BlockingClient
    from tandem.engine_client.endpoint import Endpoint

    found = []
    with watched(checkout.resolve(), memory, partitioned) as broker:
        text = f"Endpoint=sb://localhost:{broker.port};SharedAccessKeyName={KEY_NAME};SharedAccessKey={KEY};UseDevelopmentEmulator=true;"
        with BlockingClient(Endpoint.parse(text)) as client:
            sender = client.sender("walk")
            for number in range(STEADY + ROUNDS):
                payload = encode_message(properties={"message-id": str(number)}, body=b"x" * 1024)
                if number >= STEADY:
                    time.sleep(QUIET_SECONDS)
                    broker.steps()
                sender.send(payload)
                sender.drain()
                if number >= STEADY:
                    time.sleep(QUIET_SECONDS)
                    found.append(Walk(broker.steps()))
    return min(found, key=lambda one: len(one.steps))


def main() -> None:
    if sys.argv[1:2] == ["--inside"]:
        serve(sys.argv[2], Path(sys.argv[3]), sys.argv[4:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="*", type=Path, default=[HERE])
    parser.add_argument("--memory", action="store_true", help="messages are kept in memory only")
    parser.add_argument("--partitioned", action="store_true", help="the queue is")
    parser.add_argument("--steps", action="store_true", help="the walk itself")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    sys.path.insert(0, str(HERE / "src"))
    walks = {str(checkout): walk(checkout, arguments.memory, arguments.partitioned) for checkout in arguments.checkouts}
    if arguments.json:
        print(json.dumps({name: one.figures | {"steps": one.steps} for name, one in walks.items()}, indent=2))
        return
    for name in ("files", "functions", "entries", "crossings"):
        print(f"{name:12}", *(f"{one.figures[name]:>10}" for one in walks.values()))
    for checkout, one in walks.items() if arguments.steps else ():
        print(f"\n{checkout}", *(f"{file:36} {function}" for file, function in one.steps), sep="\n")


if __name__ == "__main__":
    main()
