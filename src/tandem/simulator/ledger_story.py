"""Nodes that take a store from each other over an engine that lies: what was announced is there, once, in one order, whatever the seed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random
from typing import Final

from tandem.broker.facts import ENQUEUED
from tandem.broker.ports import IN_SERVICE, Effect
from tandem.cluster.membership import EngineView, Membership, NodeRow, View
from tandem.model.clock import SystemClock
from tandem.model.errors import BusError, Corrupt
from tandem.model.store_row import StoreRow
from tandem.simulator.engine import EngineFate, SimEngine, SimLedger
from tandem.stores.ledger_store import LedgerStore
from tandem.stores.settings import LogSettings
from tandem.stores.worker import InlineWorker

_DEPTH_MAX: Final = 3
_AWAY_MAX: Final = 4
"""So often a committer asks an engine that is away before it is given up."""
_FATES: Final = (EngineFate.DONE,) * 12 + (EngineFate.BROKEN, EngineFate.UNTOLD, EngineFate.LOCAL, EngineFate.LATE)


class _Told(Effect):
    """What a client hears of its message."""

    def __init__(self, story: LedgerStory, store: int, number: int) -> None:
        self._story = story
        self._store = store
        self._number = number

    def done(self, error: BaseException | None) -> None:
        if error is None:
            self._story.announce(self._store, self._number)
        else:
            self._story.refuse()


class _Kept:
    """A tenant that notes which messages it is told of."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def replayed(self, kind: int, flags: int, entity: int, seq: int, at: int, aux: int, key: bytes, location: int, body_bytes: int) -> None:
        self.numbers.append(seq)

    def relocate(
        self, kind: int, flags: int, entity: int, seq: int, at: int, aux: int, key: bytes, body: bytes | None, location: int
    ) -> bool:
        return False  # nothing is compacted here

    def segment_leaving(self, entities: set[int]) -> None:
        """Nothing is compacted here."""

    def numbers_begin_at(self, seq: int, entity_max: int) -> None:
        """It was never lost."""


