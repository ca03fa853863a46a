"""Looking at the messages of an entity or sub-queue: page by page by sequence number, filtered; each answer costs bounded work."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from tandem.broker.queue.index import DEFERRED, DEFERRED_LOCKED, DELAYED, LEASED, LOCKED, READY, SCHEDULED
from tandem.broker.rules.rules import compile_filter
from tandem.broker.rules.sql_values import RuleEvaluationError
from tandem.gateway.http.api.calls import SEQ_MAX
from tandem.gateway.http.api.message_lines import STATE_NAMES, body_of, instant, line_of, summary_of, whole_of
from tandem.gateway.http.types import PASSIVE
from tandem.gateway.views import decoded_as_far_as_possible, view_of_message
from tandem.gateway.waiting import messages_of
from tandem.model.entity import Right, SqlFilter
from tandem.model.errors import ArgumentRefused, MessageNotFound

if TYPE_CHECKING:
    from tandem.broker.queue.entity import Entity
    from tandem.gateway.http.api.calls import ApiCall
    from tandem.model.message import Message

PAGE_MAX: Final = 500
SCANNED_MAX: Final = 5_000
"""Messages looked at for one answer; a reader who wants more asks again, from where it ended."""
LOADED_BYTES_MAX: Final = 16_777_216
LARGE_BYTES: Final = 4_194_304
"""Such a message is listed without being read; a filter that looks inside passes over it, and the answer says how many there were."""
_SLICE: Final = 100
_SCAN_MS_MAX: Final = 250
_STATES: Final = {
    "active": (READY, LOCKED, DELAYED),
    "locked": (LOCKED, DEFERRED_LOCKED),
    "scheduled": (SCHEDULED,),
    "deferred": (DEFERRED, DEFERRED_LOCKED),
    "leased": (LEASED,),
}


@dataclass(slots=True)
class MessagePage:
    found: list[tuple[int, Message | None]]
    """None: too large to be read for a listing."""
    next: int | None
    """Where to go on; None at the end."""
    scanned: int
    unread: int = 0
    """Of those, too large to be read: nobody looked whether the filter fits them."""


class Wanted:
    """Which messages are meant: {state, session, where, text, before_ms}."""

    def __init__(self, call: ApiCall) -> None:
        state = call.argument("state", str, "")
        if state and state not in _STATES:
            raise ArgumentRefused(f"'state' must be one of {', '.join(_STATES)}, found {state[:40]!r}")
        self.states = _STATES.get(state, ())
        self.session = call.argument("session", str, "") or None
        self._text = call.argument("text", str, "").casefold()
        where = call.argument("where", str, "").strip()
        self._filter = compile_filter(SqlFilter(expression=where), call.context.limits) if where else None
        self.before_ms = call.number_of("before_ms", 0, 1 << 60, 0)

    @property
    def looks_inside(self) -> bool:
        return bool(self._text) or self._filter is not None

    def holds(self, queue: Entity, seq: int, message: Message) -> bool:
        if self._filter is not None and not self._matches(queue, seq, message):
            return False
        return not self._text or self._contains(message)

    def _matches(self, queue: Entity, seq: int, message: Message) -> bool:
        assert self._filter is not None
        rows = queue.part_of(seq).rows
        view = view_of_message(message, rows.index.enqueued_at(seq))
        view.system_properties().update(
            SequenceNumber=seq, DeliveryCount=rows.failed_deliveries(seq), State=STATE_NAMES.get(rows.index.state(seq), "")
        )
        try:
            return self._filter.matches(view)
        except RuleEvaluationError as error:
            raise ArgumentRefused(f"the filter cannot be decided for message {seq}: {error.description}") from None

    def _contains(self, message: Message) -> bool:
        decoded = decoded_as_far_as_possible(message.bare)
        for value in (*decoded.properties.values(), *decoded.application_properties.values()):
            if isinstance(value, str) and self._text in value.casefold():
                return True
        return self._text in body_of(decoded)[0].decode("utf-8", "replace").casefold()


def _numbers_in(queue: Entity, states: tuple[int, ...], start: int) -> Iterator[int]:
    """Those in one of these states: whatever else is there costs nothing."""
    for part in queue.parts():
        rows = part.rows
        at, end = max(start, rows.base + 1), rows.durable_seq + 1
        while at < end:
            at = min(rows.index.next_in_state(state, at, end) for state in states)
            if at < end:
                yield at
                at += 1


def _candidates(queue: Entity, wanted: Wanted, start: int, most: int, now: int) -> list[int]:
    if not wanted.states or wanted.session is not None:
        seqs = queue.browsing.peek(start, most, wanted.session, now)
        return [seq for seq in seqs if queue.part_of(seq).index.state(seq) in wanted.states] if wanted.states else seqs
    found: list[int] = []
    for seq in _numbers_in(queue, wanted.states, start):
        found.append(seq)
        if len(found) == most:
            break
    return found


async def scan(call: ApiCall, queue: Entity, wanted: Wanted, start: int, count: int) -> MessagePage:
    """Up to `count` that are wanted from `start` on."""
    page = MessagePage([], start, 0)
    clock = call.context.connection_clock
    until, loaded, at = clock.steady_ms() + _SCAN_MS_MAX, 0, start
    while len(page.found) < count and page.scanned < SCANNED_MAX and loaded < LOADED_BYTES_MAX and clock.steady_ms() < until:
        most = _SLICE if wanted.looks_inside else min(_SLICE, count - len(page.found))
        seqs = _candidates(queue, wanted, at, most, call.context.turn.now)
        if not seqs:
            page.next = None
            return page
        sizes = {seq: queue.part_of(seq).index.size(seq) for seq in seqs}
        small: list[int] = []
        for seq in seqs:  # no more at a time than may be in memory
            if small and loaded + sizes[seq] > LOADED_BYTES_MAX:
                break
            small.append(seq)
            loaded += sizes[seq] if sizes[seq] <= LARGE_BYTES else 0
        seqs = small
        bodies = dict(zip(seqs, await _bodies(queue, [s for s in seqs if sizes[s] <= LARGE_BYTES], seqs), strict=True))
        for seq in seqs:
            if len(page.found) == count:
                break
            at = seq + 1
            page.scanned += 1
            large = sizes[seq] > LARGE_BYTES
            if _fits(queue, wanted, seq, bodies[seq], large):
                page.found.append((seq, bodies[seq]))
            page.unread += large and wanted.looks_inside
        await asyncio.sleep(0)  # others have their turns between two slices
    page.next = at
    return page


async def _bodies(queue: Entity, small: list[int], seqs: list[int]) -> list[Message | None]:
    loaded = dict(zip(small, await messages_of(queue, small), strict=True))
    return [loaded.get(seq) for seq in seqs]


def _fits(queue: Entity, wanted: Wanted, seq: int, message: Message | None, large: bool) -> bool:
    index = queue.part_of(seq).index
    if not index.state(seq) or (wanted.before_ms and index.enqueued_at(seq) > wanted.before_ms):
        return False  # it left while others were read, or came after
    if message is None:
        return large and not wanted.looks_inside
    return wanted.holds(queue, seq, message)


def _large(queue: Entity, seq: int) -> dict[str, Any]:
    rows = queue.part_of(seq).rows
    return {
        "sequence_number": str(seq),
        "enqueued_time_utc": instant(rows.index.enqueued_at(seq)),
        "state": STATE_NAMES.get(rows.index.state(seq), "gone"),
        "delivery_count": rows.failed_deliveries(seq),
        "size_bytes": rows.index.size(seq),
        "large": True,
    }


Shown = Callable[["Entity", int, "Message"], dict[str, Any]]


def queue_of(call: ApiCall) -> Entity:
    """What the path names; a topic holds its scheduled messages."""
    address, namespace = call.address(Right.LISTEN), call.context.namespace
    return namespace.resolve(dataclasses.replace(address, management=True) if namespace.is_topic(address) else address)


async def _page(call: ApiCall, shown: Shown) -> dict[str, Any]:
    queue = queue_of(call)
    start, count = call.number_of("from", 0, SEQ_MAX, 0), call.number_of("count", 1, PAGE_MAX, 50)
    page = await scan(call, queue, Wanted(call), start, count)
    rows = [shown(queue, seq, message) if message is not None else _large(queue, seq) for seq, message in page.found]
    return {"messages": rows, "next": None if page.next is None else str(page.next), "scanned": page.scanned, "unread": page.unread}


async def browse(call: ApiCall) -> object:
    """{path, from, count, and what is wanted} -> {messages, next, scanned, unread}."""
    return await _page(call, summary_of)


async def lines(call: ApiCall) -> object:
    """The same as lines that can be sent again."""
    return await _page(call, line_of)


async def find(call: ApiCall) -> tuple[Entity, int, Message]:
    """{path, sequence_number}."""
    queue = queue_of(call)
    seq = call.number_of("sequence_number", 0, SEQ_MAX)
    gone = MessageNotFound(f"Message {seq} is not, or no longer, in '{queue.path}'.")
    if not queue.part_of(seq).index.state(seq):
        raise gone
    message = (await messages_of(queue, [seq]))[0]
    if message is None or not queue.part_of(seq).index.state(seq):
        raise gone
    return queue, seq, message


async def show(call: ApiCall) -> object:
    """One message, whole; of a long body the beginning."""
    return whole_of(*await find(call))


async def body(call: ApiCall) -> web.Response:
    """Its body alone, as bytes to be kept in a file."""
    _, seq, message = await find(call)
    content, _ = body_of(decoded_as_far_as_possible(message.bare))
    headers = PASSIVE | {"Content-Disposition": f'attachment; filename="message-{seq}.bin"', "Cache-Control": "no-store"}
    return web.Response(body=content, content_type="application/octet-stream", headers=headers)
