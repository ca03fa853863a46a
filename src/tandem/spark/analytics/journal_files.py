"""Finds the journals below a directory, of a broker that runs or one that does not, and says what each segment is to be read with."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from tandem.model.errors import ConfigurationError, StoreUnavailable
from tandem.stores.disk import LocalDisk
from tandem.stores.segment_files import AUDIT, MANIFEST, index_name, segment_name
from tandem.stores.segment_reader import read_manifest


@dataclass(frozen=True, slots=True)
class StoreDirectory:
    """`<data>/<namespace>/store-<n>`."""

    namespace: str
    store: str
    path: str


@dataclass(frozen=True, slots=True)
class SegmentPlace:
    """One segment of one store: where it is, or was when it was looked for."""

    namespace: str
    store: str
    directory: str
    segment: int
    path: str

    def find(self) -> tuple[str, str | None]:
        """(the segment, its index if it has one) as of now; a segment that was retired meanwhile is in `audit/`."""
        live = Path(self.directory, segment_name(self.segment))
        if live.exists():
            index = Path(self.directory, index_name(self.segment))
            return str(live), str(index) if index.exists() else None
        kept = next(Path(self.directory, AUDIT).glob(f"{self.segment:010d}-*.seg"), None)
        if kept is None:
            raise StoreUnavailable(
                f'{live}: was compacted away before it was read. Read again, or let the broker keep segments: audit_retention = "1d".'
            )
        return str(kept), None


def find_stores(paths: list[str]) -> list[StoreDirectory]:
    """Stores below each path, which may be a data directory, a namespace's, or a store's own."""
    found: dict[str, StoreDirectory] = {}
    for given in paths:
        root = Path(given)
        if not root.is_dir():
            raise ConfigurationError(f"path: {given} is not a directory; give a broker's data directory, a namespace's or a store's")
        manifests = [root / MANIFEST] if (root / MANIFEST).exists() else []
        manifests = manifests or sorted([*root.glob(f"*/{MANIFEST}"), *root.glob(f"*/*/{MANIFEST}")])
        if not manifests:
            raise ConfigurationError(f"path: no journal below {given}; give a broker's data directory, a namespace's or a store's")
        for manifest in manifests:
            directory = manifest.parent.resolve()
            found[str(directory)] = StoreDirectory(directory.parent.name, directory.name, str(directory))
    return list(found.values())


def segments_of(store: StoreDirectory) -> list[SegmentPlace]:
    """Live segments first, then those kept for audit: one that moves from the first to the second between two looks is found once."""
    manifest = read_manifest(LocalDisk(), store.path)
    places = {segment: str(Path(store.path, segment_name(segment))) for segment in range(manifest.first, manifest.last + 1)}
    for kept in Path(store.path, AUDIT).glob("*-*.seg"):
        number = kept.name.partition("-")[0]
        if number.isdigit():
            places[int(number)] = str(kept)
    return [SegmentPlace(store.namespace, store.store, store.path, segment, places[segment]) for segment in sorted(places)]


def entities_of(store: StoreDirectory) -> dict[int, str]:
    """Entity ids and paths, read without disturbing a broker at work; empty when the namespace has no metadata."""
    file = Path(store.path).parent / "metadata.sqlite"
    if not file.exists():
        return {}
    for mode in ("mode=ro", "mode=ro&immutable=1"):  # the second one for directories that may not be written, where nobody writes either
        try:
            connection = sqlite3.connect(f"file:{quote(str(file))}?{mode}", uri=True, timeout=10)
            try:
                rows = connection.execute("SELECT id, kind, description FROM entities").fetchall()
            finally:
                connection.close()
        except sqlite3.OperationalError as error:
            trouble = error
            continue
        return {int(id_): _path(kind, json.loads(description)) for id_, kind, description in rows}
    raise StoreUnavailable(f"{file}: cannot be read: {trouble}")


def _path(kind: str, description: dict[str, str]) -> str:
    name = description["name"]
    return f"{description['topic']}/Subscriptions/{name}" if kind == "subscription" else name
