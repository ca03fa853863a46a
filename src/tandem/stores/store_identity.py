"""Which store a directory is, and whose: a store that is not there, or is not the one that belongs there, is never opened as if it were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tandem.model.errors import Corrupt, StoreMissing, StoreUnavailable
from tandem.stores.disk import Disk, make_directory, read_file
from tandem.stores.metadata import KnownStore, Metadata
from tandem.stores.segment_files import MANIFEST, Manifest, SegmentFiles, decode_manifest

NewStoreId = Callable[[], bytes]
_ANY: Final = KnownStore()


class StoreIdentity:
    """A store by itself, of no namespace: the first opening decides which one it is, later it must be the same."""

    def __init__(self) -> None:
        self.store_id = b""
        """Of the store that was open here last."""

    def prepare(self, disk: Disk, directory: str, new_store_id: NewStoreId) -> Manifest:
        """Before anything is touched: refuse what does not belong here. Returns what a new store begins with."""
        if not self.store_id:
            make_directory(disk, directory)
            return Manifest(new_store_id(), 1, 0, 1)
        found = _manifest_in(disk, directory)
        if found is None:
            raise StoreUnavailable(f"{directory}: its files are gone")  # begun anew, everything accepted would be forgotten silently
        if found.store_id != self.store_id:
            raise Corrupt(f"{directory}: holds store {found.store_id.hex()}, not {self.store_id.hex()}")
        return found

    def settle(self, files: SegmentFiles) -> None:
        """The store was read and is whole: from now on it is this one. Called before anything is written to it."""
        self.store_id = files.manifest.store_id


class RegisteredIdentity(StoreIdentity):
    """A store of a namespace, whose metadata knows which stores it has; each store knows which metadata it belongs to."""

    def __init__(self, metadata: Metadata, number: int, note: Callable[[str], None]) -> None:
        super().__init__()
        self._metadata = metadata
        self._number = number
        self._note = note

    def prepare(self, disk: Disk, directory: str, new_store_id: NewStoreId) -> Manifest:
        known = self._metadata.known_store(self._number)
        found = _manifest_in(disk, directory)
        if found is not None:
            self._check(found, known, directory)
            return found
        if known is not None and not known.begins_at:
            raise StoreMissing(
                f"{directory}: the store is not there; is its disk mounted? It comes up by itself when it is. "
                f"If it is lost, begin it anew: tandem store reset {directory}"
            )
        make_directory(disk, directory)
        begin = known or _ANY
        return Manifest(new_store_id(), 1, 0, 1, self._metadata.identity, begin.begins_at, begin.entity_max)

    def _check(self, found: Manifest, known: KnownStore | None, directory: str) -> None:
        mine = self._metadata.identity
        if found.metadata and found.metadata != mine:
            raise StoreUnavailable(
                f"{directory}: belongs to the metadata {found.metadata}; {self._metadata.where} is {mine}, and its entities have other "
                f"numbers. Put the right one back, or move it away and rebuild it: tandem store recover-metadata {_parent(directory)}"
            )
        if known is not None and known.store_id and known.store_id != found.store_id:
            raise StoreUnavailable(
                f"{directory}: holds store {found.store_id.hex()}; the one that belongs here is {known.store_id.hex()}. "
                "Put the right directory here, or mount the right disk."
            )
        if not found.metadata and known is None:
            raise StoreUnavailable(
                f"{directory}: holds store {found.store_id.hex()}, which names no metadata and is not known to {self._metadata.where}. "
                "Move it away; a new store is begun then."
            )

    def settle(self, files: SegmentFiles) -> None:
        super().settle(files)
        if not files.manifest.metadata:
            files.adopt_metadata(self._metadata.identity)
            self._note(f"{files.directory}: is kept as store {files.manifest.store_id.hex()} of the metadata {self._metadata.identity} now")
        if self._metadata.known_store(self._number) != KnownStore(files.manifest.store_id):
            self._metadata.keep_store(self._number, files.manifest.store_id)


def _manifest_in(disk: Disk, directory: str) -> Manifest | None:
    """None where there is no store. Segments without a manifest are damage, which the files themselves notice."""
    try:
        names = disk.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return None
    path = f"{directory}/{MANIFEST}"
    if MANIFEST in names:
        return decode_manifest(read_file(disk, path), path)
    if any(name.endswith(".seg") and name[:-4].isdigit() for name in names):
        raise Corrupt(f"{path}: missing, but the directory holds segments")
    return None


def _parent(directory: str) -> str:
    return directory.rpartition("/")[0] or "."
