"""Sending from a task: many messages to a transfer, many transfers in flight, every outcome awaited, what is unanswered sent again."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tandem.client.lanes import BATCH_BYTES, MESSAGE_BYTES
from tandem.client.verdicts import Verdict, classify_condition
from tandem.engine_client.blocking import BATCH_FORMAT, BlockingClient, BlockingSender, TransportError
from tandem.engine_client.message_encoding import encode_batch
from tandem.spark.connector.connections import connection, drop, new_backoff, unreachable
from tandem.spark.connector.options import Where

log = logging.getLogger("tandem.spark")


@dataclass(slots=True)
class PendingTransfer:
    """Messages of one destination that travel, and are accepted or refused, together."""

    path: str
    contexts: list[object] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    size_bytes: int = BATCH_BYTES

    def add(self, payload: bytes, context: object) -> None:
        self.contexts.append(context)
        self.payloads.append(payload)
        self.size_bytes += len(payload) + MESSAGE_BYTES

    def singles(self) -> Iterator[PendingTransfer]:
        for context, payload in zip(self.contexts, self.payloads, strict=True):
            yield PendingTransfer(self.path, [context], [payload])

    def post(self, sender: BlockingSender) -> None:
        post(sender, self.payloads, self)


def post(sender: BlockingSender, payloads: list[bytes], context: object) -> None:
    """On the link, as one transfer. Raises TransportError when the link is gone."""
    if len(payloads) == 1:
        sender.send(payloads[0], context)
    else:
        sender.send(encode_batch(payloads), context, BATCH_FORMAT)


@dataclass(frozen=True, slots=True)
class SendRefusal:
    """A message the broker will not take, now or ever."""

    path: str
    context: object
    condition: str
    description: str


class Senders:
    """The sending links of one connection, opened as destinations turn up."""

    SENDERS_MAX = 200

    def __init__(self, client: BlockingClient, max_in_flight: int, once: bool = False) -> None:
        self.client = client
        self._once = once
        self._max_in_flight = max_in_flight
        self._by_path: dict[str, BlockingSender] = {}

    def of(self, path: str) -> BlockingSender:
        """Raises TransportError when the broker refuses the link."""
        key = path.casefold()
        sender = self._by_path.get(key)
        if sender is None:
            if len(self._by_path) >= self.SENDERS_MAX:
                idle = next((name for name, one in self._by_path.items() if one.in_flight == 0), None)
                if idle is not None:
                    self._by_path.pop(idle).close()
            sender = self._by_path[key] = self.client.sender(path, self._max_in_flight, self._once)
        return sender

    def forget(self, path: str) -> None:
        self._by_path.pop(path.casefold(), None)

    def all(self) -> list[BlockingSender]:
        return list(self._by_path.values())


class TaskSender:
    """One task's way out. `accepted` counts messages; `refused` are for the caller to deal with; anything else raises."""

    def __init__(self, where: Where, max_in_flight: int, batch_messages: int, may_send: Callable[[], None] = lambda: None) -> None:
        """`may_send` is asked before each transfer, and raises if this task may not send any more."""
        self.accepted = 0
        self._may_send = may_send
        self.refused: list[SendRefusal] = []
        self._where = where
        self._transfers_in_flight = max(1, max_in_flight // batch_messages)
        self._batch_messages = batch_messages
        self._filling: dict[str, PendingTransfer] = {}
        self._unanswered: dict[int, PendingTransfer] = {}
        self._senders: Senders | None = None

    def send(self, path: str, payload: bytes, context: object) -> None:
        transfer = self._filling.get(path)
        if transfer is None:
            transfer = self._filling[path] = PendingTransfer(path)
        elif transfer.size_bytes + len(payload) + MESSAGE_BYTES > self._bytes_max(path):
            self._post(transfer)
            transfer = self._filling[path] = PendingTransfer(path)
        transfer.add(payload, context)
        if len(transfer.payloads) >= self._batch_messages:
            del self._filling[path]
            self._post(transfer)

    def drain(self) -> None:
        """Everything has its outcome when this returns."""
        filling, self._filling = list(self._filling.values()), {}
        for transfer in filling:
            self._post(transfer)
        while self._unanswered:
            self._patiently(self._wait)

    # -- one transfer ------------------------------------------------------------------------

    def _bytes_max(self, path: str) -> int:
        try:
            return self._sender(path).message_bytes_max if self._senders is not None else 262_144
        except TransportError:
            return 262_144  # posting finds out what is wrong

    def _post(self, transfer: PendingTransfer) -> None:
        """On a lost connection it is sent again with everything else that has no answer."""
        self._unanswered[id(transfer)] = transfer

        def step() -> None:
            if id(transfer) not in self._unanswered:
                return
            try:
                sender = self._sender(transfer.path)
            except TransportError as error:
                if unreachable(error):
                    raise
                self._refuse(transfer, error.condition, error.description)
                return
            while len(self._unanswered) > self._transfers_in_flight and sender.in_flight:
                sender.check()
                self._client.pump()
                self._collect()
            self._may_send()
            transfer.post(sender)

        self._patiently(step)

    def _sender(self, path: str) -> BlockingSender:
        if self._senders is None:
            self._senders = Senders(connection(self._where), 5_000)
        return self._senders.of(path)

    @property
    def _client(self) -> BlockingClient:
        return connection(self._where)

    def _patiently(self, step: object) -> None:
        """Run it; when the connection fails, reconnect, send again what has no answer, and go on, for as long as an operation may take."""
        assert callable(step)
        deadline = time.monotonic() + self._where.timeout_seconds
        backoff = new_backoff()
        resend = False
        while True:
            try:
                if resend:
                    self._resend()
                    resend = False
                    self._collect()
                    return
                step()
                self._collect()
                return
            except TransportError as error:
                pause = backoff.next_pause()
                if not unreachable(error) or time.monotonic() + pause > deadline:
                    raise
                log.info("sending: trying again in %.1f s: %s", pause, error)
                drop(self._where)
                self._senders = None
                resend = True
                time.sleep(pause)

    def _resend(self) -> None:
        self._may_send()
        for transfer in list(self._unanswered.values()):
            transfer.post(self._sender(transfer.path))

    def _wait(self) -> None:
        for sender in self._senders.all() if self._senders is not None else []:
            sender.drain()

    # -- outcomes ----------------------------------------------------------------------------

    def _collect(self) -> None:
        if self._senders is None:
            return
        again: list[PendingTransfer] = []
        for sender in self._senders.all():
            answered, failed = sender.take_answers()
            for context in answered:
                assert isinstance(context, PendingTransfer)
                if self._unanswered.pop(id(context), None) is not None:
                    self.accepted += len(context.payloads)
            for context, error in failed:
                assert isinstance(context, PendingTransfer)
                if self._unanswered.pop(id(context), None) is None:
                    continue
                if classify_condition(error.condition) is not Verdict.REFUSED:
                    raise TransportError(error.condition, f"{context.path}: {error.description}")
                if len(context.payloads) > 1:
                    again.extend(context.singles())
                else:
                    self._refuse(context, error.condition, error.description or "")
        for transfer in again:
            self._unanswered[id(transfer)] = transfer
            transfer.post(self._sender(transfer.path))

    def take_refused(self) -> list[SendRefusal]:
        refused, self.refused = self.refused, []
        return refused

    def _refuse(self, transfer: PendingTransfer, condition: str, description: str) -> None:
        self._unanswered.pop(id(transfer), None)
        self.refused.extend(SendRefusal(transfer.path, context, condition, description) for context in transfer.contexts)
