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


async def look_around(
    secondary: NamespaceTransport, receiver: Receiver, all_queues: Sequence[str], messages: Sequence[DivertedMessage]
) -> tuple[Earlier, set[int]]:
    """What stands before these in their own queue, and which of them have to wait for another queue."""
    earlier = await _look_before(receiver, [message.sequence_number for message in messages])
    waiting: set[int] = set()
    for name, concerned in others(receiver.path, all_queues, [message for message in messages if message.destination.after]).items():
        waiting |= await _look_into(secondary, name, OtherQueue(name, receiver.path, concerned))
    return earlier, waiting


async def _look_before(receiver: Receiver, sequence_numbers: Collection[int]) -> Earlier:
    search = GapSearch(sequence_numbers)
    while search.start:
        search.see(await receiver.browse(search.start, search.page, _TIMEOUT_SECONDS))
    return search.result()


async def _look_into(secondary: NamespaceTransport, name: str, other: OtherQueue) -> set[int]:
    receiver = secondary.receiver(name)
    try:
        while other.start:
            other.see(await receiver.browse(other.start, PAGE, _TIMEOUT_SECONDS))
    except ServiceBusError as error:
        log.info("%s cannot be looked into: %s", name, error)
        other.unknown()
    finally:
        await receiver.close()
    return other.waiting
