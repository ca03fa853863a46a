"""Nodes that take a store from each other over an engine that lies: what was announced is there, once, in one order, whatever the seed."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Final

from tandem.broker.facts import ENQUEUED
from tandem.broker.ports import IN_SERVICE, Effect
from tandem.cluster.membership import Membership, NodeRow, View
from tandem.model.clock import SystemClock
from tandem.model.errors import BusError, Corrupt
from tandem.model.store_row import StoreRow
from tandem.simulator.engine import EngineFate, SimEngine, SimLedger
from tandem.stores.ledger_store import LedgerStore
from tandem.stores.settings import LogSettings
from tandem.stores.worker import InlineWorker

_DEPTH_MAX: Final = 3
_AWAY_MAX: Final = 4
_FATES: Final = (EngineFate.DONE,) * 12 + (EngineFate.BROKEN, EngineFate.UNTOLD, EngineFate.LOCAL, EngineFate.LATE)


class _Told(Effect):
    """What a client hears of its message."""

    def __init__(self, story: LedgerStory, number: int) -> None:
        self._story = story
        self._number = number

    def done(self, error: BaseException | None) -> None:
        if error is None:
            self._story.announced.append(self._number)
        else:
            self._story.refused += 1


class _Kept:
    """A tenant that notes which messages it is told of."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def replayed(self, kind: int, flags: int, entity: int, seq: int, at: int, aux: int, key: bytes, location: int, body_bytes: int) -> None:
        self.numbers.append(seq)

    def relocate(self, kind: int, flags: int, entity: int, seq: int, at: int, aux: int, key: bytes, body: bytes, location: int) -> None:
        """Nothing is compacted here."""

    def segment_leaving(self, entities: set[int]) -> None:
        """Nothing is compacted here."""

    def numbers_begin_at(self, seq: int, entity_max: int) -> None:
        """It was never lost."""


class _Node:
    """One node: its store, the calls that its loop has to make, and the messages that its clients send."""

    def __init__(self, story: LedgerStory, name: str) -> None:
        self.name = name
        self.story = story
        self.busy = False
        self._calls: list[object] = []
        self.membership = Membership(name)
        self._sleeps = 0
        """For so many of its turns it does nothing."""
        ledger = SimLedger(story.engine, name, self._may_take)
        settings = LogSettings(segment_bytes=1_024)
        self.store = LedgerStore(ledger, name, self._calls.append, settings, SystemClock(), InlineWorker, story.wait)

    def step(self, random: Random) -> None:
        """One thing that a node does. Others may come in between at each of its calls."""
        if self.busy:
            return  # it is paused, in the middle of a call
        if self._sleeps:
            self._sleeps -= 1
            return
        self.busy = True
        try:
            if self.story.by_beats:
                self._beat(random)
            if self.store.health.state in IN_SERVICE:
                self._send(random)
            elif random.random() < 0.4:
                self._open()
            self._run_calls()
        finally:
            self.busy = False

    def _may_take(self, row: StoreRow) -> bool:
        return not self.story.by_beats or self.story.over or self.membership.may_take(row)

    def _beat(self, random: Random) -> None:
        """As a node does it, from what the engine shows; now and then it sleeps afterwards, or an operator has a wish."""
        engine = self.story.engine
        try:
            engine.beat(self.name)
            beats, row = engine.look()
            if random.random() < 0.02:
                engine.want(random.choice(self.story.nodes).name)
        except BusError:
            return
        nodes = tuple(NodeRow(name, 1, beat, "", "", False) for name, beat in sorted(beats.items()))
        self.membership.beat(View(nodes, (row,)))
        if self.store.epoch:
            by = self.membership.lost(row.namespace, row.number, self.store.epoch)
            to = self.membership.should_leave(row.namespace, row.number)
            if by:
                self.store.hand_back(f"node {by} has taken the store over")
            elif to:
                self.store.move_away(f"moving to node {to}")
        if random.random() < 0.06:
            self._sleeps = random.randint(5, 40)

    def _open(self) -> None:
        if self.story.by_beats and not self.membership.should_open("tandem", 0):
            return
        try:
            row = self.store.take()
            self.story.opened(self.name, row.epoch)
            self.membership.took(row)
            self.store.reopen(_Kept())
        except Corrupt:
            raise
        except BusError:
            self.story.not_opened += 1

    def _send(self, random: Random) -> None:
        try:
            for _ in range(random.randint(1, 3)):
                self.story.sent += 1
                self.store.append(ENQUEUED, 0, 1, self.story.sent, 0, 0, b"", bytes(random.randint(0, 300)))
                self.store.when_durable(_Told(self.story, self.story.sent))
            self.store.flush()
        except BusError:
            self.story.refused += 1
        if random.random() < 0.05:
            self.store.hand_back("its node was told by a beat")

    def _run_calls(self) -> None:
        while self._calls:
            call = self._calls.pop(0)
            assert callable(call)
            call()


