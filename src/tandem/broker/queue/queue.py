"""A queue: takes messages in, keeps their times, gives them out in order."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

from tandem.broker import facts
from tandem.broker.forwarding import Forwarding
from tandem.broker.meters import DUPLICATE, OK, PING, SCHEDULE, SEND
from tandem.broker.ports import Effect, Loaded
from tandem.broker.queue.dedup import DuplicateHistory
from tandem.broker.queue.index import READY, SCHEDULED
from tandem.broker.queue.leases import Leaser
from tandem.broker.queue.selective import Selective
from tandem.broker.queue.state import HotBudget
from tandem.model.entity import MAX_DURATION_MS
from tandem.model.errors import EntityDisabled, MessageNotFound, MessageSizeExceeded, NotAllowed, QuotaExceeded, SessionLockLost, StoreFull
from tandem.model.message import NO_TTL, OVERHEAD_BYTES, Message, encode_body

if TYPE_CHECKING:
    from tandem.broker.entities.namespace import Namespace
    from tandem.broker.ports import Consumer, Journal
    from tandem.broker.queue.locks import Lock
    from tandem.broker.recovery.cross_store import RowId
    from tandem.broker.turn import Turn
    from tandem.model.entity import QueueDescription

_DUE_MAX: Final = 1_000
"""Messages that one timer may touch before others get their turn."""


class Queue(Leaser):
    """The whole of a queue: see the layers below for leases, browsing, settlement, dispatch and state."""

    def __init__(
        self,
        entity_id: int,
        path: str,
        description: QueueDescription,
        journal: Journal,
        turn: Turn,
        budget: HotBudget,
        nonce: int,
        message_bytes_max: int,
    ) -> None:
        self.history: DuplicateHistory | None = None
        self.message_bytes_max: int = message_bytes_max
        self.scheduled: list[tuple[int, int]] = []
        """Heap of (instant, sequence number)."""
        self._visible: _Visible | None = None
        self.forwarding: Forwarding | None = None
        self.namespace: Namespace | None = None
        self.parent_path: str = path
        """Of the entity itself, also in its sub-queues."""
        self.transfer_dead_letters: Queue | None = None
        """Where messages go that cannot be forwarded."""
        self.shares_room: bool = False
        """Its size is not that of its own rows alone: only `check_room` knows it."""
        self.pings: int = 0
        self.duplicates_dropped: int = 0
        super().__init__(entity_id, path, description, journal, turn, budget, nonce)
        self.part_used: Queue = self
        """Where the last message went: this queue, or a fragment of a partitioned one."""
        self.rows_used: list[RowId] | None = None
        """Its rows, if it went to a fragment and might go to another."""

    def configure(self, description: QueueDescription) -> None:
        super().configure(description)
        if description.requires_duplicate_detection:
            if self.history is None:
                self.history = DuplicateHistory(description.duplicate_detection_history_ms)
            self.history.window_ms = description.duplicate_detection_history_ms
        if description.max_message_bytes is not None:
            self.message_bytes_max = description.max_message_bytes
        target = description.forward_to
        if target is None:
            self.forwarding = None
        elif self.forwarding is None or self.forwarding.target != target:
            self.forwarding = Forwarding(self, target)
        self.forwards = target is not None

    def begin_at(self, base: int) -> None:
        """A fragment's sequence numbers carry its number: they begin after `base`."""
        self.base = base
        self.next_seq = base + 1
        self.cursor = base + 1
        self.durable_seq = base

    def part_of(self, seq: int) -> Queue:
        """The queue that holds this row."""
        return self

    def parts(self) -> list[Queue]:
        """The queues that hold its rows."""
        return [self]

    # -- sending -----------------------------------------------------------------------------

    def check_send(self, message: Message, body_bytes: int) -> None:
        """Everything a send must meet; a ping must meet it too, because it stands for one."""
        if not self.may_send:
            raise EntityDisabled(f"Messaging entity '{self.path}' is currently disabled for sending. Set its status to Active.")
        if self.has_sessions and message.session_id is None:
            raise NotAllowed(
                f"The SessionId was not set on a message, and it cannot be sent to the entity '{self.path}'. "
                "Entities that have session support enabled can only receive messages that have the SessionId set."
            )
        received_bytes = body_bytes - OVERHEAD_BYTES
        if received_bytes > self.message_bytes_max:
            raise MessageSizeExceeded(
                f"The received message (size {received_bytes} bytes) exceeds the limit of {self.message_bytes_max} bytes of '{self.path}'."
            )
        if self.shares_room or self.budget.short_of_room or self.index.size_bytes + body_bytes > self.quota_bytes:
            self.check_room(body_bytes)

    def check_sends(self, messages: list[Message]) -> None:
        """Several are taken whole or not at all: all that may refuse one is asked first, and what fits one by one must fit together."""
        sizes: dict[Queue, int] = {}
        for message in messages:
            size = message.size_bytes
            self.check_send(message, size)
            part = self.destination(message)
            sizes[part] = sizes.get(part, 0) + size
        for part, total in sizes.items():
            part.check_room(total)

    def check_room(self, body_bytes: int) -> None:
        if self.budget.short_of_room:
            raise StoreFull(f"'{self.path}' takes no messages: {self.budget.short_of_room}. Receive messages, or try again later.")
        if self.index.size_bytes + body_bytes > self.quota_bytes:
            raise QuotaExceeded(
                f"The maximum entity size of '{self.path}' ({self.quota_bytes} bytes) is reached. Receive messages, or raise the size."
            )

    def enqueue(self, message: Message, now: int) -> int:
        """Take a message in; returns its sequence number, 0 when it is accepted and dropped (ping, duplicate).

        Nobody sees it, and nobody may be told, before the journal's next commit.
        """
        size = message.size_bytes
        if (
            not self.may_send
            or self.has_sessions
            or size > self.message_bytes_max
            or self.shares_room
            or self.budget.short_of_room
            or self.index.size_bytes + size > self.quota_bytes
        ):
            self.check_send(message, size)
        if message.is_ping or self.history is not None or message.scheduled_at > now:
            return self.admit(message, now)
        number = self.place(message, now)
        self.meter.sent(size)
        return number

    def admit(self, message: Message, now: int) -> int:
        """As `enqueue`, for a message that was checked."""
        if message.is_ping:
            self.pings += 1
            self.meter.add(PING, OK, 1, message.size_bytes)
            return 0
        if self.history is not None and self.history.seen(message.message_id, now):
            self.duplicates_dropped += 1
            self.meter.add(SEND, DUPLICATE, 1, message.size_bytes)
            return 0
        number = self.place(message, now)
        if self.history is not None:
            # Only now: what the store would not take must not make its repetition look like a duplicate.
            self.history.remember(message.message_id, now, now)
        if message.scheduled_at > now:
            self.meter.add(SCHEDULE, OK, 1, message.size_bytes)
        else:
            self.meter.sent(message.size_bytes)
        return number

    def place(self, message: Message, now: int) -> int:
        """Everything was checked: the message gets its number and its row."""
        seq = self.next_seq
        if message.scheduled_at > now:
            body = encode_body(message)
            location = self.append_message(seq, SCHEDULED, False, message, body, now, 0, 0)
            self.index.add(seq, SCHEDULED, location, len(body), now, 0, 0)
            heapq.heappush(self.scheduled, (message.scheduled_at, seq))
            self.turn.wake(self, message.scheduled_at)
        else:
            expires_at = 0 if message.ttl_ms == NO_TTL and self.default_ttl_ms >= MAX_DURATION_MS else self.expiry(message.ttl_ms, now)
            body = encode_body(message)
            location = self.append_message(seq, READY, False, message, body, now, expires_at, 0)
            self.index.add(seq, READY, location, len(body), now, expires_at, 0)
            self.keep_hot(seq, message)
            if expires_at:
                self.turn.wake(self, expires_at)
        self.next_seq = seq + 1
        visible = self._visible
        if visible is not None and visible.turn_number == self.turn.number and not self.has_sessions:
            visible.upto = seq
        else:
            self.note(seq, message)
        return seq

    def rows_of(self, number: int, now: int) -> list[RowId] | None:
        """The rows of the message that was taken last, as journals name them."""
        return [(self.entity_id, number, now)] if number else []

    def forward(self, now: int) -> None:
        if self.forwarding is not None:
            self.forwarding.pump(now)

    def destination(self, message: Message) -> Queue:
        """The queue that will really hold this message; of several parts, one."""
        return self

    def release_lock(self, lock: Lock) -> None:
        """Its holder is done with it; what becomes of the message is decided elsewhere."""
        self._drop_lock(lock)

    def add_consumer(self, consumer: Consumer) -> None:
        super().add_consumer(consumer)
        if consumer.selector is not None:
            if self.selective is None:
                self.selective = Selective(self)
            self.selective.add(consumer)

    def in_service(self) -> bool:
        """False once it was deleted, or replaced when its store was reopened."""
        return not self.deleted and self.namespace is not None and self.namespace.tenant_of(self) is not None

    def check_receiver(self) -> None:
        if self.forwards and not self.is_dead_letter:
            raise NotAllowed(
                f"Cannot create a message receiver on '{self.path}', an entity with auto-forwarding enabled: "
                f"its messages go to '{self.description.forward_to}'."
            )

    def expiry(self, ttl_ms: int, now: int) -> int:
        """The instant of expiry: the sender's wish, capped by the entity's; 0 = never."""
        if ttl_ms == NO_TTL or ttl_ms > self.default_ttl_ms:
            ttl_ms = self.default_ttl_ms
        if ttl_ms >= MAX_DURATION_MS or self.is_dead_letter:
            return 0
        return now + ttl_ms

    def add_shared(self, message: Message, location: int, size: int, seq: int, expires_at: int, now: int) -> None:
        """A row whose body is kept once for several queues: the topic wrote it, this queue only points at it."""
        self.next_seq = seq + 1
        self.index.add(seq, READY, location, size, now, expires_at, 0)
        self.keep_hot(seq, message)
        if expires_at:
            self.turn.wake(self, expires_at)
        self.note(seq, message)

    def take_over(self, message: Message, enqueued_at: int, count: int) -> int:
        seq = self.next_seq
        self.next_seq = seq + 1
        body = encode_body(message)
        location = self.append_message(seq, READY, False, message, body, enqueued_at, 0, count)
        self.index.add(seq, READY, location, len(body), enqueued_at, 0, count)
        self.keep_hot(seq, message)
        self.note(seq, message)
        return seq

    def note(self, seq: int, message: Message) -> None:
        """The row exists; it becomes visible with the commit of this turn."""
        visible = self._visible
        if visible is None or visible.turn_number != self.turn.number:
            visible = _Visible(self, self.turn.number)
            self._visible = visible
            self.journal.when_durable(visible)
            self.turn.schedule()
        visible.upto = seq
        if self.has_sessions and message.session_id is not None:
            self.enter_session(seq, message.session_id)
            visible.in_sessions.append(seq)

    def enter_session(self, seq: int, session_id: str) -> None:
        assert self.sessions is not None
        session = self.sessions.get(session_id)
        session.total += 1
        self.index.set_owner(seq, session.number)

    def became_durable(self, visible: _Visible) -> None:
        self.durable_seq = max(self.durable_seq, visible.upto)
        for seq in visible.in_sessions:
            session = self.session_of(seq) if self.index.state(seq) == READY else None
            if session is not None and self.sessions is not None:
                session.ready.append(seq)
                self.session_has_more(session)
        self._wake_for_scheduled(self.turn.now)
        self.turn.touch_queue(self)

    # -- scheduling --------------------------------------------------------------------------

    def cancel_scheduled(self, seqs: list[int], now: int) -> None:
        """All or nothing: an unknown number cancels none."""
        for seq in seqs:
            if self.index.state(seq) != SCHEDULED:
                raise MessageNotFound(f"Failed to cancel: there is no scheduled message with sequence number {seq} in '{self.path}'.")
        for seq in dict.fromkeys(seqs):
            self.settle(seq, facts.CANCELLED, now)

    def _activate_due(self, now: int) -> None:
        ready: list[int] = []
        scheduled = self.scheduled
        while scheduled and scheduled[0][0] <= now and len(ready) < _DUE_MAX:
            _, seq = scheduled[0]
            if seq > self.durable_seq:
                break  # not on disk yet: its commit comes first and wakes the queue
            heapq.heappop(scheduled)
            if self.index.state(seq) == SCHEDULED:
                ready.append(seq)
        if ready:
            self.load(ready, _Activation(self, ready))
        self._wake_for_scheduled(now)

    def _wake_for_scheduled(self, now: int) -> None:
        if self.scheduled and self.scheduled[0][1] <= self.durable_seq:
            self.turn.wake(self, max(self.scheduled[0][0], now + 1))

    def activated(self, seqs: list[int], messages: list[Message | None]) -> None:
        """Scheduled messages become active under new numbers, so that they queue up behind what is there."""
        now = self.turn.now
        for seq, message in zip(seqs, messages, strict=True):
            if message is None or self.index.state(seq) != SCHEDULED:
                continue
            self.settle(seq, facts.ACTIVATED, now)
            if self.history is not None:
                self.history.remember(message.message_id, now, now)  # as a replay of the new fact will
            self.place(message, now)

    # -- time --------------------------------------------------------------------------------

    def due(self, now: int) -> None:
        """An instant this queue asked for has come."""
        self.locks_ended(now)
        self.delays_ended(now)
        self.leases_expired(now)
        self._activate_due(now)
        if self.sessions is not None:
            for session in self.sessions.ended(now):
                if not session.locks and not session.first(self.index):
                    continue  # nothing in hand, nothing to read: its holder is left in peace until somebody wants the session
                self.session_ended(session, SessionLockLost("The session lock has expired. Accept the session again."), True, now)
            self.sessions.give_up(now)
        for seq in self.index.expired(now, _DUE_MAX):
            self.expire(seq, now)
        if self.forwards:
            self.turn.touch_queue(self)
        self._plan(now)

    def clock_jumped(self, by_ms: int) -> None:
        """The machine's clock was set: what lasts for a time lasts as long as before, what is due at an instant is due when it says so."""
        self.wake_at = 0
        self.locks.shift(by_ms)
        if self.sessions is not None:
            self.sessions.shift(by_ms)
        self.shift(by_ms)
        self.wake_for_leases()
        self._plan(self.turn.now)
        if self.forwarding is not None:
            self.forwarding.retry_at = 0
            self.turn.touch_queue(self)

    def shift(self, by_ms: int) -> None:
        """What outlives a restart and lasts for a time."""
        self.shift_leases(by_ms)
        self.index.shift_expiry(by_ms)
        if self.history is not None:
            self.history.shift(by_ms)

    def _plan(self, now: int) -> None:
        self.wake_for_locks()
        self.wake_for_sessions()
        expiry = self.index.next_expiry()
        if expiry:
            self.turn.wake(self, max(expiry, now + 1))
        if self.delayed:
            self.turn.wake(self, self.delayed[0][0])
        self._wake_for_scheduled(now)

    def replay_ended(self, now: int) -> None:
        """The journal has told all: what is active may be delivered, sessions know their messages, timers are set."""
        self.durable_seq = self.next_seq - 1
        self.restore_leases()
        if self.sessions is not None:
            for seq in self.index.seqs_from(0, self.index.total):
                session = self.session_of(seq) if self.index.state(seq) == READY else None
                if session is not None:
                    session.ready.append(seq)
            for session in list(self.sessions.by_id.values()):
                self.sessions.refresh(session, self.index)
        self._plan(now)
        if self.forwards:
            self.turn.touch_queue(self)

    # -- counting ----------------------------------------------------------------------------

    def metered(self, operation: int, outcome: int) -> None:
        """One operation without a message of its own."""
        self.meter.add(operation, outcome, 1, 0)

    # -- removal -----------------------------------------------------------------------------

    def purge(self, before: int, most: int, now: int, session_id: str | None = None) -> int:
        """Remove up to `most` active messages (of this session) enqueued before this instant; returns how many."""
        owner = 0
        if session_id is not None:
            session = self.sessions.by_id.get(session_id) if self.sessions is not None else None
            if session is None:
                return 0
            owner = session.number
        removed = 0
        at = self.base + 1
        end = self.durable_seq + 1
        while removed < most:
            at = self.index.next_in_state(READY, at, end)
            if at >= end:
                break
            if self.index.enqueued_at(at) <= before and (owner == 0 or self.index.owner(at) == owner):
                self.settle(at, facts.PURGED, now)
                removed += 1
            at += 1
        return removed

    def close(self) -> None:
        """The queue is deleted: nobody receives from it any more, its bodies are free."""
        self.deleted = True
        self.out_of_service = True  # who still sends looks it up again, and is told
        for lock in list(self.locks.by_token.values()):
            self._drop_lock(lock)
        for seq in self.index.seqs_from(0, self.index.total):
            self.remove_row(seq)


class _Visible(Effect):
    """With the commit of its turn, what was enqueued in that turn may be delivered."""

    __slots__ = ("in_sessions", "queue", "turn_number", "upto")

    def __init__(self, queue: Queue, turn_number: int) -> None:
        self.queue = queue
        self.turn_number: int = turn_number
        self.upto: int = 0
        self.in_sessions: list[int] = []

    def done(self, error: BaseException | None) -> None:
        if error is None:
            self.queue.became_durable(self)


class _Activation(Loaded):
    __slots__ = ("queue", "seqs")

    def __init__(self, queue: Queue, seqs: list[int]) -> None:
        self.queue = queue
        self.seqs = seqs

    def loaded(self, messages: list[Message | None], error: BaseException | None) -> None:
        if error is not None:
            self.queue.store_failed(error)
            return
        self.queue.activated(self.seqs, messages)
