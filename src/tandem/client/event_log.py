"""Events of a pair as JSON lines, one file per process: what `tandem availability` reads."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tandem.client.events import Counters, Event


class EventLog:
    """Give it to a pair as `on_event`; call `count` now and then, and at the end, to write down what was attempted.

    Lines: `{"at_ms", "source": "client", "who", "kind", "path", "detail"}`, and for counts
    `{"at_ms", "source": "client", "who", "kind": "counters", "path", "run", "attempted", "diverted", "failed"}`, each count since the
    beginning of this run: a process that is started again under the same name counts anew.
    """

    def __init__(self, file: Path | str, who: str = "") -> None:
        self.who = who or f"process-{os.getpid()}"
        self._run = uuid.uuid4().hex
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        self._file = open(file, "a", encoding="utf-8")  # noqa: SIM115 - open for as long as the log is

    def __call__(self, event: Event) -> None:
        self._write(event.at_ms, event.kind, event.path, {"detail": event.detail})

    def count(self, counters: Counters, now_ms: Callable[[], int]) -> None:
        for path, one in counters.by_path.items():
            counts = {"attempted": one.sent_primary + one.diverted + one.failed, "diverted": one.diverted, "failed": one.failed}
            self._write(now_ms(), "counters", path, {"run": self._run, **counts})

    def _write(self, at_ms: int, kind: str, path: str, more: Mapping[str, object]) -> None:
        line = {"at_ms": at_ms, "source": "client", "who": self.who, "kind": kind, "path": path, **more}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()
