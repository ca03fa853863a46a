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
                self.future.exception()  # of several that fail together one is awaited; the others are no news


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


class Gate:
    """Lets a few at a time through, and nobody while the peer does not read: what waits here costs a request, not an answer."""

    def __init__(self, most: int) -> None:
        self.unwritten = 0
        """Answers given that still stand in our own buffer."""
        self._most = most
        self._inside = 0
        self._open = True
        self._waiting: list[asyncio.Future[None]] = []

    async def enter(self) -> None:
        while self._inside + self.unwritten >= self._most or not self._open:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn
        self._inside += 1

    def leave(self) -> None:
        self._inside -= 1
        self.unwritten += 1

    def written(self) -> None:
        self.unwritten = 0
        self._wake()

    def set_open(self, is_open: bool) -> None:
        self._open = is_open
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for turn in waiting:
            if not turn.done():
                turn.set_result(None)


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
