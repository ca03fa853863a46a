"""Receivers that want only some messages, or only look: each remembers how far it has looked, and looks at a message once.

Messages are looked at in helpings, a turn at a time, so that a search through a long backlog keeps nobody waiting; what a search lets
lie stays where it is for everybody else. Whatever becomes available again behind a search is looked at again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tandem.broker import facts
from tandem.broker.ports import Loaded
from tandem.broker.queue.delivery import Held
from tandem.broker.queue.index import HELD, LOCKED, READY
from tandem.model.errors import BusError, Unavailable

if TYPE_CHECKING:
    from tandem.broker.ports import Consumer
    from tandem.broker.queue.queue import Queue
    from tandem.broker.queue.settlement import Settler
    from tandem.model.message import Message

LOOKS_MAX: Final = 256
"""Messages one search looks at in one turn."""
_BYTES_MAX: Final = 1_048_576
"""… of so many bytes, about, that must be read for it."""
_SPARE: Final = 1_024


class Selective:
    """The selective receivers of one queue, or of all fragments of one."""

    def __init__(self, queue: Queue) -> None:
        self.queue: Queue = queue
        self._searches: dict[Consumer, dict[Queue, Search]] = {}

    def add(self, consumer: Consumer) -> None:
        self._searches[consumer] = {}

    def remove(self, consumer: Consumer) -> None:
        for search in self._searches.pop(consumer, {}).values():
            search.over = True
        if not self._searches:
            self.queue.selective = None
            for part in self.queue.parts():
                part.selective = None

    def returned(self, part: Settler, seq: int) -> None:
        """This one may be delivered (again)."""
        for consumer, searches in self._searches.items():
            if not consumer.copies:
                for search in searches.values():
                    if search.queue is part:
                        search.look_again(seq)
        returned = part.returned
        if len(returned) > _SPARE + 2 * part.index.by_state[READY]:
            # Others would have taken them from there in time; those who search do not.
            part.returned = sorted({one for one in returned if part.index.state(one) == READY})

    def pump(self, now: int) -> None:
        """A helping for each; who has seen everything is told, who has not goes on in the next turn."""
        goes_on = False
        for consumer in list(self._searches):
            searches = self._searches.get(consumer)
            if searches is None:
                continue
            searched = consumer.searching
            busy = False
            parts = self.queue.parts()
            for part in parts:
                search = searches.get(part)
                if search is None:
                    search = Search(self, consumer, part)
                    searches[part] = search
                    part.selective = self
                if search.step(now):
                    busy = True
                    goes_on = goes_on or not search.loading
            if len(searches) > len(parts):  # a store came back with another fragment
                self._searches[consumer] = {part: searches[part] for part in parts}
            consumer.searching = busy
            if searched and not busy:
                consumer.caught_up()
        if goes_on:
            self.queue.turn.touch_later(self.queue)

    def failed(self, consumer: Consumer, error: BaseException) -> None:
        """A message could not be read: this receiver is told."""
        if consumer in self._searches:
            self.queue.remove_consumer(consumer)
            path = self.queue.path
            consumer.lost(error if isinstance(error, BusError) else BusError(f"The store of '{path}' could not be read: {error}"))


class Search(Loaded):
    """One receiver's way through one queue or fragment."""

    __slots__ = ("_again", "_consumer", "_line", "_next", "_seqs", "_stepping", "loading", "over", "queue")

    def __init__(self, line: Selective, consumer: Consumer, queue: Queue) -> None:
        self.queue: Queue = queue
        self.loading: bool = False
        self.over: bool = False
        self._line: Selective = line
        self._consumer: Consumer = consumer
        self._next: int = queue.base + 1
        """Everything before was looked at, or is in `_again`."""
        self._again: set[int] = set()
        self._seqs: list[int] = []
        self._stepping: bool = False

    def look_again(self, seq: int) -> None:
        if seq >= self._next:
            return
        again = self._again
        again.add(seq)
        index = self.queue.index
        if len(again) > _SPARE + 2 * index.by_state[READY]:
            self._again = {one for one in again if index.state(one) == READY}

    def step(self, now: int) -> bool:
        """Look at some; True: there is, or may be, more for it to see."""
        queue = self.queue
        if self.loading:
            return True
        if queue.out_of_service or not queue.may_receive or self._consumer.room_left() <= 0:
            return False
        self._seqs = self._choose()
        if self._seqs:
            self.loading = True
            self._stepping = True
            try:
                queue.load(self._seqs, self)
            except Unavailable:
                self.loading = False
                return False
            finally:
                self._stepping = False
        return self.loading or (self._consumer.room_left() > 0 and self._has_more())

    def _has_more(self) -> bool:
        return bool(self._again) or self._next <= self.queue.durable_seq

    def _choose(self) -> list[int]:
        """The next ones: first those that came back."""
        queue = self.queue
        index = queue.index
        chosen = sorted(self._again)[:LOOKS_MAX]
        self._again.difference_update(chosen)
        chosen = [seq for seq in chosen if index.state(seq) == READY]
        size = 0
        end = queue.durable_seq + 1
        at = self._next
        while at < end and len(chosen) < LOOKS_MAX and size < _BYTES_MAX:
            at = index.next_in_state(READY, at, end)
            if at < end:
                chosen.append(at)
                if at not in queue.hot:
                    size += index.size(at)
                at += 1
        self._next = max(at, self._next)
        return chosen

    def loaded(self, messages: list[Message | None], error: BaseException | None) -> None:
        self.loading = False
        queue = self.queue
        consumer = self._consumer
        if self.over:
            return
        if error is not None:
            self._line.failed(consumer, error)
            return
        now = queue.turn.now
        selector = consumer.selector
        assert selector is not None
        index = queue.index
        for seq, message in zip(self._seqs, messages, strict=True):
            if message is None or index.state(seq) != READY:
                continue  # somebody else has it
            if consumer.room_left() <= 0:
                self._again.add(seq)
            elif selector.matches(message, index.count(seq)):
                self._give(seq, message, now)
        if not self._stepping:
            queue.turn.touch_queue(self._line.queue)

    def _give(self, seq: int, message: Message, now: int) -> None:
        queue = self.queue
        consumer = self._consumer
        index = queue.index
        expires_at = index.expires_at(seq)
        count = index.count(seq)
        enqueued_at = index.enqueued_at(seq)
        spent = (expires_at and expires_at <= now) or count >= queue.max_delivery_count
        if consumer.copies:
            if not spent:
                consumer.deliver(message, seq, enqueued_at, count, expires_at, None)
            return
        if spent:
            queue.remove_spent(seq, now)
            return
        queue.meter.received(message.size_bytes)
        queue.drop_hot(seq)
        if consumer.peek_lock:
            index.set_state(seq, LOCKED)
            lock = queue.locks.take(seq, now + queue.lock_ms, count, None, False)
            facts.write_delivered(queue.journal, queue.entity_id, [seq], now)
            queue.wake_for_locks()
            consumer.deliver(message, seq, enqueued_at, count, expires_at, lock)
            return
        index.set_state(seq, HELD)
        facts.write_settled(queue.journal, queue.entity_id, seq, facts.RECEIVED, now)
        held = Held(queue, consumer)
        held.add(message, seq, enqueued_at, count, expires_at)
        queue.hold(held)
