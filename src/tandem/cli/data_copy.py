"""A data directory as a whole: copied so that a broker on the copy is the same broker, and checked before it is put to use."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tandem.model.errors import BusError, ConfigurationError
from tandem.stores import metadata_reading
from tandem.stores.backup import backup_together, copy_file
from tandem.stores.disk import LocalDisk, sync_name
from tandem.stores.engines import METADATA
from tandem.stores.metadata_reading import open_for_reading
from tandem.stores.segment_reader import read_manifest
from tandem.stores.verify import verify

_NOT_COPIED: Final = ("broker.lock",)
"""Means something only where it is."""
METERS: Final = "meters"


def copy_data(directory: Path, target: Path, stores: list[Path]) -> Iterator[str]:
    """One line for each thing that was copied.

    Keys and certificates; then journals, all of a namespace at one instant; then what may be ahead of these, but never behind: meter files,
    whose end is written again from the journal, and metadata, which knows every entity that a journal names. It comes last: a copy that was
    not finished is not taken for a data directory.
    """
    if stores == [directory]:
        yield from _copy_stores({directory: target})
        return
    for file in sorted(directory.iterdir()):
        if file.is_file() and file.name not in _NOT_COPIED and not file.name.startswith(METADATA) and file.suffix not in (".new", ".tmp"):
            copy_file(file, target / file.name)
            yield f"{file} -> {target / file.name}"
    for namespace in sorted({store.parent for store in stores}):
        place = target / namespace.relative_to(directory)
        _must_be_complete(namespace, stores)
        yield from _copy_stores({store: place / store.name for store in stores if store.parent == namespace})
        for file in sorted((namespace / METERS).glob("*.csv")):
            copy_file(file, place / METERS / file.name)
            yield f"{file} -> {place / METERS / file.name}"
        if (namespace / METADATA).exists():
            _copy_metadata(namespace / METADATA, place / METADATA)
            yield f"{namespace / METADATA} -> {place / METADATA}"


def _copy_stores(places: dict[Path, Path]) -> Iterator[str]:
    for (source, target), report in zip(places.items(), backup_together(list(places.items())), strict=True):
        if report.problems:
            raise ConfigurationError(f"{target}: the copy is not whole: {report.problems[0]}")
        yield f"{source} -> {target}"


def _must_be_complete(namespace: Path, stores: list[Path]) -> None:
    """A store that is not mounted right now would be missing in the copy, and nobody would notice before it is needed."""
    if not (namespace / METADATA).exists():
        return
    for number in _look_into(namespace / METADATA)[1]:
        if namespace / f"store-{number}" not in stores:
            raise ConfigurationError(f"{namespace}/store-{number} is not there; the copy would lack what it holds")


def _look_into(metadata: Path) -> tuple[str, list[int]]:
    """(its identity, the stores that have to be there), without changing anything. Metadata of earlier versions knows neither."""
    damage = metadata_reading.problems_of(metadata)
    if damage:
        raise ConfigurationError(damage[0])
    try:
        with contextlib.closing(open_for_reading(metadata)) as db:
            if db.execute("PRAGMA user_version").fetchone()[0] < 2:
                return "", []
            (identity,) = db.execute("SELECT id FROM identity").fetchone()
            return identity, [row[0] for row in db.execute("SELECT number FROM stores WHERE begins_at = 0 ORDER BY number")]
    except sqlite3.Error as error:
        raise ConfigurationError(f"{metadata}: cannot be read: {error}") from error


def _copy_metadata(source: Path, target: Path) -> None:
    """SQLite copies a database that is in use consistently; under its name it is there as a whole or not at all."""
    unfinished = target.with_name(target.name + ".tmp")
    unfinished.unlink(missing_ok=True)
    os.close(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    with contextlib.closing(open_for_reading(source)) as live, contextlib.closing(sqlite3.connect(unfinished)) as copy:
        live.backup(copy)
    descriptor = os.open(unfinished, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    unfinished.replace(target)
    sync_name(target)


def problems_of(stores: list[Path]) -> list[str]:
    """Why a broker should not be started on this copy; empty if nothing speaks against it."""
    problems = [problem for store in stores for problem in verify(store).problems]
    for namespace in sorted({store.parent for store in stores}):
        metadata = namespace / METADATA
        if not metadata.exists():
            problems.append(f"{metadata}: missing; this is no backup of a data directory")
            continue
        try:
            identity, _ = _look_into(metadata)
            _must_be_complete(namespace, stores)
            belongs_to = {store: read_manifest(LocalDisk(), str(store)).metadata for store in stores if store.parent == namespace}
        except (BusError, ConfigurationError) as error:
            problems.append(str(error))
            continue
        problems += [
            f"{store}: belongs to other metadata than {metadata}" for store, mine in belongs_to.items() if mine not in ("", identity)
        ]
    return problems
