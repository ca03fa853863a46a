"""Relaying's share of the event loop: so much per round, then everybody else has a turn; queues share the loop with it."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol

ROUND_COST_MAX: Final = 1_048_576
"""Bytes of one round of the loop, about a millisecond of it."""
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
