"""Where an outbox delivers to: one sender for each entity, as many as are kept open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from azure.servicebus.amqp import AmqpAnnotatedMessage

from tandem.client.sdk import as_namespace


@dataclass(slots=True, eq=False)
class _Open:
    sender: Any
    is_seam: bool
    """One of ours: no sender of the SDK, nor one that looks like it."""
    sends: int = 0
    """Under way."""

    async def send(self, outgoing: Any, timeout: float) -> None:
        self.sends += 1
        try:
            await (self.sender.send(outgoing, timeout) if self.is_seam else self.sender.send_messages(outgoing, timeout=timeout))
        finally:
            self.sends -= 1


class OutboxTarget:
    """Senders are kept while they are used: each has a connection of its own, and an outbox may have thousands of destinations."""

    def __init__(self, target: Any, sdk_options: dict[str, Any] | None, senders_max: int) -> None:
        self._maker: Any = target
        self._namespace: Any = None
        if isinstance(target, str) or not hasattr(target, "get_queue_sender") or type(target).__module__.startswith("azure."):
            self._namespace = as_namespace(target, sdk_options)
        self._owned = isinstance(target, str)
        self._senders_max = senders_max
        self._senders: dict[str, _Open] = {}
        """The one that was used longest ago comes first."""

    async def deliver(self, entity: str, messages: list[AmqpAnnotatedMessage], timeout: float) -> None:
        outgoing: Any = messages if len(messages) > 1 else messages[0]
        await self._make_room(entity)
        made = self._senders.pop(entity, None) or self._make(entity)
        self._senders[entity] = made
        await made.send(outgoing, timeout)

    def _make(self, entity: str) -> _Open:
        if self._namespace is not None:
            return _Open(self._namespace.sender(entity), True)
        return _Open(self._maker.get_queue_sender(entity), False)

    async def _make_room(self, entity: str) -> None:
        if entity in self._senders or len(self._senders) < self._senders_max:
            return
        oldest = next((name for name, made in self._senders.items() if not made.sends), None)
        if oldest is not None:
            await self._senders.pop(oldest).sender.close()

    async def close(self) -> None:
        for made in self._senders.values():
            await made.sender.close()
        self._senders.clear()
        if self._owned:
            await self._namespace.close()
