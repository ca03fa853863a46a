"""The steps of a transaction: sends and settlements, held back until it is discharged."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Final

from tandem.broker import facts
from tandem.broker.queue.index import DEFERRED, READY
from tandem.broker.recovery import operations
from tandem.broker.recovery.operations import Operation
from tandem.model.message import encode_body

if TYPE_CHECKING:
    from tandem.broker.queue.entity import Entity
    from tandem.broker.queue.locks import Lock
    from tandem.broker.queue.queue import Queue
    from tandem.model.message import Message

COMPLETE: Final = 0
ABANDON: Final = 1
DEFER: Final = 2
DEAD_LETTER: Final = 3


class Step:
    """One send or settlement. `queue` is what the client named; the part of it that holds the message is found when it counts."""

    def __init__(self, queue: Entity) -> None:
        self.queue = queue

    def check(self, now: int) -> None:
        """Raises what stands in the way of doing it now."""

    @abstractmethod
    def part(self) -> Queue:
        """The queue whose store has to do with it."""

    def release(self) -> None:
        """It is going to happen: the client no longer holds anything."""

    def operations(self) -> list[Operation]:
        return []

    def size(self) -> int:
        return 0


class Sent(Step):
    def __init__(self, queue: Entity, message: Message) -> None:
        super().__init__(queue)
        self.message = message

    def check(self, now: int) -> None:
        self.queue.check_send(self.message, self.message.size_bytes)

    def part(self) -> Queue:
        return self.queue.destination(self.message)

    def operations(self) -> list[Operation]:
        return [] if self.message.is_ping else [operations.put(self.part(), self.message)]

    def size(self) -> int:
        return self.message.size_bytes


class Settled(Step):
    """`changed` is the message with its new properties, where the outcome brings some."""

    def __init__(self, queue: Entity, lock: Lock, how: int, changed: Message | None = None) -> None:
        super().__init__(queue)
        self.lock = lock
        self.how = how
        self.changed = changed

    def check(self, now: int) -> None:
        self.queue.part_of(self.lock.seq).settlement.require(self.lock, now)

    def part(self) -> Queue:
        return self.queue.part_of(self.lock.seq)

    def release(self) -> None:
        self.part().settlement.drop_lock(self.lock)

    def operations(self) -> list[Operation]:
        queue, lock = self.part(), self.lock
        seq = lock.seq
        if self.how == COMPLETE:
            return [Operation(operations.REMOVE, queue.entity_id, seq, facts.COMPLETED)]
        shelf = queue.moves.dead_letters
        if self.how == DEAD_LETTER and shelf is not None:
            assert self.changed is not None
            body = encode_body(self.changed)
            return [
                Operation(operations.REMOVE, queue.entity_id, seq, facts.DEAD_LETTERED),
                Operation(operations.TAKE, shelf.rows.entity_id, 0, queue.index.enqueued_at(seq), lock.count, body),
            ]
        count = queue.index.count(seq)
        state = DEFERRED if self.how == DEFER or lock.deferred else READY
        if self.changed is not None:
            return [Operation(operations.REWRITE, queue.entity_id, seq, state, count, encode_body(self.changed))]
        return [Operation(operations.STATE, queue.entity_id, seq, state, count)]

    def size(self) -> int:
        return 0 if self.changed is None else self.changed.size_bytes
