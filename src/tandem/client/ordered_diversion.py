"""Diverting messages of sessions that are kept in order: each behind the others of its session, in the queue where those are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from tandem.client.envelope import annotated, text, wrap

if TYPE_CHECKING:
    from azure.servicebus.amqp import AmqpAnnotatedMessage

    from tandem.client.session_order import PathOrder
    from tandem.client.transport import NamespaceTransport, Sender, Single

_SETTLE_SECONDS: Final = 0.002
"""After a session has changed queues: instants of its messages in both must tell them apart."""


def session_of(single: Single) -> str | None:
    properties = annotated(single).properties
    group = properties.group_id if properties is not None else None
    return text(group) if group is not None else None


def sessions_of(singles: Sequence[Single]) -> set[str]:
    return {session for session in map(session_of, singles) if session is not None}


class BacklogSenders:
    """One sender to each backlog queue in use."""

    def __init__(self, secondary: Callable[[], NamespaceTransport]) -> None:
        self._secondary = secondary
        self._senders: dict[str, Sender] = {}

    def to(self, queue: str) -> Sender:
        sender = self._senders.get(queue)
        if sender is None:
            sender = self._senders[queue] = self._secondary().sender(queue)
        return sender

    async def close(self) -> None:
        senders, self._senders = self._senders, {}
        for sender in senders.values():
            await sender.close()


class OrderedMessages:
    """What is left to divert, grouped by the queue each session belongs to; the groups change when a queue fails."""

    def __init__(self, order: PathOrder, singles: Sequence[Single], now_ms: int) -> None:
        self._order = order
        self._now_ms = now_ms
        self.left = [(session, single) for single in singles if (session := session_of(single)) is not None]
        self.sessions = {session for session, _ in self.left}
        self._moved = False

    async def next_group(self, tried: Sequence[str]) -> tuple[str, list[AmqpAnnotatedMessage]] | None:
        """(queue, wrapped messages) of the first message left and of all others that go the same way; None: no queue is left to try."""
        if self._moved:
            await asyncio.sleep(_SETTLE_SECONDS)
            self._moved = False
        first: str | None = None
        group: list[AmqpAnnotatedMessage] = []
        for session, single in self.left:
            chosen = self._order.queue_for(session, tried)
            if chosen is None:
                return None
            queue, after = chosen
            if first is None:
                first = queue
            if queue == first:
                group.append(wrap(single, self._order.path, self._now_ms, after))
        return (first, group) if first is not None else None

    def stored(self, queue: str, count: int) -> None:
        """The first `count` messages of the queue's group are safe."""
        kept = []
        for session, single in self.left:
            if count and self._order.sessions[session].queue == queue:
                count -= 1
            else:
                kept.append((session, single))
        self.left = kept

    def failed(self) -> None:
        self._moved = True
