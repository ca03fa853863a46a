"""What a client holds, and what becomes of it when its connection breaks instead of being closed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tandem.model.errors import Unavailable

if TYPE_CHECKING:
    from tandem.amqp.connection import Connection
    from tandem.broker.queue.locks import Lock
    from tandem.broker.queue.queue import Queue
    from tandem.gateway.amqp.connection import PeerConnection

_SWEEP_AT_LEAST: Final = 64


def vanished(client: PeerConnection, connection: Connection, queue: Queue) -> bool:
    """The connection is broken, and this entity's locks go with such."""
    if not connection.broken:
        return False
    wish = queue.description.locks_outlive_connections
    return not (client.context.namespace.locks_outlive_connections if wish is None else wish)


def give_back(client: PeerConnection, queue: Queue, locks: list[Lock], counts: bool = True) -> None:
    """To the front of the queue. `counts`: as if their time were over; else as if they had not been delivered."""
    now = client.turn.now
    try:
        for lock in locks:
            part = queue.part_of(lock.seq)
            if part.out_of_service:
                continue  # its messages are free when its store is back
            if counts:
                part.lose(lock, now)
            else:
                part.give_up(lock, now)
    except Unavailable as down:
        client.context.log(f"locks of '{queue.path}' are dropped with its store: {down.description}")


class Holdings:
    """Locks without a delivery: deferred messages that were received by their numbers."""

    def __init__(self) -> None:
        self._locks: list[tuple[Queue, Lock]] = []
        self._sweep_at = _SWEEP_AT_LEAST

    def add(self, queue: Queue, locks: list[Lock]) -> None:
        """Those settled or lost since are forgotten whenever their number may have doubled."""
        if len(self._locks) + len(locks) > self._sweep_at:
            self._locks = [(of, lock) for of, lock in self._locks if lock.held]
            self._sweep_at = max(2 * (len(self._locks) + len(locks)), _SWEEP_AT_LEAST)
        self._locks += [(queue, lock) for lock in locks]

    def drop(self, client: PeerConnection, connection: Connection) -> None:
        """The connection is over."""
        for queue, lock in self._locks:
            if lock.session is None and vanished(client, connection, queue):
                give_back(client, queue, [lock])
        self._locks.clear()
