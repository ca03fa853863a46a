"""What a client may do to an entity, through whichever door: all is checked first, then done, counted and given to the disk.

A verb returns, or tells the effect it was given, what has to be on disk before the client hears that it was done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tandem.broker.meters import RELEASED, SETTLE
from tandem.broker.ports import Effect
from tandem.broker.queue.index import DEFERRED, DEFERRED_LOCKED, SCHEDULED
from tandem.broker.recovery.steps import ABANDON as ABANDON
from tandem.broker.recovery.steps import COMPLETE as COMPLETE
from tandem.broker.recovery.steps import DEAD_LETTER as DEAD_LETTER
from tandem.broker.recovery.steps import DEFER as DEFER
from tandem.gateway.waiting import Durable, durable, messages_of
from tandem.model.errors import MessageNotFound

if TYPE_CHECKING:
    from tandem.broker.queue.entity import Entity, Placement
    from tandem.broker.queue.locks import Lock
    from tandem.model.address import Address
    from tandem.model.message import Message
    from tandem.server.context import NamespaceContext

RELEASE: Final = 4
"""Given back as if it had not been delivered: a kind of settlement, beside COMPLETE, ABANDON, DEFER and DEAD_LETTER."""
SETTLEMENT_NAMES: Final = {COMPLETE: "complete", ABANDON: "abandon", DEFER: "defer", DEAD_LETTER: "dead-letter", RELEASE: "release"}
NOTHING: Final = Effect()
"""Nobody waits: the disk is told all the same."""


def send(entity: Entity, message: Message, now: int) -> Placement:
    """One message. Returns where it went."""
    placed = entity.enqueue(message, now)
    entity.access(now)
    return placed


def send_all(entity: Entity, messages: list[Message], now: int) -> list[Placement]:
    """All of them or none: each is checked, and that they fit together."""
    entity.check_sends(messages)
    placed = [entity.enqueue(message, now) for message in messages]
    entity.access(now)
    return placed


class SettlementArguments:
    """What a receiver says about a message it holds: the kind of its settlement, and what goes with it."""

    __slots__ = ("deliver_at", "description", "kind", "properties", "reason")

    def __init__(
        self, kind: int, properties: dict[str, object] | None = None, reason: str = "", description: str = "", deliver_at: int = 0
    ) -> None:
        self.kind: int = kind
        self.properties: dict[str, object] = properties if properties is not None else {}
        """Application properties to set."""
        self.reason: str = reason
        self.description: str = description
        """Why it is dead-lettered."""
        self.deliver_at: int = deliver_at
        """Before which instant an abandoned message is not delivered again."""

    def changes(self) -> dict[str, object]:
        """Everything it changes in the message, the words of a dead-lettering among it."""
        changes = dict(self.properties)
        if self.reason:
            changes["DeadLetterReason"] = self.reason
        if self.description:
            changes["DeadLetterErrorDescription"] = self.description
        return changes


COMPLETED: Final = SettlementArguments(COMPLETE)
ABANDONED: Final = SettlementArguments(ABANDON)


def settle(entity: Entity, settlement: SettlementArguments, lock: Lock, now: int, then: Effect) -> None:
    """One message. `then` is done once the disk knows. Raises what stands in the way, with nothing done."""
    part = entity.part_of(lock.seq)
    kind = settlement.kind
    if kind == COMPLETE:
        part.settlement.complete(lock, now)
        part.when_durable(then)
    elif kind == ABANDON:
        part.settlement.abandon(lock, now, settlement.deliver_at, settlement.properties, then)
    elif kind == DEFER:
        part.settlement.defer(lock, now, settlement.properties, then)
    elif kind == DEAD_LETTER:
        part.settlement.dead_letter(lock, settlement.reason, settlement.description, settlement.properties, now, then)
    else:
        part.metered(SETTLE, RELEASED)
        part.settlement.release(lock, now)
        part.when_durable(then)


def complete_run(entity: Entity, locks: list[Lock], at: int, now: int) -> int:
    """Those from `at` on that nothing stands against, in one go; returns how many, at least one. Raises what stands against the first."""
    count = entity.complete_run(locks, at, now)
    if count:
        return count
    entity.part_of(locks[at].seq).settlement.complete(locks[at], now)
    return 1


def settle_all(entity: Entity, settlement: SettlementArguments, locks: list[Lock], now: int) -> list[Durable]:
    """All of them or none. Returns what to wait for."""
    for lock in locks:
        entity.part_of(lock.seq).settlement.require(lock, now)
    waits = [Durable() for _ in locks]
    for lock, then in zip(locks, waits, strict=True):
        settle(entity, settlement, lock, now, then)
    return waits


def renew(entity: Entity, locks: list[Lock], now: int) -> list[int]:
    """All of them or none. Returns the instants until which they are held."""
    for lock in locks:
        entity.part_of(lock.seq).settlement.require(lock, now)
    return [entity.part_of(lock.seq).settlement.renew(lock, now) for lock in locks]


# -- by sequence number ----------------------------------------------------------------------


async def peek(context: NamespaceContext, address: Address, start: int, most: int, session: str | None) -> list[bytes]:
    """Messages from this number on, encoded as deliveries that nobody holds; as many as fit into an answer."""
    while True:
        entity = context.namespace.resolve(address)
        seqs = entity.browsing.peek(start, most, session, context.turn.now)
        found = await _shown(context, entity, seqs)
        if found or not seqs:
            return found
        # All of them left while they were read; nothing here would mean that nothing follows either.
        start = seqs[-1] + 1


async def _shown(context: NamespaceContext, entity: Entity, seqs: list[int]) -> list[bytes]:
    found: list[bytes] = []
    size = 0
    for seq, message in zip(seqs, await messages_of(entity, seqs), strict=True):
        rows = entity.part_of(seq).rows
        index = rows.index
        state = index.state(seq)
        if message is None or not state:
            continue
        shown = 1 if state in (DEFERRED, DEFERRED_LOCKED) else 2 if state == SCHEDULED else 0
        failed = rows.failed_deliveries(seq)
        payload = context.translator.delivery(message, seq, index.enqueued_at(seq), failed, index.expires_at(seq), None, 0, shown)
        size += len(payload)
        found.append(payload)
        if size > entity.terms.message_bytes_max:
            break
    return found


async def receive_deferred(
    context: NamespaceContext, entity: Entity, seqs: list[int], session: str | None, peek_lock: bool
) -> list[tuple[Lock, bytes]]:
    """All of them or none, encoded as deliveries: held under a lock, or removed and gone from the disk."""
    locks: list[Lock] = entity.browsing.receive_deferred(seqs, session, context.turn.now)
    found: list[tuple[Lock, bytes]] = []
    for lock, message in zip(locks, await messages_of(entity, seqs), strict=True):
        if message is None:
            raise MessageNotFound(f"A message left '{entity.path}' while it was being received.")
        index = entity.part_of(lock.seq).index
        token = lock.token if peek_lock else None
        payload = context.translator.delivery(
            message, lock.seq, index.enqueued_at(lock.seq), lock.count, index.expires_at(lock.seq), token, lock.locked_until, 1
        )
        found.append((lock, payload))
    if not peek_lock:
        now = context.turn.begin()
        for lock in locks:
            entity.part_of(lock.seq).settlement.complete(lock, now)
        await durable(entity)
    return found
