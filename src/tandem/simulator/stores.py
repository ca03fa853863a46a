"""Stores for a simulated broker: the real append log on a disk in memory that takes its time, fills up, rots and loses power."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from tandem.broker.ports import Journal, Tenant
from tandem.broker.recovery.tenant import StoreTenant
from tandem.model.clock import Clock
from tandem.model.entity import SubscriptionDescription
from tandem.model.entity_json import EntityDescription, dump_rule, dump_without_keys
from tandem.model.errors import ConfigurationError, Corrupt
from tandem.simulator.agenda import Agenda, PowerCut, SimWorker
from tandem.simulator.disk import SimDisk
from tandem.simulator.replayed import compare
from tandem.stores.metadata import Metadata
from tandem.stores.meter_files import NoMeterFiles
from tandem.stores.recover_metadata import Found, read_journals
from tandem.stores.recovery import Recovery
from tandem.stores.segment import SegmentStore
from tandem.stores.segment_files import Manifest, SegmentFiles
from tandem.stores.settings import LogSettings
from tandem.stores.store_identity import RegisteredIdentity


class Rot:
    """One bit that changed by itself, and can be put right from a backup."""

    __slots__ = ("bit", "disk", "inode", "offset", "path")

    def __init__(self, disk: StoreDisk, path: str, offset: int, bit: int) -> None:
        self.disk = disk
        self.path = path
        self.inode = disk._names[path]
        self.offset = offset
        self.bit = bit

    def repair(self) -> bool:
        """False when the file is gone or was written anew: the store outlived the damage."""
        if self.disk._names.get(self.path) is not self.inode:
            return False
        self.disk.flip(self.path, self.offset, self.bit)
        return True


class DiskFaults:
    """What is wrong with a disk at the moment."""

    def __init__(self) -> None:
        self.free: int | None = None
        """Bytes that still fit on a full disk; None: as many as you like."""
        self.syncs_fail = False
        self.stalled_until = 0.0
        self._calls_left = -1
        """Disk calls until the power fails; -1: it does not."""

    def heal(self) -> None:
        self.free = None
        self.syncs_fail = False
        self.stalled_until = 0.0
        self._calls_left = -1

    def fill(self, free: int | None) -> None:
        self.free = free

    def fail_syncs(self, fail: bool) -> None:
        self.syncs_fail = fail

    def stall(self, until: float) -> None:
        self.stalled_until = until

    def cut_power_after(self, calls: int) -> None:
        """-1: not at all."""
        self._calls_left = calls

    @property
    def power_is_short(self) -> bool:
        """It fails some calls from now."""
        return self._calls_left >= 0

    def cuts_power(self) -> bool:
        """Now, in one more call?"""
        if self._calls_left < 0:
            return False
        self._calls_left -= 1
        return self._calls_left < 0

    def grow(self, more: int) -> None:
        """A file gets longer by so much, or shorter."""
        if self.free is None:
            return
        if more > self.free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.free -= more


class StoreDisk(SimDisk):
    """Faults are switched on and off by the world; a power cut takes the whole machine."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.faults = DiskFaults()
        self.latency: Callable[[], float] = lambda: 0.000_1
        self.power_fails: Callable[[], None] = lambda: None

    def live_in(self, latency: Callable[[], float], power_fails: Callable[[], None]) -> None:
        """How long a call takes there, and who is told when the power fails in one."""
        self.latency = latency
        self.power_fails = power_fails

    def _called(self, name: str, path: str) -> int | None:
        if self.dead:
            raise PowerCut(f"{name} {path}")
        if self.faults.cuts_power():
            self.power_fails()
            raise PowerCut(f"{name} {path}")
        return None

    def pwritev(self, descriptor: int, buffers: list[bytes], offset: int) -> int:
        self.faults.grow(max(offset + sum(map(len, buffers)) - self.size(descriptor), 0))
        return super().pwritev(descriptor, buffers, offset)

    def fallocate(self, descriptor: int, size: int) -> bool:
        self.faults.grow(max(size - self.size(descriptor), 0))
        return super().fallocate(descriptor, size)

    def truncate(self, descriptor: int, size: int) -> None:
        self.faults.grow(min(size - self.size(descriptor), 0))
        super().truncate(descriptor, size)

    def unlink(self, path: str) -> None:
        if path in self._names:
            self.faults.grow(-len(self._names[path].content))
        super().unlink(path)

    def rename(self, source: str, target: str) -> None:
        if target in self._names:
            self.faults.grow(-len(self._names[target].content))
        super().rename(source, target)

    def _sync(self, name: str, descriptor: int) -> None:
        if self.faults.syncs_fail:
            self._open[descriptor][0].pending.clear()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super()._sync(name, descriptor)

    def free_bytes(self, path: str) -> int:
        return 1 << 40 if self.faults.free is None else self.faults.free


