"""What a transaction does to one store, as a list that can be written down, read back after a crash, and carried out once."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from tandem.broker import facts, meters
from tandem.broker.meters import ABANDONED, COMPLETED, DEAD_LETTERED, SETTLE
from tandem.broker.queue.index import DEFERRED
from tandem.model.errors import Corrupt
from tandem.model.message import Message, decode_body, encode_body

if TYPE_CHECKING:
    from tandem.broker.queue.queue import Queue
    from tandem.broker.recovery.cross_store import Row

PUT: Final = 1
"""A message sent: argument = when it is scheduled for."""
REMOVE: Final = 2
"""A row leaves its queue: argument = the reason."""
STATE: Final = 3
"""A row is given back or deferred: argument = its state, count = its delivery count."""
TAKE: Final = 4
"""A message moves in from another queue of the entity: argument = when that one got it, count = its delivery count."""
REWRITE: Final = 5
"""As STATE, with other properties."""

_HEAD: Final = Struct("<BIQQII")


class Operation:
    """One of the kinds above, on one queue."""

    __slots__ = ("argument", "body", "count", "entity", "kind", "seq")

    def __init__(self, kind: int, entity: int, seq: int = 0, argument: int = 0, count: int = 0, body: bytes = b"") -> None:
        self.kind = kind
        self.entity = entity
        self.seq = seq
        self.argument = argument
        self.count = count
        self.body = body


def put(queue: Queue, message: Message) -> Operation:
    return Operation(PUT, queue.entity_id, argument=message.scheduled_at, body=encode_body(message))


def encode(operations: list[Operation]) -> bytes:
    parts: list[bytes] = []
    for one in operations:
        parts += (_HEAD.pack(one.kind, one.entity, one.seq, one.argument, one.count, len(one.body)), one.body)
    return b"".join(parts)


def decode(data: bytes) -> list[Operation]:
    found: list[Operation] = []
    at = 0
    while at < len(data):
        kind, entity, seq, argument, count, size = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        found.append(Operation(kind, entity, seq, argument, count, data[at : at + size]))
        at += size
    return found


def rows_of(share: list[Operation]) -> list[Row]:
    """The rows that must not be touched by others until it is decided."""
    return [(one.entity, one.seq, 0) for one in share if one.seq]


def carry_out(queues: dict[int, Queue], operations: list[Operation], now: int) -> None:
    """All of them, in the block of this turn. What concerns a queue that was deleted meanwhile went with it."""
    for one in operations:
        queue = queues.get(one.entity)
        if queue is None:
            continue
        if one.kind == PUT:
            message = decode_body(one.body)
            message.schedule(one.argument)
            queue.intake.admit(message, now)
        elif one.kind == TAKE:
            queue.intake.take_over(decode_body(one.body), one.argument, one.count)
        elif queue.index.state(one.seq):
            _settle(queue, one, now)


def _settle(queue: Queue, one: Operation, now: int) -> None:
    if one.kind == REMOVE:
        queue.ledger.settle(one.seq, one.argument, now)
        queue.meter.add(SETTLE, COMPLETED if one.argument == facts.COMPLETED else DEAD_LETTERED, 1, 0)
        return
    if one.kind == REWRITE:
        queue.ledger.rewrite(one.seq, decode_body(one.body), one.argument, one.count)
    elif one.kind == STATE:
        queue.ledger.set_state(one.seq, one.argument, one.count, 0, now)
    else:
        raise Corrupt(f"a transaction holds an operation of unknown kind {one.kind}: it was written by a newer version")
    queue.meter.add(SETTLE, meters.DEFERRED if one.argument == DEFERRED else ABANDONED, 1, 0)
    if one.argument != DEFERRED:
        queue.ready.give_back(one.seq)
