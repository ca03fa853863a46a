"""Reads a page of the documentation as a list of things to do, and does them as a reader would: from the top, in an empty directory.

What a fence means:

    bash        typed into a terminal that stays open for the whole page; if it ends with a `serve`, in a terminal of its own
    console     lines after `$ ` are typed, the rest is what must be printed
    python      typed into one interpreter that stays open for the whole page
    toml        the file tandem.toml; it has to be a configuration that a broker accepts
    others      not ours to run (go and java have tests of their own), or no program at all

and what a comment in front of it says:

    <!-- file: NAME -->         the block is that file
    <!-- not run: REASON -->    it is not run, and why not
    <!-- first: PAGE -->        anywhere on a page: the reader was sent to that page first
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RUN = frozenset({"bash", "console", "python", "toml"})
NOT_RUN = frozenset({"text", "go", "java", "xml", "yaml", "json", "sql", "ini"})
END = "--- end of block ---"
READY_SECONDS = 100
BLOCK_SECONDS = 900

_FENCE = re.compile(r"(?P<comment><!-- [^\n]*-->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"<!-- (file|not run|first): (.*?) -->")


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    text: str
    mark: str = ""
    """`file` or `not run`."""
    of: str = ""
    """The file, or the reason."""


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = []
    for fence in _FENCE.finditer(text):
        mark = _MARK.match(fence["comment"] or "")
        kind, of = (mark[1], mark[2]) if mark and mark[1] != "first" else ("", "")
        line = text.count("\n", 0, fence.start("language")) + 1
        found.append(Block(page.name, line, fence["language"], fence["text"], kind, of))
    return found


def before(page: Path) -> list[Path]:
    """The pages that a reader was sent to first, in order."""
    sent = re.findall(r"<!-- first: (.*?) -->", page.read_text(encoding="utf-8"))
    return [one for name in sent for one in (*before(page.parent / name), page.parent / name)]


class Failed(AssertionError):
    """A block did not do what the page says."""

    def __init__(self, block: Block, what: str) -> None:
        super().__init__(f"{block.page}:{block.line}: {what}\n{block.text}")


class Reader:
    """Somebody with an empty directory, `tandem` on the path, and `.venv` as `make setup` leaves it."""

    def __init__(self, home: Path, shared: Path) -> None:
        self.home = home
        self.shared = shared
        binaries = home / ".venv" / "bin"
        binaries.mkdir(parents=True)
        for name, module in (("tandem", "-m tandem"), ("python", ""), ("python3", ""), ("pytest", "-m pytest -p no:cacheprovider")):
            (binaries / name).write_text(f'#!/bin/sh\nexec {sys.executable} {module} "$@"\n')
            (binaries / name).chmod(0o755)
        self.environment = {
            **os.environ,
            "PATH": f"{binaries}:{os.environ['PATH']}",
            "PYTHONUNBUFFERED": "1",
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        self.servers: list[subprocess.Popen[str]] = []
        self.interpreter: subprocess.Popen[str] | None = None
        self.said = ""
        """Everything that was printed so far."""

    def close(self) -> None:
        for one in (*self.servers, *([self.interpreter] if self.interpreter else [])):
            one.kill()
            one.wait()

    def do(self, block: Block) -> None:
        if block.mark == "file":
            (self.home / block.of).write_text(block.text)
        elif block.mark == "not run" or block.language in NOT_RUN:
            return
        elif block.language == "toml":
            (self.home / "tandem.toml").write_text(block.text)
            self._accepted(block)
        elif block.language == "console":
            self._console(block)
        elif block.language == "python":
            self._python(block)
        elif re.search(r"^(\S*/)?tandem (issuer )?serve[^\n]*\n\Z", block.text, re.MULTILINE):
            self._serve(block)
        else:
            self._bash(block, block.text)

    def _accepted(self, block: Block) -> None:
        from tandem.cli.configuration.settings import Flags, load
        from tandem.model.errors import ConfigurationError

        try:
            load(Flags(), {}, self.home)
        except ConfigurationError as error:
            raise Failed(block, str(error)) from error

    def _bash(self, block: Block, commands: str) -> str:
        """What was printed on standard output. Variables that were exported stay; a demo that is kept is played once for all pages."""
        for kept in re.findall(r"^tandem demo --keep (\w+)/$", commands, re.MULTILINE):
            self._same_demo(block, kept)
            commands = commands.replace(f"tandem demo --keep {kept}/\n", "")
        with tempfile.NamedTemporaryFile() as variables:
            script = f"set -euo pipefail\n{commands}\nenv -0 > {variables.name}\n"
            done = subprocess.run(
                ["bash", "-c", script],
                cwd=self.home,
                env=self.environment,
                capture_output=True,
                text=True,
                timeout=BLOCK_SECONDS,
                check=False,
            )
            if done.returncode:
                raise Failed(block, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
            pairs = Path(variables.name).read_text().split("\0")
        self.environment = dict(pair.split("=", 1) for pair in pairs if pair)
        self.said += done.stdout
        return done.stdout

    def _run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=self.home, env=self.environment, capture_output=True, text=True, timeout=BLOCK_SECONDS, check=False
        )

    def _same_demo(self, block: Block, name: str) -> None:
        story = self.shared / "story"
        if not story.exists():
            quick = ["--rate", "30", "--before", "2", "--outage", "2", "--report", str(self.shared / "demo.html")]
            done = self._run(str(self.home / ".venv" / "bin" / "tandem"), "demo", "--keep", str(story), *quick)
            if done.returncode:
                raise Failed(block, done.stdout + done.stderr)
        subprocess.run(["cp", "-r", str(story), str(self.home / name)], check=True)

    def _console(self, block: Block) -> None:
        for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            command, _, expected = part.partition("\n")
            printed = self._bash(block, command)
            if expected and printed != expected:
                raise Failed(block, f"printed\n{printed}")

    def _python(self, block: Block) -> None:
        if self.interpreter is None:
            program = (
                "import sys, traceback\nnames = {'__name__': '__main__'}\n"
                "for length in sys.stdin:\n"
                "    text = sys.stdin.read(int(length))\n"
                "    try:\n        exec(compile(text, 'page', 'exec'), names)\n"
                "    except BaseException:\n        traceback.print_exc(file=sys.stdout)\n        sys.exit(1)\n"
                f"    print({END!r}, flush=True)\n"
            )
            self.interpreter = subprocess.Popen(
                [sys.executable, "-c", program], cwd=self.home, env=self.environment, text=True, stdin=-1, stdout=-1, stderr=-2
            )
        assert self.interpreter.stdin and self.interpreter.stdout
        self.interpreter.stdin.write(f"{len(block.text)}\n{block.text}")
        self.interpreter.stdin.flush()
        said = ""
        watchdog = threading.Timer(BLOCK_SECONDS, self.interpreter.kill)
        watchdog.start()
        for line in self.interpreter.stdout:
            if line.strip() == END:
                break
            said += line
        else:
            raise Failed(block, said)
        watchdog.cancel()
        self.said += said

    def _serve(self, block: Block) -> None:
        """All but the last line is typed as usual; the server keeps its terminal."""
        *first, last = block.text.rstrip("\n").split("\n")
        if first:
            self._bash(block, "\n".join(first))
        server = subprocess.Popen(
            ["bash", "-c", f"exec {last}"], cwd=self.home, env=self.environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self.servers.append(server)
        assert server.stdout is not None
        said = ""
        watchdog = threading.Timer(READY_SECONDS, server.kill)
        watchdog.start()
        for line in server.stdout:
            said += line
            if line.startswith("ready"):
                break
        else:
            raise Failed(block, f"did not become ready\n{said}")
        watchdog.cancel()
        threading.Thread(target=server.stdout.read, daemon=True).start()


def main(page: Path, home: Path, shared: Path) -> None:
    """In a network of its own, where every port is free."""
    import fcntl
    import socket
    import struct

    with socket.socket() as any_socket:  # what `ip link set lo up` does, where there is no `ip`
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 0x1 | 0x40))
    reader = Reader(home, shared)
    try:
        for one in (*before(page), page):
            for block in blocks_of(one):
                reader.do(block)
    finally:
        reader.close()
    sys.stdout.write(reader.said)


if __name__ == "__main__":
    main(*(Path(argument) for argument in sys.argv[1:]))
