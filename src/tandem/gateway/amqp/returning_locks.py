"""Locks that go back to their queue because nobody will settle them: their connection broke, or their transaction was rolled back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tandem.model.errors import Unavailable

if TYPE_CHECKING:
    from tandem.amqp.connection import Connection
    from tandem.broker.queue.entity import Entity
    from tandem.broker.queue.locks import Lock
    from tandem.server.context import NamespaceContext

_SWEEP_AT_LEAST: Final = 64


def locks_end_with(engine: Connection, queue: Entity, context: NamespaceContext) -> bool:
    """The connection is broken, and this entity's locks go with such."""
    return engine.broken and locks_end(queue, context)


def locks_end(queue: Entity, context: NamespaceContext) -> bool:
    """Whether locks of this entity end with the way to their holder."""
    outlive = queue.description.locks_outlive_connections
    return not (context.namespace.locks_outlive_connections if outlive is None else outlive)


def return_locks(context: NamespaceContext, queue: Entity, locks: list[Lock], counts: bool = True) -> None:
    """To the front of the queue. `counts`: as if their time were over; else as if they had not been delivered."""
    now = context.turn.now
    try:
        for lock in locks:
            part = queue.part_of(lock.seq)
            if part.terms.out_of_service:
                continue  # its messages are free when its store is back
            if counts:
                part.settlement.lose(lock, now)
            else:
                part.settlement.release(lock, now)
    except Unavailable as down:
        context.warn(f"locks of '{queue.path}' are dropped with its store: {down.description}")


class LocksWithoutDelivery:
    """Of deferred messages that a connection received by their numbers: no link knows of them."""

    def __init__(self) -> None:
        self._locks: list[tuple[Entity, Lock]] = []
        self._sweep_at = _SWEEP_AT_LEAST

    def add(self, queue: Entity, locks: list[Lock]) -> None:
        """Those settled or lost since are forgotten whenever their number may have doubled."""
        if len(self._locks) + len(locks) > self._sweep_at:
            self._locks = [(of, lock) for of, lock in self._locks if lock.held]
            self._sweep_at = max(2 * (len(self._locks) + len(locks)), _SWEEP_AT_LEAST)
        self._locks += [(queue, lock) for lock in locks]

    def drop(self, context: NamespaceContext, engine: Connection) -> None:
        """The connection is over."""
        for queue, lock in self._locks:
            if lock.session is None and locks_end_with(engine, queue, context):
                return_locks(context, queue, [lock])
        self._locks.clear()
