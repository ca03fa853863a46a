"""The stream that drives the syphon: plans leases of backlog queues, and moves their messages home while it is read."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import LongType, StringType, StructField, StructType

from tandem.client.destinations import WAIT_SECONDS
from tandem.engine_client.blocking import BlockingClient, TransportError
from tandem.model.backoff import Backoff
from tandem.model.clock import SystemClock
from tandem.spark.connector.connections import LEASE_LOST, unreachable
from tandem.spark.connector.leased_batches import LeasedBatches
from tandem.spark.connector.offsets import BatchShare
from tandem.spark.connector.options import OptionError, Options, Where
from tandem.spark.syphon.refusing_destinations import RefusingDestinations
from tandem.spark.syphon.task import DestinationCount, SyphonTask, SyphonTaskSettings

log = logging.getLogger("tandem.spark.syphon")

SCHEMA: Final = StructType(
    [
        StructField("queue", StringType(), True),
        StructField("path", StringType(), True),
        StructField("moved", LongType(), True),
        StructField("dead_lettered", LongType(), True),
        StructField("waiting", LongType(), True),
        StructField("size_bytes", LongType(), True),
        StructField("reason", StringType(), True),
        StructField("trouble", StringType(), True),
    ]
)
"""One row per backlog queue and destination of a batch."""
_ARROW: Final = pa.schema(
    [("queue", pa.string()), ("path", pa.string())]
    + [(name, pa.int64()) for name in ("moved", "dead_lettered", "waiting", "size_bytes")]
    + [("reason", pa.string()), ("trouble", pa.string())]
)
RETRY_SECONDS_MAX: Final = 60.0
_ANSWER_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SyphonOptions:
    """Everything the planner and the tasks need, as it travels through Spark's options."""

    move: SyphonTaskSettings
    queues: tuple[str, ...]
    max_messages: int
    max_bytes: int
    lease_seconds: int
    wait_seconds: int
    poll_ms: int
    retry_ms: int
    parked_max: int
    """While so many messages of a queue wait for their destination, no more are leased."""
    give_up_seconds: int
    """Once: how long to go on when what is left cannot be delivered. 0 = for ever."""
    refusing_file: str
    """Where the driver keeps which destinations refuse everything; empty: nowhere."""

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SyphonOptions:
        options = Options(given)

        def where(side: str) -> Where:
            return Where(
                connection_string=options.text(side),
                ca_file=options.text(f"{side}CaFile", "") or None,
                timeout_seconds=options.number("operationTimeoutSeconds", 30, 1, 3_600),
            )

        move = SyphonTaskSettings(
            primary=where("primary"),
            secondary=where("secondary"),
            batch_messages=options.number("messagesPerTransfer", 250, 1, 4_500),
            subtract_time_in_backlog=options.flag("subtractTimeInBacklog", False),
            destination_wait_ms=1_000 * options.number("destinationWaitSeconds", WAIT_SECONDS, 0, 366 * 86_400),
            tracing=options.flag("tracing", False),
        )
        return cls(
            move=move,
            queues=tuple(options.text("queues").split("\n")),
            max_messages=options.number("maxMessagesPerTrigger", 20_000, 1, 100_000),
            max_bytes=options.number("maxBytesPerTrigger", 67_108_864, 1, 268_435_456),
            lease_seconds=options.number("leaseSeconds", 300, 5, 3_600),
            wait_seconds=options.number("waitSeconds", 900, 1, 900),
            poll_ms=options.number("pollMs", 1_000, 0, 60_000),
            retry_ms=options.number("retryMs", 1_000, 10, 600_000),
            parked_max=options.number("parkedMax", 50_000, 1, 10_000_000),
            give_up_seconds=options.number("giveUpSeconds", 0, 0, 86_400),
            refusing_file=options.text("refusingFile", ""),
        )


@dataclass
class LeasePartition(InputPartition):  # type: ignore[misc]
    queue: str
    leases: tuple[tuple[str, int], ...]
    refusing: tuple[tuple[str, int], ...]