def flip_a_bit(disk: StoreDisk, dice: Random) -> Rot | None:
    """Flip a bit of a file that is complete: a sealed segment, an index, the manifest."""
    segments = [path for path in disk.paths() if path.endswith(".seg") and "/audit/" not in path]
    sealed = [path for path in segments if path[:-4] + ".idx" in disk.paths()]
    candidates = sealed + [path for path in disk.paths() if path.endswith((".idx", "store.json"))]
    candidates = [path for path in candidates if disk.content(path)]
    if not candidates:
        return None
    path = dice.choice(sealed if sealed and dice.random() < 0.7 else candidates)
    rot = Rot(disk, path, dice.randrange(len(disk.content(path))), dice.randrange(8))
    disk.flip(rot.path, rot.offset, rot.bit)
    return rot


class _SurvivingMetadata(Metadata):
    """Metadata survives every restart: SQLite has its own tests."""

    def close(self) -> None:
        """The next life opens it again."""


def _without_keys(description: EntityDescription) -> tuple[str, list[str]]:
    rules = description.rules if isinstance(description, SubscriptionDescription) else ()
    return dump_without_keys(description), sorted(map(dump_rule, rules))


class SimEngines:
    """What one simulated broker remembers with; lives longer than the broker."""

    def __init__(self, agenda: Agenda, host: str, stores: int, settings: LogSettings, clock: Clock, dice: Random) -> None:
        self._agenda = agenda
        self._settings = settings
        self._clock = clock
        self._dice = dice
        self._catalog = _SurvivingMetadata(None, new_identity=lambda: bytes(16))
        self.disks = [StoreDisk(f"{host}/{index}") for index in range(stores)]

    def open_catalog(self, namespace: str, store_count: int) -> Metadata:
        return self._catalog

    def open_journal(self, namespace: str, index: int, loop_call: Callable[[Callable[[], None]], None]) -> Journal:
        disk = self.disks[index]
        return SegmentStore(
            Path(f"store-{index}"),
            loop_call,
            self._settings,
            self._clock,
            disk,
            lambda name: SimWorker(self._agenda, disk),
            lambda: self._dice.randbytes(16),
            RegisteredIdentity(self._catalog, index, lambda text: None),
        )

    def lose_metadata(self) -> bool:
        """While the broker is down: what the journals know is all that is left of it. False where they cannot be read."""
        try:
            found = self._read_journals()
        except (Corrupt, ConfigurationError):
            return False
        if not found.identity:
            return False
        self._catalog = _SurvivingMetadata(None, new_identity=lambda: bytes.fromhex(found.identity))
        self._catalog.rebuild(found.stored(), found.stores, found.highest_id)
        return True

    def _read_journals(self) -> Found:
        return read_journals({number: (disk, f"store-{number}") for number, disk in enumerate(self.disks)})

    def unlike_replay(self, index: int, tenant: StoreTenant, now: int) -> Iterator[str]:
        """Where the queues of this store are not what its journal, read for itself, makes them."""
        files = SegmentFiles(f"store-{index}", self.disks[index].copy(), self._clock, self._settings.segment_bytes)

        def replay(told: Tenant) -> None:
            segments = files.load(Manifest(bytes(16), 1, 0, 1), False)
            if files.manifest.begins_at:
                told.numbers_begin_at(files.manifest.begins_at, files.manifest.entity_max)
            Recovery(files, {}, told, 0, None).run(segments)

        return compare(tenant, replay, now)

    def unlike_metadata(self) -> list[str]:
        """Where the journals, read for themselves, know other entities than the metadata does."""
        found = self._read_journals()
        snapshot = self._catalog.load()
        known = {stored.id: _without_keys(stored.description) for stored in snapshot.entities}
        told = {id_: _without_keys(one.description) for id_, one in found.entities.items()}
        wrong = [
            f"entity {id_}: {known.get(id_)} is in the journals as {told.get(id_)}"
            for id_ in known | told
            if known.get(id_) != told.get(id_)
        ]
        if found.highest_id > snapshot.highest_id:
            wrong.append(f"the journals name entity {found.highest_id}; {snapshot.highest_id} was the last that was given")
        return wrong

    def open_meters(self, namespace: str, index: int) -> NoMeterFiles:
        return NoMeterFiles()

    def set_faults(self, namespace: str, index: int, *, down: bool, failing: bool, full: bool, sync_delay_ms: int) -> None:
        """The world has its own ways."""
