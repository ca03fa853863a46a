"""A syphon's task with tracing: `move` for each message that carries a trace context, from its transfer until the primary has it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from tandem.amqp.message import decode_message
from tandem.model.clock import SystemClock
from tandem.spark.syphon.task import DestinationCount, SyphonTask
from tandem.tracing import MessageSpans, exporting_provider, flush, trace_parent

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tandem.client.lanes import Lane
    from tandem.client.precedence import DivertedMessage
    from tandem.engine_client.blocking import BlockingSender


_MS = 1_000_000


@functools.cache
def worker_provider() -> Any:
    """One for each process of Spark's, however many tasks it runs."""
    return exporting_provider("tandem-syphon", "spark")


class TracedSyphonTask(SyphonTask):
    def __init__(self, provider: Any, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._provider = provider
        self._tracing = MessageSpans(provider)
        self._clock = SystemClock()
        self._began: dict[str, int] = {}

    def run(self, leases: Iterable[tuple[str, int]]) -> list[DestinationCount]:
        try:
            return super().run(leases)
        finally:
            flush(self._provider)  # Spark may end this process as soon as the task is done

    def _post(self, sender: BlockingSender, lane: Lane[DivertedMessage]) -> None:
        self._began[lane.path] = self._clock.now_ms() * _MS
        super()._post(sender, lane)

    def _moved(self, lane: Lane[DivertedMessage], messages: list[DivertedMessage]) -> None:
        for message in messages:
            parent = trace_parent(decode_message(message.payload).application_properties)
            if parent:
                span = self._tracing.start("move", parent, lane.path, self._began.get(lane.path), by="spark")
                self._tracing.end(span)
