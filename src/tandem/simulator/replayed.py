"""What live code has made of the facts is what a replay of the same journal makes of them: compared row by row."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tandem.broker.entities.topic import Topic
from tandem.broker.ports import StoreState, Tenant
from tandem.broker.queue.dedup import DuplicateHistory
from tandem.broker.queue.index import DEFERRED, DEFERRED_LOCKED, DELAYED, LOCKED, MOVING, READY
from tandem.broker.queue.rows import Rows
from tandem.broker.queue.sessions import SessionTable
from tandem.broker.recovery.entity_facts import Roll
from tandem.broker.recovery.tenant import StoreTenant
from tandem.broker.recovery.unplugged import Unplugged


def can_be_compared(tenant: StoreTenant) -> bool:
    """It serves, and everything it was told is on its disk."""
    journal = tenant.journal
    return tenant.available and journal.health.state is StoreState.UP and journal.pending_bytes == 0


def compare(tenant: StoreTenant, replay: Callable[[Tenant], None], now: int) -> Iterator[str]:
    """One sentence for each thing that a restart would change. `replay` tells another tenant all that the journal of this one holds."""
    told = StoreTenant(Unplugged("it is only looked at"), 1, now, Roll(), 0)
    for entity, rows in tenant.rows.items():
        sessions = None if rows.sessions is None else SessionTable()
        twin = told.rows[entity] = Rows(entity, told.backing, sessions, rows.counts_deliveries, rows.base)
        if rows.history is not None:
            twin.history = DuplicateHistory(rows.history.window_ms)
    replay(told)
    for entity, rows in tenant.rows.items():
        twin = told.rows[entity]
        twin.replay_ended()
        queue = tenant.queues[entity]
        for difference in _differences(rows, twin, isinstance(queue, Topic), now):
            yield f"'{queue.path}' ({entity:#x}): {difference}"


def _differences(live: Rows, told: Rows, is_topic: bool, now: int) -> Iterator[str]:
    for seq in sorted({*live.index.seqs_from(0, live.index.total), *told.index.seqs_from(0, told.index.total)}):
        mine, other = _row(live, seq, now), _row(told, seq, now)
        if live.index.state(seq) == MOVING and other is not None:
            other = (mine or other)[:1] + other[1:]  # where to is decided, and not told yet
        if mine != other:
            yield f"row {seq} (state, count, location, enqueued, expires, size, session) is {mine}, replayed {other}"
    # What no subscription wants passes through a topic without a fact.
    if told.next_seq > live.next_seq or (told.next_seq != live.next_seq and not is_topic):
        yield f"the next number is {live.next_seq}, replayed {told.next_seq}"
    if _sessions(live) != _sessions(told):
        yield f"sessions (state, messages) are {_sessions(live)}, replayed {_sessions(told)}"
    leases = _leases(live), _leases(told)
    if leases[0] != leases[1]:
        yield f"leases are {leases[0]}, replayed {leases[1]}"
    if live.history is not None and told.history is not None:
        seen, replayed = live.history.ids(now), told.history.ids(now)
        if replayed - seen or (seen - replayed and not is_topic):
            yield f"ids seen are not those replayed: {sorted(seen ^ replayed)[:3]}"


def _row(rows: Rows, seq: int, now: int) -> tuple[object, ...] | None:
    index = rows.index
    state = index.state(seq)
    if not state:
        return None
    state = READY if state == LOCKED else DEFERRED if state == DEFERRED_LOCKED else state
    if state == DELAYED and rows.delayed_until.get(seq, 0) <= now:
        state = READY  # time passes without a fact
    session = rows.session_of(seq)
    expires_at, size = index.expires_at(seq), index.size(seq)
    session_id = None if session is None else session.id
    return state, index.count(seq), index.location(seq), index.enqueued_at(seq), expires_at, size, session_id


def _sessions(rows: Rows) -> dict[str, tuple[bytes | None, int]]:
    sessions = {} if rows.sessions is None else rows.sessions.by_id
    return {session.id: (session.state, session.total) for session in sessions.values() if session.state is not None or session.total}


def _leases(rows: Rows) -> dict[str, tuple[int, list[int]]]:
    return {lease.id: (lease.expires_at, list(filter(None, lease.journaled()))) for lease in rows.leases.values()}
