"""A pair with tracing: spans for what is sent, diverted, pinged and carried home, in the trace that each message carries."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch

from tandem.amqp.message import decode_message
from tandem.client.envelope import annotated
from tandem.client.paths import PathMonitor
from tandem.client.sender import PairedSender, flatten
from tandem.client.syphon import Syphon
from tandem.tracing import TRACEPARENT, MessageSpans, trace_parent

if TYPE_CHECKING:
    from tandem.client.ping import PingResult
    from tandem.client.syphon import LockedMessage
    from tandem.client.transport import Outgoing, Single


class TracedSender(PairedSender):
    """`send` is around every send, `divert` around what goes to a backlog queue. A message without a context gets that of its `send`."""

    def __init__(self, tracing: MessageSpans, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._tracing = tracing

    async def send_messages(self, message: Any, *, timeout: float | None = None) -> None:
        prepared = self._prepare(message)
        if prepared is None:
            return
        singles = flatten(prepared)
        span = self._tracing.start("send", _parent_of(singles), self.entity_name, batch_message_count=len(singles))
        for single in singles if not isinstance(prepared, ServiceBusMessageBatch) else ():
            _carry(single, self._tracing.parent_of(span))
        error: BaseException | None = None
        try:
            with self._tracing.within(span):
                await super().send_messages(prepared, timeout=timeout)
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._tracing.end(span, error)

    async def _divert(self, outgoing: Outgoing, deadline: float, cause: BaseException | None) -> None:
        spans = []
        for single in flatten(outgoing):
            span = self._tracing.start("divert", _parent_of([single]), self.entity_name)
            _carry(single, self._tracing.parent_of(span))
            spans.append(span)
        error: BaseException | None = None
        try:
            with self._tracing.within(spans[0]) if len(spans) == 1 else contextlib.nullcontext():  # several go in one send
                await super()._divert(outgoing, deadline, cause)
        except BaseException as raised:
            error = raised
            raise
        finally:
            for span in spans:
                self._tracing.end(span, error)


def _parent_of(singles: list[Single]) -> str:
    for single in singles:
        parent = trace_parent(annotated(single).application_properties or {})
        if parent:
            return parent
    return ""


def _carry(single: Single, parent: str) -> None:
    """A context of its own stays."""
    raw = annotated(single)
    if trace_parent(raw.application_properties or {}):
        return
    if isinstance(single, ServiceBusMessage):
        single.application_properties = {**(single.application_properties or {}), TRACEPARENT: parent}
    else:
        raw.application_properties = {**(raw.application_properties or {}), TRACEPARENT: parent}


class TracedMonitor(PathMonitor):
    """`ping`: a trace of its own each, with what came of it."""

    def __init__(self, tracing: MessageSpans, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.tracing = tracing

    async def _send_ping(self, timeout: float) -> tuple[PingResult, BaseException | None]:
        span = self.tracing.begin("ping", self.path)
        error: BaseException | None = None
        try:
            result, error = await super()._send_ping(timeout)
            span.set_attribute("messaging.ping", result.value)
            return result, error
        except BaseException as raised:
            error = raised
            raise
        finally:
            self.tracing.end(span, error)


class TracedSyphon(Syphon):
    """`move`: from the backlog to where a message was meant to go."""

    def __init__(self, tracing: MessageSpans, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.tracing = tracing

    async def _send(self, path: str, items: list[LockedMessage]) -> BaseException | None:
        spans = []
        for item in items:
            parent = trace_parent(decode_message(item.payload).application_properties)
            if parent:
                spans.append(self.tracing.start("move", parent, path))
        error = await super()._send(path, items)
        for span in spans:
            self.tracing.end(span, error)
        return error