@dataclass
class LedgerStory:
    """One seed. `run` raises AssertionError or Corrupt if a promise was broken."""

    seed: int
    steps: int = 60
    by_beats: bool = False
    """Nobody takes what is served by a node that beats; otherwise everybody takes whatever there is."""
    over: bool = False
    owners: dict[int, str] = field(default_factory=dict)
    """By epoch, who has served under it."""
    sent: int = 0
    refused: int = 0
    not_opened: int = 0
    announced: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = Random(self.seed)
        self._depth = 0
        self._quiet = False
        self.engine = SimEngine(self._fate, self._meanwhile)
        self.nodes = [_Node(self, name) for name in "abc"]
        for node in self.nodes:
            node.store.fail("not opened yet")

    def _fate(self) -> EngineFate:
        return EngineFate.DONE if self._quiet else self._random.choice(_FATES)

    def _meanwhile(self) -> None:
        """Before each call to the engine: the caller may be paused while others go on, and the engine may have its day."""
        random = self._random
        if self._quiet or self._depth >= _DEPTH_MAX:
            return
        chance = random.random()
        if chance < 0.02:
            self.engine.fail_over()
        elif chance < 0.05:
            self.engine.run_late()
        elif chance < 0.15:
            self._depth += 1
            try:
                for _ in range(random.randint(1, 4)):
                    random.choice(self.nodes).step(random)
            finally:
                self._depth -= 1

    def opened(self, node: str, epoch: int) -> None:
        assert self.owners.setdefault(epoch, node) == node, f"seed {self.seed}: epoch {epoch} has two owners"

    @property
    def takeovers(self) -> int:
        names = [self.owners[epoch] for epoch in sorted(self.owners)]
        return sum(one != other for one, other in pairwise(names))

    def wait(self, seconds: float) -> None:
        """A committer waits for an engine that does not answer: time for everybody else."""
        self._meanwhile()

    def run(self) -> None:
        random = self._random
        for _ in range(self.steps):
            random.choice(self.nodes).step(random)
        self._quiet = self.over = True
        self.engine.run_late()
        kept = _Kept()
        last = self.nodes[0].store
        last.hand_back("the end")
        last.take()
        last.reopen(kept)
        assert len(kept.numbers) == len(set(kept.numbers)), f"seed {self.seed}: a message is there twice"
        missing = set(self.announced) - set(kept.numbers)
        assert not missing, f"seed {self.seed}: announced and lost: {sorted(missing)}"
        assert len(self.announced) == len(set(self.announced)), f"seed {self.seed}: announced twice"
        self._check_order()

    def _check_order(self) -> None:
        rows = [(number, *row[:1]) for segment in sorted(self.engine.kept) for number, row in sorted(self.engine.kept[segment].items())]
        numbers, epochs = [row[0] for row in rows], [row[1] for row in rows]
        assert numbers == list(range(1, len(rows) + 1)), f"seed {self.seed}: the numbers of blocks have a gap"
        assert epochs == sorted(epochs), f"seed {self.seed}: an epoch fell"
