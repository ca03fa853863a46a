"""Stores whose disks commit only when a test says so, so that a crash can be put between any two commits of any two stores."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from tandem.broker.entities.namespace import Namespace
from tandem.broker.entities.reopening import Reopening
from tandem.broker.ports import Effect, FetchEffect, Journal, StoreHealth, StoreState, Tenant
from tandem.broker.turn import Turn
from tandem.gateway.translate import Translator
from tandem.model import clock
from tandem.model.entity import QueueDescription
from tandem.model.errors import StoreUnavailable
from tandem.model.limits import Limits
from tandem.model.message import NO_TTL, Message

Record = tuple[int, int, int, int, int, int, bytes, bytes]


class SteppedJournal(Journal):
    """What is durable survives in `disk`, a list of blocks; everything else is forgotten with the object."""

    def __init__(self, disk: list[list[Record]]) -> None:
        self.disk = disk
        self._pending: list[Record] = []
        self._waiters: list[Effect] = []
        self._bodies: dict[int, bytes] = {}
        self._next = 1
        self._fetches: list[tuple[FetchEffect, list[int]]] = []
        self._health = StoreHealth(StoreState.UP)

    @property
    def health(self) -> StoreHealth:
        return self._health

    @property
    def pending_bytes(self) -> int:
        return len(self._pending)

    def append(self, kind: int, flags: int, entity: int, seq: int, at: int, aux: int, key: bytes, body: bytes) -> int:
        if self.health.state is not StoreState.UP:
            raise StoreUnavailable("the store is down")
        location = self._next
        self._next += 1
        self._pending.append((kind, flags, entity, seq, at, aux, key, body))
        self._bodies[location] = body
        return location

    def when_durable(self, effect: Effect) -> None:
        if self.health.state is not StoreState.UP:
            raise StoreUnavailable("the store is down")
        self._waiters.append(effect)

    def flush(self) -> None:
        """A block is what is pending when `commit` comes, as with group commit."""

    def commit(self) -> bool:
        """One block to the disk, and its effects. False when there was nothing to do."""
        fetches, self._fetches = self._fetches, []
        for effect, locations in fetches:
            effect.fetched([self._bodies[one] for one in locations], None)
        if not self._waiters:
            return bool(fetches)
        block, self._pending = self._pending, []
        waiters, self._waiters = self._waiters, []
        if block:
            self.disk.append(block)
        for waiter in waiters:
            waiter.done(None)
        return True

    def break_down(self, written: bool) -> None:
        """The disk returns an error: whether the block is on it, nobody knows; `written` decides."""
        block, self._pending = self._pending, []
        waiters, self._waiters = self._waiters, []
        if block and written:
            self.disk.append(block)
        self._health = StoreHealth(StoreState.DOWN, "failed")
        for waiter in waiters:
            waiter.done(StoreUnavailable("the store is down"))

    def fetch(self, locations: list[int], effect: FetchEffect) -> None:
        self._fetches.append((effect, locations))

    def forget(self, location: int) -> None:
        """Bodies are kept: a test looks at facts."""

    def replay(self, tenant: Tenant) -> None:
        self._health = StoreHealth(StoreState.UP)
        for block in self.disk:
            for kind, flags, entity, seq, at, aux, key, body in block:
                location = self._next
                self._next += 1
                self._bodies[location] = body
                tenant.replayed(kind, flags, entity, seq, at, aux, key, location, len(body))

    def step_compaction(self) -> bool:
        return False

    def close(self) -> None:
        """Nothing is open."""


class Clock(clock.Clock):
    def now_ms(self) -> int:
        return 1_700_000_000_000

    def steady_ms(self) -> int:
        return self.now_ms()

    def jumped(self) -> int:
        return 0


class House:
    """A namespace over stepped stores. `crash` builds a new one from what the disks hold."""

    def __init__(self, disks: list[list[list[Record]]], queues: list[tuple[int, int, QueueDescription]]) -> None:
        self._queues = queues
        self.disks = disks
        self.turn = Turn(Clock(), lambda: None)
        self.namespace = Namespace("test", self.turn, Limits(), Translator(lambda: (_ for _ in ()).throw(AssertionError)), lambda: 7)
        self.journals: list[SteppedJournal] = []
        for disk in disks:
            journal = SteppedJournal(disk)
            self.journals.append(journal)
            tenant: Any = journal
            self.namespace.attach_store(tenant)
        for id_, store, description in queues:
            self.namespace.add_queue(id_, store, description)
        self.namespace.replay()
        self.turn.run()

    def crash(self) -> House:
        return House([[list(block) for block in disk] for disk in self.disks], self._queues)

    def step(self, store: int) -> bool:
        """This store's disk commits once; what follows in the house follows."""
        moved = self.journals[store].commit()
        self.turn.run()
        return moved

    def fail(self, store: int, written: bool) -> None:
        """This store stops; everybody who is to know does."""
        self.journals[store].break_down(written)
        self.namespace.stores[store].take_out_of_service()
        self.turn.run()

    def reopen(self, store: int) -> None:
        """As whoever keeps the stores does it: fresh queues, replayed, swapped in."""
        reopening = Reopening(self.namespace, store)
        self.journals[store].replay(reopening.tenant)
        reopening.swap()
        self.turn.run()

    def settle(self) -> None:
        """Until nothing happens any more."""
        moved = True
        while moved:
            moved = False
            for store in range(len(self.journals)):
                moved = self.step(store) or moved

    def bodies(self, name: str) -> list[bytes]:
        queue: Any = self.namespace.forward_target(name)
        return sorted(
            self.journals_of(queue)._bodies[queue.index.location(seq)][-4:] for seq in queue.index.seqs_from(0, queue.index.total + 1)
        )

    def journals_of(self, queue: Any) -> SteppedJournal:
        journal: SteppedJournal = queue.rows.backing.journal
        return journal

    def count(self, name: str) -> int:
        queue: Any = self.namespace.forward_target(name)
        return int(queue.counts().total)


