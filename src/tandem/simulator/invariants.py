"""What must hold inside a broker between any two of its turns: counts add up, a lock has one holder, numbers only grow."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tandem.broker.entities.namespace import Namespace
from tandem.broker.ports import IN_SERVICE
from tandem.broker.queue.index import BITS, DEFERRED_LOCKED, LEASED, LOCKED, SCHEDULED, STATES
from tandem.broker.queue.queue import Queue

_ROWS = re.compile(rb"[^\0]+")


def check_namespace(namespace: Namespace) -> Iterator[str]:
    """One sentence for each thing that is wrong."""
    for number, tenant in enumerate(namespace.stores):
        if not tenant.available or tenant.journal.health.state not in IN_SERVICE:
            continue  # what failed half-way with its journal is thrown away with the rest
        for queue in tenant.queues.values():
            for fault in check_queue(queue):
                yield f"store-{number} '{queue.path}' ({queue.entity_id:#x}): {fault}"
        held = sum(queue.rows.hot_bytes for queue in tenant.queues.values())
        if tenant.backing.used_bytes < held:
            yield f"store-{number}: queues keep {held} bytes in memory, the budget knows of {tenant.backing.used_bytes}"


def check_queue(queue: Queue) -> Iterator[str]:
    index = queue.index
    counted = [0] * STATES
    size = 0
    last = 0
    for chunk_number, chunk in index.chunks.items():
        live = 0
        for run in _ROWS.finditer(chunk.states):
            live += run.end() - run.start()
            size += sum(chunk.sizes[run.start() : run.end()])
            last = max(last, chunk_number << BITS | run.end() - 1)
            for state in run[0]:
                counted[state] += 1
        if live != chunk.live:
            yield f"a chunk says {chunk.live} rows, it has {live}"
    if counted[1:] != index.by_state[1:]:
        yield f"rows per state are {counted[1:]}, counted as {index.by_state[1:]}"
    if sum(counted) != index.total or index.total != queue.counts().total:
        yield f"{sum(counted)} rows, counted as {index.total}"
    counts = queue.counts()
    if counts.active + counts.deferred + counts.scheduled + counts.leased != counts.total:
        parts = f"active {counts.active} + deferred {counts.deferred} + scheduled {counts.scheduled} + leased {counts.leased}"
        yield f"{parts} is not {counts.total}"
    if size != index.size_bytes:
        yield f"bodies have {size} bytes, counted as {index.size_bytes}"
    if last >= queue.rows.next_seq:
        yield f"the next number is {queue.rows.next_seq}, and {last} is taken"
    yield from _check_locks(queue, counted)
    leased = [seq for lease in queue.rows.leases.values() for seq in lease.seqs if seq and index.state(seq) == LEASED]
    if len(leased) != len(set(leased)) or len(leased) != counted[LEASED]:
        yield f"{counted[LEASED]} rows are leased, leases hold {len(leased)}"
    waiting = {seq for _, seq in queue.rows.scheduled if index.state(seq) == SCHEDULED}
    if len(waiting) > counted[SCHEDULED]:  # fewer while the bodies of those that are due are being read
        yield f"{counted[SCHEDULED]} rows are scheduled, {len(waiting)} have a time"


def _check_locks(queue: Queue, counted: list[int]) -> Iterator[str]:
    held: dict[int, int] = {}
    for lock in queue.locks.by_seq.values():
        held[lock.seq] = held.get(lock.seq, 0) + 1
        if not lock.held:
            yield f"a lock on {lock.seq} is in the table and not held"
    for seq, holders in held.items():
        if holders > 1:
            yield f"message {seq} has {holders} lock holders"
    locked = sum(queue.index.state(seq) in (LOCKED, DEFERRED_LOCKED) for seq in held)
    if locked != counted[LOCKED] + counted[DEFERRED_LOCKED]:
        yield f"{counted[LOCKED] + counted[DEFERRED_LOCKED]} rows are locked, {locked} of them by somebody"
