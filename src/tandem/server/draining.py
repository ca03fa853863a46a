"""A broker on its way out: nothing new begins, what clients have in hand is finished, and everybody is asked to go elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tandem.broker.ports import Journal
from tandem.gateway.waiting import Durable
from tandem.model.errors import StoreUnavailable, shutting_down

if TYPE_CHECKING:
    from tandem.server.context import NamespaceContext

_LOOK_EVERY_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class Drained:
    """How it went."""

    seconds: float
    in_hand: int
    """Deliveries that receivers had and had not settled when it began."""
    given_up: int
    """Of those: not settled in time. Their locks end with this broker, and they are delivered again."""

    def __str__(self) -> str:
        left = f", {self.given_up} given up" if self.given_up else ""
        return f"drained in {self.seconds:.2f} s: {self.in_hand - self.given_up} of {self.in_hand} deliveries in hand were settled{left}"


async def drain(contexts: list[NamespaceContext], journals: list[Journal], run_turn: Callable[[], None], seconds: float) -> Drained:
    """At most so long. Sends and links that come meanwhile are refused in a way that makes clients try again; what was taken before is
    answered, and a connection is closed as soon as nothing is left to finish on it."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    for context in contexts:
        context.begin_draining()
    at_first = left = sum(client.unsettled_count() for context in contexts for client in context.connections)
    await asyncio.gather(*(context.finish_requests(min(1.0, seconds)) for context in contexts))
    while True:
        idle = [client for context in contexts for client in context.connections if not client.unsettled_count()]
        run_turn()
        await _durable(journals, began + seconds - loop.time())
        for client in idle:
            client.close(shutting_down())
        run_turn()
        left = sum(client.unsettled_count() for context in contexts for client in context.connections)
        if not left or loop.time() - began >= seconds:
            return Drained(loop.time() - began, at_first, min(left, at_first))
        await asyncio.sleep(_LOOK_EVERY_SECONDS)


async def _durable(journals: list[Journal], seconds: float) -> None:
    """Whoever waits for the disk is answered; a disk that does not answer is not waited for."""
    waits: list[Durable] = []
    for journal in journals:
        effect = Durable()
        try:
            journal.when_durable(effect)
        except StoreUnavailable:
            continue  # its clients have been told
        journal.flush()
        waits.append(effect)
    if waits:
        await asyncio.wait([wait.future for wait in waits], timeout=max(seconds, 0.01))
