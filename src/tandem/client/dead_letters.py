"""Carries home what a syphon could not deliver: the dead letters of the backlog queues, when somebody has mended the reason and says so."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from azure.servicebus.exceptions import MessageLockLostError, MessagingEntityNotFoundError

from tandem.client.destinations import Trouble
from tandem.client.envelope import EnvelopeError, unwrap_payload
from tandem.client.errors import describe, trouble_with

if TYPE_CHECKING:
    from tandem.client.transport import NamespaceTransport, ReceivedDelivery, Receiver, Sender

log = logging.getLogger("tandem.client.syphon")

_BATCH = 100
_LEFT_MAX = 1_000
"""Of one queue: so many are kept in hand to get at those behind them."""
_SEND_SECONDS = 30.0


@dataclass(slots=True)
class Carried:
    """What became of the dead letters. `reasons` says why some were left where they are, and how many each."""

    moved: int = 0
    left: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    def move(self) -> None:
        self.moved += 1

    def leave(self, reason: str) -> None:
        self.left += 1
        self.reasons[reason] += 1


async def carry_home(primary: NamespaceTransport, secondary: NamespaceTransport, queues: Sequence[str], idle: float = 1.0) -> Carried:
    """Send every dead letter of these backlog queues to where it was meant to go, in order; complete it once the primary has it.

    What is refused again stays a dead letter. Raises when a namespace cannot be reached: what was moved until then is moved.
    """
    carried = Carried()
    senders: dict[str, Sender] = {}
    try:
        for queue in queues:
            receiver = secondary.receiver(f"{queue}/$DeadLetterQueue")
            try:
                await _carry_queue(primary, receiver, senders, carried, idle)
            except MessagingEntityNotFoundError as error:
                log.info("%s: %s", queue, describe(error))
            finally:
                await receiver.close()
    finally:
        for sender in senders.values():
            await sender.close()
    return carried


async def _carry_queue(primary: NamespaceTransport, receiver: Receiver, senders: dict[str, Sender], carried: Carried, idle: float) -> None:
    left: list[ReceivedDelivery] = []
    try:
        while len(left) < _LEFT_MAX:
            batch = await receiver.receive(_BATCH, idle)
            if not batch:
                return
            left += batch
            for delivery in batch:
                reason = await _send(primary, delivery, senders)
                if reason is None:
                    await receiver.complete(delivery)
                    left.remove(delivery)
                    carried.move()
                else:
                    carried.leave(reason)
    finally:
        for delivery in left:
            try:
                await receiver.abandon(delivery)
            except MessageLockLostError:
                log.debug("%s was given back by the end of its lock", delivery.message_id)


async def _send(primary: NamespaceTransport, delivery: ReceivedDelivery, senders: dict[str, Sender]) -> str | None:
    """None if the primary has it now, else why not. Raises what keeps all others from being sent, too."""
    try:
        unwrapped = unwrap_payload(delivery.payload, dead_lettered=True)
    except EnvelopeError as error:
        return f"{error.reason}: {error.description}"
    path = unwrapped.destination.path
    sender = senders.get(path)
    if sender is None:
        sender = senders[path] = primary.sender(path)
    try:
        async with asyncio.timeout(2 * _SEND_SECONDS):
            await sender.send_payloads([unwrapped.payload], _SEND_SECONDS)
    except Exception as error:
        if trouble_with(error) is Trouble.AWAY:
            raise
        return f"{path}: {describe(error)}".partition(" TrackingId:")[0]  # the rest is different for each
    return None
