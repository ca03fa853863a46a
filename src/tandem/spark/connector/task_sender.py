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
    posted: bool = False

    def add(self, payload: bytes, context: object) -> None:
        self.contexts.append(context)
        self.payloads.append(payload)
        self.size_bytes += len(payload) + MESSAGE_BYTES

    def singles(self) -> Iterator[PendingTransfer]:
        for context, payload in zip(self.contexts, self.payloads, strict=True):
            yield PendingTransfer(self.path, [context], [payload])

    def post(self, sender: BlockingSender) -> None:
        post(sender, self.payloads, self)
        self.posted = True


class PutOff(TransportError):
    """The broker answered that it cannot take a transfer now: it is sent again on the same link, and nothing else with it."""


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

    def close(self, where: Where) -> None:
        """At the end of a task: the connection stays for the next one, and has room for so many links only."""
        try:
            for sender in self.all():
                sender.close()
        except TransportError as error:
            log.info("links could not be closed, so their connection is: %s", error)
            drop(where)
        self._by_path = {}


class TaskSender:
    """One task's way out. `accepted` counts messages; `refused` are for the caller to deal with; anything else raises."""

    def __init__(
        self, where: Where, max_in_flight: int, batch_messages: int, may_send: Callable[[], None] = lambda: None, in_order: bool = False
    ) -> None:
        """`may_send` is asked before each transfer, and raises if this task may not send any more.

        `in_order`: a destination gets the next transfer when it has answered the last. With several under way those behind one that is
        refused, or put off, would arrive before what is sent again of it.
        """
        self.accepted = 0
        self._may_send = may_send
        self.refused: list[SendRefusal] = []
        self._where = where
        self._transfers_in_flight = max(1, max_in_flight // batch_messages)
        self._batch_messages = batch_messages
        self._filling: dict[str, PendingTransfer] = {}
        self._in_order = in_order
        self._unanswered: dict[int, PendingTransfer] = {}
        self._to_send_again: list[PendingTransfer] = []
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

    def close(self) -> None:
        if self._senders is not None:
            self._senders.close(self._where)
            self._senders = None

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
            if transfer.posted or id(transfer) not in self._unanswered:
                return
            try:
                sender = self._sender(transfer.path)
            except TransportError as error:
                if unreachable(error):
                    raise
                self._refuse(transfer, error.condition, error.description)
                return
            while sender.in_flight and (len(self._unanswered) > self._transfers_in_flight or self._must_wait(transfer)):
                sender.check()
                self._client.pump()
                self._collect()
            self._may_send()
            transfer.post(sender)

        self._patiently(step)

    def _must_wait(self, transfer: PendingTransfer) -> bool:
        return self._in_order and any(other.path == transfer.path and other is not transfer for other in self._unanswered.values())

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
        while True:
            try:
                self._send_again()
                step()
                self._collect()
                return
            except TransportError as error:
                pause = backoff.next_pause()
                if not unreachable(error) or time.monotonic() + pause > deadline:
                    raise
                log.info("sending: trying again in %.1f s: %s", pause, error)
                if not isinstance(error, PutOff):
                    drop(self._where)
                    self._senders = None
                    self._to_send_again = list(self._unanswered.values())
                time.sleep(pause)

    def _send_again(self) -> None:
        if self._to_send_again:
            self._may_send()
        for transfer in self._to_send_again:
            transfer.post(self._sender(transfer.path))
        self._to_send_again = []

    def _wait(self) -> None:
        for sender in self._senders.all() if self._senders is not None else []:
            sender.drain()

    # -- outcomes ----------------------------------------------------------------------------

    def _collect(self) -> None:
        """Raises PutOff for what the broker cannot take now, once everything else has been looked at."""
        if self._senders is None:
            return
        singles: list[PendingTransfer] = []
        put_off: PutOff | None = None
        for sender in self._senders.all():
            answered, failed = sender.take_answers()
            for context in answered:
                assert isinstance(context, PendingTransfer)
                if self._unanswered.pop(id(context), None) is not None:
                    self.accepted += len(context.payloads)
            for context, error in failed:
                assert isinstance(context, PendingTransfer)
                if id(context) not in self._unanswered:
                    continue
                if classify_condition(error.condition) is not Verdict.REFUSED:
                    self._to_send_again.append(context)
                    put_off = PutOff(error.condition, f"{context.path}: {error.description}")
                elif len(context.payloads) > 1:
                    del self._unanswered[id(context)]
                    singles.extend(context.singles())
                else:
                    self._refuse(context, error.condition, error.description or "")
        self._unanswered.update((id(transfer), transfer) for transfer in singles)
        for transfer in singles:
            transfer.post(self._sender(transfer.path))
        if put_off is not None:
            raise put_off

    def take_refused(self) -> list[SendRefusal]:
        refused, self.refused = self.refused, []
        return refused

    def _refuse(self, transfer: PendingTransfer, condition: str, description: str) -> None:
        self._unanswered.pop(id(transfer), None)
        self.refused.extend(SendRefusal(transfer.path, context, condition, description) for context in transfer.contexts)
