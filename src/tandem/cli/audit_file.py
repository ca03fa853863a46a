"""The audit log: lines of JSON that only their owner may read, written beside the event loop, in files that stay few and small."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from tandem.server.audit import AuditEntry

FILE_NAME: Final = "audit.jsonl"
_FILE_BYTES_MAX: Final = 16_777_216
_FILES_MAX: Final = 5
_WAITING_MAX: Final = 10_000
_CLOSING_SECONDS: Final = 5.0


def append_line(path: Path, event: dict[str, Any]) -> None:
    """At once, by whoever calls."""
    line = {"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **event}
    if path.exists() and path.stat().st_size > _FILE_BYTES_MAX:
        _rotate(path)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def _rotate(path: Path) -> None:
    """Once, however many processes have seen that it is time: workers write one log."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as full:  # gone: it was moved, and nobody has written since
        fcntl.flock(full, fcntl.LOCK_EX)
        known = path.stat()
        if known.st_ino != os.fstat(full.fileno()).st_ino or known.st_size <= _FILE_BYTES_MAX:
            return
        for number in range(_FILES_MAX - 1, 0, -1):
            older = path.with_suffix(f".{number}.jsonl")
            if older.exists():
                older.replace(path.with_suffix(f".{number + 1}.jsonl"))
        path.replace(path.with_suffix(".1.jsonl"))


def audit_to(path: Path, note: Callable[[str], None]) -> Callable[[dict[str, Any]], None]:
    """For a few lines a second; what cannot be written is said."""

    def write(event: dict[str, Any]) -> None:
        try:
            append_line(path, event)
        except OSError as error:
            note(f"{path} cannot be written: {error.strerror}; {json.dumps(event)}")

    return write


class AuditWriter:
    """A thread of its own writes: a disk that hangs keeps no client waiting. What it cannot keep up with is counted and said."""

    def __init__(self, path: Path, note: Callable[[str], None]) -> None:
        self._write = audit_to(path, note)
        self._note = note
        self._waiting: queue.Queue[AuditEntry | None] = queue.Queue(_WAITING_MAX)
        self._left_out = 0
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        self._thread.start()

    def __call__(self, entry: AuditEntry) -> None:
        try:
            self._waiting.put_nowait(entry)
        except queue.Full:
            self._left_out += 1

    def close(self) -> None:
        try:
            self._waiting.put(None, timeout=_CLOSING_SECONDS)
        except queue.Full:
            self._note("the audit log cannot be written: its disk does not answer")
            return
        self._thread.join(_CLOSING_SECONDS)

    def _run(self) -> None:
        while (entry := self._waiting.get()) is not None:
            if self._left_out:
                left_out, self._left_out = self._left_out, 0
                self._note(f"{left_out} lines of the audit log were left out: its disk does not keep up")
                self._write({"action": "left-out", "detail": f"{left_out} lines"})
            self._write({name: value for name, value in asdict(entry).items() if value})
