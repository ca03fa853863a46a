"""Links with tracing: a span for each message that carries a trace context when it is accepted, delivered and settled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandem.amqp.link import Delivery, ReceiverLink, SenderLink
from tandem.amqp.outcomes import TRANSACTIONAL, Outcome
from tandem.broker.ports import Effect
from tandem.broker.queue.locks import Lock
from tandem.gateway.amqp.receiving import LinkConsumer, Receiving
from tandem.gateway.amqp.sending import BATCH_FORMAT, Sending, split_batch
from tandem.gateway.amqp.sending_once import SendingOnce
from tandem.gateway.amqp.settlements import settlement_of
from tandem.gateway.verbs import SETTLEMENT_NAMES
from tandem.gateway.views import application_properties_of
from tandem.model.errors import BusError
from tandem.tracing import MessageSpans, trace_parent

if TYPE_CHECKING:
    from tandem.broker.queue.entity import Entity
    from tandem.gateway.amqp.connection import PeerConnection
    from tandem.model.address import Address
    from tandem.model.message import Message

_MS = 1_000_000
_CONTEXTS_KEPT = 128
"""So many are kept before anybody looks which of them are needed."""


class _SpansEnd(Effect):
    """When the disk knows, what was asked is done."""

    __slots__ = ("_spans", "_tracing")

    def __init__(self, tracing: MessageSpans, spans: list[object]) -> None:
        self._tracing = tracing
        self._spans = spans

    def done(self, error: BaseException | None) -> None:
        for span in self._spans:
            self._tracing.end(span, error)


class _Accepting:
    """The spans of one transfer."""

    __slots__ = ("refusals", "spans", "tracing")

    def __init__(self, tracing: MessageSpans) -> None:
        self.tracing = tracing
        self.spans: list[object] = []
        self.refusals: list[BusError] = []

    def begin(self, payload: bytes, message_format: int, path: str) -> None:
        self.refusals.clear()
        self.spans = [self.tracing.start("accept", parent, path) for parent in _parents(payload, message_format)]

    def end(self, queue: Entity) -> None:
        if not self.spans:
            return
        if self.refusals:
            _SpansEnd(self.tracing, self.spans).done(self.refusals[0])
        else:
            queue.when_durable(_SpansEnd(self.tracing, self.spans))


class TracedSending(Sending):
    """`accept`: from the transfer until the message is durable, or why it was refused."""

    def __init__(self, connection: PeerConnection, queue: Entity, address: Address, tracing: MessageSpans) -> None:
        super().__init__(connection, queue, address)
        self._accepting = _Accepting(tracing)

    def on_transfer(
        self, link: ReceiverLink, delivery_id: int, tag: bytes, payload: bytes, settled: bool, message_format: int, state: bytes | None
    ) -> None:
        self._accepting.begin(payload, message_format, self.queue.path)
        super().on_transfer(link, delivery_id, tag, payload, settled, message_format, state)
        self._accepting.end(self.queue)

    def _reject(self, link: ReceiverLink, delivery_id: int, settled: bool, error: BusError) -> None:
        self._accepting.refusals.append(error)
        super()._reject(link, delivery_id, settled, error)


class TracedSendingOnce(SendingOnce):
    """The same for messages that have numbers."""

    def __init__(self, connection: PeerConnection, queue: Entity, address: Address, tracing: MessageSpans) -> None:
        super().__init__(connection, queue, address)
        self._accepting = _Accepting(tracing)

    def on_transfer(
        self, link: ReceiverLink, delivery_id: int, tag: bytes, payload: bytes, settled: bool, message_format: int, state: bytes | None
    ) -> None:
        self._accepting.begin(payload, message_format, self.queue.path)
        super().on_transfer(link, delivery_id, tag, payload, settled, message_format, state)
        self._accepting.end(self.queue)

    def _reject(self, link: ReceiverLink, delivery_id: int, settled: bool, error: BusError) -> None:
        self._accepting.refusals.append(error)
        super()._reject(link, delivery_id, settled, error)


def _settlement_name(outcome: Outcome) -> str:
    if outcome.code == TRANSACTIONAL:
        return "transactional"
    settlement = settlement_of(outcome)
    return "?" if settlement is None else SETTLEMENT_NAMES[settlement.kind]


def _parents(payload: bytes, message_format: int) -> list[str]:
    try:
        parts = split_batch(payload) if message_format == BATCH_FORMAT else [payload]
    except BusError:
        return []  # it is refused in a moment, with what is wrong
    found = [trace_parent(application_properties_of(part)) for part in parts]
    return [parent for parent in found if parent]


class TracedConsumer(LinkConsumer):
    """`deliver`: from the instant a message was enqueued until it was sent to a receiver."""

    __slots__ = ("_tidy_at", "contexts", "path", "tracing")

    def __init__(self, connection: PeerConnection, link: SenderLink, peek_lock: bool, path: str, tracing: MessageSpans) -> None:
        super().__init__(connection, link, peek_lock)
        self.path = path
        self.tracing = tracing
        self.contexts: dict[bytes, tuple[Lock, str]] = {}
        """Of what is in the receiver's hands, by lock token; and of at most as much again that left them by another way than this link."""
        self._tidy_at = _CONTEXTS_KEPT

    def deliver(self, message: Message, seq: int, enqueued_at: int, count: int, expires_at: int, lock: Lock | None) -> None:
        parent = trace_parent(application_properties_of(message.bare))
        super().deliver(message, seq, enqueued_at, count, expires_at, lock)
        if not parent:
            return
        now = self.connection.turn.now
        began = min(enqueued_at, now) * _MS
        span = self.tracing.start("deliver", parent, self.path, began, sequence_number=seq, delivery_count=count + 1)
        self.tracing.end(span, None, now * _MS)
        if lock is not None:
            if len(self.contexts) >= self._tidy_at:
                self._tidy()
            self.contexts[lock.token] = (lock, parent)

    def _tidy(self) -> None:
        """What was settled by a request, or whose lock ended, is nobody's any more."""
        self.contexts = {token: held for token, held in self.contexts.items() if held[0].held}
        self._tidy_at = max(_CONTEXTS_KEPT, 2 * len(self.contexts))

    def context_of(self, lock: Lock) -> str:
        """The one that the message carries, once; empty if it carries none."""
        found = self.contexts.pop(lock.token, None)
        return found[1] if found is not None else ""


class TracedReceiving(Receiving):
    """`settle`: from the receiver's word until it is durable."""

    def __init__(self, connection: PeerConnection, queue: Entity, consumer: TracedConsumer) -> None:
        super().__init__(connection, queue, consumer)
        self._traced = consumer

    def on_disposition(self, link: SenderLink, deliveries: list[Delivery], outcome: Outcome, settled: bool) -> None:
        consumer = self._traced
        spans: list[object] = []
        how = _settlement_name(outcome)
        for delivery in deliveries:
            lock = delivery.context
            parent = consumer.context_of(lock) if isinstance(lock, Lock) else ""
            if parent:
                spans.append(consumer.tracing.start("settle", parent, self.queue.path, None, settlement=how))
        super().on_disposition(link, deliveries, outcome, settled)
        if spans:
            self.queue.when_durable(_SpansEnd(consumer.tracing, spans))
