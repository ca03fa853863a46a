"""Pings every socket once per round, a few at a time: thousands of them cost the loop no noticeable pause."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from tandem.relay.socket import RelaySocket

_STEPS_PER_ROUND: Final = 120
_GRACE_STEPS: Final = 50


class Pulse:
    """Runs while there is anybody to ping."""

    def __init__(self, round_ms: int) -> None:
        self._step_seconds = round_ms / 1000 / _STEPS_PER_ROUND
        self._sockets: deque[RelaySocket] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        """Sockets whose turn has come, with the fraction that is left for the next step."""

    def add(self, socket: RelaySocket) -> None:
        self._sockets.append(socket)
        if self._timer is None:
            self._again()

    async def close_all(self, code: int, reason: str, grace_seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        sockets = [socket for socket in self._sockets if not socket.lost]
        for socket in sockets:
            socket.close(code, reason)
        for _ in range(_GRACE_STEPS):
            if all(socket.lost for socket in sockets):
                break
            await asyncio.sleep(grace_seconds / _GRACE_STEPS)
        for socket in sockets:
            socket.abort()
        self._sockets.clear()

    def _again(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._step_seconds, self._step)

    def _step(self) -> None:
        self._timer = None
        self._due += len(self._sockets) / _STEPS_PER_ROUND
        turns, self._due = min(int(self._due), len(self._sockets)), self._due % 1.0
        for _ in range(turns):
            socket = self._sockets.popleft()
            if not socket.lost:
                socket.ping()
                self._sockets.append(socket)
        if self._sockets:
            self._again()
