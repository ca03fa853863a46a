"""Bridges from the broker's effects to `await`: for the few things that are not on the hot path."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from tandem.broker.ports import Effect, Loaded
from tandem.model.errors import BusError

if TYPE_CHECKING:
    from tandem.broker.queue.entity import Entity
    from tandem.model.message import Message

_T = TypeVar("_T")


async def to_the_end(work: Coroutine[Any, Any, _T] | asyncio.Future[_T]) -> _T:
    """Whoever goes away leaves nothing half way: the work goes on, heard or not."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(_unheard)
        raise


def _unheard(task: asyncio.Future[Any]) -> None:
    """A refusal is of no interest to who has gone; anything else is told, as nobody is left who would."""
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, (BusError, OSError)):
        task.get_loop().call_exception_handler({"message": "a request failed after its client had gone", "exception": error})


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
        self._gone = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def enter(self) -> None:
        if not self._waiting and self._has_place():
            self._inside += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn  # whoever wakes us has given us the place
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._inside -= 1
                self._wake()
            raise

    def leave(self) -> None:
        self._inside -= 1
        self.unwritten += 1

    def written(self) -> None:
        self.unwritten = 0
        self._wake()

    def set_open(self, is_open: bool) -> None:
        self._open = is_open
        self._wake()

    def abandon(self) -> None:
        """The peer is gone: whoever waits may go in, and finds nobody to answer."""
        self._gone = True
        self._wake()

    def _has_place(self) -> bool:
        return self._gone or (self._open and self._inside + self.unwritten < self._most)

    def _wake(self) -> None:
        """As many as there are places: waking all for a few would make the n-th that waits cost n."""
        while self._waiting and self._has_place():
            turn = self._waiting.popleft()
            if not turn.done():
                self._inside += 1
                turn.set_result(None)


async def durable(queue: Entity) -> None:
    """Return once everything this queue has appended so far is on disk."""
    effect = Durable()
    queue.when_durable(effect)
    await effect.future


async def messages_of(queue: Entity, seqs: list[int]) -> list[Message | None]:
    """The messages behind these sequence numbers; None where one left meanwhile."""
    if not seqs:
        return []
    wanted = _Messages()
    queue.browsing.load(seqs, wanted)
    return await wanted.future
