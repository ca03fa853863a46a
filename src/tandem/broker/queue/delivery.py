"""Pairs ready messages with waiting credit: first come, first served, nothing before the disk knows it."""

from __future__ import annotations

import heapq
from collections import deque
from typing import TYPE_CHECKING, Final

from tandem.broker import facts
from tandem.broker.meters import UNIT_BYTES
from tandem.broker.ports import Consumer, Effect, Loaded
from tandem.broker.queue.index import HELD, LOCKED, READY
from tandem.broker.queue.sessions import MessageSession, SessionTable
from tandem.broker.queue.state import HotBudget, QueueState
from tandem.model.errors import BusError, SessionLockLost

if TYPE_CHECKING:
    from tandem.broker.ports import Journal
    from tandem.broker.queue.selective import Selective
    from tandem.broker.turn import Turn
    from tandem.model.entity import QueueDescription
    from tandem.model.message import Message

PUMP_MAX: Final = 128
"""Messages one queue delivers in one turn: a millisecond or two, then sockets are looked at again."""
PUMP_BYTES_MAX: Final = 2_097_152
"""… and bytes, about: whether a peer reads is seen between turns, so this is what one that does not can cost."""
_PAGE_ROWS: Final = 512
_PAGE_BYTES: Final = 2_097_152


