"""The data source `tandem_journal`: every fact of a broker's or a cluster's journals as a table, read in parallel, live or stopped."""

from __future__ import annotations

import json
from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from tandem.broker import facts
from tandem.model.errors import ConfigurationError
from tandem.spark.analytics.engines import find_ranges, is_engine
from tandem.spark.analytics.journal_files import entities_of, find_stores, segments_of
from tandem.spark.analytics.journal_rows import DDL, SegmentTask, read_segment

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_OPTIONS = ("path", "paths", "dsn", "kinds", "destinations")


class JournalDataSource(DataSource):  # type: ignore[misc]
    """Options: `path` (or several in `paths`, a JSON list or separated by commas),
    `dsn` (of a cluster's engine; several, separated by spaces), `kinds` (enqueued, settled, …; all unless given),
    `destinations` (true: say where messages in backlog queues are meant to go; off, because their bodies have to be read for it)."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = dict(options)

    @classmethod
    def name(cls) -> str:
        return "tandem_journal"

    def schema(self) -> str:
        return DDL

    def reader(self, schema: StructType) -> JournalReader:
        unknown = sorted(set(self._given) - set(_OPTIONS))
        if unknown:
            raise ConfigurationError(f"tandem_journal: unknown option {unknown[0]}; allowed: {', '.join(_OPTIONS)}")
        paths = [path for path in [*_listed(self._given.get("paths", "")), self._given.get("path", "")] if path.strip()]
        engines = self._given.get("dsn", "").split()
        strange = [number for number, dsn in enumerate(engines, 1) if not is_engine(dsn)]
        if strange:
            raise ConfigurationError(f"tandem_journal: option dsn: number {strange[0]} is not of the form postgresql://user@host/database")
        if not paths and not engines:
            raise ConfigurationError("tandem_journal: option path is missing; give a broker's data directory, or in dsn a cluster's engine")
        destinations = self._given.get("destinations", "false").casefold()
        if destinations not in ("true", "false"):
            raise ConfigurationError(f"tandem_journal: option destinations is true or false, found {destinations!r}")
        return JournalReader(paths, engines, _kinds(self._given.get("kinds", "")), destinations == "true")


class JournalReader(DataSourceReader):  # type: ignore[misc]
    """One partition per segment; of an engine, several for a large one."""

    def __init__(self, paths: list[str], engines: list[str], kinds: frozenset[int], destinations: bool) -> None:
        self._paths = paths
        self._engines = engines
        self._kinds = kinds
        self._destinations = destinations

    def partitions(self) -> list[InputPartition]:
        found: list[InputPartition] = []
        for store in find_stores(self._paths):
            entities = entities_of(store)
            found.extend(InputPartition(SegmentTask(place, entities, self._kinds, self._destinations)) for place in segments_of(store))
        for blocks, entities in find_ranges(self._engines):
            found.append(InputPartition(SegmentTask(blocks, entities, self._kinds, self._destinations)))
        return found

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        return read_segment(partition.value)


def _listed(text: str) -> list[str]:
    if not text.lstrip().startswith("["):
        return [path.strip() for path in text.split(",")]
    try:
        return [str(path) for path in json.loads(text)]
    except ValueError as error:
        raise ConfigurationError(f"tandem_journal: option paths is no JSON list: {error}") from None


def _kinds(text: str) -> frozenset[int]:
    numbers = {name: number for number, name in facts.KIND_NAMES.items()}
    wanted = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in numbers]
    if unknown:
        raise ConfigurationError(f"tandem_journal: option kinds: {unknown[0]!r} is no kind of fact; allowed: {', '.join(sorted(numbers))}")
    return frozenset(numbers[name] for name in wanted)
