"""Receivers that want only some messages, or only look: each remembers how far it has looked, and looks at a message once.

Messages are looked at in helpings, a turn at a time, so that a search through a long backlog keeps nobody waiting; what a search lets
lie stays where it is for everybody else. Whatever becomes available again behind a search is looked at again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tandem.broker.ports import Loaded
from tandem.broker.queue.delivery import MessageDelivery, Receivers
from tandem.broker.queue.index import READY
from tandem.broker.queue.ready import Ready, Seekers
from tandem.model.errors import BusError, Unavailable

if TYPE_CHECKING:
    from tandem.broker.ports import Consumer
    from tandem.model.message import Message

LOOKS_MAX: Final = 256
"""Messages one search looks at in one turn."""
_BYTES_MAX: Final = 1_048_576
"""… of so many bytes, about, that must be read for it."""
_SPARE: Final = 1_024


def add_seeker(receivers: Receivers, consumer: Consumer) -> None:
    if receivers.seekers is None:
        receivers.seek_with(Selective(receivers))
    assert receivers.seekers is not None
    receivers.seekers.add(consumer)


class Selective(Seekers):
    """The selective receivers of one queue, or of all fragments of one."""

    def __init__(self, receivers: Receivers) -> None:
        self.receivers: Receivers = receivers
        self._searches: dict[Consumer, dict[MessageDelivery, Search]] = {}

    def add(self, consumer: Consumer) -> None:
        self._searches[consumer] = {}

    def remove(self, consumer: Consumer) -> None:
        for search in self._searches.pop(consumer, {}).values():
            search.end()
        if not self._searches:
            self.receivers.seek_with(None)
            for source in self.receivers.sources:
                source.ready.tell_seekers(None)

    def returned(self, ready: Ready, seq: int) -> None:
        for consumer, searches in self._searches.items():
            if not consumer.copies:
                for search in searches.values():
                    if search.source.ready is ready:
                        search.look_again(seq)
        ready.tidy(_SPARE)  # others would have taken them from there in time; those who search do not

    def unseen(self, consumer: Consumer) -> bool:
        searches = self._searches.get(consumer)
        if searches is None:
            return False
        for source in self.receivers.sources:
            search = searches.get(source)
            if search is None:
                if source.has_ready():
                    return True
            elif search.loading or (source.has_ready() and search.has_more()):
                return True
        return False

    def pump(self, now: int) -> None:
        """A helping for each; who has seen everything is told, who has not goes on in the next turn."""
        goes_on = False
        for consumer in list(self._searches):
            searches = self._searches.get(consumer)
            if searches is None:
                continue
            searched = consumer.searching
            busy = False
            sources = self.receivers.sources
            for source in sources:
                search = searches.get(source)
                if search is None:
                    search = Search(self, consumer, source)
                    searches[source] = search
                    source.ready.tell_seekers(self)
                if search.step(now):
                    busy = True
                    goes_on = goes_on or not search.loading
            if len(searches) > len(sources):  # a store came back with another fragment
                self._searches[consumer] = {source: searches[source] for source in sources}
            consumer.search(busy)
            if searched and not busy:
                consumer.caught_up()
        if goes_on:
            self.receivers.slot.touch_later()

    def failed(self, consumer: Consumer, path: str, error: BaseException) -> None:
        """A message could not be read: this receiver is told."""
        if consumer in self._searches:
            self.receivers.remove(consumer)
            consumer.lost(error if isinstance(error, BusError) else BusError(f"The store of '{path}' could not be read: {error}"))


class Search(Loaded):
    """One receiver's way through one queue or fragment."""

    __slots__ = ("_again", "_consumer", "_line", "_next", "_seqs", "_stepping", "loading", "over", "source")

    def __init__(self, line: Selective, consumer: Consumer, source: MessageDelivery) -> None:
        self.source: MessageDelivery = source
        self.loading: bool = False
        self.over: bool = False
        self._line: Selective = line
        self._consumer: Consumer = consumer
        self._next: int = source.rows.base + 1
        """Everything before was looked at, or is in `_again`."""
        self._again: set[int] = set()
        self._seqs: list[int] = []
        self._stepping: bool = False

    def end(self) -> None:
        """Its receiver has gone."""
        self.over = True

    def look_again(self, seq: int) -> None:
        if seq >= self._next:
            return
        again = self._again
        again.add(seq)
        index = self.source.rows.index
        if len(again) > _SPARE + 2 * index.by_state[READY]:
            self._again = {one for one in again if index.state(one) == READY}

    def step(self, now: int) -> bool:
        """Look at some; True: there is, or may be, more for it to see."""
        source = self.source
        terms = source.terms
        if self.loading:
            return True
        if terms.out_of_service or not terms.may_receive or source.rows.backing.suspended or self._consumer.room_left() <= 0:
            return False
        self._seqs = self._choose()
        if self._seqs:
            self.loading = True
            self._stepping = True
            try:
                source.bodies.load(self._seqs, self)
            except Unavailable:
                self.loading = False
                return False
            finally:
                self._stepping = False
        return self.loading or (self._consumer.room_left() > 0 and self.has_more())

    def has_more(self) -> bool:
        return bool(self._again) or self._next <= self.source.rows.durable_seq

    def _choose(self) -> list[int]:
        """The next ones: first those that came back."""
        rows = self.source.rows
        index = rows.index
        chosen = sorted(self._again)[:LOOKS_MAX]
        self._again.difference_update(chosen)
        chosen = [seq for seq in chosen if index.state(seq) == READY]
        size = 0
        end = rows.durable_seq + 1
        at = self._next
        while at < end and len(chosen) < LOOKS_MAX and size < _BYTES_MAX:
            at = index.next_in_state(READY, at, end)
            if at < end:
                chosen.append(at)
                if at not in rows.hot:
                    size += index.size(at)
                at += 1
        self._next = max(at, self._next)
        return chosen

    def loaded(self, messages: list[Message | None], error: BaseException | None) -> None:
        self.loading = False
        source = self.source
        consumer = self._consumer
        if self.over:
            return
        if error is not None:
            self._line.failed(consumer, source.terms.path, error)
            return
        slot = self._line.receivers.slot
        selector = consumer.selector
        assert selector is not None
        index = source.rows.index
        for seq, message in zip(self._seqs, messages, strict=True):
            if message is None or index.state(seq) != READY:
                continue  # somebody else has it
            if consumer.room_left() <= 0:
                self._again.add(seq)
            elif selector.matches(message, index.count(seq)):
                self._give(seq, message, slot.turn.now)
        if not self._stepping:
            slot.touch()

    def _give(self, seq: int, message: Message, now: int) -> None:
        source = self.source
        consumer = self._consumer
        rows = source.rows
        index = rows.index
        if rows.spent(seq, source.terms.max_delivery_count, now):
            if not consumer.copies:
                source.moves.remove_spent(seq, now)
        elif consumer.copies:
            consumer.deliver(message, seq, index.enqueued_at(seq), index.count(seq), index.expires_at(seq), None)
        else:
            source.give(consumer, message, seq, now)
