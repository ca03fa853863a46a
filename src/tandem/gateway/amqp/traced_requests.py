"""Requests with tracing: a span for each message that is read or settled over a management node and carries a trace context."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from tandem.gateway.amqp.leases import LeaseOperations, numbers
from tandem.gateway.amqp.management import DISPOSITIONS, ManagementNode, Operation
from tandem.gateway.amqp.requests import Reply, need
from tandem.gateway.verbs import SETTLEMENT_NAMES
from tandem.gateway.views import application_properties_of
from tandem.gateway.waiting import messages_of
from tandem.tracing import MessageSpans, trace_parent

if TYPE_CHECKING:
    from tandem.broker.queue.entity import Entity
    from tandem.gateway.amqp.connection import PeerConnection
    from tandem.model.address import Address
    from tandem.model.message import Message

_MS = 1_000_000


async def _settling(tracing: MessageSpans, connection: PeerConnection, queue: Entity, wanted: dict[int, str]) -> list[object]:
    """`settle` of each of these that carries a context; `wanted` says by sequence number how. A new turn has begun when it returns."""
    there = [seq for seq in wanted if seq and queue.part_of(seq).index.state(seq)]
    messages = await messages_of(queue, there)
    connection.turn.begin()
    spans: list[object] = []
    for seq, message in zip(there, messages, strict=True):
        parent = trace_parent(application_properties_of(message.bare)) if message is not None else ""
        if parent:
            spans.append(tracing.start("settle", parent, queue.path, None, settlement=wanted[seq], sequence_number=seq))
    return spans


async def _ended(tracing: MessageSpans, spans: list[object], answer: Awaitable[Reply]) -> Reply:
    """The answer comes when what was asked is durable, or says why it was refused: the spans end with it."""
    error: BaseException | None = None
    try:
        return await answer
    except BaseException as raised:
        error = raised
        raise
    finally:
        for span in spans:
            tracing.end(span, error)


class TracedManagementNode(ManagementNode):
    """`settle`: from the request until it is durable."""

    def __init__(self, connection: PeerConnection, address: Address, leases: LeaseOperations, tracing: MessageSpans) -> None:
        super().__init__(connection, address, leases)
        self._tracing = tracing

    async def _update_disposition(self, body: dict[object, object]) -> Reply:
        how = SETTLEMENT_NAMES.get(DISPOSITIONS.get(need(body, "disposition-status", str), -1), "?")
        wanted = {lock.seq: how for lock in self._locks(body)}
        spans = await _settling(self._tracing, self.connection, self._queue, wanted)
        return await _ended(self._tracing, spans, super()._update_disposition(body))


class TracedLeases(LeaseOperations):
    """`deliver`: what is read of a lease; `settle`: what is completed, given back or dead-lettered."""

    def __init__(self, connection: PeerConnection, address: Address, tracing: MessageSpans) -> None:
        super().__init__(connection, address)
        self._tracing = tracing

    def _was_read(self, queue: Entity, found: list[tuple[int, Message]]) -> None:
        now = self._connection.turn.now
        for seq, message in found:
            parent = trace_parent(application_properties_of(message.bare))
            if parent:
                index = queue.part_of(seq).index
                began = min(index.enqueued_at(seq), now) * _MS
                count = index.count(seq) + 1
                span = self._tracing.start("deliver", parent, queue.path, began, sequence_number=seq, delivery_count=count)
                self._tracing.end(span, None, now * _MS)

    async def settle_part(self, body: dict[object, object]) -> Reply:
        limits = self._connection.context.limits
        wanted = dict.fromkeys(numbers(body, "completed", limits), "complete")
        wanted |= dict.fromkeys(numbers(body, "returned", limits), "abandon")
        wanted |= {seq: "dead-letter" for seq, _, _ in self._dead_letters(body)}
        spans = await _settling(self._tracing, self._connection, self._queue, wanted)
        return await _ended(self._tracing, spans, super().settle_part(body))

    async def complete(self, body: dict[object, object]) -> Reply:
        return await self._whole(body, "complete", super().complete)

    async def abandon(self, body: dict[object, object]) -> Reply:
        return await self._whole(body, "abandon", super().abandon)

    async def _whole(self, body: dict[object, object], how: str, ask: Operation) -> Reply:
        lease = self._queue.leases.find(need(body, "lease-id", str), self._connection.turn.now)
        spans = await _settling(self._tracing, self._connection, self._queue, dict.fromkeys(lease.seqs, how))
        return await _ended(self._tracing, spans, ask(body))
