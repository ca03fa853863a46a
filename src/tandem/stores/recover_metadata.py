"""Metadata that was lost, rebuilt from the journals: entities with ids, descriptions and rules; and what journals do not know."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from tandem.broker import facts
from tandem.model.catalog import StoredEntity
from tandem.model.entity import HybridConnectionDescription, RuleDescription, SubscriptionDescription
from tandem.model.entity_json import EntityDescription, kind_of, load_rule, load_without_keys, path_of
from tandem.model.errors import ConfigurationError, Corrupt
from tandem.stores.blocks import RECORD, BadBlock, Damage
from tandem.stores.disk import Disk, LocalDisk, sync_name
from tandem.stores.engines import METADATA, stores_in, without_stores
from tandem.stores.metadata import Metadata
from tandem.stores.relay_copy import FILE_NAME as RELAYS
from tandem.stores.relay_copy import CopiedRelays, RelayCopy
from tandem.stores.segment_files import LOCK, segment_name
from tandem.stores.segment_reader import SegmentReader, read_manifest

_UNFINISHED: Final = METADATA + ".recovering"
_NAMES_OTHERS: Final = frozenset({facts.TRANSFERRED, facts.TRANSFER_ENDED, facts.PREPARED, facts.PUBLISHED})


@dataclass(slots=True)
class FoundEntity:
    """One entity as a journal describes it."""

    description: EntityDescription
    store: int
    keys_of: tuple[str, ...]
    """Authorization rules it had; their keys are in no journal."""


@dataclass(slots=True)
class Found:
    """What the journals of a namespace say."""

    identity: str = ""
    stores: dict[int, bytes] = field(default_factory=dict)
    entities: dict[int, FoundEntity] = field(default_factory=dict)
    highest_id: int = 0
    relays: tuple[HybridConnectionDescription, ...] = ()
    """From the copy beside the metadata: no journal knows them."""
    unknown: list[str] = field(default_factory=list)
    """What could not be known, one line each."""

    def stored(self) -> list[StoredEntity]:
        """Topics before their subscriptions."""
        rows = [StoredEntity(id=id_, description=one.description, store=one.store) for id_, one in sorted(self.entities.items())]
        return sorted(rows, key=lambda row: isinstance(row.description, SubscriptionDescription))


class _Reading:
    """One store's journal, oldest fact first."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.entities: dict[int, FoundEntity] = {}
        self.rules: dict[int, dict[str, RuleDescription]] = {}
        self.ended: set[int] = set()
        self.used: set[int] = set()
        """Ids that any fact names."""

    def fact(self, kind: int, flags: int, entity: int, aux: int, key: bytes) -> None:
        id_ = facts.id_of(entity)
        self.used.add(id_)
        if kind == facts.ENTITY:
            if facts.has_ended(flags):
                self.entities.pop(id_, None)
                self.rules.pop(id_, None)
                self.ended.add(id_)
            else:
                description, keys_of = load_without_keys(key.decode())
                self.entities[id_] = FoundEntity(description, self.number, keys_of)
        elif kind == facts.RULE:
            rules = self.rules.setdefault(id_, {})
            if facts.has_ended(flags):
                rules.pop(key.decode(), None)
            else:
                name, text = facts.read_rule(flags, key)
                rules[name] = load_rule(text.decode())
        elif kind in _NAMES_OTHERS:
            self.used.update(map(facts.id_of, _others(kind, aux, key)))

    def finish(self) -> None:
        for id_, one in self.entities.items():
            if isinstance(one.description, SubscriptionDescription):
                one.description = replace(one.description, rules=tuple(self.rules.get(id_, {}).values()))


def _others(kind: int, aux: int, key: bytes) -> list[int]:
    """Entities that a fact names beside its own."""
    if kind == facts.TRANSFERRED:
        return [aux]
    if kind == facts.TRANSFER_ENDED:
        return [queue for queue, _ in facts.read_transfer_ended(key)]
    if kind == facts.PREPARED:
        return [queue for queue, _ in facts.read_prepared(key)[1]]
    return [target for target, _, _ in facts.read_targets(key)]


def read_journals(stores: dict[int, tuple[Disk, str]]) -> Found:
    """`stores`: number -> where it is. Raises Corrupt at damage, ConfigurationError for stores that do not belong together."""
    found = Found()
    readings: list[_Reading] = []
    for number, (disk, directory) in sorted(stores.items()):
        manifest = read_manifest(disk, directory)
        if manifest.metadata and found.identity not in ("", manifest.metadata):
            raise ConfigurationError(
                f"{directory}: belongs to the metadata {manifest.metadata}, those before it to {found.identity}; put the stranger elsewhere"
            )
        found.identity = found.identity or manifest.metadata
        found.stores[number] = manifest.store_id if manifest.metadata else b""
        reading = _Reading(number)
        for segment in range(manifest.first, manifest.last + 1):
            _read_segment(disk, f"{directory}/{segment_name(segment)}", reading)
        reading.finish()
        readings.append(reading)
    _put_together(readings, found)
    return found


def _read_segment(disk: Disk, path: str, reading: _Reading) -> None:
    file = SegmentReader(disk, path)
    try:
        for _, _, _, heads, keys in file.blocks():
            at = 0
            for kind, flags, entity, _, _, aux, key_bytes, _, _ in RECORD.iter_unpack(heads):
                reading.fact(kind, flags, entity, aux, keys[at : at + key_bytes])
                at += key_bytes
    except BadBlock as bad:
        if isinstance(bad, Damage):
            raise Corrupt(f"{path}: {bad}") from bad
    except ValueError as error:
        raise Corrupt(f"{path}: holds a description that cannot be read: {error}") from error
    finally:
        file.close()


