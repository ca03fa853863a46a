"""A disk that is full, and stays full: what is there is received and settled for as long as it takes, also after a restart on it."""

from __future__ import annotations

from random import Random

import pytest

from tandem.broker.facts import DELIVERED
from tandem.broker.ports import StoreState
from tandem.simulator.stores import StoreDisk
from tandem.stores import InlineWorker, LogSettings, SegmentStore
from tests.stores.harness import Loop, ManualClock, Shop
from tests.stores.story import DIRECTORY

SETTINGS = LogSettings(segment_bytes=32_768, compaction_records_per_step=64, index_spill_bytes=2_000, lazy_bytes_max=1_000, check_ms=100)


class Full:
    """A store of small segments, filled with messages, on a disk on which nothing more fits from then on."""

    def __init__(self, seed: int, messages: int) -> None:
        self.dice = Random(seed)
        self.clock = ManualClock()
        self.disk = StoreDisk("full")
        self.open()
        while len(self.shop.messages) < messages:
            for _ in range(self.dice.randint(1, 8)):
                self.shop.put(4, b"key", self.dice.randbytes(self.dice.randint(1, 400)))
            self.turn()
        self.disk.faults.fill(0)

    def open(self) -> None:
        self.loop = Loop()
        self.store = SegmentStore(DIRECTORY, self.loop.call, SETTINGS, self.clock, self.disk, InlineWorker)
        self.shop = Shop()
        self.shop.journal = self.store
        self.store.replay(self.shop)

    def bytes_on_disk(self) -> int:
        return sum(len(self.disk.content(path)) for path in self.disk.paths())

    def turn(self) -> None:
        self.store.flush()
        self.loop.run_ready()
        self.clock.now += 200
        self.store.step_compaction()
        self.loop.run_ready()
        assert self.store.health.state in (StoreState.UP, StoreState.DEGRADED), self.store.health

    def deliver(self) -> None:
        """Received and given back, again and again: nothing becomes less of it."""
        for entity, seq in self.dice.choices(sorted(self.shop.messages), k=5):
            self.store.append(DELIVERED, 0, entity, seq, 1, 1, b"", b"")
        self.turn()


@pytest.mark.slow
@pytest.mark.parametrize("messages", [50, 800, 2_500])
@pytest.mark.parametrize("seed", range(3))
def test_messages_are_delivered_again_and_again_on_a_full_disk_and_settled_in_the_end(seed: int, messages: int) -> None:
    full = Full(seed, messages)
    written, held = 0, full.bytes_on_disk()
    for turn in range(4_000):
        full.deliver()
        written += 5 * 42
        if turn % 700 == 600:
            full.store.close()
            full.disk.restart(None)
            full.open()
    assert written > 20 * SETTINGS.segment_bytes
    assert full.bytes_on_disk() <= held
    assert len(full.shop.messages) >= messages
    for entity, seq in sorted(full.shop.messages, key=lambda _: full.dice.random()):
        full.shop.settle(entity, seq)
        full.turn()
    for _ in range(50):
        full.turn()
    if messages > 100:  # else it never had more than what is reserved
        assert full.store.short_of_room == "", "room was made by settling alone"
