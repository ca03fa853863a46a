"""A fact of one queue, told by its journal after a restart: the same `apply_*` as when it was new."""

from __future__ import annotations

from tandem.broker import facts
from tandem.broker.queue.rows import Rows
from tandem.model.errors import Corrupt


def replay(rows: Rows, kind: int, flags: int, seq: int, at: int, aux: int, key: bytes, location: int, body_bytes: int) -> None:
    if kind == facts.ENQUEUED:
        message_id, session_id, count, scheduled_at = facts.read_enqueued(flags, key)
        state, relocated = facts.state_of(flags), facts.is_relocated(flags)
        rows.apply_enqueued(seq, state, relocated, message_id, session_id, scheduled_at, at, aux, count, location, body_bytes)
    elif kind == facts.SETTLED:
        rows.apply_settled(seq)
    elif kind == facts.STATE:
        rows.apply_state(seq, flags, aux, facts.read_until(key))
    elif kind == facts.DELIVERED:
        rows.apply_delivered(facts.read_seqs(key))
    elif kind == facts.SESSION_STATE:
        session, state_told = facts.read_session_state(flags, key)
        rows.apply_session_state(session, state_told, at)
    elif kind == facts.SEEN:
        rows.apply_seen(key, at)
    elif kind == facts.COUNTER:
        rows.apply_counter(aux)
    else:
        _replay_lease(rows, kind, flags, aux, key)


def _replay_lease(rows: Rows, kind: int, flags: int, aux: int, key: bytes) -> None:
    if kind not in (facts.LEASED, facts.LEASE_RENEWED, facts.LEASE_PART, facts.LEASE_ENDED):
        raise Corrupt(f"the journal holds a fact of unknown kind {kind}: it was written by a newer version")
    lease_id, packed = facts.read_lease(key)
    if kind == facts.LEASED:
        rows.apply_leased(lease_id, facts.read_seqs(packed), aux)
    elif kind == facts.LEASE_RENEWED:
        rows.apply_lease_renewed(lease_id, aux)
    elif kind == facts.LEASE_PART:
        rows.apply_lease_part(lease_id, facts.read_seqs(packed))
    else:
        rows.apply_lease_ended(lease_id, flags != 0, facts.read_seqs(packed))
