"""Compaction comes to rest when what is left matters, also when what matters has no body."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.broker.facts import SEEN
from tandem.stores.relocated_bytes import RelocatedBytes
from tests.stores.harness import Shop
from tests.stores.test_conformance import House


class Rememberer(Shop):
    """A tenant that keeps every id it was ever told, as duplicate detection does for the length of its window."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[bytes] = set()
        self.walked = 0

    def remember(self, key: bytes) -> None:
        assert self.journal is not None
        self.seen.add(key)
        self.journal.append(SEEN, 0, 4, 0, 10, 0, key, b"")

    def replayed(self, kind: int, flags: int, entity: int, seq: int, at: int, aux: int, key: bytes, location: int, body_bytes: int) -> None:
        if kind == SEEN:
            self.seen.add(key)
        else:
            super().replayed(kind, flags, entity, seq, at, aux, key, location, body_bytes)

    def relocate(
        self, kind: int, flags: int, entity: int, seq: int, at: int, aux: int, key: bytes, body: bytes | None, location: int
    ) -> bool:
        self.walked += 1
        assert self.walked < 20_000, "compaction walks the same facts again and again"
        if kind == SEEN and key in self.seen:
            assert self.journal is not None
            self.journal.append(SEEN, flags, entity, seq, at, aux, key, b"")
            return False
        return super().relocate(kind, flags, entity, seq, at, aux, key, body, location)


@pytest.mark.parametrize("engine", ["memory", "segment", "sqlite"])
def test_compaction_rests_when_everything_left_is_wanted(engine: str, tmp_path: Path) -> None:
    house = House(engine, tmp_path / "store")
    tenant = Rememberer()
    store = house.open(tenant)
    for number in range(1500):
        tenant.remember(b"an id of some length, number %06d" % number)
        tenant.settle(8, tenant.put(8, b"k", b"b" * 20))
        if number % 50 == 0:
            house.settle_down(store)
    house.settle_down(store)
    house.compact(store)
    store.close()
    again = Rememberer()
    reopened = house.open(again)
    assert again.seen == tenant.seen
    assert again.messages == {}
    tenant.seen.clear()
    again.seen.clear()  # the window has passed: the next traffic sweeps them out
    for _ in range(1500):
        again.settle(8, again.put(8, b"k", b"b" * 100))
    house.settle_down(reopened)
    house.compact(reopened)
    reopened.close()
    last = Rememberer()
    house.open(last).close()
    assert len(last.seen) < 1500


def test_books_are_kept_by_segment() -> None:
    relocated = RelocatedBytes()
    relocated.add(1, 80, 0)
    relocated.add(1, 0, 500)
    relocated.add(2, 600, 500)
    relocated.add(2, 70, 500)
    assert relocated.total == 80 + 100 + 70
    relocated.drop(1)
    relocated.drop(3)
    assert relocated.total == 170
