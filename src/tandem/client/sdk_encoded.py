"""Puts a message that is encoded already on an SDK sender's link, byte for byte: the SDK itself sends only what it encodes."""

from __future__ import annotations

import struct
from typing import Any

from azure.servicebus._pyamqp.constants import SessionTransferState
from azure.servicebus.aio import ServiceBusSender


class EncodedMessage:
    """Stands in for the SDK's message where a link takes one."""

    __slots__ = ("payload",)

    _code = 0
    """The message format: one message, not a batch of them."""

    def __init__(self, payload: bytes) -> None:
        self.payload = payload


async def send_encoded(sender: ServiceBusSender, payload: bytes, timeout: float) -> None:
    """One message alone on its transfer; in a batch of one it would be a few bytes larger, which may be too large."""
    await sender._open()
    handler: Any = sender._handler
    link = handler._link
    if not getattr(link, "takes_encoded", False):
        _teach(link)
    await handler.send_message_async(EncodedMessage(payload), timeout=timeout)


def _teach(link: Any) -> None:
    encode_and_send = link._outgoing_transfer

    async def outgoing_transfer(delivery: Any) -> bool:
        if not isinstance(delivery.message, EncodedMessage):
            sent: bool = await encode_and_send(delivery)
            return sent
        number = link.delivery_count + 1
        absent = dict.fromkeys(("rcv_settle_mode", "state", "resume", "aborted", "batchable"))
        delivery.frame = absent | {
            "handle": link.handle,
            "delivery_tag": struct.pack(">I", abs(number)),
            "message_format": 0,
            "settled": False,
            "more": False,
            "payload": bytearray(delivery.message.payload),
        }
        await link._session._outgoing_transfer(delivery, link.network_trace_params if link.network_trace else None)
        if delivery.transfer_state == SessionTransferState.OKAY:
            link.delivery_count = number
            link.current_link_credit -= 1
            delivery.sent = True
        return False

    link._outgoing_transfer = outgoing_transfer
    link.takes_encoded = True
