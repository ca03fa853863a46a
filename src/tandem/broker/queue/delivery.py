"""Pairs ready messages with waiting credit: first come, first served, nothing before the disk knows it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, SupportsIndex

from tandem.broker import facts
from tandem.broker.meters import UNIT_BYTES, Meter
from tandem.broker.ports import Consumer, Effect, Loaded, Watcher
from tandem.broker.queue.bodies import Bodies
from tandem.broker.queue.index import LOCKED, MASK, READY
from tandem.broker.queue.ledger import Ledger
from tandem.broker.queue.locks import LockTable
from tandem.broker.queue.moves import Moves
from tandem.broker.queue.ready import Line, Ready, Seekers
from tandem.broker.queue.rows import Rows
from tandem.broker.queue.terms import Terms
from tandem.model.errors import BusError, StoreUnavailable

if TYPE_CHECKING:
    from tandem.broker.queue.sessions import MessageSession
    from tandem.broker.turn import TurnSlot
    from tandem.model.message import Message

PUMP_MAX: Final = 128
"""Messages one queue delivers in one turn: a millisecond or two, then sockets are looked at again."""
PUMP_BYTES_MAX: Final = 2_097_152
"""… and bytes, about: whether a peer reads is seen between turns, so this is what one that does not can cost."""
_PAGE_ROWS: Final = 512
_PAGE_BYTES: Final = 2_097_152


class Receivers:
    """Everybody attached to an entity, and those in line for messages: of one queue, or of all fragments of one."""

    def __init__(self, slot: TurnSlot) -> None:
        self.slot: TurnSlot = slot
        self.sources: list[MessageDelivery] = []
        """Where messages come from; fragments take turns, so that none starves and one that is down is simply not asked."""
        self.consumers: dict[Consumer, None] = {}
        """Everybody attached, whether it has credit or not."""
        self.line: deque[Consumer] = deque()
        """In line for messages. Who left it (`waiting` is False) is taken out when its turn comes, or when too many have left."""
        self.seekers: Seekers | None = None
        """Receivers that want only some messages, or only look."""
        self.watchers: list[Watcher] = []
        """Told after each pump what is left."""
        self.has_more: bool = False
        """The last pump stopped to let others have their turn."""
        self._left_line: int = 0
        self._start: int = 0
        self._given_bytes: int = 0

    def draw_from(self, sources: list[MessageDelivery]) -> None:
        self.sources = sources

    def seek_with(self, seekers: Seekers | None) -> None:
        self.seekers = seekers

    def watch(self, watcher: Watcher) -> None:
        self.watchers.append(watcher)
        self.slot.touch()

    def unwatch(self, watcher: Watcher) -> None:
        self.watchers = [one for one in self.watchers if one is not watcher]

    def ready_count(self) -> int:
        """Messages that nobody has, in every part that is in service."""
        return sum([source.rows.index.by_state[READY] for source in self.sources if source.has_ready()])

    def ready_for(self, consumer: Consumer) -> int:
        """The same for one receiver. What one that selects or only looks will get nobody knows: 1 if there is something to look at."""
        if consumer.selector is None:
            return self.ready_count()
        return 1 if self.seekers is not None and self.seekers.unseen(consumer) else 0

    def tell_watchers(self) -> None:
        ready = self.ready_count()
        for watcher in self.watchers:
            consumer = watcher.consumer
            watcher.looked(ready if consumer is None or consumer.selector is None else self.ready_for(consumer))

    def set_more(self, more: bool) -> None:
        """For who delivers in the place of `pump`."""
        self.has_more = more

    def add(self, consumer: Consumer) -> None:
        self.consumers[consumer] = None

    def remove(self, consumer: Consumer) -> None:
        self.consumers.pop(consumer, None)
        if consumer.selector is not None and self.seekers is not None:
            self.seekers.remove(consumer)
        if consumer.waiting:
            consumer.leave_line()
            self._one_left_line()

    def _one_left_line(self) -> None:
        """Half of the line at a time: looking for each in it would make the n-th that leaves cost n."""
        self._left_line += 1
        if self._left_line * 2 > len(self.line):
            self._left_line = 0
            standing = [consumer for consumer in self.line if consumer.waiting]
            self.line.clear()
            self.line.extend(standing)

    def ready(self, consumer: Consumer) -> None:
        """The consumer has room: it queues up behind those who asked before."""
        self.stand(consumer)
        self.slot.touch()

    def stand(self, consumer: Consumer) -> None:
        if not consumer.waiting and consumer.selector is None:
            consumer.stand()
            self.line.append(consumer)

    def tell_all(self, error: BusError) -> None:
        """Everybody who receives from here loses it: the entity was deleted, or its store is down."""
        for consumer in list(self.consumers):
            self.remove(consumer)
            consumer.lost(error)

    def failed(self, path: str, error: BaseException) -> None:
        """A body could not be read back: its readers are told, nobody else is."""
        fault = error if isinstance(error, BusError) else BusError(f"The store of '{path}' could not be read: {error}")
        consumers = [consumer for consumer in self.line if consumer.waiting]
        self.line.clear()
        for consumer in consumers:
            consumer.leave_line()
            consumer.lost(fault)

    def caught_up(self) -> None:
        for consumer in list(self.line):
            if consumer.waiting:
                consumer.caught_up()

    @property
    def paging(self) -> bool:
        """Some bodies are being read for those in line."""
        return any(source.paging for source in self.sources)

    # -- without sessions --------------------------------------------------------------------

    def pump(self, now: int) -> None:
        """Deliver what can be delivered. Called at the end of a turn."""
        if self.seekers is not None:
            self.seekers.pump(now)
        line = self.line
        left = PUMP_MAX
        left_bytes = PUMP_BYTES_MAX
        self.has_more = False
        while line:
            consumer = line[0]
            room = consumer.room_left() if consumer.waiting else 0
            if room <= 0:
                line.popleft()
                consumer.leave_line()
                continue
            if left <= 0 or left_bytes <= 0:
                self.has_more = True
                self.slot.touch_later()
                return
            sent = self._round(consumer, room if room < left else left, left_bytes, now)
            left -= sent
            left_bytes -= self._given_bytes
            if sent == 0:
                return

    def _round(self, consumer: Consumer, room: int, room_bytes: int, now: int) -> int:
        sources = self.sources
        count = len(sources)
        sent = 0
        given = 0
        for step in range(count):
            if sent >= room or given >= room_bytes:
                break
            source = sources[(self._start + step) % count]
            if not source.has_ready():
                continue
            try:
                sent += source.deliver(consumer, source.ready, None, room - sent, room_bytes - given, now)
                given += source.given_bytes
            except StoreUnavailable:
                if count == 1:
                    raise
                source.terms.leave_service(False)  # found out before whoever watches the stores did
        self._start = (self._start + 1) % count
        self._given_bytes = given
        return sent


class MessageDelivery:
    """How the messages of one queue, or of one fragment, go to a receiver."""

    def __init__(
        self, ledger: Ledger, terms: Terms, meter: Meter, bodies: Bodies, ready: Ready, locks: LockTable, moves: Moves, receivers: Receivers
    ) -> None:
        self.ledger: Ledger = ledger
        self.rows: Rows = ledger.rows
        self.terms: Terms = terms
        self.meter: Meter = meter
        self.bodies: Bodies = bodies
        self.ready: Ready = ready
        self.locks: LockTable = locks
        self.moves: Moves = moves
        self.receivers: Receivers = receivers
        """Those of the whole, in a fragment of a queue without sessions."""
        receivers.sources.append(self)
        self.paging: bool = False
        self.given_bytes: int = 0
        """What the last call of `deliver` gave away."""

    def deliver_to(self, receivers: Receivers) -> None:
        """Those of the whole that it is a fragment of."""
        self.receivers = receivers

    def has_ready(self) -> bool:
        if self.rows.backing.suspended:
            return False
        return self.rows.index.by_state[READY] > 0 and self.terms.may_receive and not self.terms.out_of_service

    def deliver(self, consumer: Consumer, line: Line, session: MessageSession | None, room: int, room_bytes: int, now: int) -> int:
        """Up to `room` messages to this consumer. Fewer means: nothing more is there (yet), or `given_bytes` has reached `room_bytes`."""
        rows = self.rows
        index = rows.index
        hot = rows.hot
        deliveries_max = self.terms.max_delivery_count
        until = now + self.terms.lock_ms if session is None else session.locked_until
        peek_lock = consumer.peek_lock
        taken: list[int] = []
        held: Held | None = None
        sent = 0
        given = 0
        small = 0
        small_bytes = 0
        ages = self.meter.delivery_ages()
        while sent < room and given < room_bytes:
            seq = line.first()
            if seq == 0:
                break
            message = hot.get(seq)
            if message is None:
                self._page_in(line)
                break
            line.take(seq)
            chunk = index.chunk_of(seq)
            row: SupportsIndex = seq & MASK
            expires_at: int = chunk.expires[row]
            count: int = chunk.counts[row]
            if (expires_at and expires_at <= now) or count >= deliveries_max:
                self.moves.remove_spent(seq, now)
                continue
            enqueued_at: int = chunk.enqueued[row]
            ages.observe(now - enqueued_at)
            size = message.size_bytes
            given += size
            if size > UNIT_BYTES:
                self.meter.received(size)
            else:
                small += 1
                small_bytes += size
            if peek_lock:
                rows.hand_out(seq, size)
                index.lock(chunk, row)
                lock = self.locks.take(seq, until, count, session, False)
                if session is not None:
                    session.locks[seq] = lock
                taken.append(seq)
                consumer.deliver(message, seq, enqueued_at, count, expires_at, lock)
            else:
                if held is None:
                    held = Held(self, consumer)
                self.ledger.settle(seq, facts.RECEIVED, now)
                held.add(message, seq, enqueued_at, count, expires_at)
            sent += 1
        self.given_bytes = given
        if small:
            self.meter.received_small(small, small_bytes)
        if taken:
            self.ledger.deliver(taken, now)
            if session is None:
                self.ledger.slot.wake(self.locks.next_end())
        if held is not None:
            held.hold()
        return sent

    def give(self, consumer: Consumer, message: Message, seq: int, now: int) -> None:
        """This one, wherever it stands in line, to this consumer."""
        index = self.rows.index
        count = index.count(seq)
        enqueued_at = index.enqueued_at(seq)
        expires_at = index.expires_at(seq)
        self.meter.received(message.size_bytes)
        self.meter.delivery_ages().observe(now - enqueued_at)
        if not consumer.peek_lock:
            held = Held(self, consumer)
            self.ledger.settle(seq, facts.RECEIVED, now)
            held.add(message, seq, enqueued_at, count, expires_at)
            held.hold()
            return
        self.rows.drop_hot(seq)
        index.set_state(seq, LOCKED)
        lock = self.locks.take(seq, now + self.terms.lock_ms, count, None, False)
        self.ledger.deliver([seq], now)
        self.ledger.slot.wake(self.locks.next_end())
        consumer.deliver(message, seq, enqueued_at, count, expires_at, lock)

    # -- bodies from disk --------------------------------------------------------------------

    def _page_in(self, line: Line) -> None:
        """Read the next run of ready bodies from the store; pumping goes on when they are here."""
        if self.paging:
            return
        self.paging = True
        wanted = line.cold(_PAGE_ROWS, min(_PAGE_BYTES, self.rows.backing.per_queue_bytes_max))
        self.bodies.load(wanted, _Page(self, wanted))

    def paged(self, seqs: list[int], messages: list[Message | None], error: BaseException | None) -> None:
        self.paging = False
        if error is not None:
            self.receivers.failed(self.terms.path, error)
            return
        rows = self.rows
        for seq, message in zip(seqs, messages, strict=True):
            if message is not None and seq not in rows.hot and rows.index.state(seq) == READY:
                rows.keep_hot(seq, message, True)
        self.ledger.slot.touch()
        self.receivers.caught_up()


class _Page(Loaded):
    __slots__ = ("delivery", "seqs")

    def __init__(self, delivery: MessageDelivery, seqs: list[int]) -> None:
        self.delivery = delivery
        self.seqs = seqs

    def loaded(self, messages: list[Message | None], error: BaseException | None) -> None:
        self.delivery.paged(self.seqs, messages, error)


class Held(Effect):
    """Receive-and-delete: the messages go out once the disk knows that they are gone."""

    __slots__ = ("consumer", "delivery", "messages", "size_bytes")

    def __init__(self, delivery: MessageDelivery, consumer: Consumer) -> None:
        self.delivery = delivery
        self.consumer = consumer
        self.messages: list[tuple[Message, int, int, int, int]] = []
        self.size_bytes: int = 0

    def add(self, message: Message, seq: int, enqueued_at: int, count: int, expires_at: int) -> None:
        self.size_bytes += message.size_bytes
        self.messages.append((message, seq, enqueued_at, count, expires_at))

    def hold(self) -> None:
        self.consumer.reserve(len(self.messages), self.size_bytes)
        self.delivery.ledger.when_durable(self)

    def done(self, error: BaseException | None) -> None:
        consumer = self.consumer
        consumer.reserve(-len(self.messages), -self.size_bytes)
        if error is not None or self.delivery.terms.deleted:
            return  # the store is down and will be replayed; memory is rebuilt from what it knows
        for message, seq, enqueued_at, count, expires_at in self.messages:
            consumer.deliver(message, seq, enqueued_at, count, expires_at, None)
        if consumer.room_left() > 0:
            self.delivery.receivers.ready(consumer)
        consumer.caught_up()
