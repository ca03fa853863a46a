"""Bridges from the broker's effects to `await`: for the few things that are not on the hot path."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tandem.broker.journal import Effect
from tandem.broker.state import Loaded

if TYPE_CHECKING:
    from tandem.broker.queue import Queue
    from tandem.model.message import Message


class Durable(Effect):
    """`await durable.future` once it is registered."""

    __slots__ = ("future",)

    def __init__(self) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(self, error: BaseException | None) -> None:
        if not self.future.done():
            if error is None:
                self.future.set_result(None)
            else:
                self.future.set_exception(error)


class _Messages(Loaded):
    __slots__ = ("future",)

    def __init__(self) -> None:
        self.future: asyncio.Future[list[Message | None]] = asyncio.get_running_loop().create_future()

    def loaded(self, messages: list[Message | None], error: BaseException | None) -> None:
        if not self.future.done():
            if error is None:
                self.future.set_result(messages)
            else:
                self.future.set_exception(error)


async def durable(queue: Queue) -> None:
    """Return once everything this queue has appended so far is on disk."""
    effect = Durable()
    queue.when_durable(effect)
    await effect.future


async def messages_of(queue: Queue, seqs: list[int]) -> list[Message | None]:
    """The messages behind these sequence numbers; None where one left meanwhile."""
    if not seqs:
        return []
    wanted = _Messages()
    queue.load(seqs, wanted)
    return await wanted.future