def plain(text: str) -> Message:
    bare = b"\x00\x53\x75\xa0" + bytes((len(text),)) + text.encode()
    return Message(bare, b"\xa1" + bytes((len(text),)) + text.encode(), None, NO_TTL, 0, b"", 0, b"", 0, b"", None, False)


def every_story(begin: Callable[[], House], check: Callable[[House], None], stores: int, depth: int) -> int:
    """Every order in which the disks may commit, with a crash after every step of each. Returns how many crashes were survived."""
    stories = _stories(begin, stores, depth)
    for story in stories:
        house = begin()
        for store in story:
            house.step(store)
        survivor = house.crash()
        survivor.settle()
        check(survivor)
    return len(stories)


def every_failure(begin: Callable[[], House], check: Callable[[House], None], stores: int, depth: int) -> int:
    """Every order of commits; after each any store stops, its last block written or not, and comes back at once or after the others
    have gone on; then, perhaps, another stops and comes back. Returns how many failures were survived."""
    failures = 0
    for story in _stories(begin, stores, depth):
        for failing, written, late, second in itertools.product(range(stores), (False, True), (False, True), (None, *range(stores))):
            house = begin()
            for store in story:
                house.step(store)
            house.fail(failing, written)
            if late:
                for store in range(stores):
                    if store != failing:
                        house.step(store)
            house.reopen(failing)
            if second is not None:
                house.fail(second, False)
                house.reopen(second)
            house.settle()
            check(house)
            survivor = house.crash()
            survivor.settle()
            check(survivor)
            failures += 1
    return failures


def _stories(begin: Callable[[], House], stores: int, depth: int) -> list[tuple[int, ...]]:
    """Orders of commits in which every one commits something."""
    found: list[tuple[int, ...]] = []
    open_: list[tuple[int, ...]] = [()]
    while open_:
        story = open_.pop()
        house = begin()
        if [house.step(store) for store in story][-1:] == [False]:
            continue
        found.append(story)
        if len(story) < depth:
            open_.extend((*story, store) for store in range(stores))
    return found
