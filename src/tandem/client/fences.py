"""A message in a backlog queue that marks a place, and how to see whether it still stands there."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from azure.servicebus import ServiceBusMessage

from tandem.client.envelope import DIVERTED_AT, FENCE, FENCE_ID, PATH

if TYPE_CHECKING:
    from tandem.client.transport import NamespaceTransport, Receiver

_TIMEOUT_SECONDS: Final = 10.0
_LATER: Final = datetime.timedelta(minutes=10)
"""When a marker that could not be cancelled turns up; the syphon drops it then."""
_PAGE: Final = 100
_PAGES_MAX: Final = 40
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class Fence:
    """Everything its sender had put into `queue` before stands before it."""

    def __init__(self, queue: str, fence_id: str, start: int) -> None:
        self.queue = queue
        self.id = fence_id
        self._start = start
        """It has this sequence number, or a higher one until it was found."""
        self._found = False

    async def is_gone(self, receiver: Receiver, timeout: float) -> bool:
        """Looked at, not taken. False also when there is too much behind it to be sure yet: ask again."""
        for _ in range(_PAGES_MAX):
            page = await receiver.browse(self._start, 1 if self._found else _PAGE, timeout)
            for place in page:
                if place.fence == self.id:
                    self._start, self._found = place.sequence_number, True
                    return False
            if self._found or not page:
                return True
            self._start = page[-1].sequence_number + 1
        return False


async def put_fence(secondary: NamespaceTransport, queue: str, path: str, new_id: Callable[[], str], now_ms: int) -> Fence:
    """Put a fence for `path` behind all that stands in the queue.

    A send is not told the sequence number of its message; scheduling is. One scheduled and cancelled at once says where to begin to look.
    """
    fence_id = new_id()
    sender = secondary.sender(queue)
    try:
        at = _EPOCH + datetime.timedelta(milliseconds=now_ms) + _LATER
        (start,) = await sender.schedule([_message(path, fence_id, new_id(), now_ms)], at, _TIMEOUT_SECONDS)
        await sender.cancel_scheduled([start], _TIMEOUT_SECONDS)
        await sender.send(_message(path, fence_id, new_id(), now_ms), _TIMEOUT_SECONDS)
    finally:
        await sender.close()
    return Fence(queue, fence_id, start)


def _message(path: str, fence_id: str, message_id: str, now_ms: int) -> ServiceBusMessage:
    message = ServiceBusMessage(b"", message_id=f"{FENCE_ID}{message_id}", application_properties={PATH: path})
    annotations = {**(message.raw_amqp_message.annotations or {}), FENCE: fence_id}
    annotations[DIVERTED_AT] = {"TYPE": "TIMESTAMP", "VALUE": now_ms}
    message.raw_amqp_message.annotations = annotations
    return message
