"""`/$tandem/locks/<entity>`: what is locked, until when and by whom; a lock or a session can be taken from its holder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tandem.broker.queue.locks import Lock
from tandem.model.address import parse
from tandem.model.errors import ArgumentRefused, MessageNotFound, SessionLockLost

if TYPE_CHECKING:
    from tandem.broker.queue.entity import Entity
    from tandem.broker.queue.queue import Queue
    from tandem.server.context import NamespaceContext

_LOCKS_SHOWN_MAX: Final = 10_000
_TAKEN: Final = "The session lock was taken away by an operator. Accept the session again."


def describe_locks(context: NamespaceContext, path: str) -> dict[str, Any]:
    entity = context.namespace.resolve(parse(path))
    held_by = {lock.token: client.peer for client in context.connections for lock in client.held_locks(entity.path)}
    locks = sorted((lock for queue in entity.parts() for lock in queue.locks.by_seq.values()), key=lambda lock: lock.locked_until)
    shown = [_described(lock, held_by) for lock in locks[:_LOCKS_SHOWN_MAX]]
    sessions = [
        {"session_id": one.id, "locked_until_ms": one.locked_until, "messages_locked": len(one.locks)}
        for queue in entity.parts()
        for one in queue.holding.all_held()[:_LOCKS_SHOWN_MAX]
    ]
    return {"entity": entity.path, "locks": shown, "total": len(locks), "sessions": sessions}


def _described(lock: Lock, held_by: dict[bytes, str]) -> dict[str, Any]:
    return {
        "sequence_number": lock.seq,
        "locked_until_ms": lock.session.locked_until if lock.session is not None else lock.locked_until,
        "deliveries_before": lock.count,
        "session_id": lock.session.id if lock.session is not None else None,
        "deferred": lock.deferred,
        "holder": held_by.get(lock.token),
    }


def release_locks(context: NamespaceContext, path: str, numbers: list[str], session_id: str | None, everything: bool) -> dict[str, Any]:
    """As if their time were over: the messages are available again, the deliveries count. All that is named, or nothing."""
    if (bool(numbers), session_id is not None, everything).count(True) != 1:
        raise ArgumentRefused("say what to release: seq=<sequence number> (may be repeated), session=<id>, or all=true")
    now = context.turn.begin()
    entity = context.namespace.resolve(parse(path))
    if everything:
        count = sum(len(queue.locks.by_seq) for queue in entity.parts())
        entity.lose_locks(SessionLockLost(_TAKEN), now)
        return {"entity": entity.path, "released": count}
    if session_id is not None:
        return {"entity": entity.path, "released": _release_session(entity, session_id, now)}
    found = [_lock_of(entity, number) for number in numbers]
    for queue, lock in found:
        queue.settlement.lose(lock, now)
    return {"entity": entity.path, "released": len(found)}


def _release_session(entity: Entity, session_id: str, now: int) -> int:
    session = entity.sessions.held(session_id, now)
    queue = next(queue for queue in entity.parts() if queue.holding.find(session_id) is session)
    count = len(session.locks)
    queue.holding.end(session, SessionLockLost(_TAKEN), True, now)
    return count


def _lock_of(entity: Entity, number: str) -> tuple[Queue, Lock]:
    if not number.isdecimal():
        raise ArgumentRefused(f"'{number[:40]}' is no sequence number")
    queue = entity.part_of(int(number))
    lock = queue.locks.by_seq.get(int(number))
    if lock is None:
        raise MessageNotFound(f"Message {number} of '{entity.path}' is not locked. Nothing was released.")
    if lock.session is not None:
        raise ArgumentRefused(f"Message {number} is locked with its session: release session '{lock.session.id}'. Nothing was released.")
    return queue, lock
