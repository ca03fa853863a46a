"""Many sends in flight on one SDK sender: one coroutine owns the link, writes what waits and hands each outcome to its caller.

The SDK's own `send_messages` waits for each outcome in turn and must not be called twice at a time on one sender: its link would
write a waiting delivery twice or forget it. Here the same link objects are driven by a single task, so neither can happen.
"""

from __future__ import annotations

import asyncio
import collections
import logging
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus._pyamqp.client import _MessageDelivery
from azure.servicebus._pyamqp.constants import MessageDeliveryState
from azure.servicebus._pyamqp.message import BatchMessage
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.aio import ServiceBusSender
from azure.servicebus.exceptions import OperationTimeoutError

if TYPE_CHECKING:
    from tandem.client.transport import Outgoing

log = logging.getLogger("tandem.client.sdk")

POLL_SECONDS = 0.01
"""How long one read may keep a newly queued message from being written."""
IN_FLIGHT_MAX = 1_000


@dataclass(slots=True, eq=False)
class Job:
    message: Outgoing
    deadline: float
    outcome: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    delivery: Any = None


def supports_pipelining(sender: ServiceBusSender) -> bool:
    """Whether this SDK's sender has the parts the pump drives; if not, sends go one at a time."""
    return getattr(sender, "_amqp_transport", None) is not None and sender._amqp_transport.KIND == "pyamqp"


def prepare(message: Outgoing, batch_bytes_max: int) -> Any:
    """What goes on the wire for a message, a list of them or a batch."""
    if isinstance(message, list):
        batch = ServiceBusMessageBatch(max_size_in_bytes=batch_bytes_max)
        for one in message:
            batch.add_message(one)
        message = batch
    if isinstance(message, ServiceBusMessageBatch):
        return BatchMessage(*message._message)
    raw = message.raw_amqp_message if isinstance(message, ServiceBusMessage) else message
    return PyamqpTransport.to_outgoing_amqp_message(raw)


class LinkPump:
    """Runs the queued jobs over one open SDK sender until none is left, then ends."""

    def __init__(self, sender: ServiceBusSender, queue: collections.deque[Job]) -> None:
        self._sender = sender
        self._queue = queue
        self._in_flight: list[Job] = []

    async def run(self) -> None:
        """Raises what broke the link; jobs then still in flight or queued have not been told anything."""
        loop = asyncio.get_running_loop()
        handler: Any = self._sender._handler
        while self._queue or self._in_flight:
            if not await handler.client_ready_async():
                continue  # it has read the socket itself
            await self._start_queued(handler, loop.time())
            await handler._link.update_pending_deliveries()
            await handler._connection.listen(wait=POLL_SECONDS, batch=max(1, len(self._in_flight)))
            self._finish_settled(loop.time())

    async def _start_queued(self, handler: Any, now: float) -> None:
        while self._queue and len(self._in_flight) < IN_FLIGHT_MAX:
            job = self._queue.popleft()
            if job.outcome.done():
                continue
            left = job.deadline - now
            if left <= 0:
                job.outcome.set_exception(OperationTimeoutError(message="Send operation timed out before its turn came"))
                continue
            try:
                wire = prepare(job.message, self._sender._max_batch_size_on_link)
            except Exception as error:  # noqa: BLE001 - a message that cannot be encoded is its sender's affair and nobody else's
                job.outcome.set_exception(error)
                continue
            job.delivery = _MessageDelivery(wire, MessageDeliveryState.WaitingForSendAck, None)
            settled = partial(handler._on_send_complete_async, job.delivery)
            self._in_flight.append(job)
            await handler._link.send_transfer(wire, on_send_complete=settled, timeout=left, send_async=True)

    def _finish_settled(self, now: float) -> None:
        waiting: list[Job] = []
        for job in self._in_flight:
            state = job.delivery.state
            if state is MessageDeliveryState.WaitingForSendAck:
                waiting.append(job)
            elif job.outcome.done():
                continue
            elif state is MessageDeliveryState.Ok:
                job.outcome.set_result(None)
            elif state is MessageDeliveryState.Timeout:
                job.outcome.set_exception(OperationTimeoutError(message="Send operation timed out"))
            else:
                job.outcome.set_exception(PyamqpTransport.create_servicebus_exception(log, job.delivery.error))
        self._in_flight = waiting

    def fail(self, error: BaseException) -> None:
        """The link is gone: nobody knows the outcome of what was in flight."""
        for job in (*self._in_flight, *self._queue):
            if not job.outcome.done():
                job.outcome.set_exception(error)
        self._in_flight.clear()
        self._queue.clear()
