"""A listener's control channel: carries commands to it, and small requests and responses both ways; lives as long as its token."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from tandem.model.clock import Clock
from tandem.model.errors import BusError
from tandem.relay.answers import AnswerReader, CommandTooLong, Exchange
from tandem.relay.close_codes import POLICY_VIOLATION, TOO_BIG
from tandem.relay.frames import Piece
from tandem.relay.socket import RelaySocket, answer_code

_TIMER_SECONDS_MAX: Final = 3_600.0
"""Clocks are set: look again at least this often."""

Renewal = Callable[[str], Awaitable[int]]
"""A token -> when it expires, in ms UTC. Raises BusError."""


class ListenerChannel:
    """Owns its socket. `base` is the `ws://host:port` under which the listener reached us: it is sent back there."""

    def __init__(self, base: str, clock: Clock, renew: Renewal, on_end: Callable[[ListenerChannel], None]) -> None:
        self.base = base
        self.exchanges: dict[str, Exchange] = {}
        """Requests it was given and has not answered."""
        self._clock = clock
        self._renew = renew
        self._on_end = on_end
        self._token = ""
        self._expires_at_ms = 0
        self._expiry: asyncio.TimerHandle | None = None
        self._renewing: set[asyncio.Task[None]] = set()
        self._waiting: set[asyncio.Future[None]] = set()
        self._answers = AnswerReader(self.exchanges.get, None, self._renew_soon)
        self.socket: RelaySocket

    def start(self, socket: RelaySocket, token: str, expires_at_ms: int) -> None:
        self.socket = socket
        self._token = token
        self._set_expiry(expires_at_ms)

    @property
    def takes_more(self) -> bool:
        return self.socket.is_open and self.socket.is_writable

    def gone(self) -> asyncio.Future[None]:
        """Done when the listener is lost; cancel it when it does not matter any more."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.socket.lost:
            future.set_result(None)
        else:
            self._waiting.add(future)
            future.add_done_callback(self._waiting.discard)
        return future

    def send_command(self, text: str) -> None:
        self.socket.send_text(text)

    def send_request(self, text: str, body: bytes | None) -> None:
        """Nothing may come between the two: clients take the next message for the body."""
        self.socket.send_text(text)
        if body is not None:
            self.socket.send_binary(body)

    def close(self, code: int, reason: str) -> None:
        self.socket.close(code, reason)

    # -- SocketOwner

    def pieces_came(self, socket: RelaySocket, pieces: list[Piece]) -> None:
        try:
            self._answers.feed(pieces)
        except CommandTooLong as too_long:
            socket.close(TOO_BIG, str(too_long))

    def writing_paused(self, socket: RelaySocket, paused: bool) -> None:
        """What is sent here is small; nothing new is begun with a listener that does not read (`takes_more`)."""

    def peer_closed(self, socket: RelaySocket, code: int, reason: str) -> None:
        self._answers.ended(False)  # no client ends a body with it here: it stopped in the middle
        socket.close(answer_code(code), reason)

    def socket_lost(self, socket: RelaySocket) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        self._answers.ended(False)
        self._on_end(self)
        for future in list(self._waiting):
            if not future.done():
                future.set_result(None)
        for exchange in list(self.exchanges.values()):
            exchange.listener_gone()
        self.exchanges.clear()

    # -- its token

    def _set_expiry(self, at_ms: int) -> None:
        self._expires_at_ms = at_ms
        if self._expiry is not None:
            self._expiry.cancel()
        left = (at_ms - self._clock.now_ms()) / 1000
        self._expiry = asyncio.get_running_loop().call_later(max(0.0, min(left, _TIMER_SECONDS_MAX)), self._look)

    def _look(self) -> None:
        self._expiry = None
        if self._clock.now_ms() >= self._expires_at_ms:
            self.close(POLICY_VIOLATION, "the token expired")
        elif not self.socket.lost:
            self._set_expiry(self._expires_at_ms)

    def look_at_token_again(self) -> None:
        """Its issuer may have taken it back."""
        self._renew_soon(self._token)

    def _renew_soon(self, token: str) -> None:
        task = asyncio.get_running_loop().create_task(self._renew_with(token))
        self._renewing.add(task)
        task.add_done_callback(self._renewing.discard)

    async def _renew_with(self, token: str) -> None:
        try:
            expires_at_ms = await self._renew(token)
        except BusError as error:
            self.close(POLICY_VIOLATION, f"the token is not good: {error.description}")
            return
        if not self.socket.lost:
            self._token = token
            self._set_expiry(expires_at_ms)
