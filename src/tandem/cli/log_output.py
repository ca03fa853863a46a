"""Where lines for the operator go: standard error, as text or as JSON, from a level on."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Final

from tandem.server.log_lines import LogHandler, LogLines

FORMATS: Final = ("text", "json")
LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class LogOutput:
    """One for the process. Text until it is told otherwise."""

    def __init__(self) -> None:
        self.as_json = False
        self.who = ""
        """Which of several processes says it: every line begins with it."""
        self.lines = LogLines(self._write, time.monotonic)
        self._handler: LogHandler | None = None

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
            line = f"{at}Z {text}"
        print(line, file=sys.stderr, flush=True)


OUTPUT: Final = LogOutput()
LINES: Final = OUTPUT.lines


def note(text: str) -> None:
    """One line for the operator."""
    LINES.say(text)
