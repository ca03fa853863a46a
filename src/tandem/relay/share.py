"""Relaying's share of the event loop: so much per round, then everybody else has a turn; queues share the loop with it."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol

ROUND_COST_MAX: Final = 262_144
"""Bytes of one round of the loop, a few tenths of a millisecond of it: a queue's work of that round waits no longer."""
PIECE_COST: Final = 2_048
"""What a frame costs beside its bytes, in bytes."""
_NOTED_FROM: Final = 65_536
"""Less than this is not worth a call of the loop: it may count for a later round."""


class TakesTurns(Protocol):
    def take_turn(self) -> None: ...


class LoopShare:
    """Sockets spend from it; one that finds nothing left waits for its turn, first come, first served."""

    def __init__(self) -> None:
        self._spent = 0
        self._waiting: deque[TakesTurns] = deque()
        self._scheduled = False

    @property
    def is_used_up(self) -> bool:
        return self._spent >= ROUND_COST_MAX

    def spend(self, cost: int) -> None:
        self._spent += cost
        if self._spent > _NOTED_FROM and not self._scheduled:
            self._schedule()

    def wait(self, socket: TakesTurns) -> None:
        """`take_turn` is called in one of the next rounds; once for each `wait`."""
        self._waiting.append(socket)
        if not self._scheduled:
            self._schedule()

    async def turn(self, cost: int) -> None:
        """For those who carry bytes in a task: returns when it is theirs to spend so much."""
        if self.is_used_up or self._waiting:
            waiting = _TaskTurn(self, cost)
            self.wait(waiting)
            await waiting.came
        else:
            self.spend(cost)

    def _schedule(self) -> None:
        self._scheduled = True
        asyncio.get_running_loop().call_soon(self._round)

    def _round(self) -> None:
        self._scheduled = False
        self._spent = 0
        for _ in range(len(self._waiting)):
            if self.is_used_up:
                break
            self._waiting.popleft().take_turn()
        if self._waiting and not self._scheduled:
            self._schedule()


class _TaskTurn:
    def __init__(self, share: LoopShare, cost: int) -> None:
        self.came: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._share = share
        self._cost = cost

    def take_turn(self) -> None:
        if not self.came.done():
            self._share.spend(self._cost)
            self.came.set_result(None)