def _put_together(readings: list[_Reading], found: Found) -> None:
    for reading in readings:
        found.highest_id = max([found.highest_id, *reading.used])
        for id_, one in reading.entities.items():
            other = found.entities.get(id_)
            if other is not None and path_of(other.description).casefold() != path_of(one.description).casefold():
                raise ConfigurationError(
                    f"store-{other.store} knows '{path_of(other.description)}' as number {id_}, store-{one.store} knows "
                    f"'{path_of(one.description)}' so: they are not of one namespace"
                )
            if other is None or one.description.updated_at_ms > other.description.updated_at_ms:
                found.entities[id_] = replace(one, store=other.store if other is not None else one.store)
    ended = {id_ for reading in readings for id_ in reading.ended}
    for id_ in ended & found.entities.keys():  # its end reached the disk in one of its stores only
        del found.entities[id_]
    _drop_older_namesakes(found)
    _tell_unknown(readings, found, ended)


def _drop_older_namesakes(found: Found) -> None:
    """Deleted and created again just before a crash, so that its end is in no journal: the younger one counts."""
    by_path: dict[str, int] = {}
    for id_ in sorted(found.entities):
        path = path_of(found.entities[id_].description).casefold()
        older = by_path.get(path)
        if older is not None:
            del found.entities[older]
            found.unknown.append(f"'{path}' is in the journals as number {older} and as number {id_}; the later one is taken")
        by_path[path] = id_
    for id_, one in list(found.entities.items()):
        description = one.description
        if isinstance(description, SubscriptionDescription) and description.topic.casefold() not in by_path:
            del found.entities[id_]
            found.unknown.append(f"'{path_of(description)}': its topic is in no journal; it is left out")


def _tell_unknown(readings: list[_Reading], found: Found, ended: set[int]) -> None:
    for one in found.entities.values():
        if one.keys_of:
            found.unknown.append(f"'{path_of(one.description)}': its authorization rules {', '.join(one.keys_of)}; make them anew")
    found.unknown.append("authorization rules of the namespace that are neither in the configuration nor in keys.json")
    named = set(found.entities) | ended | {0}
    for reading in readings:
        nameless = sorted(reading.used - named)
        if nameless:
            numbers = ", ".join(map(str, nameless[:10])) + (" …" if len(nameless) > 10 else "")
            found.unknown.append(f"store-{reading.number} has facts of number {numbers}, deleted or never named; they stay where they are")
    missing = sorted(set(range(max(found.stores, default=-1))) - found.stores.keys())
    for number in missing:
        found.unknown.append(f"store-{number} is not here; entities that live in it alone are not known")


def recover_metadata(directory: Path) -> Found:
    """Writes `metadata.sqlite` of a namespace's directory that has none. Whole or not at all."""
    target = directory / METADATA
    if target.exists() and target.stat().st_size:
        raise ConfigurationError(f"{target} is there; move it away first if it is not to be kept")
    numbers = stores_in(directory)
    if not numbers:
        raise without_stores(directory)
    disk = LocalDisk()
    places: dict[int, tuple[Disk, str]] = {number: (disk, f"{directory}/store-{number}") for number in sorted(numbers)}
    locks: list[int] = []
    try:
        for _, place in places.values():
            locks.append(_lock(disk, place))
        found = read_journals(places)
        _read_relays(RelayCopy(directory).read(), found)
        if not found.entities and not found.relays:
            raise ConfigurationError(
                f"{directory}: its journals name no entity. Journals of earlier versions do not, until a broker of this version has opened "
                "them with their metadata: only a backup of metadata.sqlite helps"
            )
        _write(directory, found)
    finally:
        for descriptor in locks:
            disk.unlock(descriptor)
    return found


def _read_relays(copied: CopiedRelays, found: Found) -> None:
    """A name that a queue or topic has by now is theirs."""
    taken = {path_of(one.description).casefold() for one in found.entities.values()}
    found.relays = tuple(relay for name, relay in copied.relays.items() if name not in taken)
    for relay in found.relays:
        if rules := copied.keys_of[relay.name.casefold()]:
            found.unknown.append(f"relay '{relay.name}': its authorization rules {', '.join(rules)}; make them anew")
    if copied.unreadable:
        found.unknown.append(f"{copied.unreadable} relays, or changes of them, whose lines in {RELAYS} are damaged")


def _lock(disk: Disk, place: str) -> int:
    try:
        return disk.lock(f"{place}/{LOCK}")
    except BlockingIOError as error:
        raise ConfigurationError(f"{place} is open in a broker; stop it first") from error


def _write(directory: Path, found: Found) -> None:
    target, unfinished = directory / METADATA, directory / _UNFINISHED
    for name in (_UNFINISHED, _UNFINISHED + "-wal", _UNFINISHED + "-shm"):
        (directory / name).unlink(missing_ok=True)
    for ending in ("-wal", "-shm"):
        # of the file that was lost: SQLite would take it for a part of the new one
        lost = directory / (METADATA + ending)
        if lost.exists():
            lost.replace(lost.with_name(lost.name + ".lost"))
    metadata = Metadata(unfinished, new_identity=lambda: bytes.fromhex(found.identity))
    try:
        metadata.rebuild(found.stored(), found.stores, found.highest_id)
        for relay in found.relays:
            metadata.put_relay(relay)
    finally:
        metadata.close()
    os.replace(unfinished, target)
    sync_name(target)


def described(found: Found) -> list[str]:
    """One line for each entity."""
    return [
        f"{kind_of(row.description).value} '{path_of(row.description)}' (number {row.id}, store-{row.store})" for row in found.stored()
    ] + [f"relay '{relay.name}'" for relay in found.relays]
