"""One task of the syphon: reads what is left of a queue's leases, sends it home in order, settles each chunk once the primary has it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tandem.client.destinations import WAIT_SECONDS, Destinations, trouble_of_condition
from tandem.client.envelope import NOT_RETRYABLE, EnvelopeError, unwrap_payload
from tandem.client.lanes import Lane
from tandem.client.precedence import DivertedMessage
from tandem.engine_client.blocking import BATCH_FORMAT, BlockingClient, BlockingSender, Pending, TransportError
from tandem.engine_client.message_encoding import encode_numbered_batch
from tandem.spark.connector.claims import CLAIM_MS, BatchClaims
from tandem.spark.connector.connections import LEASE_LOST, connection, drop, patiently, unreachable
from tandem.spark.connector.lease_reading import Message, read_lease
from tandem.spark.connector.options import Where
from tandem.spark.connector.task_sender import Senders, post
from tandem.spark.syphon.precedence import BacklogPrecedence

log = logging.getLogger("tandem.spark.syphon")

_OF_THE_CONNECTION = frozenset({"connect", "send", "receive", "closed", "com.microsoft:timeout", "amqp:connection:forced"})
"""Errors after which nothing can be sent to the namespace, whatever the destination."""
_WORDS_MAX = 1_024
_NUMBERS_BYTES = 1_024
"""Around the numbers of a batch: the lease's name and what AMQP needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyphonTaskSettings:
    """Pickled into every task."""

    primary: Where
    secondary: Where
    batch_messages: int
    subtract_time_in_backlog: bool
    destination_wait_ms: int = WAIT_SECONDS * 1_000
    claim_ms: int = CLAIM_MS
    tracing: bool = False
    """Spans of moves are sent where OTEL_EXPORTER_OTLP_ENDPOINT says."""


@dataclass(slots=True)
class DestinationCount:
    """What became of the messages of one destination."""

    path: str
    moved: int = 0
    dead_lettered: int = 0
    waiting: int = 0
    size_bytes: int = 0
    reason: str = ""
    trouble: str = ""
    """What its messages wait for, in a word."""

    def move(self, size_bytes: int) -> None:
        self.moved += 1
        self.size_bytes += size_bytes

    def bury(self) -> None:
        self.dead_lettered += 1

    def let_wait(self, count: int, reason: str = "", trouble: str = "") -> None:
        """Why was perhaps said before."""
        self.waiting += count
        self.reason = reason or self.reason
        self.trouble = trouble or self.trouble


@dataclass(slots=True)
class PageSettlement:
    """Of one chunk: what to tell the backlog."""

    completed: list[int] = field(default_factory=list)
    dead_lettered: list[dict[str, object]] = field(default_factory=list)

    def dead_letter(self, seq: int, reason: str, description: str) -> None:
        self.dead_lettered.append({"sequence-number": seq, "reason": reason, "description": description[:_WORDS_MAX]})


