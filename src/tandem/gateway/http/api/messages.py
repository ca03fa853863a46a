"""Sending, sending again, removing and purging messages, a bounded number with each call; what an answer says is done, is on disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tandem.broker.queue.index import SCHEDULED
from tandem.gateway import verbs
from tandem.gateway.http.api.browsing import Wanted, queue_of, scan
from tandem.gateway.http.api.calls import SEQ_MAX
from tandem.gateway.http.api.message_lines import copy_of, message_of_line
from tandem.gateway.http.api.taking import Taken, reason_of
from tandem.gateway.views import is_decodable
from tandem.gateway.waiting import durable, messages_of
from tandem.model.address import Address, parse
from tandem.model.entity import Right
from tandem.model.errors import ArgumentRefused, BusError

if TYPE_CHECKING:
    from tandem.broker.queue.entity import Entity
    from tandem.gateway.http.api.calls import ApiCall
    from tandem.model.message import Message

CHUNK_MAX: Final = 1_000
"""Messages that one call sends, sends again or removes."""
_SKIPPED_TOLD: Final = 100
_REASON_CHARS_MAX: Final = 4_096


# --- sending


async def send(call: ApiCall) -> object:
    """{path, messages: [lines], scheduled_at_ms?} -> {sent, sequence_numbers}: all of them or none."""
    address = call.address(Right.SEND)
    given = call.argument("messages", list)
    at_ms = call.number_of("scheduled_at_ms", 1, 1 << 60) if call.body.get("scheduled_at_ms") is not None else None
    if not 0 < len(given) <= CHUNK_MAX:
        raise ArgumentRefused(f"'messages' must have 1 to {CHUNK_MAX} messages, found {len(given)}")
    messages = [_line(call, line, number, at_ms) for number, line in enumerate(given, 1)]
    entity = call.context.namespace.resolve_sender(address)
    placed = verbs.send_all(entity, messages, call.context.turn.begin())
    await durable(entity)
    return {"sent": len(placed), "sequence_numbers": [str(one.seq) for one in placed]}


def _line(call: ApiCall, line: Any, number: int, at_ms: int | None) -> Message:
    if not isinstance(line, dict):
        raise ArgumentRefused(f"message {number}: a JSON object is expected")
    try:
        return message_of_line(call.context, line, at_ms)
    except BusError as error:
        error.reword(f"message {number}: {error.description}")
        raise


# --- sending again


def home_of(address: Address) -> str:
    """Where messages for it are sent to: a subscription's go to its topic."""
    parts = address.topic_and_subscription
    return parts[0] if parts is not None else address.entity


async def resubmit(call: ApiCall) -> object:
    """{path, sequence_numbers | from, count, and what is wanted; to?, changes?, dry_run?} -> {done, skipped, next, unread}.

    Each is sent again without what made it a dead letter, under its own id, and completed only after its copy is on disk."""
    address = call.address(Right.LISTEN)
    home = parse(call.argument("to", str, "") or home_of(address))
    call.caller.need(home.resource, Right.SEND)
    changes = call.argument("changes", dict, {})
    queue = call.context.namespace.resolve(address)
    entity = call.context.namespace.resolve_sender(home)
    chosen = await _chosen(call, queue)
    seqs = chosen.seqs
    if call.argument("dry_run", bool, False) or not seqs:
        return _done(len(seqs), {}, chosen)
    done, skipped = await _send_again(call, queue, entity, seqs, changes)
    return _done(done, skipped, chosen)


@dataclass(frozen=True, slots=True)
class Chosen:
    seqs: list[int]
    next: int | None = None
    """Where to go on."""
    unread: int = 0
    """Too large for the filter to look into: left as they are."""


async def _chosen(call: ApiCall, queue: Entity) -> Chosen:
    """Those that are named; or the next that are wanted."""
    if "sequence_numbers" in call.body:
        return Chosen(call.numbers("sequence_numbers", CHUNK_MAX))
    start, count = call.number_of("from", 0, SEQ_MAX, 0), call.number_of("count", 1, CHUNK_MAX, 200)
    page = await scan(call, queue, Wanted(call), start, count)
    return Chosen([seq for seq, _ in page.found], page.next, page.unread)


