"""Which store a directory is: decided once, at whatever instant the power fails, and never by accident."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from tandem.model.errors import StoreMissing, StoreUnavailable
from tandem.simulator.agenda import PowerCut
from tandem.simulator.disk import SimDisk
from tandem.stores import InlineWorker, LogSettings, SegmentStore
from tandem.stores.disk import write_file
from tandem.stores.metadata import KnownStore, Metadata
from tandem.stores.segment_files import MANIFEST
from tandem.stores.segment_reader import read_manifest
from tandem.stores.store_identity import RegisteredIdentity
from tests.stores.harness import Loop, ManualClock, Shop

STORE = Path("data/space/store-0")
SETTINGS = LogSettings(segment_bytes=8_192, free_bytes_min=0)


class Numbered(Shop):
    """Is told where numbers begin, as a namespace is."""

    def __init__(self) -> None:
        super().__init__()
        self.begin_at: tuple[int, int] | None = None

    def numbers_begin_at(self, seq: int, entity_max: int) -> None:
        assert self.replays == 0, "before any fact"
        self.begin_at = seq, entity_max


class House:
    """Metadata that lasts, and a disk that may lose power at its n-th call."""

    def __init__(self, disk: SimDisk | None = None, metadata: Metadata | None = None) -> None:
        self.disk = disk or SimDisk()
        self.metadata = metadata or Metadata(None)
        self.notes: list[str] = []

    def open(self) -> tuple[SegmentStore, Numbered]:
        loop, shop = Loop(), Numbered()
        identity = RegisteredIdentity(self.metadata, 0, self.notes.append)
        store = SegmentStore(STORE, loop.call, SETTINGS, ManualClock(), self.disk, InlineWorker, identity=identity)
        shop.journal = store
        store.replay(shop)
        return store, shop

    def cut_power_at(self, call: int) -> None:
        left = [call]

        def before(name: str, path: str) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise PowerCut(name)

        self.disk.before = before

    def knows(self) -> bool:
        return self.metadata.known_store(0) == KnownStore(read_manifest(self.disk, str(STORE)).store_id)


def make_old(house: House) -> None:
    """As it was before metadata and stores knew each other."""
    manifest = read_manifest(house.disk, str(STORE))
    write_file(house.disk, str(STORE), MANIFEST, replace(manifest, metadata="").encode())
    house.metadata._write(lambda: house.metadata._put_store(0, KnownStore()))


@pytest.mark.parametrize("old", [False, True], ids=["first start", "adoption"])
def test_power_may_fail_at_any_call_of_the_first_opening(old: bool) -> None:
    call = 0
    while True:
        house = House()
        if old:
            store, shop = house.open()
            shop.put(4, b"key", b"body")
            store.close()
            make_old(house)
            house.disk.restart(None)
        house.cut_power_at(call)
        try:
            house.open()
        except PowerCut:
            house.disk.restart(Random(call))
        else:
            break
        store, shop = house.open()
        assert house.knows()
        assert read_manifest(house.disk, str(STORE)).metadata == house.metadata.identity
        assert len(shop.messages) == (1 if old else 0)
        store.close()
        call += 1
    assert call > 10


def test_a_store_that_metadata_knows_is_missed_and_not_made() -> None:
    house = House()
    store, _ = house.open()
    store.close()
    house.disk.unmount(str(STORE))
    with pytest.raises(StoreMissing, match="tandem store reset data/space/store-0"):
        house.open()
    assert house.disk.paths() == [], "nothing is put where the disk will be"
    house.disk.mount()
    house.disk.restart(None)
    house.open()[0].close()


def test_a_store_that_was_given_up_begins_anew_above_the_numbers_of_the_lost_one() -> None:
    house = House()
    house.open()[0].close()
    house.metadata.give_up_store(0, 1_000)
    store, _ = house.open()  # it was found again before it was begun anew: it is the old one
    store.close()
    assert house.knows()
    house.metadata.give_up_store(0, 1_000)
    fresh = House(metadata=house.metadata)
    for _ in range(2):  # and whenever it is opened again
        store, shop = fresh.open()
        assert shop.begin_at == (1_000, 0)
        store.close()
    assert fresh.knows()
    with pytest.raises(StoreUnavailable, match="the one that belongs here"):
        house.open()


def test_a_store_of_other_metadata_is_refused_before_it_is_touched() -> None:
    house = House()
    house.open()[0].close()
    stranger = House(disk=house.disk)
    before = {path: house.disk.content(path) for path in house.disk.paths()}
    with pytest.raises(StoreUnavailable, match="belongs to the metadata"):
        stranger.open()
    assert {path: house.disk.content(path) for path in house.disk.paths()} == before


def test_a_store_that_names_no_metadata_is_taken_only_where_one_is_expected() -> None:
    house = House()
    house.open()[0].close()
    make_old(house)
    with pytest.raises(StoreUnavailable, match="names no metadata"):
        House(disk=house.disk).open()
    house.open()[0].close()
    assert len(house.notes) == 1
    house.open()[0].close()
    assert len(house.notes) == 1, "adopted once"
