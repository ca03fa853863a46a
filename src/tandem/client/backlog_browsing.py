"""Looks into backlog queues for a syphon of this process; what to look for, and what follows from it, is `precedence`."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

from azure.servicebus.exceptions import ServiceBusError

from tandem.client.precedence import PAGE, DivertedMessage, Earlier, GapSearch, OtherQueue, others

if TYPE_CHECKING:
    from tandem.client.transport import NamespaceTransport, Receiver

log = logging.getLogger("tandem.client.order")

_TIMEOUT_SECONDS: Final = 10.0


class BacklogBrowser:
    """Looks on behalf of one pump. Its links stay open between looks: to open and close one takes longer than to carry a batch home."""

    def __init__(self, secondary: NamespaceTransport, all_queues: Sequence[str]) -> None:
        self._secondary = secondary
        self._all_queues = all_queues
        self._receivers: dict[str, Receiver] = {}

    async def look_around(self, receiver: Receiver, messages: Sequence[DivertedMessage]) -> tuple[Earlier, set[int]]:
        """What stands before these in their own queue, and which of them have to wait for another queue."""
        earlier = await _look_before(receiver, [message.sequence_number for message in messages])
        waiting: set[int] = set()
        marked = [message for message in messages if message.destination.after]
        for name, concerned in others(receiver.path, self._all_queues, marked).items():
            waiting |= await self._look_into(name, OtherQueue(name, receiver.path, concerned))
        return earlier, waiting

    async def _look_into(self, name: str, other: OtherQueue) -> set[int]:
        receiver = self._receivers.get(name)
        if receiver is None:
            receiver = self._receivers[name] = self._secondary.receiver(name)
        try:
            while other.start:
                other.see(await receiver.browse(other.start, PAGE, _TIMEOUT_SECONDS))
        except ServiceBusError as error:
            log.info("%s cannot be looked into: %s", name, error)
            other.unknown()
        return other.waiting

    async def close(self) -> None:
        receivers, self._receivers = self._receivers, {}
        for receiver in receivers.values():
            await receiver.close()


async def _look_before(receiver: Receiver, sequence_numbers: Collection[int]) -> Earlier:
    search = GapSearch(sequence_numbers)
    while search.start:
        search.see(await receiver.browse(search.start, search.page, _TIMEOUT_SECONDS))
    return search.result()