class SyphonTask:
    """Messages of one backlog queue, in the order they lie there. Order holds per destination: at most one transfer to each is under way,
    and once a message has to wait, all behind it with the same destination wait too, in their lease, until the next attempt."""

    def __init__(self, settings: SyphonTaskSettings, queue: str, now_ms: int, refusing: Mapping[str, int] | None = None) -> None:
        """`refusing`: destinations that refused everything in earlier attempts, and since when."""
        self._settings = settings
        self._queue = queue
        self._now_ms = now_ms
        self._claims = BatchClaims(settings.secondary, queue, claim_ms=settings.claim_ms)
        self._order = BacklogPrecedence(settings.secondary, queue)
        self._counts: dict[str, DestinationCount] = {}
        self._blocked: set[str] = set()
        self._destinations = Destinations(settings.destination_wait_ms, refusing)
        self._primary_gone = ""
        self._lease = ""
        self._senders: Senders | None = None
        self._settling: tuple[dict[str, object], Pending, BlockingClient] | None = None
        self.trouble = ""
        """What kept the backlog itself from being read or settled; empty when nothing did."""

    def run(self, leases: Iterable[tuple[str, int]]) -> list[DestinationCount]:
        try:
            for lease, count in leases:
                self._move_lease(lease, count)
        except TransportError as error:
            # Leases keep what is not settled: nothing is lost by stopping here, and the query goes on.
            self.trouble = f"{self._queue}: {error}"
            drop(self._settings.secondary)
        finally:
            self._claims.release()
            if self._senders is not None:
                self._senders.close(self._settings.primary)
        return list(self._counts.values())

    def _move_lease(self, lease: str, count: int) -> None:
        self._lease = lease
        try:
            self._claims.take(lease)
            for page in read_lease(self._settings.secondary, self._queue, lease, 0, count, remaining=True):
                outcome = self._move_page(page)
                self._settle(lease, outcome)
                if self._primary_gone:
                    break
            self._finish_settling()
        except TransportError as error:
            if error.condition != LEASE_LOST:
                raise
            # It lapsed: its messages are in the queue again and come with another lease.
            log.warning("%s: %s", self._queue, error)
            self.trouble = str(error)

    # -- one page ----------------------------------------------------------------------------

    def _move_page(self, page: list[Message]) -> PageSettlement:
        outcome = PageSettlement()
        messages: list[DivertedMessage] = []
        for (seq, enqueued_at, _, _), payload in page:
            try:
                unwrapped = unwrap_payload(payload, self._now_ms if self._settings.subtract_time_in_backlog else None)
            except EnvelopeError as error:
                outcome.dead_letter(seq, error.reason, error.description)
                self._count_of("").bury()
                continue
            messages.append(DivertedMessage(seq, enqueued_at, unwrapped.destination, unwrapped.payload))
        go, wait = self._order.divide(messages)
        for message in wait:
            count = self._count_of(message.destination.path)
            count.let_wait(1, count.reason or "earlier messages of its session go first")
        self._move_lanes(self._lanes(go), outcome)
        return outcome

    def _lanes(self, messages: list[DivertedMessage]) -> dict[str, Lane[DivertedMessage]]:
        """By destination; what has to wait for its destination is left out."""
        by_path: dict[str, list[DivertedMessage]] = {}
        for message in messages:
            by_path.setdefault(message.path, []).append(message)
        lanes = {}
        for key, found in by_path.items():
            path = found[0].destination.path
            if key in self._blocked or self._primary_gone:
                self._count_of(path).let_wait(len(found))
            else:
                lanes[key] = Lane(path, found, self._settings.batch_messages)
        return lanes

    def _move_lanes(self, lanes: dict[str, Lane[DivertedMessage]], outcome: PageSettlement) -> None:
        """All destinations at once, each strictly in order."""
        try:
            for key in list(lanes):
                self._next(key, lanes, outcome)
            while lanes:
                if not any(self._has_answer(lane) for lane in lanes.values()) and not self._client().pump():
                    raise TransportError("com.microsoft:timeout", "the primary does not answer")
                for key in list(lanes):
                    self._look(key, lanes, outcome)
        except TransportError as error:
            self._lose_primary(error, lanes)

    def _client(self) -> BlockingClient:
        return connection(self._settings.primary)

    def _lose_primary(self, error: TransportError, lanes: dict[str, Lane[DivertedMessage]]) -> None:
        """Everything without an answer stays in its lease: the primary may have it, then its duplicate detection drops the repeat."""
        self._primary_gone = str(error)
        drop(self._settings.primary)
        self._senders = None
        for lane in lanes.values():
            self._count_of(lane.path).let_wait(len(lane.left()), str(error))
        lanes.clear()

    def _sender(self, path: str) -> BlockingSender:
        if self._senders is None:
            self._senders = Senders(self._client(), 5_000, once=True)
        return self._senders.of(path)

    def _next(self, key: str, lanes: dict[str, Lane[DivertedMessage]], outcome: PageSettlement) -> None:
        """Send the next transfer of this lane; a destination that refuses the link itself refuses all its messages."""
        lane = lanes[key]
        self._claims.check()
        while (coming := lane.next_transfer(0)) and coming[0].fence:
            outcome.completed.extend(fence.sequence_number for fence in lane.accepted())
        if not coming:
            del lanes[key]
            return
        try:
            sender = self._sender(lane.path)
            self._post(sender, lane)
        except TransportError as error:
            if error.condition in _OF_THE_CONNECTION:
                raise
            if self._senders is not None:
                self._senders.forget(lane.path)
            self._refused(key, lanes, outcome, error.condition, error.description, whole_lane=True)

    def _post(self, sender: BlockingSender, lane: Lane[DivertedMessage]) -> None:
        """With the numbers that the messages have in the backlog: what another attempt has sent already, or is just sending although it
        lost its claim, is stored once."""
        room = sender.message_bytes_max - _NUMBERS_BYTES - 8 * self._settings.batch_messages
        coming = lane.next_transfer(room if sender.once else sender.message_bytes_max)
        payloads = [message.payload for message in coming]
        if sender.once and sum(map(len, payloads)) < room:
            numbers = [message.sequence_number for message in coming]
            sender.send(encode_numbered_batch(self._lease, numbers, payloads), lane, BATCH_FORMAT)
        else:
            post(sender, payloads, lane)

    def _has_answer(self, lane: Lane[DivertedMessage]) -> bool:
        """Opening a link to one destination may have read the answers of others."""
        sender = self._sender(lane.path)
        return bool(sender.answered or sender.failed)

    def _look(self, key: str, lanes: dict[str, Lane[DivertedMessage]], outcome: PageSettlement) -> None:
        lane = lanes[key]
        sender = self._sender(lane.path)
        answered, failed = sender.take_answers()
        if not lane.under_way:
            return
        if answered:
            count = self._count_of(lane.path)
            accepted = lane.accepted()
            for message in accepted:
                count.move(len(message.payload))
                outcome.completed.append(message.sequence_number)
            self._moved(lane, accepted)
            self._destinations.took(lane.path)
            self._next(key, lanes, outcome)
        elif failed:
            error = failed[0][1]
            self._refused(key, lanes, outcome, error.condition, error.description or "", whole_lane=False)
        else:
            try:
                sender.check()
            except TransportError as error:
                assert self._senders is not None
                self._senders.forget(lane.path)
                self._refused(key, lanes, outcome, error.condition, error.description, whole_lane=True)

    def _moved(self, lane: Lane[DivertedMessage], messages: list[DivertedMessage]) -> None:
        """For those who trace."""

    def _refused(
        self, key: str, lanes: dict[str, Lane[DivertedMessage]], outcome: PageSettlement, condition: str, description: str, whole_lane: bool
    ) -> None:
        lane = lanes[key]
        said = f"{lane.path}: {condition}: {description}"
        count = self._count_of(lane.path)
        trouble = trouble_of_condition(condition)
        dead = lane.refused(self._destinations.judge(trouble, lane.path, self._now_ms), whole_lane)
        if dead is None:
            self._blocked.add(key)
            count.let_wait(len(lane.left()), said, trouble.value)
            del lanes[key]
            return
        for message in dead:
            if message.fence:
                outcome.completed.append(message.sequence_number)
            else:
                outcome.dead_letter(message.sequence_number, NOT_RETRYABLE, said)
                count.bury()
        self._next(key, lanes, outcome)

    def _count_of(self, path: str) -> DestinationCount:
        found = self._counts.get(path.casefold())
        if found is None:
            found = self._counts[path.casefold()] = DestinationCount(path)
        return found

    # -- settling ----------------------------------------------------------------------------

    def _settle(self, lease: str, outcome: PageSettlement) -> None:
        """Ask for it and go on with the next page; the answer is looked at before the one after."""
        self._finish_settling()
        if not outcome.completed and not outcome.dead_lettered:
            return
        body: dict[str, object] = {"lease-id": lease, "dead-lettered": outcome.dead_lettered}
        body["completed"] = BlockingClient.longs(outcome.completed)
        try:
            client = connection(self._settings.secondary)
            pending = client.post(self._queue, "com.tandem:settle-lease-part", body, client.timeout)
            client.flush()
            self._settling = (body, pending, client)
        except TransportError as error:
            if not unreachable(error):
                raise
            self._settle_patiently(body)

    def _finish_settling(self) -> None:
        if self._settling is None:
            return
        (body, pending, client), self._settling = self._settling, None
        try:
            client.pump_until(pending.done, f"settle-lease-part of {self._queue}")
            pending.result()
        except TransportError as error:
            if not unreachable(error):
                raise
            drop(self._settings.secondary)
            self._settle_patiently(body)

    def _settle_patiently(self, body: dict[str, object]) -> None:
        def step(client: BlockingClient) -> object:
            return client.request(self._queue, "com.tandem:settle-lease-part", body)

        patiently(self._settings.secondary, f"settle {self._queue}", step)
