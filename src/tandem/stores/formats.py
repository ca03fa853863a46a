"""Which formats a data directory is written in, and what opening it with this version would change. Reads, and writes nothing."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tandem.model.errors import ConfigurationError
from tandem.stores.blocks import SEGMENT_HEADER_BYTES, VERSION, segment_version
from tandem.stores.engines import METADATA, stores_in, without_stores
from tandem.stores.metadata_reading import open_for_reading
from tandem.stores.migrations import ADDED, MIGRATIONS
from tandem.stores.segment_files import MANIFEST

WHAT_TO_DO = "Start the newer Tandem again, or restore a backup"


@dataclass(frozen=True, slots=True)
class Format:
    """Of one part of a data directory."""

    where: str
    version: int
    known: int
    """The newest that this version reads, and the one it writes."""
    changes: tuple[str, ...] = ()
    """What opening it changes."""

    @property
    def newer(self) -> bool:
        return self.version > self.known


def formats_of(data: Path) -> list[Format]:
    """Of every namespace: its metadata, its stores, and the oldest and newest of their segments."""
    namespaces = [data] if stores_in(data) else sorted(path for path in data.glob("*/") if stores_in(path) or (path / METADATA).exists())
    if not namespaces:
        raise without_stores(data)
    found: list[Format] = []
    for namespace in namespaces:
        if (namespace / METADATA).exists():
            found.append(_of_metadata(namespace / METADATA))
        for number in sorted(stores_in(namespace)):
            found += _of_store(namespace / f"store-{number}")
    return found


def _of_metadata(path: Path) -> Format:
    try:
        with closing(open_for_reading(path)) as database:
            version = int(database.execute("PRAGMA user_version").fetchone()[0])
    except sqlite3.Error as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error
    return Format(str(path), version, len(MIGRATIONS), tuple(ADDED[version:]))


def _of_store(directory: Path) -> list[Format]:
    found: list[Format] = []
    manifest = directory / MANIFEST
    if manifest.exists():
        try:
            first = manifest.read_text(encoding="utf-8").splitlines()[0]
            found.append(Format(str(manifest), int(json.loads(first)["format"]), VERSION))
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise ConfigurationError(f"{manifest} cannot be read ({error}); see `tandem store check {directory}`") from error
    versions = set()
    for segment in sorted(directory.glob("*.seg")):
        with segment.open("rb") as file:
            version = segment_version(file.read(SEGMENT_HEADER_BYTES))
        if version is not None:
            versions.add(version)
    return found + [Format(f"{directory}/*.seg", version, VERSION) for version in sorted(versions)]
