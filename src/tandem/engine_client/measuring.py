"""One side of a load test over AMQP 1.0: sends stamped messages, or receives them and says how long each was under way."""

from __future__ import annotations

import time
from collections.abc import Callable
from struct import Struct
from typing import Final

from tandem.amqp.errors import AmqpError
from tandem.amqp.handlers import LinkHandler
from tandem.amqp.link import Link, ReceiverLink
from tandem.amqp.outcomes import ACCEPTED, RELEASED
from tandem.amqp.terminus import Terminus
from tandem.engine_client.blocking import BlockingClient, TransportError
from tandem.engine_client.message_encoding import encode_row

STAMP_BYTES: Final = 24
_STAMP: Final = Struct(">16sQ")
_CREDIT: Final = 1_000
_LOOK_SECONDS: Final = 0.1

Tell = Callable[[list[int]], None]
"""Told durations in nanoseconds, a few times a second."""


def send_stamped(client: BlockingClient, path: str, run: bytes, count: int, size: int, in_flight: int, tell: Tell) -> None:
    """`count` messages of `size` bytes; told is the time from each send to its answer."""
    sender = client.sender(path, in_flight)
    filling = bytes(max(size - STAMP_BYTES, 0))
    look_at = 0.0
    for number in range(count):
        began = time.monotonic_ns()
        sender.send(encode_row(filling + _STAMP.pack(run, began), f"{run.hex()}-{began}-{number}"), began)
        if began / 1e9 > look_at:
            look_at = began / 1e9 + _LOOK_SECONDS
            client.flush()
            _tell_answered(sender.answered, sender.failed, tell)
    while sender.in_flight:
        client.pump()
        _tell_answered(sender.answered, sender.failed, tell)
    _tell_answered(sender.answered, sender.failed, tell)
    sender.close()


def _tell_answered(answered: list[object], failed: list[tuple[object, AmqpError]], tell: Tell) -> None:
    now = time.monotonic_ns()
    tell([now - began for began in answered if isinstance(began, int)])
    answered.clear()
    for _, error in failed:
        raise TransportError(error.condition, error.description or "a message was refused")


class StampedReceiving(LinkHandler):
    """Receives and completes messages of one run. A message of anybody else is given back, and ends it."""

    def __init__(self, client: BlockingClient, path: str, run: bytes, tell: Tell) -> None:
        client.authorize(path)
        self._client = client
        self._path = path
        self._run = run
        self._tell = tell
        self._taken: list[int] = []
        self._settle_from = -1
        self._settle_to = -1
        self._stranger = False
        self._gone: AmqpError | None = None
        name = f"bench-{run.hex()[:8]}-{time.monotonic_ns()}"
        self._link = client.session.attach_receiver(name, Terminus(path), Terminus(name), self, snd_settle_mode=0)
        client.pump_until(lambda: self._gone is not None or self._link.attached, f"attach to {path}")
        self._link.auto_credit = _CREDIT
        self._link.grant(_CREDIT)
        client.flush()

    def receive_until(self, enough: Callable[[], bool]) -> None:
        while not enough():
            self._client.pump(_LOOK_SECONDS)
            self._settle()
            if self._taken:
                self._tell(self._taken)
                self._taken = []
            if self._stranger:
                raise TransportError("amqp:not-allowed", f"'{self._path}' holds messages that are not of this run: name an empty entity")
            if self._gone is not None:
                raise TransportError(self._gone.condition, self._gone.description or f"{self._path}: closed")
        self._client.flush()

    def on_transfer(
        self, link: ReceiverLink, delivery_id: int, tag: bytes, payload: bytes, settled: bool, message_format: int, state: bytes | None
    ) -> None:
        run, began = _STAMP.unpack(payload[-STAMP_BYTES:]) if len(payload) > STAMP_BYTES else (b"", 0)
        if run != self._run or self._stranger:
            self._stranger = True
            self._settle()
            self._client.session.send_disposition(True, delivery_id, delivery_id, True, RELEASED)
            return
        self._taken.append(time.monotonic_ns() - began)
        if self._settle_from < 0:
            self._settle_from = delivery_id
        elif delivery_id != self._settle_to + 1:
            self._settle()
            self._settle_from = delivery_id
        self._settle_to = delivery_id

    def _settle(self) -> None:
        if self._settle_from >= 0:
            self._client.session.send_disposition(True, self._settle_from, self._settle_to, True, ACCEPTED)
            self._settle_from = -1

    def on_detach(self, link: Link, error: AmqpError | None) -> None:
        self._gone = error or AmqpError("amqp:link:detached", f"{self._path}: closed")
