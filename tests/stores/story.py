"""A store under load on a simulated disk, cut off at any call, and the four counters that say what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tandem.broker.ports import Effect
from tandem.model.errors import StoreUnavailable
from tandem.simulator.agenda import PowerCut
from tandem.simulator.disk import SimDisk
from tandem.stores import InlineWorker, LogSettings, SegmentStore
from tests.stores.harness import Fetched, Loop, ManualClock, Shop

SETTINGS = LogSettings(segment_bytes=4_096, compaction_records_per_step=9, index_spill_bytes=500, lazy_bytes_max=600, read_bytes_max=2_000)
DIRECTORY = Path("/store")


@dataclass
class Verdict:
    lost: int = 0
    """Acknowledged, not settled, and gone."""
    duplicated: int = 0
    """Settled, acknowledged as such, and back."""
    recovered: int = 0
    """Never acknowledged, and there: allowed."""
    unexpected: int = 0
    """There, but nobody put it there, or not with this content; or a counter that ran backwards."""

    @property
    def clean(self) -> bool:
        return not (self.lost or self.duplicated or self.unexpected)


class _Acknowledged(Effect):
    def __init__(self, ledger: Ledger, put: list[tuple[int, int]], settled: list[tuple[int, int]]) -> None:
        self.ledger = ledger
        self.put = put
        self.settled = settled

    def done(self, error: BaseException | None) -> None:
        if error is None:
            self.ledger.put.update(self.put)
            self.ledger.settled.update(self.settled)


class Ledger:
    """What the clients believe."""

    def __init__(self) -> None:
        self.tried: dict[tuple[int, int], set[tuple[bytes, bytes]]] = {}
        self.put: set[tuple[int, int]] = set()
        self.settle_tried: set[tuple[int, int]] = set()
        self.settled: set[tuple[int, int]] = set()

    def check(self, shop: Shop, bodies: dict[tuple[int, int], bytes]) -> Verdict:
        verdict = Verdict()
        there = set(shop.messages)
        verdict.lost = len(self.put - self.settle_tried - there)
        verdict.duplicated = len(self.settled & there)
        verdict.recovered = len(there - self.put)
        for name, (key, _) in shop.messages.items():
            if (key, bodies[name]) not in self.tried.get(name, set()):
                verdict.unexpected += 1
        for entity, seq in self.put:
            if shop.counters.get(entity, 0) < seq:
                verdict.unexpected += 1
        # what was found is durable, and what was not found was never acknowledged: this is the truth from here on
        self.put |= there
        self.settle_tried -= there
        return verdict


class Story:
    def __init__(self, seed: int, disk: SimDisk | None = None, settings: LogSettings = SETTINGS) -> None:
        self.random = Random(seed)
        self.disk = disk or SimDisk()
        self.settings = settings
        self.loop = Loop()
        self.clock = ManualClock()
        self.ledger = Ledger()
        self.shop = Shop()
        self.store = self._new_store()
        self.serial = 0

    def _new_store(self) -> SegmentStore:
        self.loop = Loop()
        return SegmentStore(
            DIRECTORY, self.loop.call, self.settings, self.clock, self.disk, InlineWorker, lambda: self.random.randbytes(16)
        )

    def open(self) -> None:
        self.shop.journal = self.store
        self.store.replay(self.shop)

    def turn(self) -> None:
        """A few puts and settlements, and somebody who waits for them; sometimes nobody does."""
        put: list[tuple[int, int]] = []
        settled: list[tuple[int, int]] = []
        for _ in range(self.random.randint(1, 6)):
            if self.shop.messages and self.random.random() < 0.47:
                entity, seq = self.random.choice(sorted(self.shop.messages))
                self.ledger.settle_tried.add((entity, seq))
                settled.append((entity, seq))
                self.shop.settle(entity, seq)
            else:
                self.serial += 1
                entity = 4 * self.random.randint(1, 3)
                key, body = b"key %d" % self.serial, b"body %d " % self.serial * self.random.randint(0, 40)
                seq = self.shop.counters.get(entity, 0) + 1
                self.ledger.tried.setdefault((entity, seq), set()).add((key, body))
                self.shop.put(entity, key, body)
                put.append((entity, seq))
        if self.random.random() < 0.9:
            self.store.when_durable(_Acknowledged(self.ledger, put, settled))
        self.store.flush()
        self.loop.run_ready()
        self.clock.now += self.random.choice((0, 1, 50))
        if self.random.random() < 0.2:
            self.store.step_compaction()

    def run(self, turns: int) -> None:
        for _ in range(turns):
            self.turn()

    def attempt(self, work: Callable[[], None]) -> bool:
        """False if the power went, or the store stopped, on the way."""
        try:
            work()
        except (PowerCut, StoreUnavailable):
            return False
        return True

    def restart(self, power_lost: bool) -> None:
        self.disk.restart(self.random if power_lost else None)
        self.shop = Shop()
        self.store = self._new_store()

    def check(self) -> Verdict:
        names = sorted(self.shop.messages)
        effect = Fetched()
        self.store.fetch([self.shop.messages[name][1] for name in names], effect)
        self.loop.run_until(lambda: effect.arrived)
        assert effect.error is None, effect.error
        assert effect.bodies is not None
        return self.ledger.check(self.shop, dict(zip(names, effect.bodies, strict=True)))