class Dispatcher(QueueState):
    """The receiving half of a queue."""

    def __init__(
        self, entity_id: int, path: str, description: QueueDescription, journal: Journal, turn: Turn, budget: HotBudget, nonce: int
    ) -> None:
        super().__init__(entity_id, path, description, journal, turn, budget, nonce)
        self.cursor: int = 1
        """Everything below was delivered once or passed over; what came back since is in `returned`."""
        self.returned: list[int] = []
        self.waiting: deque[Consumer] = deque()
        """In line for messages. Who left it (`waiting` is False) is taken out when its turn comes, or when too many have left."""
        self._left_line: int = 0
        self.consumers: dict[Consumer, None] = {}
        """Everybody attached, whether it has credit or not."""
        self.sessions: SessionTable | None = SessionTable() if description.requires_session else None
        self.has_sessions = self.sessions is not None
        self.paging: bool = False
        self.has_more: bool = False
        """The last pump stopped to let others have their turn."""
        self.given_bytes: int = 0
        """What the last call of `deliver_ready` or of its like for sessions gave away."""
        self.front: Dispatcher | None = None
        """The partitioned queue this one is a fragment of."""
        self.selective: Selective | None = None
        """Receivers that want only some messages, or only look."""

    def consumer_ready(self, consumer: Consumer) -> None:
        """The consumer has room: it queues up behind those who asked before."""
        front = self.front
        if front is not None:
            front.consumer_ready(consumer)
        else:
            self.ready_here(consumer)

    def ready_here(self, consumer: Consumer) -> None:
        if not consumer.waiting and consumer.selector is None:
            consumer.waiting = True
            self.waiting.append(consumer)
        self.turn.touch_queue(self)

    def add_consumer(self, consumer: Consumer) -> None:
        self.consumers[consumer] = None

    def tell_all(self, error: BusError) -> None:
        """Everybody who receives from here loses it: the entity was deleted, or its store is down."""
        for consumer in list(self.consumers):
            self.remove_consumer(consumer)
            consumer.lost(error)
        if self.front is not None and self.sessions is not None:
            for session in list(self.sessions.by_id.values()):
                if session.holder is not None:
                    session.holder.lost(error)

    def remove_consumer(self, consumer: Consumer) -> None:
        self.consumers.pop(consumer, None)
        if consumer.selector is not None and self.selective is not None:
            self.selective.remove(consumer)
        if consumer.waiting:
            consumer.waiting = False
            self.leave_line(consumer)

    def leave_line(self, consumer: Consumer) -> None:
        self.one_left_line()

    def one_left_line(self) -> None:
        """Half of the line at a time: looking for each in it would make the n-th that leaves cost n."""
        self._left_line += 1
        if self._left_line * 2 > len(self.waiting):
            self._left_line = 0
            standing = [consumer for consumer in self.waiting if consumer.waiting]
            self.waiting.clear()
            self.waiting.extend(standing)

    def pump(self, now: int) -> None:
        """Deliver what can be delivered. Called at the end of a turn."""
        if not self.may_receive or self.deleted:
            return
        if self.forwards:
            self.forward(now)
            return
        if self.sessions is not None:
            self._serve_waiters(now)
            self._pump_sessions(now)
            return
        if self.front is not None:
            self.front.pump(now)
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
            if room > 0:
                if left <= 0 or left_bytes <= 0:
                    self.has_more = True
                    self.turn.touch_later(self)
                    return
                wanted = room if room < left else left
                sent = self.deliver_ready(consumer, wanted, left_bytes, now)
                left -= sent
                left_bytes -= self.given_bytes
                if sent < wanted and left_bytes > 0:
                    return
                if consumer.room_left() > 0:
                    continue
            waiting.popleft()
            consumer.waiting = False

    def forward(self, now: int) -> None:
        """Send on what is ready. Done by Queue."""

    def next_ready(self) -> int:
        """The sequence number to deliver next, left in place; 0 = none."""
        returned = self.returned
        while returned:
            if self.index.state(returned[0]) == READY:
                return returned[0]
            heapq.heappop(returned)
        cursor = self.cursor
        if cursor > self.durable_seq:
            return 0
        chunk = self.index.chunks.get(cursor >> 12)
        if chunk is not None and chunk.states[cursor & 4095] == READY:
            return cursor
        end = self.durable_seq + 1
        seq = self.index.next_in_state(READY, cursor, end)
        self.cursor = seq
        return seq if seq < end else 0

    def deliver_ready(self, consumer: Consumer, room: int, room_bytes: int, now: int) -> int:
        """Up to `room` messages to this consumer. Fewer means: nothing more is there (yet), or `given_bytes` has reached `room_bytes`."""
        sent = 0
        given = 0
        taken: list[int] = []
        held: Held | None = None
        chunks = self.index.chunks
        by_state = self.index.by_state
        hot = self.hot
        small = 0
        small_bytes = 0
        while sent < room and given < room_bytes:
            seq = self.next_ready()
            if seq == 0:
                break
            message = hot.get(seq)
            if message is None:
                self._page_in(seq)
                break
            if seq >= self.cursor:
                self.cursor = seq + 1
            else:
                heapq.heappop(self.returned)
            chunk = chunks[seq >> 12]
            row = seq & 4095
            expires_at: int = chunk.expires[row]
            count: int = chunk.counts[row]
            if (expires_at and expires_at <= now) or count >= self.max_delivery_count:
                self.remove_spent(seq, now)
                continue
            enqueued_at: int = chunk.enqueued[row]
            size = message.size_bytes
            given += size
            if size > UNIT_BYTES:
                self.meter.received(size)
            else:
                small += 1
                small_bytes += size
            del hot[seq]
            self.hot_bytes -= size
            self.budget.used_bytes -= size
            by_state[READY] -= 1
            if consumer.peek_lock:
                by_state[LOCKED] += 1
                chunk.states[row] = LOCKED
                lock = self.locks.take(seq, now + self.lock_ms, count, None, False)
                taken.append(seq)
                consumer.deliver(message, seq, enqueued_at, count, expires_at, lock)
            else:
                if held is None:
                    held = Held(self, consumer)
                by_state[HELD] += 1
                chunk.states[row] = HELD
                facts.write_settled(self.journal, self.entity_id, seq, facts.RECEIVED, now)
                held.add(message, seq, enqueued_at, count, expires_at)
            sent += 1
        self.given_bytes = given
        if small:
            self.meter.received_small(small, small_bytes)
        if taken:
            # Lazy: rides along with the next commit. A crash before it merely forgets one delivery attempt.
            facts.write_delivered(self.journal, self.entity_id, taken, now)
            self.wake_for_locks()
        if held is not None:
            self.hold(held)
        return sent

    def hold(self, held: Held) -> None:
        held.consumer.reserved += len(held.seqs)
        held.consumer.reserved_bytes += held.size_bytes
        self.when_durable(held)

    def wake_for_locks(self) -> None:
        at = self.locks.next_end()
        if at:
            self.turn.wake(self, at)

    def remove_spent(self, seq: int, now: int) -> None:
        """A message that must not be delivered any more: expired, or delivered too often. Settled above."""

    # -- bodies from disk --------------------------------------------------------------------

    def _page_in(self, seq: int) -> None:
        """Read the next run of ready bodies from the store; pumping goes on when they are here."""
        if self.paging:
            return
        self.paging = True
        wanted: list[int] = [seq]
        size = 0
        at = max(seq + 1, self.cursor)
        end = self.durable_seq + 1
        limit = min(_PAGE_BYTES, self.budget.per_queue_bytes_max)
        while len(wanted) < _PAGE_ROWS and size < limit:
            at = self.index.next_in_state(READY, at, end)
            if at >= end:
                break
            if at not in self.hot:
                wanted.append(at)
                size += self.index.size(at)
            at += 1
        self.load(wanted, _Page(self, wanted))

    def paged(self, seqs: list[int], messages: list[Message | None], error: BaseException | None) -> None:
        self.paging = False
        if error is not None:
            self.store_failed(error)
            return
        for seq, message in zip(seqs, messages, strict=True):
            if message is not None and seq not in self.hot and self.index.state(seq) == READY:
                size = message.size_bytes
                self.hot[seq] = message
                self.hot_bytes += size
                self.budget.used_bytes += size
        self.turn.touch_queue(self)
        for consumer in list(self.waiting):
            if consumer.waiting:
                consumer.caught_up()

    def store_failed(self, error: BaseException) -> None:
        """A body could not be read back: its readers are told, nobody else is."""
        fault = error if isinstance(error, BusError) else BusError(f"The store of '{self.path}' could not be read: {error}")
        consumers = [consumer for consumer in self.waiting if consumer.waiting]
        self.waiting.clear()
        for consumer in consumers:
            consumer.waiting = False
            consumer.lost(fault)

    # -- sessions ----------------------------------------------------------------------------

    def session_of(self, seq: int) -> MessageSession | None:
        if self.sessions is None:
            return None
        return self.sessions.by_number.get(self.index.owner(seq))

    def leave_session(self, seq: int) -> None:
        session = self.session_of(seq)
        if session is not None and self.sessions is not None:
            session.total -= 1
            session.locks.pop(seq, None)
            if session.total == 0:
                session.ready.clear()  # the row of the last one still stands; without this the session would seem to have more
                session.returned.clear()
                self.sessions.refresh(session, self.index)

    def _serve_waiters(self, now: int) -> None:
        """Give free sessions to those who wait for one."""
        sessions = self.sessions
        assert sessions is not None
        while sessions.waiters:
            session = sessions.next_free(self.index)
            if session is None:
                return
            waiter, _ = sessions.waiters.popitem(last=False)
            sessions.hold(session, waiter.consumer, now + self.lock_ms)
            self.wake_for_sessions()
            waiter.accepted(session)

    def wake_for_sessions(self) -> None:
        if self.sessions is not None:
            at = self.sessions.next_end()
            if at:
                self.turn.wake(self, at)

    def _pump_sessions(self, now: int) -> None:
        """Each holder gets its own session's messages. One with nothing to read leaves the line until its session has more."""
        self.has_more = False
        for _ in range(len(self.waiting)):
            consumer = self.waiting.popleft()
            consumer.waiting = False
            session = consumer.session
            room = consumer.room_left()
            if session is None or room <= 0:
                continue
            self._deliver_session(consumer, session, room, now)
            if consumer.room_left() > 0 and (self.paging or session.first(self.index)):
                consumer.waiting = True
                self.waiting.append(consumer)
                if self.given_bytes >= PUMP_BYTES_MAX:
                    self.has_more = True
                    self.turn.touch_later(self)

    def _deliver_session(self, consumer: Consumer, session: MessageSession, room: int, now: int) -> None:
        self.given_bytes = 0
        if session.locked_until <= now:
            if session.first(self.index):
                self.session_ended(session, SessionLockLost("The session lock has expired. Accept the session again."), True, now)
            return
        taken: list[int] = []
        held: Held | None = None
        while room > 0 and self.given_bytes < PUMP_BYTES_MAX:
            seq = session.first(self.index)
            if seq == 0:
                break
            message = self.hot.get(seq)
            if message is None:
                self._page_session(session)
                break
            session.take_first()
            expires_at = self.index.expires_at(seq)
            count = self.index.count(seq)
            if (expires_at and expires_at <= now) or count >= self.max_delivery_count:
                self.remove_spent(seq, now)
                continue
            enqueued_at = self.index.enqueued_at(seq)
            self.meter.received(message.size_bytes)
            self.given_bytes += message.size_bytes
            if consumer.peek_lock:
                lock = self.locks.take(seq, session.locked_until, count, session, False)
                session.locks[seq] = lock
                self.index.set_state(seq, LOCKED)
                self.drop_hot(seq)
                taken.append(seq)
                consumer.deliver(message, seq, enqueued_at, count, expires_at, lock)
            else:
                if held is None:
                    held = Held(self, consumer)
                self.index.set_state(seq, HELD)
                self.drop_hot(seq)
                facts.write_settled(self.journal, self.entity_id, seq, facts.RECEIVED, now)
                held.add(message, seq, enqueued_at, count, expires_at)
            room -= 1
        if taken:
            facts.write_delivered(self.journal, self.entity_id, taken, now)
        if held is not None:
            self.hold(held)

    def _page_session(self, session: MessageSession) -> None:
        if self.paging:
            return
        self.paging = True
        wanted = [seq for seq in session.returned[:_PAGE_ROWS] if self.index.state(seq) == READY and seq not in self.hot]
        for seq in session.ready:
            if len(wanted) >= _PAGE_ROWS:
                break
            if self.index.state(seq) == READY and seq not in self.hot:
                wanted.append(seq)
        self.load(wanted, _Page(self, wanted))

    def session_ended(self, session: MessageSession, error: BusError | None, failed: bool, now: int) -> None:
        """The holder loses the session; what it had in hand goes back. Settled above."""