def _task(move: SyphonTaskSettings, partition: LeasePartition) -> SyphonTask:
    given = (move, partition.queue, SystemClock().now_ms(), dict(partition.refusing))
    if not move.tracing:
        return SyphonTask(*given)
    from tandem.spark.syphon.traced import TracedSyphonTask, worker_provider

    return TracedSyphonTask(worker_provider(), *given)


@dataclass(frozen=True, slots=True)
class SyphonOffset:
    """Open leases of every queue, oldest first; `number` grows with each attempt, `query` begins the ids of the leases."""

    query: str
    number: int
    leases: Mapping[str, tuple[tuple[str, int], ...]]
    attempted: tuple[str, ...] = ()
    """The queues that this batch is an attempt at."""

    def to_json(self) -> dict[str, Any]:
        queues = {queue: [list(lease) for lease in leases] for queue, leases in self.leases.items()}
        return {"v": 1, "query": self.query, "number": self.number, "queues": queues, "tried": list(self.attempted)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SyphonOffset:
        leases = {queue: tuple((str(one), int(count)) for one, count in leases) for queue, leases in value["queues"].items()}
        return cls(str(value["query"]), int(value["number"]), leases, tuple(value["tried"]))


@dataclass(slots=True)
class _QueueBackoff:
    """One backlog queue between attempts at it: how long to leave it alone."""

    first_pause: float
    pauses: Backoff
    left: int = 0
    """In its leases when last planned: fewer after an attempt means that something moves."""
    attempting: bool = False
    moved: bool = False
    not_before: float = 0.0
    """What waits is tried again from then on."""
    ask_after: float = 0.0
    """While something waits, more is leased from then on."""

    def attempted(self, left: int, now: float) -> None:
        """What came of the last attempt, if there was one."""
        if self.attempting:
            self.moved = left < self.left
            if self.moved or not left:
                self.retry_at_once(now)
            else:
                self.not_before = now + self.pauses.next_pause()
            self.ask_after = min(self.not_before, now + self.first_pause)
        self.attempting = False
        self.left = left

    def retry_at_once(self, now: float) -> None:
        self.pauses.reset()
        self.not_before = now

    def due(self, now: float) -> bool:
        return self.left > 0 and now >= self.not_before


class SyphonStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """A batch is an attempt at everything leased so far and at what can be leased anew. It never fails because a broker is away."""

    def __init__(self, options: SyphonOptions) -> None:
        self.options = options
        self._live_batches: LeasedBatches | None = None
        self._begun = False
        self._once = False
        first = options.retry_ms / 1000
        self._queues = {queue: _QueueBackoff(first, Backoff(first, RETRY_SECONDS_MAX)) for queue in options.queues}
        self._ended: set[str] = set()
        self._stuck_since = 0.0
        self._primary_gone = False

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["options"])  # type: ignore[misc]

    def initialOffset(self) -> dict[str, Any]:
        return SyphonOffset(uuid.uuid4().hex, 0, {}).to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        self._once = True

    # -- planning ----------------------------------------------------------------------------

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        offset = SyphonOffset.from_json(start)
        while True:
            try:
                planned = self._plan(offset)
            except TransportError as error:
                if not unreachable(error):
                    raise _explained(error, self.options) from error
                log.warning("no batch planned, the secondary cannot be reached: %s", error)
                self._lost()
                time.sleep(self.options.retry_ms / 1000)
                planned = None if self._once and not self._given_up() else offset
            if planned is not None:
                return planned.to_json()

    def _plan(self, offset: SyphonOffset) -> SyphonOffset | None:
        """The next offset, the same when there is nothing to do; None: ask again (once, and something may still come)."""
        batches = self._batches(offset)
        now = time.monotonic()
        self._ended &= {lease for leases in offset.leases.values() for lease, _ in leases}
        open_leases: dict[str, list[tuple[str, int]]] = {}
        for queue, backoff in self._queues.items():
            kept = self._kept(batches, queue, offset.leases.get(queue, ()))
            backoff.attempted(sum(left for _, _, left in kept), now)
            if kept:
                open_leases[queue] = [(lease, count) for lease, count, _ in kept]
        if any(backoff.moved for backoff in self._queues.values()):
            self._stuck_since = 0.0
        self._look_for_the_primary(now)
        shares = self._take(batches, offset, now)
        for queue, share in shares.items():
            open_leases.setdefault(queue, []).append((share.lease, share.count))
            self._queues[queue].left += share.count
            self._stuck_since = 0.0
        now = time.monotonic()
        attempted = tuple(queue for queue, backoff in self._queues.items() if queue in shares or backoff.due(now))
        if not attempted and offset.number == 0 and not self._once:
            # An attempt at nothing: whatever has to be loaded and started for the first one is there when there is something to carry.
            attempted = self.options.queues[:1]
        if not attempted:
            return self._nothing_to_do(batches, offset)
        for queue in attempted:
            self._queues[queue].attempting = True
        leases = {queue: tuple(found) for queue, found in open_leases.items()}
        return SyphonOffset(offset.query, offset.number + 1, leases, attempted)

    def _kept(self, batches: LeasedBatches, queue: str, leases: Sequence[tuple[str, int]]) -> list[tuple[str, int, int]]:
        """(lease, messages, left) of those with something left; the others are ended."""
        if all(lease in self._ended for lease, _ in leases):
            return []
        answer = batches.request(queue, "com.tandem:list-leases", {})
        found = {str(one["lease-id"]): int(one["remaining"]) for one in (answer["leases"] if answer is not None else [])}
        kept = []
        for lease, count in leases:
            left = found.get(lease)
            if not left:
                self._end(batches, queue, lease)
            else:
                kept.append((lease, count, left))
                batches.renewer.hold(queue, lease)
        return kept

    def _end(self, batches: LeasedBatches, queue: str, lease: str) -> None:
        """Nothing is left in it, or it has lapsed."""
        batches.renewer.forget(lease)
        self._ended.add(lease)
        try:
            batches.request(queue, "com.tandem:complete-lease", {"lease-id": lease})
        except TransportError as error:
            if error.condition != LEASE_LOST:
                raise

    def _take(self, batches: LeasedBatches, offset: SyphonOffset, now: float) -> dict[str, BatchShare]:
        """New leases: for queues where nothing waits or something moves; past what waits, now and then, while the primary is there."""
        options = self.options
        budgets = {}
        for queue, backoff in self._queues.items():
            past_waiting = backoff.left < options.parked_max and now >= backoff.ask_after and (backoff.moved or self._primary_answers())
            if backoff.left == 0 or past_waiting:
                budgets[queue] = options.max_messages
        # What waits is tried again as soon as it may be, whether or not anything new comes.
        wait = options.poll_ms / 1000
        soonest = min((backoff.not_before for backoff in self._queues.values() if backoff.left), default=now + wait)
        wait = min(wait, max(0.0, soonest - now))
        if budgets:
            return batches.take(offset.query, offset.number + 1, budgets, options.max_bytes, -1.0 if self._once else wait)
        time.sleep(wait)
        return {}

    def _look_for_the_primary(self, now: float) -> None:
        """When it is back, what waits is tried at once, however long the pauses have become."""
        if not any(backoff.left for backoff in self._queues.values()):
            return
        answers = self._primary_answers()
        if answers and self._primary_gone:
            for backoff in self._queues.values():
                backoff.retry_at_once(now)
        self._primary_gone = not answers

    def _primary_answers(self) -> bool:
        """Whether it takes connections and speaks: if not, whatever is leased could only wait."""
        try:
            with BlockingClient(self.options.move.primary.endpoint, timeout=_ANSWER_SECONDS) as client:
                return client.pump(_ANSWER_SECONDS)
        except TransportError:
            return False

    def _nothing_to_do(self, batches: LeasedBatches, offset: SyphonOffset) -> SyphonOffset | None:
        """Once: over when the queues are empty, also of what others hold; a stream: Spark asks again."""
        if not self._once:
            return offset
        if not any(backoff.left for backoff in self._queues.values()):
            counts = [batches.counts(queue) for queue in self.options.queues]
            if not any(count["active"] + count["leased"] for count in counts):
                return offset
        if self._given_up():
            return offset
        time.sleep(min(0.25, self.options.retry_ms / 1000))
        return None

    def _given_up(self) -> bool:
        patience = self.options.give_up_seconds
        self._stuck_since = self._stuck_since or time.monotonic()
        return patience > 0 and time.monotonic() - self._stuck_since > patience

    def _batches(self, offset: SyphonOffset) -> LeasedBatches:
        if self._live_batches is None:
            options = self.options
            self._live_batches = LeasedBatches(options.move.secondary, options.lease_seconds, options.wait_seconds, options.max_messages)
        if not self._begun:
            known = [BatchShare(queue, lease, count, "", ()) for queue, leases in offset.leases.items() for lease, count in leases]
            self._live_batches.begin(self.options.queues, offset.query, known)
            self._begun = True
        return self._live_batches

    def _lost(self) -> None:
        if self._live_batches is not None:
            self._live_batches.lost()

    # -- a planned batch ---------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """One task per queue: order holds within a queue, so a queue is never split."""
        offset = SyphonOffset.from_json(end)
        if offset.number == SyphonOffset.from_json(start).number:
            return []
        try:
            batches = self._batches(offset)
            for queue, leases in offset.leases.items():
                for lease, _ in leases:
                    batches.renewer.hold(queue, lease)
        except TransportError as error:
            if not unreachable(error):
                raise _explained(error, self.options) from error
            self._lost()
        refusing = tuple(RefusingDestinations(self.options.refusing_file).read().items())
        return [LeasePartition(queue, offset.leases.get(queue, ()), refusing) for queue in offset.attempted]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Moves the messages. The rows say what became of them; what is settled is not moved again when the task is."""
        assert isinstance(partition, LeasePartition)
        task = _task(self.options.move, partition)
        counts = task.run(partition.leases)
        if task.trouble:
            counts.append(DestinationCount("", reason=task.trouble))
        rows = [
            {
                "queue": partition.queue,
                "path": one.path,
                "moved": one.moved,
                "dead_lettered": one.dead_lettered,
                "waiting": one.waiting,
                "size_bytes": one.size_bytes,
                "reason": one.reason,
                "trouble": one.trouble,
            }
            for one in counts
        ]
        yield pa.RecordBatch.from_pylist(rows, schema=_ARROW)

    def commit(self, end: dict[str, Any]) -> None:
        """Leases are ended by the next plan, when nothing is left in them."""

    def stop(self) -> None:
        if self._live_batches is not None:
            self._live_batches.close()
            self._live_batches = None


def _explained(error: TransportError, options: SyphonOptions) -> Exception:
    if error.condition in ("amqp:unauthorized-access", "com.microsoft:auth-failed"):
        return OptionError("secondary", f"the broker does not accept the key: {error}")
    if error.condition == "amqp:not-found":
        return OptionError("queues", f"a backlog queue does not exist: {error}")
    if error.condition == "amqp:not-implemented":
        return OptionError("secondary", f"the broker has no batch leases; use the client's syphon there: {error}")
    return error


class SyphonDataSource(DataSource):  # type: ignore[misc]
    """Used by `job` only."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = {str(key): str(value) for key, value in options.items()}

    @classmethod
    def name(cls) -> str:
        return "servicebus-syphon"

    def schema(self) -> StructType:
        return SCHEMA

    def streamReader(self, schema: StructType) -> SyphonStreamReader:
        return SyphonStreamReader(SyphonOptions.parse(self._given))