async def _send_again(call: ApiCall, queue: Entity, home: Entity, seqs: list[int], changes: dict[str, Any]) -> tuple[int, dict[int, str]]:
    turn = call.context.turn
    taken = Taken(queue, f"console-{call.server.entropy(16).hex()}")
    try:
        taken.take(seqs, turn.begin())
        held = taken.seqs
        copies: dict[int, Message] = {}
        for seq, message in zip(held, await messages_of(queue, held), strict=True):
            if message is None:
                taken.skipped[seq] = "it is gone"
            elif not is_decodable(message.bare):
                taken.skipped[seq] = "it has properties that are no AMQP: a copy would lack them"
            else:
                copies[seq] = copy_of(call.context, message, changes)
        sent = _accepted(home, copies, turn.begin(), taken.skipped)
        await durable(home)
        done = await taken.complete(sent, turn.begin()) if sent else 0
    finally:
        await taken.give_back(turn.begin())
    return done, taken.skipped


def _accepted(home: Entity, copies: dict[int, Message], now: int, skipped: dict[int, str]) -> list[int]:
    """All at once; if one of them stands in the way, one by one."""
    if not copies:
        return []
    try:
        verbs.send_all(home, list(copies.values()), now)
    except BusError:
        sent = []
        for seq, message in copies.items():
            try:
                verbs.send_all(home, [message], now)
            except BusError as error:
                skipped[seq] = reason_of(error)
            else:
                sent.append(seq)
        return sent
    return list(copies)


def _done(count: int, skipped: dict[int, str], chosen: Chosen) -> dict[str, Any]:
    told = [{"sequence_number": str(seq), "reason": reason} for seq, reason in list(skipped.items())[:_SKIPPED_TOLD]]
    next_seq = None if chosen.next is None else str(chosen.next)
    return {"done": count, "skipped": told, "skipped_total": len(skipped), "next": next_seq, "unread": chosen.unread}


# --- removing


async def remove(call: ApiCall) -> object:
    """{path, sequence_numbers | from, count, and what is wanted} -> as `resubmit`. Scheduled ones are cancelled, others completed."""
    queue = queue_of(call)
    chosen = await _chosen(call, queue)
    seqs = chosen.seqs
    now = call.context.turn.begin()
    scheduled = [seq for seq in seqs if queue.part_of(seq).index.state(seq) == SCHEDULED]
    if scheduled:
        queue.browsing.cancel_scheduled(scheduled, now)
        await durable(queue)
    others = [seq for seq in seqs if seq not in set(scheduled)]
    if not others:
        return _done(len(scheduled), {}, chosen)
    taken = Taken(queue, f"console-{call.server.entropy(16).hex()}")
    try:
        taken.take(others, call.context.turn.begin())
        done = await taken.complete(taken.seqs, call.context.turn.begin()) if taken.seqs else 0
    finally:
        await taken.give_back(call.context.turn.begin())
    return _done(done + len(scheduled), taken.skipped, chosen)


async def cancel(call: ApiCall) -> object:
    """{path, sequence_numbers}: scheduled messages of a queue or a topic, all or none. Whoever may send may take it back."""
    address = call.address(Right.SEND)
    entity = call.context.namespace.resolve_sender(address)
    seqs = call.numbers("sequence_numbers", CHUNK_MAX)
    entity.browsing.cancel_scheduled(seqs, call.context.turn.begin())
    await durable(entity)
    return _done(len(seqs), {}, Chosen(seqs))


async def dead_letter(call: ApiCall) -> object:
    """{path, sequence_numbers, reason, description}."""
    queue = call.context.namespace.resolve(call.address(Right.LISTEN))
    seqs = call.numbers("sequence_numbers", CHUNK_MAX)
    reason = call.argument("reason", str, "")[:_REASON_CHARS_MAX]
    description = call.argument("description", str, "")[:_REASON_CHARS_MAX]
    taken = Taken(queue, f"console-{call.server.entropy(16).hex()}")
    try:
        taken.take(seqs, call.context.turn.begin())
        done = await taken.dead_letter(reason, description, call.context.turn.begin())
    finally:
        await taken.give_back(call.context.turn.begin())
    return _done(done, taken.skipped, Chosen(seqs))


async def purge(call: ApiCall) -> object:
    """{path, before_ms?, session?} -> {done, before_ms, finished}: the next few thousand active messages that were there at `before_ms`."""
    queue = call.context.namespace.resolve(call.address(Right.LISTEN))
    now = call.context.turn.begin()
    before = call.number_of("before_ms", 1, 1 << 60, now)
    most = call.context.limits.batch_delete_messages_max
    removed = queue.browsing.purge(before, most, now, call.argument("session", str, "") or None)
    if removed:
        await durable(queue)
    return {"done": removed, "before_ms": before, "finished": removed < most}
