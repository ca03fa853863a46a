"""Where lines for the operator go: standard error, as text or as JSON, from a level on."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import select
import sys
import time
from collections.abc import Iterable
from typing import Final

from tandem.server.log_lines import LogHandler, LogLines

FORMATS: Final = ("text", "json")
LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_PIECE_BYTES: Final = 4_096
"""A pipe that has room has room for as many."""
_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")


def one_entry(text: str) -> str:
    """A line of ours begins with an instant: what somebody wrote into it cannot look like another one, nor move a terminal's cursor."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text).replace("\n", "\n    ")


class LogOutput:
    """One for the process. Text until it is told otherwise."""

    def __init__(self) -> None:
        self.as_json = False
        self.who = ""
        """Which of several processes says it: every line begins with it."""
        self.lines = LogLines(self._write, time.monotonic)
        self._handler: LogHandler | None = None
        self._unread = 0
        self._cut = False

    def configure(self, form: str, level: str) -> None:
        """By words of `FORMATS` and `LEVELS`; may be called again."""
        self.as_json = form == "json"
        self.lines.level = LEVELS[level]
        root = logging.getLogger()
        if self._handler is not None:
            root.removeHandler(self._handler)
        self._handler = LogHandler(self.lines)
        root.addHandler(self._handler)
        root.setLevel(self._handler.level)

    def _write(self, text: str, level: int) -> None:
        text = f"{self.who}: {text}" if self.who else text
        now = time.time()
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))
        if self.as_json:
            name = logging.getLevelName(level).lower()
            line = json.dumps({"at": f"{at}.{int(now * 1000) % 1000:03d}Z", "level": name, "text": text}, ensure_ascii=False)
        else:
            line = f"{at}Z {one_entry(text)}"
        self._put(line)

    def _put(self, line: str) -> None:
        """A log that cannot be written, or that nobody reads, is no reason to stop or to wait: what is left out is counted."""
        with contextlib.suppress(OSError, ValueError, AttributeError):
            try:
                descriptor = sys.stderr.fileno()
            except (OSError, ValueError, AttributeError):  # no file: somebody put something else there
                print(line, file=sys.stderr, flush=True)
                return
            if not _has_room(descriptor):
                self._unread += 1
                return
            if self._unread or self._cut:
                line = "\n" * self._cut + (f"{self._unread} lines were left out: nobody read the log\n" if self._unread else "") + line
                self._unread, self._cut = 0, False
            whole = (line + "\n").encode("utf-8", "backslashreplace")
            for at in range(0, len(whole), _PIECE_BYTES):
                if at and not _has_room(descriptor):
                    self._cut = True
                    return
                os.write(descriptor, whole[at : at + _PIECE_BYTES])


def _has_room(descriptor: int) -> bool:
    """Whether writing a piece would not wait."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(0))


OUTPUT: Final = LogOutput()
LINES: Final = OUTPUT.lines


def note(text: str) -> None:
    """One line for the operator."""
    LINES.say(text)


def greet(lines: Iterable[str]) -> None:
    """On standard output. Nobody may be there to read it, or its disk may be full: that is no reason not to serve."""
    try:
        for line in lines:
            print(line, flush=True)
    except OSError as error:
        note(f"standard output cannot be written: {error.strerror}")
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # what is left in its buffer goes there
        os.close(nowhere)