class _Node:
    """One node: its stores, the calls that its loop has to make, and the messages that its clients send."""

    def __init__(self, story: LedgerStory, name: str) -> None:
        self.name = name
        self.story = story
        self.busy = False
        self._calls: list[object] = []
        self.membership = Membership(name)
        self._sleeps = 0
        """For so many of its turns it does nothing."""
        self._seen: dict[str, EngineView] = {}
        """Of engines beside the first."""
        self._waited = [0] * len(story.engines)
        self.stores = [self._new_store(number) for number in range(len(story.engines))]

    def _new_store(self, number: int) -> LedgerStore:
        ledger = SimLedger(self.story.engines[number], self.name, self._may_take)
        settings = LogSettings(segment_bytes=1_024)
        return LedgerStore(ledger, self.name, self._calls.append, settings, SystemClock(), InlineWorker, lambda _: self._wait(number))

    @property
    def store(self) -> LedgerStore:
        return self.stores[0]

    def _wait(self, number: int) -> None:
        """A committer waits for an engine that does not answer: time for everybody else. Not for ever, if it is away."""
        self.story.others_go_on()
        if self.story.engines[number].reachable:
            self._waited[number] = 0
            return
        self._waited[number] += 1
        if self._waited[number] > _AWAY_MAX:
            self.stores[number].hand_back("its engine is away", engine_away=True)

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
            number = random.randrange(len(self.stores))
            if self.stores[number].health.state in IN_SERVICE:
                self._send(number, random)
            elif random.random() < 0.4:
                self._open(number)
            self._run_calls()
        finally:
            self.busy = False

    def _may_take(self, row: StoreRow) -> bool:
        return not self.story.by_beats or self.story.over or self.membership.may_take(row)

    def _beat(self, random: Random) -> None:
        """As a node does it, from what the engine shows; now and then it sleeps afterwards, or an operator has a wish."""
        first, *others = self.story.engines
        for engine in others:
            self._beat_in(engine)
        try:
            first.beat(self.name)
            beats, row = first.look()
            if random.random() < 0.02:
                random.choice(self.story.engines).want(random.choice(self.story.nodes).name)
        except BusError:
            return
        address = "peers" if others else ""
        nodes = tuple(NodeRow(name, 1, beat, address, "", False) for name, beat in sorted(beats.items()))
        rows = (row, *(row for seen in self._seen.values() for row in seen.stores))
        self.membership.beat(View(nodes, rows, spread=frozenset({"tandem"} if others else ()), engines=dict(self._seen)))
        for row in rows:
            store = self.stores[row.number]
            if not store.epoch:
                continue
            by = self.membership.lost(row.namespace, row.number, store.epoch)
            to = self.membership.should_leave(row.namespace, row.number)
            if by:
                store.hand_back(f"node {by} has taken the store over")
            elif to:
                self.membership.leaves(row.namespace, row.number)
                store.move_away(f"moving to node {to}")
        if random.random() < 0.06:
            self._sleeps = random.randint(5, 40)

    def _beat_in(self, engine: SimEngine) -> None:
        """Beside the beats in the first: what it shows is believed until it shows something else."""
        name = engine.row.engine
        seen = self._seen.get(name, EngineView())
        try:
            engine.beat(self.name)
            beats, row = engine.look()
        except BusError:
            self._seen[name] = replace(seen, answers=engine.reachable)
            return
        self._seen[name] = EngineView(seen.beats + 1, {node: (1, beat) for node, beat in beats.items()}, (row,), True)

    def _open(self, number: int) -> None:
        if self.story.by_beats and not self.membership.should_open("tandem", number):
            return
        self._waited[number] = 0
        try:
            row = self.stores[number].take()
            self.story.opened(self.name, number, row.epoch)
            self.membership.took(row)
            self.stores[number].reopen(_Kept())
        except Corrupt:
            raise
        except BusError:
            self.story.not_opened += 1

    def _send(self, number: int, random: Random) -> None:
        store = self.stores[number]
        try:
            for _ in range(random.randint(1, 3)):
                self.story.sent += 1
                store.append(ENQUEUED, 0, 1, self.story.sent, 0, 0, b"", bytes(random.randint(0, 300)))
                store.when_durable(_Told(self.story, number, self.story.sent))
            store.flush()
        except BusError:
            self.story.refuse()
        if random.random() < 0.05:
            store.hand_back("its node was told by a beat")

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
    stores: int = 1
    """Each in an engine of its own; those beside the first are away now and then."""
    over: bool = False
    owners: dict[tuple[int, int], str] = field(default_factory=dict)
    """By store and epoch, who has served under it."""
    sent: int = 0
    refused: int = 0
    not_opened: int = 0
    meanwhile: int = 0
    """Messages that were announced while an engine was away."""
    told: list[list[int]] = field(default_factory=list)
    """By store: what was announced."""

    def __post_init__(self) -> None:
        self._random = Random(self.seed)
        self._depth = 0
        self._quiet = False
        self.engines = [
            SimEngine(self._fate, self.others_go_on, number, f"engine-{number}" if number else "") for number in range(self.stores)
        ]
        self.told = [[] for _ in self.engines]
        self.nodes = [_Node(self, name) for name in "abc"]
        for node in self.nodes:
            for store in node.stores:
                store.fail("not opened yet")

    @property
    def announced(self) -> list[int]:
        return [number for told in self.told for number in told]

    def _fate(self) -> EngineFate:
        return EngineFate.DONE if self._quiet else self._random.choice(_FATES)

    def others_go_on(self) -> None:
        """Before each call to the engine: the caller may be paused while others go on, and the engine may have its day."""
        random = self._random
        if self._quiet or self._depth >= _DEPTH_MAX:
            return
        chance = random.random()
        engine = random.choice(self.engines)
        if chance < 0.02:
            engine.fail_over()
        elif chance < 0.05:
            engine.run_late()
        elif chance < 0.06 and engine.row.engine:
            engine.reach(not engine.reachable)
        elif chance < 0.15:
            self._depth += 1
            try:
                for _ in range(random.randint(1, 4)):
                    random.choice(self.nodes).step(random)
            finally:
                self._depth -= 1

    def announce(self, store: int, number: int) -> None:
        self.told[store].append(number)
        self.meanwhile += not all(engine.reachable for engine in self.engines)

    def refuse(self) -> None:
        self.refused += 1

    def opened(self, node: str, store: int, epoch: int) -> None:
        assert self.owners.setdefault((store, epoch), node) == node, f"seed {self.seed}: epoch {epoch} has two owners"

    @property
    def takeovers(self) -> int:
        served = [(store, self.owners[store, epoch]) for store, epoch in sorted(self.owners)]
        return sum(one[0] == other[0] and one[1] != other[1] for one, other in pairwise(served))

    def run(self) -> None:
        random = self._random
        for _ in range(self.steps):
            random.choice(self.nodes).step(random)
        self._quiet = self.over = True
        for store, engine in enumerate(self.engines):
            engine.reach(True)
            engine.run_late()
            self._check(engine, self.nodes[0].stores[store], self.told[store])

    def _check(self, engine: SimEngine, last: LedgerStore, announced: list[int]) -> None:
        kept = _Kept()
        last.hand_back("the end")
        last.take()
        last.reopen(kept)
        assert len(kept.numbers) == len(set(kept.numbers)), f"seed {self.seed}: a message is there twice"
        missing = set(announced) - set(kept.numbers)
        assert not missing, f"seed {self.seed}: announced and lost: {sorted(missing)}"
        assert len(announced) == len(set(announced)), f"seed {self.seed}: announced twice"
        self._check_order(engine)

    def _check_order(self, engine: SimEngine) -> None:
        rows = [(number, *row[:1]) for segment in sorted(engine.kept) for number, row in sorted(engine.kept[segment].items())]
        numbers, epochs = [row[0] for row in rows], [row[1] for row in rows]
        assert numbers == list(range(1, len(rows) + 1)), f"seed {self.seed}: the numbers of blocks have a gap"
        assert epochs == sorted(epochs), f"seed {self.seed}: an epoch fell"
