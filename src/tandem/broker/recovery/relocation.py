"""What of a segment that leaves still matters is written again, as it stands now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandem.broker import facts
from tandem.broker.queue.index import DEFERRED, DEFERRED_LOCKED, DELAYED, READY

if TYPE_CHECKING:
    from tandem.broker.queue.rows import Backing, Rows


def relocate(
    rows: Rows, kind: int, flags: int, seq: int, at: int, aux: int, key: bytes, body: bytes | None, location: int, now: int
) -> bool:
    """A fact of one queue. True: its body is needed and was not given; nothing was done."""
    journal = rows.backing.journal
    if kind == facts.ENQUEUED:
        message_id, session_id, _, scheduled_at = facts.read_enqueued(flags, key)
        if _stands(rows, seq, location):
            if body is None:
                return True
            _relocate_row(rows, seq, message_id, session_id, scheduled_at, body)
        if not facts.is_relocated(flags):
            keep_seen(rows, message_id, at, now)
    elif kind == facts.SEEN:
        keep_seen(rows, key, at, now)
    elif kind == facts.LEASED:
        # As it stands now: parts given back since are no longer in it, so their facts may go with their segment.
        lease = rows.leases.get(facts.read_lease(key)[0])
        if lease is not None:
            facts.write_leased(journal, rows.entity_id, lease.id, lease.journaled(), lease.expires_at, at)
    elif kind == facts.LEASE_ENDED and flags:
        if facts.read_lease(key)[0] in rows.leases_ended:
            facts.write_again(journal, kind, flags, rows.entity_id, seq, at, aux, key, b"")
    elif kind == facts.SESSION_STATE and rows.sessions is not None:
        session_id, state = facts.read_session_state(flags, key)
        session = rows.sessions.by_id.get(session_id)
        if session is not None and state is not None and session.state == state and session.state_updated_at == at:
            facts.write_again(journal, kind, flags, rows.entity_id, seq, at, aux, key, b"")
    return False


def _stands(rows: Rows, seq: int, location: int) -> bool:
    """There is such a row, and this is where its message was written last."""
    return rows.index.state(seq) != 0 and rows.index.location(seq) == location


def keep_seen(rows: Rows, message_id: bytes, at: int, now: int) -> None:
    known = 0 if rows.history is None else rows.history.is_current(message_id, at, now)
    if known:
        facts.write_seen(rows.backing.journal, rows.entity_id, message_id, known)


def _relocate_row(rows: Rows, seq: int, message_id: bytes, session_id: str | None, scheduled_at: int, body: bytes) -> None:
    index = rows.index
    state = DEFERRED if index.state(seq) == DEFERRED_LOCKED else index.state(seq)
    at, expires_at, count = index.enqueued_at(seq), index.expires_at(seq), index.count(seq)
    fresh = facts.write_enqueued(
        rows.backing.journal, rows.entity_id, seq, state, True, message_id, session_id, scheduled_at, at, expires_at, count, body
    )
    index.set_location(seq, fresh)
    if state == DELAYED:
        facts.write_state(rows.backing.journal, rows.entity_id, seq, DELAYED, count, rows.delayed_until.get(seq, at), at)


def relocate_published(
    all_rows: dict[int, Rows],
    backing: Backing,
    flags: int,
    entity: int,
    seq: int,
    at: int,
    key: bytes,
    body: bytes | None,
    location: int,
    now: int,
) -> bool:
    """Rows that are as they were published stay together; one whose state moved on is written for itself."""
    message_id, session_id, _, _ = facts.read_enqueued(flags, key)
    plain: list[facts.Target] = []
    for target, row, _ in facts.read_targets(key):
        rows = all_rows.get(target)
        if rows is None or not _stands(rows, row, location):
            continue
        if body is None:
            return True
        if rows.index.state(row) == READY and rows.index.count(row) == 0:
            plain.append((target, row, rows.index.expires_at(row)))
        else:
            _relocate_row(rows, row, message_id, session_id, 0, body)
    if plain and body is not None:
        fresh = facts.write_published(backing.journal, entity, seq, True, message_id, session_id, at, plain, body)
        for target, row, _ in plain:
            all_rows[target].index.set_location(row, fresh)
        backing.shared[fresh] = len(plain)
    backing.shared.pop(location, None)
    topic = all_rows.get(entity)
    if topic is not None and not facts.is_relocated(flags):
        keep_seen(topic, message_id, at, now)
    return False
