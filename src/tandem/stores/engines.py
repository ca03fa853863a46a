"""Opens what a broker remembers with: on disk below one directory, or in memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tandem.broker.ports import Journal
from tandem.model.clock import Clock
from tandem.model.errors import ConfigurationError, StoreUnavailable
from tandem.model.limits import STORES_MAX
from tandem.stores.disk import Disk, LocalDisk, make_directory
from tandem.stores.fault_disk import FaultDisk
from tandem.stores.memory import MemoryStore, Shelf
from tandem.stores.metadata import Beside, Metadata
from tandem.stores.meter_files import CsvMeterFiles, NoMeterFiles
from tandem.stores.migrations import ADDED, MIGRATIONS
from tandem.stores.relay_copy import RelayCopy
from tandem.stores.remote_disk import RemoteDisk
from tandem.stores.segment import SegmentStore
from tandem.stores.segment_files import MANIFEST
from tandem.stores.settings import LogSettings
from tandem.stores.store_identity import RegisteredIdentity

LoopCall = Callable[[Callable[[], None]], None]
METADATA: Final = "metadata.sqlite"


def stores_in(directory: Path) -> frozenset[int]:
    """Numbers of the stores that are there: directories that hold a manifest, or segments."""
    found: set[int] = set()
    for path in directory.glob("store-*"):
        number = path.name.removeprefix("store-")
        if number.isdigit() and ((path / MANIFEST).exists() or any(path.glob("*.seg"))):
            found.add(int(number))
    return frozenset(found)


def without_stores(directory: Path) -> ConfigurationError:
    """Why none is found there: what this user may not read looks empty."""
    try:
        below = [entry.path for entry in os.scandir(directory) if entry.is_dir()]
        closed = [path for path in below if not os.access(path, os.R_OK | os.X_OK, effective_ids=True)]
    except PermissionError:
        closed = [str(directory)]
    except FileNotFoundError:
        return ConfigurationError(f"{directory} does not exist")
    except NotADirectoryError:
        return ConfigurationError(f"{directory} is not a directory")
    if closed:
        return ConfigurationError(f"{closed[0]} may not be read by this user; run this as its owner")
    return ConfigurationError(f"{directory} holds no store (directories named store-<n>)")


def _refuse_fewer_stores(catalog: Metadata, directory: Path, count: int) -> None:
    """Nothing would say that messages are in stores that nobody opens."""
    for number in range(STORES_MAX - 1, count - 1, -1):
        if catalog.known_store(number) is not None:
            catalog.close()
            raise ConfigurationError(
                f"stores.count: found {count}; allowed is at least {number + 1}: there are so many in {directory}, and what is in them "
                "would not be found"
            )


class DiskEngines:
    """`<data>/<namespace>/metadata.sqlite` and `<data>/<namespace>/store-<n>/`."""

    def __init__(
        self,
        data_dir: Path,
        settings: LogSettings,
        clock: Clock,
        *,
        faults: bool = False,
        isolated: bool = False,
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._data_dir = data_dir
        self._isolated = isolated
        """Each store's disk in a process of its own."""
        self._faults = faults
        self._disks: dict[tuple[str, int], FaultDisk] = {}
        self._settings = settings
        self._clock = clock
        self._note = note
        """Tells the operator, in one line."""
        self._catalogs: dict[str, Metadata] = {}

    def _directory(self, namespace: str) -> Path:
        return self._data_dir / namespace

    def open_catalog(self, namespace: str, store_count: int) -> Metadata:
        """The first of all: the stores belong to it."""
        directory = self._directory(namespace)
        make_directory(LocalDisk(), str(directory))
        catalog = Metadata(directory / METADATA, look_beside=lambda: Beside(found=stores_in(directory), count=store_count))
        _refuse_fewer_stores(catalog, directory, store_count)
        if 0 < catalog.schema_found < len(MIGRATIONS):
            added = ", ".join(ADDED[catalog.schema_found :])
            self._note(f"{directory / METADATA}: brought from schema {catalog.schema_found} to {len(MIGRATIONS)}, which keeps {added}")
        try:
            catalog.copy_relays(RelayCopy(directory))
        except StoreUnavailable as error:
            self._note(f"relays are kept only once until the next start: {error.description}")
        self._catalogs[namespace] = catalog
        return catalog

    def open_journal(self, namespace: str, index: int, loop_call: LoopCall) -> Journal:
        identity = RegisteredIdentity(self._catalogs[namespace], index, self._note)
        return SegmentStore(
            self._directory(namespace) / f"store-{index}",
            loop_call,
            self._settings,
            self._clock,
            self._disk(namespace, index),
            identity=identity,
        )

    def _disk(self, namespace: str, index: int) -> Disk:
        real: Disk = RemoteDisk(f"{namespace} store-{index}") if self._isolated else LocalDisk()
        if not self._faults:
            return real
        disk = self._disks[namespace, index] = FaultDisk(real)
        return disk

    def open_meters(self, namespace: str, index: int) -> CsvMeterFiles:
        return CsvMeterFiles(self._data_dir, namespace, index)

    def set_faults(self, namespace: str, index: int, *, down: bool, failing: bool, full: bool, sync_delay_ms: int) -> None:
        """Make one store's disk fail, or heal it. Only with `faults`."""
        disk = self._disks.get((namespace, index))
        if disk is not None:
            disk.set_faults(down, failing, full, sync_delay_ms)


class MemoryEngines:
    """Nothing survives the process, but a broker stopped and started again in it finds what it left."""

    def __init__(self, settings: LogSettings | None = None) -> None:
        self._settings = settings
        self._shelves: dict[tuple[str, int], Shelf] = {}
        self._catalogs: dict[str, Metadata] = {}
        self._stores: dict[tuple[str, int], MemoryStore] = {}

    def open_catalog(self, namespace: str, store_count: int) -> Metadata:
        return self._catalogs.setdefault(namespace, _StaysOpen(None))

    def open_journal(self, namespace: str, index: int, loop_call: LoopCall) -> Journal:
        shelf = self._shelves.setdefault((namespace, index), Shelf())
        store = MemoryStore(loop_call, self._settings, shelf)
        self._stores[namespace, index] = store
        return store

    def open_meters(self, namespace: str, index: int) -> NoMeterFiles:
        return NoMeterFiles()

    def set_faults(self, namespace: str, index: int, *, down: bool, failing: bool, full: bool, sync_delay_ms: int) -> None:
        """A store in memory can only be down."""
        store = self._stores.get((namespace, index))
        if store is not None:
            store.hold_down(down or failing or full)


class _StaysOpen(Metadata):
    """Stays open when the broker that used it stops."""

    def close(self) -> None:
        """The next broker of these engines opens it again."""
