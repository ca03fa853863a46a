"""Lines for the operator: a few of each kind in a second, the rest counted, so that no stranger writes our disk full."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from typing import Final

LINES_PER_KIND_MAX: Final = 5
LINES_MAX: Final = 50
"""Of all kinds together, in one second."""
_KINDS_MAX: Final = 500
_LINE_CHARS_MAX: Final = 8_000
_VARYING: Final = re.compile(r"'[^']*'|\"[^\"]*\"|\S*\d\S*")
"""What differs between two lines of one kind: quoted names, and words with digits (addresses, numbers, ids)."""


def kind_of(text: str) -> str:
    return _VARYING.sub("#", text[:200])[:80]


class LogLines:
    """Give it lines with `say`; call `look_after` about once a second. May be used from any thread."""

    def __init__(self, write: Callable[[str, int], None], seconds: Callable[[], float]) -> None:
        self._write = write
        """Given a line and its level, a number of the standard library's logging."""
        self.level = logging.INFO
        """Lines of a lower one are not written, and do not count."""
        self._seconds = seconds
        """A clock that nobody sets."""
        self._lock = threading.Lock()
        self._since = seconds()
        self._said: dict[str, int] = {}
        self._total = 0

    def warn(self, text: str) -> None:
        self.say(text, level=logging.WARNING)

    def say(self, text: str, kind: str | None = None, level: int = logging.INFO) -> None:
        if level < self.level:
            return
        with self._lock:
            lines = self._next_second()
            key = kind_of(text) if kind is None else kind
            if key not in self._said and len(self._said) >= _KINDS_MAX:
                key = "lines of many kinds"
            count = self._said[key] = self._said.get(key, 0) + 1
            if count <= LINES_PER_KIND_MAX and self._total < LINES_MAX:
                self._total += 1
                lines.append((text[:_LINE_CHARS_MAX], level))
        self._write_all(lines)

    def _write_all(self, lines: list[tuple[str, int]]) -> None:
        for line, level in lines:
            self._write(line, level)

    def look_after(self) -> None:
        """Tell what was left out, even if nothing follows it."""
        with self._lock:
            lines = self._next_second()
        self._write_all(lines)

    def close(self) -> None:
        """Tell it now."""
        self._since = 0
        self.look_after()

    def _next_second(self) -> list[tuple[str, int]]:
        """When a second is over: what was left out in it."""
        now = self._seconds()
        if self._since > 0 and now - self._since < 1:
            return []
        self._since = now
        left_out = sum(self._said.values()) - self._total
        most = max(self._said, key=self._said.__getitem__) if left_out else ""
        self._said.clear()
        self._total = 0
        return [(f"suppressed {left_out} lines of the last second, most of them like: {most}", logging.WARNING)] if left_out else []


class LogHandler(logging.Handler):
    """Records of the standard library's logging, among them tracebacks that reach the event loop, under the same limit."""

    def __init__(self, lines: LogLines) -> None:
        super().__init__(logging.DEBUG if lines.level <= logging.DEBUG else max(lines.level, logging.WARNING))
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.say(self.format(record), f"{record.name} {record.msg}"[:200], record.levelno)
        except (OSError, ValueError):
            self.handleError(record)
