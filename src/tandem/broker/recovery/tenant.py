"""The tenant of one store: rebuilds queues from facts, and says on compaction which facts still matter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandem.broker import facts
from tandem.broker.meters import MeterBook
from tandem.broker.ports import Effect, StoreState
from tandem.broker.queue.rows import Backing, Rows
from tandem.broker.recovery.cross_store import CrossStoreFacts, freeze
from tandem.broker.recovery.entity_facts import EntityFacts
from tandem.broker.recovery.relocation import relocate, relocate_published
from tandem.broker.recovery.replay import replay
from tandem.broker.recovery.unplugged import Unplugged

if TYPE_CHECKING:
    from tandem.broker.ports import Journal
    from tandem.broker.queue.queue import Queue
    from tandem.broker.recovery.entity_facts import Roll


class StoreTenant(CrossStoreFacts):
    """Owns the queues whose facts are in one journal. Facts of entities that no longer exist are dropped."""

    def __init__(self, journal: Journal, hot_bytes_max: int, now: int, roll: Roll, store: int) -> None:
        super().__init__(journal, now)
        self.roll = roll
        self.entities = EntityFacts(journal, roll, store)
        self.backing = Backing(journal, hot_bytes_max)
        self.queues: dict[int, Queue] = {}
        self.rows: dict[int, Rows] = {}
        """Of its queues."""
        self.meters = MeterBook(journal)
        self.clock_missed_ms: int = 0
        self.last_instant: int = 0
        """The latest that a replayed fact was written at."""
        self.available: bool = True
        """False while the store is down: its entities answer at once, retryably."""

    def add(self, queue: Queue) -> None:
        self.queues[queue.entity_id] = queue
        self.rows[queue.entity_id] = queue.rows
        if not self.available:
            queue.take_out_of_service()

    def discard(self, queue: Queue) -> None:
        if self.queues.get(queue.entity_id) is queue:
            del self.queues[queue.entity_id]
            del self.rows[queue.entity_id]

    @property
    def serves(self) -> bool:
        """Its queues are the ones in use, and it can write: a store may have stopped before anybody took it out of service."""
        return self.available and self._writes()

    @property
    def elsewhere(self) -> bool:
        """Another node serves it."""
        return self.journal.health.state is StoreState.ELSEWHERE

    def take_out_of_service(self) -> None:
        """The store is down: whoever comes to one of its queues is told at once, and what they still hold is worth nothing.

        When the store is back its journal belongs to queues that were replayed from it; these must never write to it again.
        """
        self.available = False
        self.backing.unplug(Unplugged(self.journal.health.refusal()))
        for queue in self.queues.values():
            queue.take_out_of_service()

    def clock_jumped(self, by_ms: int, now: int) -> None:
        """The machine's clock was set. While the store cannot be written the jumps are added up, for whoever replays it."""
        if not self.serves:
            self.clock_missed_ms += by_ms
            return
        facts.write_clock_set(self.journal, by_ms, now)
        self.journal.when_durable(Effect())  # at once: a broker that is killed soon after must find it
        for queue in self.queues.values():
            queue.clock_jumped(by_ms)

    # -- replay ------------------------------------------------------------------------------

    def replayed(self, kind: int, flags: int, entity: int, seq: int, at: int, aux: int, key: bytes, location: int, body_bytes: int) -> None:
        if at > self.last_instant:
            self.last_instant = at
        if kind == facts.PUBLISHED:
            self._replay_published(flags, entity, seq, at, key, location, body_bytes)
        elif kind >= facts.METERED:
            self._replay_own(kind, flags, entity, seq, at, aux, key, location)
        elif kind < facts.TRANSFERRED or not self.replay_cross_store(kind, flags, seq, aux, key, location):
            rows = self.rows.get(entity)
            if rows is not None:
                replay(rows, kind, flags, seq, at, aux, key, location, body_bytes)
            else:
                self._replay_unclaimed(kind, entity, location, body_bytes)

    def _replay_unclaimed(self, kind: int, entity: int, location: int, body_bytes: int) -> None:
        """A fact of an entity that is not here."""
        self.entities.must_be_gone(entity)
        if body_bytes:
            self.roll.must_have_given(facts.id_of(entity), "messages of an entity")
            self.journal.forget(location)
            self.entities.unclaimed(entity, 1)
        elif kind == facts.SETTLED:
            self.entities.unclaimed(entity, -1)

    def _replay_own(self, kind: int, flags: int, entity: int, seq: int, at: int, aux: int, key: bytes, location: int) -> None:
        if kind == facts.CLOCK_SET:
            self.last_instant = at  # whatever came before was told by the clock as it was set before
            for rows in self.rows.values():
                rows.apply_clock_set(facts.read_clock_set(flags, aux))
        elif kind >= facts.ENTITY:
            self.entities.replayed(kind, flags, entity, key, location)
        else:
            self.meters.replayed(kind, seq, at, aux, key)

    def numbers_begin_at(self, seq: int, entity_max: int) -> None:
        """Other stores, and clients, may remember numbers of what was lost: none is given twice."""
        for rows in self.rows.values():
            if facts.id_of(rows.entity_id) <= entity_max:
                rows.apply_counter(rows.base + seq)

    def _replay_published(self, flags: int, topic: int, number: int, at: int, key: bytes, location: int, body_bytes: int) -> None:
        message_id, session_id, _, _ = facts.read_enqueued(flags, key)
        owner = self.rows.get(topic)
        if owner is not None:
            owner.apply_passed(number, message_id, facts.is_relocated(flags), at)
        else:
            self.entities.must_be_gone(topic)
        needed = 0
        for entity, seq, expires_at in facts.read_targets(key):
            rows = self.rows.get(entity)
            if rows is not None:
                rows.apply_published(seq, session_id, at, expires_at, location, body_bytes)
                needed += 1
            else:
                self.entities.must_be_gone(entity)
                self.entities.unclaimed(entity, 1)
        if needed:
            self.backing.shared[location] = needed
        else:
            self.journal.forget(location)

    def finish(self) -> None:
        """All facts are told: make the queues ready to serve."""
        for share in self.prepared.values():
            share.touch_only(freeze(self.rows, share.rows))
        for queue in self.queues.values():
            queue.schedule.replay_ended(self._now)

    # -- compaction --------------------------------------------------------------------------

    def relocate(
        self, kind: int, flags: int, entity: int, seq: int, at: int, aux: int, key: bytes, body: bytes | None, location: int
    ) -> bool:
        if kind == facts.PUBLISHED:
            return relocate_published(self.rows, self.backing, flags, entity, seq, at, key, body, location, self._now_of(entity))
        if kind == facts.CLOCK_SET:
            return False  # what was written before it has left, or was written again since with its instants moved
        if kind >= facts.ENTITY:
            self.entities.relocate(kind, flags, entity, seq, at, key, location)
            return False
        if kind == facts.PREPARED:
            return self.relocate_prepared(flags, entity, seq, at, aux, key, body, location)
        if kind >= facts.TRANSFERRED and self.relocate_cross_store(kind, flags, entity, seq, at, aux, key):
            return False
        rows = self.rows.get(entity)
        return rows is not None and relocate(rows, kind, flags, seq, at, aux, key, body, location, self._now_of(entity))

    def _now_of(self, entity: int) -> int:
        queue = self.queues.get(entity)
        return self._now if queue is None else queue.turn.now

    def segment_leaving(self, entities: set[int]) -> None:
        for entity in entities:
            queue = self.queues.get(entity)
            if queue is not None:
                facts.write_counter(self.journal, entity, queue.rows.next_seq, queue.turn.now)
        self.meters.write_state()
