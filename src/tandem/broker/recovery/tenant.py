"""The tenant of one store: rebuilds queues from facts, and says on compaction which facts still matter."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from tandem.broker import facts
from tandem.broker.meters import MeterBook
from tandem.broker.ports import Effect
from tandem.broker.queue.index import DEFERRED, DEFERRED_LOCKED, DELAYED, GONE, HELD, LOCKED, READY, SCHEDULED
from tandem.broker.queue.leases import Lease
from tandem.broker.recovery import operations
from tandem.broker.recovery.cross_store import BetweenStores
from tandem.broker.recovery.entity_facts import EntityFacts
from tandem.broker.recovery.unplugged import Unplugged
from tandem.model.errors import Corrupt

if TYPE_CHECKING:
    from tandem.broker.entities.namespace import QueueEntity
    from tandem.broker.entities.topic import Topic
    from tandem.broker.ports import Journal
    from tandem.broker.queue.queue import Queue
    from tandem.broker.queue.state import HotBudget
    from tandem.broker.recovery.entity_facts import Roll
    from tandem.model.address import SubQueue


def _stays(queue: Queue, seq: int) -> bool:
    """The message is there, and not on its way out: the end of one received and deleted stands in the journal already,
    and written again behind that it would come back after a restart."""
    return queue.index.state(seq) not in (GONE, HELD)


class StoreTenant(BetweenStores):
    """Owns the queues whose facts are in one journal. Facts of entities that no longer exist are dropped."""

    def __init__(self, journal: Journal, budget: HotBudget, now: int, roll: Roll, store: int) -> None:
        super().__init__(journal, now)
        self.roll = roll
        self.entities = EntityFacts(journal, roll, store)
        self.budget = budget
        self.fresh: dict[int, QueueEntity | Topic] = {}
        """Entities made for this tenant and not yet in service."""
        self.fresh_fragments: list[tuple[int, int, dict[SubQueue, Queue]]] = []
        """(entity id, fragment, its queues), likewise."""
        self.fresh_topics: list[tuple[int, Topic]] = []
        """(fragment, topic), likewise."""
        self.queues: dict[int, Queue] = {}
        self.shared: dict[int, int] = {}
        self.meters = MeterBook(journal)
        self.clock_missed_ms: int = 0
        self.available: bool = True
        """False while the store is down: its entities answer at once, retryably."""
        self._until: dict[tuple[int, int], int] = {}

    def add(self, queue: Queue) -> None:
        queue.shared = self.shared
        queue.meter = self.meters.meter(queue.entity_id, queue.path, queue.turn)
        self.queues[queue.entity_id] = queue

    def discard(self, queue: Queue) -> None:
        self.queues.pop(queue.entity_id, None)

    @property
    def serves(self) -> bool:
        """Its queues are the ones in use, and it can write: a store may have stopped before anybody took it out of service."""
        return self.available and self._writes()

    def take_out_of_service(self) -> None:
        """The store is down: whoever comes to one of its queues is told at once, and what they still hold is worth nothing.

        When the store is back its journal belongs to queues that were replayed from it; these must never write to it again.
        """
        self.available = False
        health = self.journal.health
        unplugged = Unplugged(f"The messaging store that holds this entity is {health.state.value}: {health.cause}. Try again.")
        for queue in self.queues.values():
            queue.out_of_service = True
            queue.journal = unplugged
            for lock in queue.locks.by_token.values():
                lock.held = False

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
        if kind == facts.PUBLISHED:
            self._replay_published(flags, entity, seq, at, key, location, body_bytes)
            return
        if kind >= facts.METERED:
            if kind == facts.CLOCK_SET:
                for shifted in self.queues.values():  # a name of its own: compiled, one name cannot hold two types
                    shifted.shift(facts.read_clock_set(flags, aux))
            elif kind >= facts.ENTITY:
                self.entities.replayed(kind, flags, entity, key, location)
            else:
                self.meters.replayed(kind, seq, at, aux, key)
            return
        if kind >= facts.TRANSFERRED and self.replay_between(kind, flags, entity, seq, aux, key, location):
            return
        queue = self.queues.get(entity)
        if queue is None:
            if body_bytes:
                self.roll.must_have_given(facts.id_of(entity), "messages of an entity")
                self.journal.forget(location)
            return
        if kind == facts.ENQUEUED:
            self._replay_enqueued(queue, flags, seq, at, aux, key, location, body_bytes)
        elif kind == facts.SETTLED:
            if queue.index.state(seq):
                queue.remove_row(seq)
            if seq >= queue.next_seq:
                queue.next_seq = seq + 1
        elif kind == facts.STATE:
            self._replay_state(queue, flags, seq, aux, key)
        elif kind == facts.DELIVERED:
            for one in facts.read_seqs(key):
                if queue.index.state(one) and not queue.is_dead_letter:
                    queue.index.set_count(one, queue.index.count(one) + 1)
        elif kind == facts.SESSION_STATE:
            self._replay_session_state(queue, flags, at, key)
        elif kind == facts.SEEN:
            if queue.history is not None:
                queue.history.remember(key, at, at)
        elif kind in (facts.LEASED, facts.LEASE_RENEWED, facts.LEASE_ENDED, facts.LEASE_PART):
            self._replay_lease(queue, kind, flags, aux, key)
        elif kind == facts.COUNTER:
            queue.next_seq = max(queue.next_seq, aux)
        else:
            raise Corrupt(f"the journal holds a fact of unknown kind {kind}: it was written by a newer version")

    def numbers_begin_at(self, seq: int, entity_max: int) -> None:
        """Other stores, and clients, may remember numbers of what was lost: none is given twice."""
        for queue in self.queues.values():
            if facts.id_of(queue.entity_id) <= entity_max:
                queue.next_seq = max(queue.next_seq, queue.base + seq)

    def _replay_enqueued(self, queue: Queue, flags: int, seq: int, at: int, aux: int, key: bytes, location: int, body_bytes: int) -> None:
        message_id, session_id, count, scheduled_at = facts.read_enqueued(flags, key)
        index = queue.index
        state = facts.state_of(flags)
        if index.state(seq):
            # Written again (compaction, modified properties) and the older copy is still there: the younger one counts.
            queue.release(index.location(seq))
            index.set_body(seq, location, body_bytes)
            index.set_state(seq, state)
            index.set_count(seq, count)
        else:
            index.add(seq, state, location, body_bytes, at, aux, count)
            if queue.has_sessions and session_id is not None:
                queue.enter_session(seq, session_id)
            if state == SCHEDULED:
                heapq.heappush(queue.scheduled, (scheduled_at, seq))
        if seq >= queue.next_seq:
            queue.next_seq = seq + 1
        if queue.history is not None and not flags & facts.RELOCATED:
            queue.history.remember(message_id, at, at)

    def _replay_published(self, flags: int, topic: int, number: int, at: int, key: bytes, location: int, body_bytes: int) -> None:
        owner = self.queues.get(topic)
        if owner is not None and number >= owner.next_seq:
            owner.next_seq = number + 1
        _, session_id, _, _ = facts.read_enqueued(flags, key)
        rows = 0
        for entity, seq, expires_at in facts.read_targets(key):
            queue = self.queues.get(entity)
            if queue is None:
                continue
            queue.next_seq = max(queue.next_seq, seq + 1)
            if queue.index.state(seq):
                queue.release(queue.index.location(seq))
                queue.index.set_location(seq, location)
            else:
                queue.index.add(seq, READY, location, body_bytes, at, expires_at, 0)
                if queue.has_sessions and session_id is not None:
                    queue.enter_session(seq, session_id)
            rows += 1
        if rows:
            self.shared[location] = rows
        else:
            self.journal.forget(location)

    def _replay_state(self, queue: Queue, state: int, seq: int, count: int, key: bytes) -> None:
        if not queue.index.state(seq):
            return
        queue.index.set_count(seq, count)
        queue.index.set_state(seq, state)
        if state == DELAYED:
            self._until[(queue.entity_id, seq)] = facts.read_until(key)

    def _replay_session_state(self, queue: Queue, flags: int, at: int, key: bytes) -> None:
        if queue.sessions is None:
            return
        session_id, state = facts.read_session_state(flags, key)
        session = queue.sessions.get(session_id)
        session.state = state
        session.state_updated_at = at

    def _replay_lease(self, queue: Queue, kind: int, flags: int, aux: int, key: bytes) -> None:
        lease_id, packed = facts.read_lease(key)
        if kind == facts.LEASED:
            queue.leases[lease_id] = Lease(lease_id, facts.read_seqs(packed), aux, 0)
            return
        lease = queue.leases.get(lease_id)
        if lease is None:
            return
        if kind == facts.LEASE_RENEWED:
            lease.expires_at = aux
            return
        if kind == facts.LEASE_PART:
            queue.forget_part(lease, facts.read_seqs(packed))
            return
        del queue.leases[lease_id]
        if flags:
            queue.note_lease_ended(lease_id)
            for seq in lease.seqs:
                if seq and queue.index.state(seq):
                    queue.remove_row(seq)

    def finish(self) -> None:
        """All facts are told: make the queues ready to serve."""
        for (entity, seq), until in self._until.items():
            queue = self.queues[entity]
            if queue.index.state(seq) == DELAYED:
                heapq.heappush(queue.delayed, (until, seq))
        self._until.clear()
        for share in self.prepared.values():
            share.rows = operations.freeze(self, share.rows)
        for queue in self.queues.values():
            queue.replay_ended(self._now)

    # -- compaction --------------------------------------------------------------------------

    def relocate(self, kind: int, flags: int, entity: int, seq: int, at: int, aux: int, key: bytes, body: bytes, location: int) -> None:
        if kind == facts.PUBLISHED:
            self._relocate_published(flags, entity, seq, at, key, body, location)
            return
        if kind == facts.CLOCK_SET:
            return  # what was written before it has left, or was written again since with its instants moved
        if kind >= facts.ENTITY:
            self.entities.relocate(kind, flags, entity, seq, at, key, location)
            return
        if kind >= facts.TRANSFERRED and self.relocate_between(kind, flags, entity, seq, at, aux, key, body, location):
            return
        queue = self.queues.get(entity)
        if queue is None:
            return
        if kind == facts.ENQUEUED:
            if _stays(queue, seq) and queue.index.location(seq) == location:
                self._relocate_message(queue, flags, seq, at, aux, key, body)
            elif queue.history is not None and not flags & facts.RELOCATED:
                message_id, _, _, _ = facts.read_enqueued(flags, key)
                self._keep_seen(queue, message_id, at)
        elif kind == facts.SEEN:
            self._keep_seen(queue, key, at)
        elif kind == facts.LEASED:
            self._relocate_lease(queue, key, at)
        elif kind == facts.LEASE_ENDED and flags:
            lease_id, _ = facts.read_lease(key)
            if lease_id in queue.leases_ended:
                facts.write_again(self.journal, kind, flags, entity, seq, at, aux, key, b"")
        elif kind == facts.SESSION_STATE and queue.sessions is not None:
            session_id, state = facts.read_session_state(flags, key)
            session = queue.sessions.by_id.get(session_id)
            if session is not None and state is not None and session.state == state and session.state_updated_at == at:
                facts.write_again(self.journal, kind, flags, entity, seq, at, aux, key, b"")

    def _relocate_lease(self, queue: Queue, key: bytes, at: int) -> None:
        """As it stands now: parts given back since are no longer in it, so their facts may go with their segment."""
        lease_id, _ = facts.read_lease(key)
        lease = queue.leases.get(lease_id)
        if lease is not None:
            facts.write_leased(self.journal, queue.entity_id, lease_id, lease.seqs, lease.expires_at, at)

    def _keep_seen(self, queue: Queue, message_id: bytes, at: int) -> None:
        known = 0 if queue.history is None else queue.history.stands(message_id, at, queue.turn.now)
        if known:
            facts.write_seen(self.journal, queue.entity_id, message_id, known)

    def _relocate_message(self, queue: Queue, flags: int, seq: int, at: int, aux: int, key: bytes, body: bytes) -> None:
        index = queue.index
        state = index.state(seq)
        message_id, session_id, _, scheduled_at = facts.read_enqueued(flags, key)
        count = index.count(seq) + (1 if state in (LOCKED, DEFERRED_LOCKED) else 0)
        fresh = DEFERRED if state == DEFERRED_LOCKED else state
        expires_at = index.expires_at(seq) if aux else 0  # the clock may have been set since
        location = facts.write_enqueued(
            self.journal, queue.entity_id, seq, fresh, True, message_id, session_id, scheduled_at, at, expires_at, count, body
        )
        index.set_location(seq, location)
        if queue.history is not None and not flags & facts.RELOCATED:
            self._keep_seen(queue, message_id, at)
        if state == DELAYED:
            until = next((u for u, s in queue.delayed if s == seq), queue.turn.now)
            facts.write_state(self.journal, queue.entity_id, seq, DELAYED, count, until, at)

    def _relocate_published(self, flags: int, entity: int, seq: int, at: int, key: bytes, body: bytes, location: int) -> None:
        """Rows that are as they were published stay together; one whose state moved on is written for itself."""
        message_id, session_id, _, _ = facts.read_enqueued(flags, key)
        plain: list[tuple[int, int, int]] = []
        for target, row, expires_at in facts.read_targets(key):
            queue = self.queues.get(target)
            if queue is None or not _stays(queue, row) or queue.index.location(row) != location:
                continue
            if queue.index.state(row) == READY and queue.index.count(row) == 0:
                plain.append((target, row, queue.index.expires_at(row) if expires_at else 0))
            else:
                own = facts.pack_key(message_id, session_id, 0, 0)
                self._relocate_message(queue, flags & facts.HAS_SESSION, row, at, expires_at, own, body)
        if plain:
            fresh = facts.write_published(self.journal, entity, seq, True, message_id, session_id, at, plain, body)
            for target, row, _ in plain:
                self.queues[target].index.set_location(row, fresh)
            self.shared[fresh] = len(plain)
        self.shared.pop(location, None)

    def segment_leaving(self, entities: set[int]) -> None:
        for entity in entities:
            queue = self.queues.get(entity)
            if queue is not None:
                facts.write_counter(self.journal, entity, queue.next_seq, queue.turn.now)
        self.meters.write_state()
