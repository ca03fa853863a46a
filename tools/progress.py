"""Runs a command and shows that it lives: one line that ticks, what it does just now, and the end of its output if it fails.

    python tools/progress.py --title "installing packages" --usually "a minute" --log build/pip.log -- command …

On a terminal the line is written over itself; elsewhere a line comes every few seconds. The whole output is in the log.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO

TICK_SECONDS = 0.5
LINE_SECONDS = 4.0
SHOWN_ON_FAILURE = 40


class Ticker:
    """The line on the screen."""

    def __init__(self, title: str, usually: str) -> None:
        self.title = title
        self.usually = f" (usually {usually})" if usually else ""
        self.latest = ""
        self.start = time.monotonic()
        self.terminal = sys.stderr.isatty()
        self._shown = 0.0

    def seconds(self) -> int:
        return round(time.monotonic() - self.start)

    def tick(self) -> None:
        now = time.monotonic()
        if not self.terminal and self._shown and now - self._shown < LINE_SECONDS:
            return
        self._shown = now
        text = f"{self.title}: {self.seconds()} s{self.usually}" + (f": {self.latest}" if self.latest else "")
        if self.terminal:
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write("\r\x1b[2K" + text[:width])
        else:
            sys.stderr.write(text[:160] + "\n")
        sys.stderr.flush()

    def end(self, text: str) -> None:
        sys.stderr.write(("\r\x1b[2K" if self.terminal else "") + f"{self.title}: {text}\n")
        sys.stderr.flush()


OUR_LINES = "tandem: "
"""A program that says such lines is shown with them alone."""


def follow(output: IO[str], log: IO[str], ticker: Ticker, last: list[str]) -> None:
    """Everything into the log; the newest line beside the clock."""
    ours = False
    for line in output:
        log.write(line)
        log.flush()
        text = line.strip()
        if text:
            ours = ours or text.startswith(OUR_LINES)
            if text.startswith(OUR_LINES) or not ours:
                ticker.latest = text.removeprefix(OUR_LINES)
            last.append(text)
            del last[:-SHOWN_ON_FAILURE]


def run(title: str, command: list[str], log: Path, usually: str = "", environment: dict[str, str] | None = None) -> int:
    """The command's exit code; what went wrong is shown, what went well is not."""
    log.parent.mkdir(parents=True, exist_ok=True)
    ticker = Ticker(title, usually)
    last: list[str] = []
    with log.open("w", encoding="utf-8") as written:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment,
        )
        assert process.stdout is not None
        reader = threading.Thread(target=follow, args=(process.stdout, written, ticker, last))
        reader.start()
        while True:
            ticker.tick()
            try:
                code = process.wait(TICK_SECONDS)
                break
            except subprocess.TimeoutExpired:
                continue
            except KeyboardInterrupt:
                process.terminate()
                raise
        reader.join()
    if code:
        ticker.end(f"failed after {ticker.seconds()} s (all it said: {log})")
        for text in last:
            sys.stderr.write(f"  {text}\n")
    else:
        ticker.end(f"done in {ticker.seconds()} s")
    return code


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--title", required=True)
    parser.add_argument("--usually", default="", help="how long it usually takes, in words")
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    command = given.command[1:] if given.command[:1] == ["--"] else given.command
    return run(given.title, command, given.log, given.usually)


if __name__ == "__main__":
    sys.exit(main())
