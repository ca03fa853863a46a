"""Asking over a pair of links: requests go out over one, answers come in over the other, each to whoever waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from tandem.amqp.errors import AmqpError, DecodeError
from tandem.amqp.handlers import LinkHandler
from tandem.amqp.link import Link, ReceiverLink
from tandem.amqp.message import VALUE, decode_message, encode_message
from tandem.model.errors import BusError

Answer = tuple[dict[object, object], object]
"""Application properties and body."""


class Asker(LinkHandler):
    """The handler of both links."""

    def __init__(self, reply_to: str) -> None:
        self._reply_to = reply_to
        self._number = 0
        self._pending: dict[int, asyncio.Future[Answer]] = {}

    async def answer_to(self, said: dict[object, object], body: object, send: Callable[[bytes], None]) -> Answer:
        """`send` takes the request, now or when it can be sent. Raises what `give_up` is given."""
        self._number += 1
        number = self._number
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._pending[number] = answer
        properties: dict[str, object] = {"message-id": number, "reply-to": self._reply_to}
        send(encode_message(properties=properties, application_properties=said, body=body, body_kind=VALUE))
        try:
            return await answer
        finally:
            self._pending.pop(number, None)

    def tag(self) -> bytes:
        """Of the newest request."""
        return self._number.to_bytes(8, "big")

    def on_transfer(
        self, link: ReceiverLink, delivery_id: int, tag: bytes, payload: bytes, settled: bool, message_format: int, state: bytes | None
    ) -> None:
        try:
            message = decode_message(payload)
            body = message.body
        except DecodeError as error:
            self.lost(AmqpError("amqp:decode-error", error.description))
            return
        answer = self._pending.get(cast(int, message.properties.get("correlation-id")))
        if answer is not None and not answer.done():
            answer.set_result((message.application_properties, body))

    def on_detach(self, link: Link, error: AmqpError | None) -> None:
        self.lost(error)

    def lost(self, error: AmqpError | None) -> None:
        """Nothing more will be answered; None: the other side hung up."""

    def give_up(self, error: BusError) -> None:
        """Whoever waits is told."""
        for answer in self._pending.values():
            if not answer.done():
                answer.set_exception(error)
                answer.exception()