class _Page(Loaded):
    __slots__ = ("queue", "seqs")

    def __init__(self, queue: Dispatcher, seqs: list[int]) -> None:
        self.queue = queue
        self.seqs = seqs

    def loaded(self, messages: list[Message | None], error: BaseException | None) -> None:
        self.queue.paged(self.seqs, messages, error)


class Held(Effect):
    """Receive-and-delete: the messages go out once the disk knows that they are gone."""

    __slots__ = ("consumer", "messages", "queue", "seqs", "size_bytes")

    def __init__(self, queue: Dispatcher, consumer: Consumer) -> None:
        self.queue = queue
        self.consumer = consumer
        self.seqs: list[int] = []
        self.messages: list[tuple[Message, int, int, int]] = []
        self.size_bytes: int = 0

    def add(self, message: Message, seq: int, enqueued_at: int, count: int, expires_at: int) -> None:
        self.seqs.append(seq)
        self.size_bytes += message.size_bytes
        self.messages.append((message, enqueued_at, count, expires_at))

    def done(self, error: BaseException | None) -> None:
        queue = self.queue
        consumer = self.consumer
        consumer.reserved -= len(self.seqs)
        consumer.reserved_bytes -= self.size_bytes
        if error is not None or queue.deleted:
            return  # the store is down and will be replayed; memory is rebuilt from what it knows
        for seq, (message, enqueued_at, count, expires_at) in zip(self.seqs, self.messages, strict=True):
            queue.remove_row(seq)
            consumer.deliver(message, seq, enqueued_at, count, expires_at, None)
        if consumer.room_left() > 0:
            queue.consumer_ready(consumer)
        consumer.caught_up()
