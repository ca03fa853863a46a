"""What differs between PySpark 4.0 and 4.3, in one place: read limits, available-now, and the arguments of `latestOffset`."""

from __future__ import annotations

import inspect
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    HAS_LIMITS = True
except ImportError:  # 4.0 and 4.1
    HAS_LIMITS = False

    class ReadLimit:  # type: ignore[no-redef]
        """Stands in for the class of 4.2."""

    class ReadAllAvailable(ReadLimit):  # type: ignore[no-redef,misc]
        """Everything there is."""

    class ReadMaxRows(ReadLimit):  # type: ignore[no-redef,misc]
        def __init__(self, max_rows: int) -> None:
            self.max_rows = max_rows

    class ReadMaxBytes(ReadLimit):  # type: ignore[no-redef,misc]
        def __init__(self, max_bytes: int) -> None:
            self.max_bytes = max_bytes

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Not asked for before 4.2: `Trigger.AvailableNow` runs one batch there."""


__all__ = [
    "HAS_LIMITS",
    "LATEST_OFFSET_TAKES_START",
    "PlannedStreamReader",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
]

LATEST_OFFSET_TAKES_START = len(inspect.signature(DataSourceStreamReader.latestOffset).parameters) > 1


class PlannedStreamReader(DataSourceStreamReader):  # type: ignore[misc]
    """A stream reader with one method for all versions: `plan(start, limit)` gives the next offset, `start` when there is none.

    Before 4.2 Spark does not say where it stands, so the last offset it was given, or has committed, is taken as the start.
    """

    _planned: dict[str, Any] | None = None

    def plan(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        raise AssertionError("implemented by the reader")

    def started(self) -> dict[str, Any]:
        """The offset of a query that has no checkpoint yet."""
        raise AssertionError("implemented by the reader")

    def initialOffset(self) -> dict[str, Any]:
        offset = self.started()
        if self._planned is None:
            self._planned = offset
        return offset

    def latestOffset(self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None) -> dict[str, Any]:
        if start is None:
            start = self._planned if self._planned is not None else self.started()
        offset = self.plan(start, ReadAllAvailable() if limit is None else limit)
        self._planned = offset
        return offset

    def note_planned(self, end: dict[str, Any]) -> None:
        """From `partitions` and `commit`: after a restart they are the first to hear where the query stands."""
        self._planned = end
