"""What a transaction does to one store, as a list that can be written down, read back after a crash, and carried out once."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from tandem.broker import facts, meters
from tandem.broker.meters import ABANDONED, COMPLETED, DEAD_LETTERED, SETTLE
from tandem.broker.queue.index import DEFERRED, DEFERRED_LOCKED, MOVING, READY
from tandem.model.errors import Corrupt
from tandem.model.message import Message, decode_body, encode_body

if TYPE_CHECKING:
    from tandem.broker.queue.queue import Queue
    from tandem.broker.recovery.cross_store import Row
    from tandem.broker.recovery.tenant import StoreTenant

PUT: Final = 1
"""A message sent: a = when it is scheduled for."""
REMOVE: Final = 2
"""A row leaves its queue: a = the reason."""
STATE: Final = 3
"""A row is given back or deferred: a = its state, count = its delivery count."""
TAKE: Final = 4
"""A message moves in from another queue of the entity: a = when that one got it, count = its delivery count."""
REWRITE: Final = 5
"""As STATE, with other properties."""

_HEAD: Final = Struct("<BIQQII")


class Operation:
    """One of the kinds above, on one queue."""

    __slots__ = ("a", "body", "count", "entity", "kind", "seq")

    def __init__(self, kind: int, entity: int, seq: int = 0, a: int = 0, count: int = 0, body: bytes = b"") -> None:
        self.kind = kind
        self.entity = entity
        self.seq = seq
        self.a = a
        self.count = count
        self.body = body


def put(queue: Queue, message: Message) -> Operation:
    return Operation(PUT, queue.entity_id, a=message.scheduled_at, body=encode_body(message))


def encode(operations: list[Operation]) -> bytes:
    parts: list[bytes] = []
    for one in operations:
        parts += (_HEAD.pack(one.kind, one.entity, one.seq, one.a, one.count, len(one.body)), one.body)
    return b"".join(parts)


def decode(data: bytes) -> list[Operation]:
    found: list[Operation] = []
    at = 0
    while at < len(data):
        kind, entity, seq, a, count, size = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        found.append(Operation(kind, entity, seq, a, count, data[at : at + size]))
        at += size
    return found


def rows_of(share: list[Operation]) -> list[Row]:
    """The rows that must not be touched by others until it is decided."""
    return [(one.entity, one.seq, 0) for one in share if one.seq]


def carry_out(tenant: StoreTenant, operations: list[Operation], now: int) -> None:
    """All of them, in the block of this turn. What concerns a queue that was deleted meanwhile went with it."""
    for one in operations:
        queue = tenant.queues.get(one.entity)
        if queue is None:
            continue
        if one.kind == PUT:
            message = decode_body(one.body)
            message.scheduled_at = one.a
            queue.admit(message, now)
        elif one.kind == TAKE:
            queue.take_over(decode_body(one.body), one.a, one.count)
        elif queue.index.state(one.seq):
            _on_row(queue, one, now)


def _on_row(queue: Queue, one: Operation, now: int) -> None:
    if one.kind == REMOVE:
        queue.settle(one.seq, one.a, now)
        queue.meter.add(SETTLE, COMPLETED if one.a == facts.COMPLETED else DEAD_LETTERED, 1, 0)
        return
    if one.kind == REWRITE:
        message = decode_body(one.body)
        index = queue.index
        at, expires_at = index.enqueued_at(one.seq), index.expires_at(one.seq)
        location = queue.append_message(one.seq, one.a, True, message, one.body, at, expires_at, one.count)
        queue.release(index.location(one.seq))
        index.set_body(one.seq, location, len(one.body))
        queue.drop_hot(one.seq)
    elif one.kind == STATE:
        facts.write_state(queue.journal, queue.entity_id, one.seq, one.a, one.count, 0, now)
    else:
        raise Corrupt(f"a transaction holds an operation of unknown kind {one.kind}: it was written by a newer version")
    queue.meter.add(SETTLE, meters.DEFERRED if one.a == DEFERRED else ABANDONED, 1, 0)
    queue.index.set_count(one.seq, one.count)
    if one.a == DEFERRED:
        queue.index.set_state(one.seq, DEFERRED)
    else:
        queue.make_ready(one.seq)


def freeze(tenant: StoreTenant, rows: list[Row]) -> list[Row]:
    """Nobody receives, expires or purges these until they are carried out or thawed. Returns them with the states they had."""
    frozen: list[Row] = []
    for entity, seq, _ in rows:
        queue = tenant.queues.get(entity)
        state = queue.index.state(seq) if queue is not None else 0
        if queue is not None and state:
            queue.index.set_state(seq, MOVING)
            frozen.append((entity, seq, DEFERRED if state in (DEFERRED, DEFERRED_LOCKED) else READY))
    return frozen


def thaw(tenant: StoreTenant, rows: list[Row]) -> None:
    """It was not decided: they are in their queues as before, and may be received again."""
    for entity, seq, state in rows:
        queue = tenant.queues.get(entity)
        if queue is None or queue.index.state(seq) != MOVING:
            continue
        if state == DEFERRED:
            queue.index.set_state(seq, DEFERRED)
        else:
            queue.make_ready(seq)
