"""Queues on a desk: a namespace over a store in memory, on a clock the test moves, with receivers that write down what they get."""

from __future__ import annotations

import uuid
from typing import Any

from tandem.broker.entities.namespace import Namespace
from tandem.broker.ports import Consumer, Effect, SessionAcceptor
from tandem.broker.queue.index import DEFERRED, DEFERRED_LOCKED, LOCKED, READY
from tandem.broker.queue.locks import Lock
from tandem.broker.queue.queue import Queue
from tandem.broker.queue.sessions import MessageSession
from tandem.broker.turn import Turn
from tandem.gateway.translate import Translator
from tandem.model.address import SubQueue
from tandem.model.entity import QueueDescription
from tandem.model.errors import BusError
from tandem.model.limits import Limits
from tandem.model.message import NO_TTL, Message
from tandem.stores.memory import MemoryStore, Shelf
from tandem.stores.settings import LogSettings
from tests.stores.harness import Loop, ManualClock


class Hand(Consumer):
    """A receiver with as much room as it is given."""

    def __init__(self, peek_lock: bool = True, credit: int = 0) -> None:
        super().__init__(peek_lock)
        self.credit = credit
        self.got: list[tuple[str, int]] = []
        """Body and delivery count, in order."""
        self.seqs: list[int] = []
        self.locks: list[Lock] = []
        self.lost_with: BusError | None = None

    def room(self) -> int:
        return self.credit

    def deliver(self, message: Message, seq: int, enqueued_at: int, count: int, expires_at: int, lock: Lock | None) -> None:
        self.credit -= 1
        self.seqs.append(seq)
        self.got.append((text_of(message), count))
        if lock is not None:
            self.locks.append(lock)

    def lost(self, error: BusError) -> None:
        self.lost_with = error


class Waiter(SessionAcceptor):
    def __init__(self, hand: Hand, deadline: int) -> None:
        super().__init__(hand, deadline)
        self.session: MessageSession | None = None
        self.gave_up = False

    def accepted(self, session: MessageSession) -> None:
        self.session = session

    def timed_out(self) -> None:
        self.gave_up = True


class Done(Effect):
    """Remembers that the disk knew."""

    def __init__(self) -> None:
        self.errors: list[BaseException | None] = []

    def done(self, error: BaseException | None) -> None:
        self.errors.append(error)


def message(
    text: str, message_id: str = "", session: str | None = None, ttl_ms: int = NO_TTL, scheduled_at: int = 0, ping: bool = False
) -> Message:
    body = text.encode()
    identity = (message_id or str(uuid.uuid4())).encode()
    bare = b"\x00\x53\x75\xb0" + len(body).to_bytes(4, "big") + body
    return Message(bare, b"\xa1" + bytes((len(identity),)) + identity, session, ttl_ms, scheduled_at, b"", 0, b"", 0, b"", None, ping)


def text_of(message: Message) -> str:
    """What stands in the data section; what was put before it (application properties) is skipped."""
    at = message.bare.index(b"\x00\x53\x75") + 3
    width = 1 if message.bare[at] == 0xA0 else 4
    return message.bare[at + 1 + width :].decode()


class Desk:
    """`desk.queue()` is the queue under test; `run` lets everything happen that is due."""

    def __init__(self, *descriptions: QueueDescription, segment_bytes: int = 8_388_608, hot_bytes: int = 67_108_864) -> None:
        self.clock = ManualClock()
        self.shelf = Shelf()
        self._descriptions = descriptions
        self._settings = LogSettings(segment_bytes=segment_bytes)
        self._limits = Limits(hot_bytes_max=hot_bytes)
        self._open()

    def _open(self) -> None:
        self.loop = Loop()
        self.turn = Turn(self.clock, lambda: None)
        self.store = MemoryStore(self.loop.call, self._settings, self.shelf)
        self.namespace = Namespace("desk", self.turn, self._limits, Translator(uuid.uuid4), lambda: 0x1234_5678)
        self.namespace.attach_store(self.store)
        for number, description in enumerate(self._descriptions, start=1):
            self.namespace.add_queue(number, 0, description)
        self.namespace.replay()
        self.run()

    def restart(self) -> None:
        """What the store remembers, and nothing else, in a new namespace."""
        self.run()
        self._open()

    def queue(self, name: str = "q", sub_queue: SubQueue = SubQueue.MAIN) -> Queue:
        entity: Any = self.namespace.find(name)
        queue: Queue = entity.queues[sub_queue]
        return queue

    def dead(self, name: str = "q") -> Queue:
        return self.queue(name, SubQueue.DEAD_LETTER)

    @property
    def now(self) -> int:
        return self.turn.begin()

    def run(self) -> None:
        """Turns and the store's answers, until nothing more happens."""
        for _ in range(12):
            self.turn.run()
            self.loop.run_ready()

    def wait(self, ms: int) -> None:
        self.clock.now += ms
        self.run()

    def sweep(self, queue: Queue) -> None:
        """Expired messages leave at most a second late; this does not wait for that."""
        for chunk in queue.index.chunks.values():
            chunk.min_expires = 1
        queue.due(self.now)
        self.run()

    def send(self, *texts: str, name: str = "q", **options: Any) -> list[int]:
        numbers = [self.queue(name).enqueue(message(text, **options), self.now).seq for text in texts]
        self.run()
        return numbers

    def receive(self, count: int = 1, name: str = "q", delete: bool = False, sub_queue: SubQueue = SubQueue.MAIN) -> Hand:
        """A receiver that takes up to `count` and leaves."""
        hand = Hand(not delete, count)
        queue = self.queue(name, sub_queue)
        queue.add_consumer(hand)
        queue.consumer_ready(hand)
        self.run()
        queue.remove_consumer(hand)
        return hand

    def texts(self, name: str = "q", sub_queue: SubQueue = SubQueue.MAIN, state: int = READY) -> list[str]:
        """Bodies of all rows in this state, in order, read from the store."""
        queue = self.queue(name, sub_queue)
        return [self.text(queue, seq) for seq in queue.index.seqs_from(0, queue.index.total + 1) if queue.index.state(seq) == state]

    def text(self, queue: Queue, seq: int) -> str:
        return text_of(queue.bodies.decode(seq, self.shelf.bodies[queue.index.location(seq)]))


def as_after_a_restart(desk: Desk, queue: Queue) -> dict[str, Any]:
    """Everything a restart must bring back: locks are gone, and the deliveries they stood for count."""
    index = queue.index
    rows: dict[int, tuple[Any, ...]] = {}
    for seq in index.seqs_from(0, index.total + 1):
        state, count = index.state(seq), index.count(seq)
        if state in (LOCKED, DEFERRED_LOCKED):
            state = READY if state == LOCKED else DEFERRED
        session = queue.rows.session_of(seq)
        body = desk.shelf.bodies[index.location(seq)]
        rows[seq] = (state, count, index.enqueued_at(seq), index.expires_at(seq), index.size(seq), session.id if session else None, body)
    sessions = {}
    if queue.sessions.table is not None:
        sessions = {s.id: (s.state, s.total) for s in queue.sessions.table.by_id.values() if s.state is not None or s.total}
    return {
        "rows": rows,
        "next": queue.rows.next_seq,
        "size": index.size_bytes,
        "total": index.total,
        "sessions": sessions,
        "scheduled": sorted(entry for entry in queue.rows.scheduled if entry[1] in rows),
        "delayed": sorted(entry for entry in queue.rows.delayed if entry[1] in rows),
    }
