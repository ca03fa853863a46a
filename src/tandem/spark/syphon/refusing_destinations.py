"""Which destinations refuse everything, and since when: learnt by the driver from each batch, read by the planner, handed to the tasks."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tandem.client.destinations import Trouble

log = logging.getLogger("tandem.spark.syphon")


class RefusingDestinations:
    """A small file on the driver's machine: Spark plans batches in a process of its own there."""

    def __init__(self, place: str | Path) -> None:
        self._path = Path(place) if place else None

    def read(self) -> dict[str, int]:
        if self._path is None or not self._path.exists():
            return {}
        found: dict[str, int] = json.loads(self._path.read_text(encoding="utf-8"))
        return found

    def learn(self, rows: Sequence[Mapping[str, Any]], now_ms: int) -> dict[str, int]:
        """What the rows of a batch say; those that refuse now. A destination that took something has stopped refusing."""
        before = self.read()
        after = dict(before)
        for row in rows:
            path = str(row["path"]).casefold()
            if row["moved"] and after.pop(path, None) is not None:
                log.warning("%s takes messages again", row["path"])
            if row["trouble"] == Trouble.DESTINATION.value and path not in after:
                after[path] = before.get(path, now_ms)
                log.warning("messages wait for their destination: %s", row["reason"])
        if after != before and self._path is not None:
            draft = self._path.with_suffix(".draft")
            draft.write_text(json.dumps(after), encoding="utf-8")
            os.replace(draft, self._path)
        return after
