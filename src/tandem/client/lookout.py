"""Looks into backlog queues for a syphon of this process; what to look for, and what follows from it, is `precedence`."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

from azure.servicebus.exceptions import ServiceBusError

from tandem.client.precedence import PAGE, Earlier, GapSearch, OtherQueue, Permission, Standing, others

if TYPE_CHECKING:
    from tandem.client.transport import Namespace, Receiver

log = logging.getLogger("tandem.client.order")

_TIMEOUT_SECONDS: Final = 10.0


async def ask_permission(
    secondary: Namespace, receiver: Receiver, all_queues: Sequence[str], lanes: Sequence[Sequence[Standing]], numbers: Collection[int]
) -> Permission:
    """Look before and elsewhere, as far as the messages of these lanes, one of each session, ask for it."""
    permission = Permission(await _look_before(receiver, numbers))
    marked = [standing for lane in lanes for standing in lane if standing.after]
    for name, standings in others(receiver.path, all_queues, marked).items():
        permission.waiting |= await _look_into(secondary, name, OtherQueue(name, receiver.path, standings))
    return permission


async def _look_before(receiver: Receiver, sequence_numbers: Collection[int]) -> Earlier:
    search = GapSearch(sequence_numbers)
    while search.start:
        search.see(await receiver.browse(search.start, search.page, _TIMEOUT_SECONDS))
    return search.result()


async def _look_into(secondary: Namespace, name: str, other: OtherQueue) -> set[int]:
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
