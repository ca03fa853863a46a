"""Partitioned queues: fragments in several stores that look like one queue, and go on when one of the stores is down."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

from tandem.broker.entities.gathering import AllOf, Gathering, Share, WaitingEverywhere
from tandem.broker.forwarding import settle_transfers
from tandem.broker.ports import Effect, Loaded, SessionAcceptor
from tandem.broker.queue.delivery import PUMP_BYTES_MAX, PUMP_MAX
from tandem.broker.queue.index import READY
from tandem.broker.queue.queue import Queue
from tandem.broker.queue.sessions import MessageSession
from tandem.broker.queue.state import Counts
from tandem.model.errors import BusError, MessageNotFound, StoreFull, StoreUnavailable

if TYPE_CHECKING:
    from tandem.broker.ports import Consumer, LeaseWaiter
    from tandem.broker.queue.leases import Lease
    from tandem.broker.queue.locks import Lock
    from tandem.broker.recovery.cross_store import RowId
    from tandem.model.entity import QueueDescription
    from tandem.model.message import Message

FRAGMENT_SHIFT: Final = 48
"""The upper 16 bits of a sequence number name the fragment, as in the service."""
PARTITIONED: Final = -1
"""Stands for the store of an entity whose fragments are in several."""


def fragment_of_key(key: str | bytes, count: int) -> int:
    """Where a key belongs: the same for ever, in every process."""
    return zlib.crc32(key.encode() if isinstance(key, str) else key) % count


def _takes_messages(part: Queue) -> bool:
    return not part.out_of_service and not part.budget.short_of_room


class PartitionedQueue(Queue):
    """A front for fragments. It holds no messages of its own; what concerns one message goes to its fragment."""

    def __init__(self, fragments: list[Queue], description: QueueDescription, nonce: int, message_bytes_max: int) -> None:
        first = fragments[0]
        self.fragments: list[Queue] = fragments
        super().__init__(first.entity_id, first.path, description, first.journal, first.turn, first.budget, nonce, message_bytes_max)
        self._next: int = 0
        self._sticky: int = 0
        self._sticky_turn: int = 0
        self._start: int = 0
        self._awaiting: dict[SessionAcceptor, list[tuple[Queue, WaitingEverywhere]]] = {}
        for fragment in fragments:
            fragment.front = self

    def configure(self, description: QueueDescription) -> None:
        super().configure(description)
        for fragment in self.fragments:
            fragment.configure(description)

    def replace(self, number: int, fragment: Queue) -> None:
        """A store came back with its fragment replayed."""
        self.fragments[number] = fragment
        fragment.front = self
        fragment.configure(self.description)  # it may have changed meanwhile
        self.turn.touch_queue(self)

    def part_of(self, seq: int) -> Queue:
        number = seq >> FRAGMENT_SHIFT
        if number >= len(self.fragments):
            raise MessageNotFound(f"There is no message with sequence number {seq} in '{self.path}'.")
        return self.fragments[number]

    def parts(self) -> list[Queue]:
        return self.fragments

    def _usable(self) -> list[Queue]:
        """Fragments whose store is up."""
        return [fragment for fragment in self.fragments if not fragment.out_of_service]

    # -- sending -----------------------------------------------------------------------------

    def _key(self, message: Message) -> str | bytes | None:
        """What ties a message to a fragment: session id, else partition key, else message id where duplicates are detected."""
        if message.session_id is not None:
            return message.session_id
        if message.partition_key is not None:
            return message.partition_key
        return None if self.history is None else message.message_id

    def choose(self, message: Message) -> Queue:
        """The fragment this message goes to. One without a key goes anywhere that works; all of a turn go the same way."""
        key = self._key(message)
        if key is not None:
            chosen = self.fragments[fragment_of_key(key, len(self.fragments))]
            if chosen.out_of_service:
                raise StoreUnavailable(
                    f"The fragment of '{self.path}' that holds this message's key is in a store that is down. Try again, or without a key."
                )
            return chosen
        if self._sticky_turn != self.turn.number or not _takes_messages(self.fragments[self._sticky]):
            self._sticky_turn = self.turn.number
            self._advance()
        return self.fragments[self._sticky]

    def destination(self, message: Message) -> Queue:
        return self.choose(message)

    def _advance(self) -> None:
        for _ in range(len(self.fragments)):
            self._next = (self._next + 1) % len(self.fragments)
            if _takes_messages(self.fragments[self._next]):
                self._sticky = self._next
                return
        for part in self._usable():
            raise StoreFull(
                f"No store that holds '{self.path}' takes messages: {part.budget.short_of_room}. Receive messages, or try again later."
            )
        raise StoreUnavailable(f"All stores that hold '{self.path}' are down. Try again.")

    def check_room(self, body_bytes: int) -> None:
        """The size limit holds for each fragment alike: a share of the whole."""

    def enqueue(self, message: Message, now: int) -> int:
        self.check_send(message, message.size_bytes)
        while True:
            part = self.choose(message)
            try:
                number = part.enqueue(message, now)
            except StoreFull:
                raise  # it holds the message's key: those that do not matter were not chosen
            except StoreUnavailable:
                part.out_of_service = True  # found out before whoever watches the stores did
                if self._key(message) is not None:
                    raise
                continue
            self.part_used = part
            self.rows_used = part.rows_of(number, now)
            return number

    def reroute(self, messages: list[Message], rows: list[RowId], now: int) -> tuple[list[RowId], list[RowId]]:
        """The store that took these did not keep them for certain: another fragment takes them all, and remembers that what is found of
        them over there is not needed. Their new rows, and all they may have left behind. Those with a key have nowhere else to go."""
        for message in messages:
            if self._key(message) is not None:
                raise StoreUnavailable(f"The store of '{self.path}' that was to keep this message is down. Try again.")
        left = list(rows)
        while True:
            part = self.choose(messages[0])
            placed: list[RowId] = []
            try:
                for message in messages:
                    own = part.rows_of(part.enqueue(message, now), now)
                    if own is None:
                        raise StoreFull(f"'{self.path}' could not keep all copies of this message in one store. Try again.")
                    placed.extend(own)
                tenant = None if part.namespace is None else part.namespace.tenant_of(part)
                if tenant is None:
                    raise StoreUnavailable(f"The fragment of '{self.path}' is out of service.")
                for row in left:
                    tenant.note_reroute(row, part.entity_id, now)
            except StoreFull:
                raise
            except StoreUnavailable:
                part.out_of_service = True
                left.extend(placed)
                continue
            self.part_used = part
            return placed, left

    def arrived(self, rows: list[RowId]) -> None:
        """What was rerouted is on the disk of another store: the rows it left behind are nobody's."""
        namespace = self.fragments[0].namespace
        if namespace is not None:
            ids = [(entity_id, seq) for entity_id, seq, _ in rows]
            for tenant in namespace.stores:
                if tenant.available:
                    tenant.transfers_arrived(ids)
            settle_transfers(namespace)

    def place(self, message: Message, now: int) -> int:
        return self.choose(message).place(message, now)

    def when_durable(self, effect: Effect) -> None:
        """Whatever any fragment appended so far."""
        journals: list[Queue] = []
        usable = self._usable()
        for part in usable:
            if part.journal.pending_bytes and all(part.journal is not other.journal for other in journals):
                journals.append(part)
        journals = journals or usable[:1]
        if not journals:
            effect.done(StoreUnavailable(f"All stores that hold '{self.path}' are down. Try again."))
            return
        joint = AllOf(effect, len(journals))
        for part in journals:
            part.when_durable(joint)

    def metered(self, operation: int, outcome: int) -> None:
        for part in self._usable()[:1]:
            part.metered(operation, outcome)

    def cancel_scheduled(self, seqs: list[int], now: int) -> None:
        for number, some in self._by_fragment(seqs).items():
            self.fragments[number].cancel_scheduled(some, now)

    def _by_fragment(self, seqs: list[int]) -> dict[int, list[int]]:
        groups: dict[int, list[int]] = {}
        for seq in seqs:
            self.part_of(seq)
            groups.setdefault(seq >> FRAGMENT_SHIFT, []).append(seq)
        return groups

    # -- receiving ---------------------------------------------------------------------------

    def consumer_ready(self, consumer: Consumer) -> None:
        session = consumer.session
        if session is not None:
            part = self.fragments[fragment_of_key(session.id, len(self.fragments))]
            if not part.out_of_service:  # else it has lost its session, and hears of it
                part.ready_here(consumer)
            return
        self.ready_here(consumer)

    def leave_line(self, consumer: Consumer) -> None:
        """Who holds a session stands in the line of that session's fragment."""
        session = consumer.session
        part = self if session is None else self.fragments[fragment_of_key(session.id, len(self.fragments))]
        part.one_left_line()

    def pump(self, now: int) -> None:
        """Fragments take turns, so that none starves and one that is down is simply not asked."""
        if not self.may_receive or self.deleted or self.has_sessions:
            return
        if self.selective is not None:
            self.selective.pump(now)
        waiting = self.waiting
        left = PUMP_MAX
        left_bytes = PUMP_BYTES_MAX
        self.has_more = False
        while waiting:
            consumer = waiting[0]
            room = consumer.room_left() if consumer.waiting else 0
            if room <= 0:
                waiting.popleft()
                consumer.waiting = False
                continue
            if left <= 0 or left_bytes <= 0:
                self.has_more = True
                self.turn.touch_later(self)
                return
            sent = self._round(consumer, min(room, left), left_bytes, now)
            left -= sent
            left_bytes -= self.given_bytes
            if sent == 0:
                return

    def _round(self, consumer: Consumer, room: int, room_bytes: int, now: int) -> int:
        count = len(self.fragments)
        sent = 0
        self.given_bytes = 0
        for step in range(count):
            if sent >= room or self.given_bytes >= room_bytes:
                break
            part = self.fragments[(self._start + step) % count]
            if part.out_of_service or not part.may_receive or not part.index.by_state[READY]:
                continue
            try:
                sent += part.deliver_ready(consumer, room - sent, room_bytes - self.given_bytes, now)
                self.given_bytes += part.given_bytes
            except StoreUnavailable:
                part.out_of_service = True
        self._start = (self._start + 1) % count
        return sent

    def due(self, now: int) -> None:
        """Each fragment keeps its own time."""

    # -- one message, one fragment -------------------------------------------------------------

    def find_lock(self, token: bytes) -> Lock:
        number = int.from_bytes(token[8:16], "big") >> FRAGMENT_SHIFT
        return self.fragments[number if number < len(self.fragments) else 0].find_lock(token)

    def require(self, lock: Lock, now: int) -> None:
        self.part_of(lock.seq).require(lock, now)

    def renew(self, lock: Lock, now: int) -> int:
        return self.part_of(lock.seq).renew(lock, now)

    def complete(self, lock: Lock, now: int) -> None:
        self.part_of(lock.seq).complete(lock, now)

    def complete_run(self, locks: list[Lock], at: int, now: int) -> int:
        """As far as they are in one fragment."""
        number = locks[at].seq >> FRAGMENT_SHIFT
        end = at + 1
        while end < len(locks) and locks[end].seq >> FRAGMENT_SHIFT == number:
            end += 1
        return self.fragments[number].complete_run(locks[at:end], 0, now)

    def abandon(self, lock: Lock, now: int, deliver_at: int, properties: dict[str, object] | None, effect: Effect | None) -> None:
        self.part_of(lock.seq).abandon(lock, now, deliver_at, properties, effect)

    def give_up(self, lock: Lock, now: int) -> None:
        self.part_of(lock.seq).give_up(lock, now)

    def defer(self, lock: Lock, now: int, properties: dict[str, object] | None, effect: Effect | None) -> None:
        self.part_of(lock.seq).defer(lock, now, properties, effect)

    def dead_letter(
        self, lock: Lock, reason: str, description: str, properties: dict[str, object], now: int, effect: Effect | None
    ) -> None:
        self.part_of(lock.seq).dead_letter(lock, reason, description, properties, now, effect)

    def lose_locks(self, error: BusError, now: int) -> None:
        for fragment in self.fragments:
            fragment.lose_locks(error, now)

    # -- browsing ----------------------------------------------------------------------------

    def peek(self, start: int, most: int, session_id: str | None, now: int) -> list[int]:
        found: list[int] = []
        for number, part in enumerate(self.fragments):
            if len(found) >= most or part.out_of_service:
                continue
            base = number << FRAGMENT_SHIFT
            if start < base + (1 << FRAGMENT_SHIFT):
                found.extend(part.peek(max(start, base), most - len(found), session_id, now))
        return found

    def load(self, seqs: list[int], then: Loaded) -> None:
        groups = self._by_fragment(seqs)
        if not groups:
            then.loaded([], None)
            return
        gathering = Gathering(seqs, len(groups), then)
        for number, some in groups.items():
            self.fragments[number].load(some, Share(gathering, some))

    def receive_deferred(self, seqs: list[int], session_id: str | None, now: int) -> list[Lock]:
        groups = self._by_fragment(seqs)
        for number, some in groups.items():
            self.fragments[number].check_deferred(some, session_id, now)
        locks: dict[int, Lock] = {}
        for number, some in groups.items():
            for lock in self.fragments[number].receive_deferred(some, session_id, now):
                locks[lock.seq] = lock
        return [locks[seq] for seq in seqs]

    def counts(self) -> Counts:
        total = Counts(0, 0, 0, 0, 0, 0, 0)
        for part in self.fragments:
            if part.out_of_service:
                total.incomplete = True
                continue
            total.add(part.counts())
        return total

    def purge(self, before: int, most: int, now: int, session_id: str | None = None) -> int:
        removed = 0
        for part in self._usable():
            removed += part.purge(before, most - removed, now, session_id)
        return removed

    def close(self) -> None:
        self.deleted = True
        self.out_of_service = True
        for fragment in self.fragments:
            fragment.close()

    # -- sessions ----------------------------------------------------------------------------

    def _of_session(self, session_id: str) -> Queue:
        part = self.fragments[fragment_of_key(session_id, len(self.fragments))]
        if part.out_of_service:
            raise StoreUnavailable(f"The store that holds session '{session_id}' of '{self.path}' is down. Try again.")
        return part

    def held_session(self, session_id: str, now: int) -> MessageSession:
        return self._of_session(session_id).held_session(session_id, now)

    def accept_session(self, session_id: str, consumer: Consumer, now: int) -> MessageSession:
        return self._of_session(session_id).accept_session(session_id, consumer, now)

    def await_session(self, acceptor: SessionAcceptor) -> None:
        """It waits in every fragment; the first that has a session for it wins."""
        parts = self._usable()
        if not parts:
            raise StoreUnavailable(f"All stores that hold '{self.path}' are down. Try again.")
        shares = [(part, WaitingEverywhere(acceptor, self)) for part in parts]
        self._awaiting[acceptor] = shares
        for part, share in shares:
            part.await_session(share)

    def forget_acceptor(self, acceptor: SessionAcceptor) -> None:
        for part, share in self._awaiting.pop(acceptor, ()):
            part.forget_acceptor(share)

    def close_session(self, session: MessageSession, consumer: Consumer, now: int, failed: bool = False) -> None:
        part = self.fragments[fragment_of_key(session.id, len(self.fragments))]
        if not part.out_of_service:  # else it is free with all the others when its store is back
            part.close_session(session, consumer, now, failed)

    def renew_session(self, session_id: str, now: int) -> int:
        return self._of_session(session_id).renew_session(session_id, now)

    def session_state(self, session_id: str, now: int) -> bytes | None:
        return self._of_session(session_id).session_state(session_id, now)

    def set_session_state(self, session_id: str, state: bytes | None, now: int) -> None:
        self._of_session(session_id).set_session_state(session_id, state, now)

    def list_sessions(self, updated_after: int | None, skip: int, top: int) -> list[str]:
        found: list[str] = []
        for part in self._usable():
            found.extend(part.list_sessions(updated_after, 0, skip + top))
        return sorted(found)[skip : skip + top]

    # -- leases ------------------------------------------------------------------------------

    def lease(self, lease_id: str, messages_max: int, bytes_max: int, duration_ms: int, now: int, before: int = 0) -> Lease:
        """One lease over several fragments: each remembers its part under the same id."""
        whole: Lease | None = None
        for part in self._usable():
            taken = part.lease(lease_id, messages_max, bytes_max, duration_ms, now, before)
            messages_max -= len(taken.seqs)
            bytes_max -= taken.size_bytes
            whole = taken if whole is None else whole.joined(taken)
            if messages_max <= 0 or bytes_max <= 0:
                break
        if whole is None:
            raise StoreUnavailable(f"All stores that hold '{self.path}' are down. Try again.")
        return whole

    def find_lease(self, lease_id: str, now: int) -> Lease:
        parts = [part for part in self.fragments if lease_id in part.leases]
        if not parts:
            return self.fragments[0].find_lease(lease_id, now)
        whole = parts[0].find_lease(lease_id, now)
        for part in parts[1:]:
            whole = whole.joined(part.find_lease(lease_id, now))
        return whole

    def renew_lease(self, lease_id: str, duration_ms: int, now: int) -> Lease:
        whole = self.find_lease(lease_id, now)
        for part in self.fragments:
            if lease_id in part.leases:
                whole.expires_at = part.renew_lease(lease_id, duration_ms, now).expires_at
        return whole

    def complete_lease(self, lease_id: str, now: int) -> int:
        holders = [part for part in self.fragments if lease_id in part.leases]
        if not holders:
            return self.fragments[0].complete_lease(lease_id, now)
        return sum(part.complete_lease(lease_id, now) for part in holders)

    def abandon_lease(self, lease_id: str, now: int) -> int:
        return sum(part.abandon_lease(lease_id, now) for part in self.fragments)

    def lease_again(self, lease_id: str, seqs: list[int], duration_ms: int, now: int) -> Lease:
        """All fragments or none: whoever took its part gives it back when another cannot."""
        whole: Lease | None = None
        parts = self._by_fragment(seqs)
        try:
            for number, own in parts.items():
                taken = self.fragments[number].lease_again(lease_id, own, duration_ms, now)
                whole = taken if whole is None else whole.joined(taken)
        except BusError:
            for number in parts:
                self.fragments[number].abandon_lease(lease_id, now)
            raise
        return self.fragments[0].lease_again(lease_id, [], duration_ms, now) if whole is None else whole

    def complete_part(self, lease_id: str, seqs: list[int], now: int) -> int:
        return sum(self.fragments[number].complete_part(lease_id, own, now) for number, own in self._by_fragment(seqs).items())

    def dead_letter_part(self, lease_id: str, seq: int, reason: str, description: str, now: int, effect: Effect) -> bool:
        return self.part_of(seq).dead_letter_part(lease_id, seq, reason, description, now, effect)

    def return_part(self, lease_id: str, seqs: list[int], now: int) -> int:
        return sum(self.fragments[number].return_part(lease_id, own, now) for number, own in self._by_fragment(seqs).items())

    def all_leases(self) -> list[Lease]:
        """Each once, however many fragments hold a part of it."""
        whole: dict[str, Lease] = {}
        for part in self.fragments:
            for lease in part.all_leases():
                known = whole.get(lease.id)
                whole[lease.id] = lease if known is None else known.joined(lease)
        return list(whole.values())

    def await_lease(self, waiter: LeaseWaiter) -> None:
        for part in self._usable():
            part.await_lease(waiter)

    def forget_lease_waiter(self, waiter: LeaseWaiter) -> None:
        for part in self.fragments:
            part.forget_lease_waiter(waiter)
