"""Journals and meters that a cluster keeps in PostgreSQL, as the jobs want them: ranges of blocks for tasks, sums for the bill."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from tandem.model.errors import ConfigurationError, EngineAway
from tandem.spark.analytics.meter_files import TOTALS, Totals

if TYPE_CHECKING:
    from types import ModuleType

    from tandem.stores.postgres_reading import BlockRange

_SCHEMES: Final = ("postgresql://", "postgres://")


def is_engine(place: str) -> bool:
    """Rather than a directory."""
    return place.startswith(_SCHEMES)


def _reading() -> ModuleType:
    try:
        from tandem.stores import postgres_reading
    except ImportError as error:
        raise ConfigurationError(
            "--engine: needs the PostgreSQL client here and on every executor: pip install 'tandem-bus[postgres]'"
        ) from error
    return postgres_reading


def _refused(dsn: str, error: EngineAway) -> ConfigurationError:
    from tandem.stores.postgres_connection import without_password

    return ConfigurationError(
        f"--engine: {without_password(dsn)}: {error.description}; is it up, has it a cluster (tandem cluster init), and is the user let in?"
    )


def every_engine(given: list[str]) -> list[str]:
    """And those that stores of the same clusters live in, unless they were given too."""
    found = list(given)
    reading = _reading() if given else None
    named: set[tuple[bytes, str]] = set()
    known: list[tuple[bytes, dict[str, str]]] = []
    for dsn in given:
        assert reading is not None
        try:
            secret, name, others = reading.engines_beside(dsn)
        except EngineAway as error:
            raise _refused(dsn, error) from error
        named.add((secret, name))
        known.append((secret, others))
    for secret, others in known:
        found += [dsn for name, dsn in others.items() if (secret, name) not in named]
    return found


def must_answer(engines: list[str]) -> None:
    """ConfigurationError for one that does not, or has no cluster."""
    for dsn in every_engine(engines):
        reading = _reading()
        reader = reading.EngineReader(reading.EnginePlace(dsn, ""))
        try:
            reader.rows("SELECT id FROM tandem.store", tries=1)
        except EngineAway as error:
            raise _refused(dsn, error) from error
        finally:
            reader.close()


def find_ranges(engines: list[str]) -> Iterator[tuple[BlockRange, dict[int, str]]]:
    """Everything in these engines, with the names of entities by their ids: those of a namespace may be in another engine than a store."""
    if not engines:
        return
    reading = _reading()
    ranges: list[BlockRange] = []
    entities: dict[str, dict[int, str]] = {}
    for dsn in every_engine(engines):
        place = reading.look_at(dsn)
        reader = reading.EngineReader(place)
        try:
            for row in reading.stores_in_engine(reader):
                ranges += reading.ranges_of(place, reader, row)
            for namespace, found in reading.entities_in_engine(reader).items():
                entities.setdefault(namespace, {}).update(found)
        finally:
            reader.close()
    for one in ranges:
        yield one, entities.get(one.namespace, {})


def counted_in(dsn: str) -> Totals:
    """Added up where it is."""
    reading = _reading()
    try:
        rows, first_ms, last_ms = reading.meter_totals(reading.look_at(dsn))
    except EngineAway as error:
        raise _refused(dsn, error) from error
    columns = list(zip(*rows, strict=True)) or [() for _ in TOTALS]
    return Totals(
        pa.table([pa.array(column, type=one.type) for column, one in zip(columns, TOTALS, strict=True)], schema=TOTALS), first_ms, last_ms
    )


def events_in(dsn: str) -> list[tuple[Any, ...]]:
    """As rows of the table of events. The nodes of a cluster speak as one: what one of them lost another one has."""
    reading = _reading()
    try:
        rows = reading.node_events(reading.look_at(dsn))
    except EngineAway as error:
        raise _refused(dsn, error) from error
    return [
        (at_ms, "broker", "cluster", None, kind, path, f"node {node}: {detail}", None, None, None, None)
        for node, at_ms, kind, path, detail in rows
    ]
