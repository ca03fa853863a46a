"""The syphon as a Spark job: every diverted message goes home, for as long as it runs, or once until nothing is left."""

from __future__ import annotations

import contextlib
import logging
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tandem.client.backlog import queue_name
from tandem.client.destinations import WAIT_SECONDS
from tandem.client.transport import namespace_label
from tandem.engine_client.blocking import BlockingClient, Endpoint, TransportError
from tandem.model.backoff import Backoff
from tandem.model.clock import SystemClock
from tandem.spark.connector.connections import unreachable
from tandem.spark.connector.options import OptionError, Where
from tandem.spark.session import open_session
from tandem.spark.syphon.progress import Progress, ProgressMeter, write_metrics
from tandem.spark.syphon.refusing_destinations import RefusingDestinations

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

log = logging.getLogger("tandem.spark.syphon")

_TICK_SECONDS = 0.2
_RESTART_SECONDS_MAX = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SyphonSettings:
    """How hard to work. The defaults suit one machine and ten backlog queues."""

    primary_namespace: str | None = None
    """As the senders spelled it when they diverted; the first label of the primary's host if None."""
    backlog_queue_count: int = 10
    queues: Sequence[str] = ()
    """Backlog queues by path, instead of the above."""
    primary_ca_file: str | None = None
    secondary_ca_file: str | None = None
    max_messages_per_trigger: int = 20_000
    """Per backlog queue and batch."""
    messages_per_transfer: int = 250
    lease_seconds: int = 300
    wait_seconds: int = 900
    """Of one long poll on an empty backlog queue: 15 minutes, four receives an hour."""
    poll_ms: int = 1_000
    retry_ms: int = 1_000
    """First pause when nothing can be delivered; it doubles up to a minute."""
    parked_max: int = 50_000
    """Messages of a backlog queue that may wait for their destination while others pass; they are read again at every attempt."""
    give_up_seconds: int = 0
    """`once` ends, with messages remaining, when nothing moved for so long; 0 = never."""
    destination_wait_seconds: int = WAIT_SECONDS
    """How long messages wait for a destination that is missing, disabled or full before they are dead-lettered."""
    operation_timeout_seconds: int = 30
    subtract_time_in_backlog: bool = False
    tracing: bool = False
    """A span for each move of a message that carries a trace context, sent where OTEL_EXPORTER_OTLP_ENDPOINT says (extra `otel`)."""
    stop_grace_seconds: float = 30.0
    restarts_max: int = 8
    """Of the query, in a row without a batch that moved anything, before the error is raised."""


@dataclass(slots=True)
class _Run:
    """What the supervising thread and Spark's callback share."""

    progress: Progress
    in_batch: bool = False
    failures: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def reach(self, progress: Progress) -> Progress:
        """So far by now; returns how far it was."""
        before, self.progress = self.progress, progress
        return before

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        self.in_batch = True
        try:
            yield
        finally:
            self.in_batch = False

    def move(self) -> None:
        """The query works: what failed before is forgiven."""
        self.failures = 0

    def fail(self) -> None:
        """The query ended, and is started again."""
        self.failures += 1
        self.progress = replace(self.progress, restarts=self.progress.restarts + 1)


def run(
    primary: str,
    secondary: str,
    *,
    once: bool = False,
    checkpoint: str | Path | None = None,
    master: str | None = None,
    spark: SparkSession | None = None,
    settings: SyphonSettings | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    metrics_file: str | Path | None = None,
    stop: threading.Event | None = None,
) -> Progress:
    """Carry the backlog of `primary`, kept in `secondary`, home. Returns the last progress: when `once`, `remaining` should be 0.

    Brokers that are away are waited for. With a checkpoint a killed run goes on where it was; without one its leases lapse first.
    Raises OptionError for what only the caller can mend: a wrong connection string, key or queue.
    """
    settings = settings or SyphonSettings()
    stop = stop or threading.Event()
    sides = _sides(primary, secondary, settings)
    queues = find_queues(sides["secondary"], sides["primary"], settings)
    meter = ProgressMeter(sides["secondary"], queues)
    with contextlib.ExitStack() as stack:
        place = str(checkpoint) if checkpoint is not None else stack.enter_context(tempfile.TemporaryDirectory(prefix="tandem-syphon-"))
        session = spark if spark is not None else stack.enter_context(open_session("tandem syphon", master))
        state = _Run(meter.begin())
        refusing_file = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tandem-syphon-"))) / "refusing.json"
        refusing = RefusingDestinations(refusing_file)
        options = _spark_options(sides, queues, settings) | {"refusingFile": str(refusing_file)}

        def told(rows: Sequence[Mapping[str, Any]]) -> None:
            waited_for = refusing.learn(rows, SystemClock().now_ms())
            with state.lock:
                state.reach(replace(meter.add(state.progress, rows), destinations_waiting=len(waited_for)))
            _publish(state.progress, on_progress, metrics_file)

        def idle() -> None:
            """Between batches nothing tells how many are left: ask, as often as batches would."""
            with state.lock:
                if not meter.stale:
                    return
                before = state.reach(meter.measured(state.progress))
                changed = before.remaining != state.progress.remaining
            _publish(state.progress, on_progress if changed else None, metrics_file)

        _supervise(_Job(session, options, place, once), settings, state, told, idle, stop)
        state.reach(replace(meter.measured(state.progress), finished=True))
        _publish(state.progress, on_progress, metrics_file)
    return state.progress


def _publish(progress: Progress, on_progress: Callable[[Progress], None] | None, metrics_file: str | Path | None) -> None:
    if on_progress is not None:
        on_progress(progress)
    if metrics_file is not None:
        write_metrics(Path(metrics_file), progress)


def _sides(primary: str, secondary: str, settings: SyphonSettings) -> dict[str, Where]:
    sides = {}
    for name, text, ca_file in (("primary", primary, settings.primary_ca_file), ("secondary", secondary, settings.secondary_ca_file)):
        try:
            Endpoint.parse(text, ca_file)
        except ValueError as error:
            raise OptionError(name, str(error)) from None
        sides[name] = Where(connection_string=text, ca_file=ca_file, timeout_seconds=settings.operation_timeout_seconds)
    if sides["primary"].endpoint == sides["secondary"].endpoint:
        raise OptionError("secondary", "is the primary itself")
    return sides


def find_queues(secondary: Where, primary: Where, settings: SyphonSettings) -> list[str]:
    """The backlog queues that exist. Waits for a secondary that is away; raises OptionError when there are none."""
    if settings.queues:
        return list(settings.queues)
    label = settings.primary_namespace or namespace_label(primary.endpoint.host)
    names = [queue_name(label, index) for index in range(settings.backlog_queue_count)]
    backoff = Backoff(0.2, _RESTART_SECONDS_MAX)
    while True:
        try:
            found = _existing(secondary, names)
            break
        except TransportError as error:
            if not unreachable(error):
                raise OptionError("secondary", f"the backlog queues cannot be read: {error}") from error
            pause = backoff.next_pause()
            log.warning("the secondary cannot be reached, trying again in %.1f s: %s", pause, error)
            time.sleep(pause)
    if not found:
        raise OptionError(
            "primary_namespace", f"{names[0]} … {names[-1]}: none of these exists in the secondary; was it paired under another name?"
        )
    return found


def _existing(secondary: Where, names: Sequence[str]) -> list[str]:
    found = []
    with BlockingClient(secondary.endpoint, timeout=secondary.timeout_seconds) as client:
        for name in names:
            try:
                client.request(name, "com.tandem:list-leases", {})
            except TransportError as error:
                if error.condition == "amqp:not-implemented":
                    raise OptionError("secondary", "the broker has no batch leases: run the client's syphon against it") from error
                if error.condition != "amqp:not-found":
                    raise
                continue
            found.append(name)
    return found


def _spark_options(sides: Mapping[str, Where], queues: Sequence[str], settings: SyphonSettings) -> dict[str, str]:
    return {
        "primary": sides["primary"].connection_string,
        "secondary": sides["secondary"].connection_string,
        "primaryCaFile": sides["primary"].ca_file or "",
        "secondaryCaFile": sides["secondary"].ca_file or "",
        "queues": "\n".join(queues),
        "maxMessagesPerTrigger": str(settings.max_messages_per_trigger),
        "messagesPerTransfer": str(settings.messages_per_transfer),
        "leaseSeconds": str(settings.lease_seconds),
        "waitSeconds": str(settings.wait_seconds),
        "pollMs": str(settings.poll_ms),
        "retryMs": str(settings.retry_ms),
        "parkedMax": str(settings.parked_max),
        "giveUpSeconds": str(settings.give_up_seconds),
        "destinationWaitSeconds": str(settings.destination_wait_seconds),
        "operationTimeoutSeconds": str(settings.operation_timeout_seconds),
        "subtractTimeInBacklog": "true" if settings.subtract_time_in_backlog else "false",
        "tracing": "true" if settings.tracing else "false",
    }


class _Job:
    """Starts the query, as often as needed, from one checkpoint."""

    def __init__(self, spark: SparkSession, options: Mapping[str, str], checkpoint: str, once: bool) -> None:
        from tandem.spark.syphon.source import SyphonDataSource

        self._spark = spark
        self._options = options
        self._checkpoint = checkpoint
        self._once = once
        spark.dataSource.register(SyphonDataSource)

    def start(self, each: Callable[[DataFrame, int], None]) -> StreamingQuery:
        stream = self._spark.readStream.format("servicebus-syphon").options(**self._options).load()
        writer = stream.writeStream.foreachBatch(each).option("checkpointLocation", self._checkpoint).queryName("tandem-syphon")
        return writer.trigger(availableNow=True).start() if self._once else writer.start()

    def abandon(self, query: StreamingQuery) -> None:
        """After a clean stop: what still waits in leases goes back at once, so that others may carry it."""
        last = query.lastProgress
        if last is None:
            return
        import json

        offset = last["sources"][0].get("endOffset")
        offset = json.loads(offset) if isinstance(offset, str) else offset
        where = Where(connection_string=self._options["secondary"], ca_file=self._options["secondaryCaFile"] or None, timeout_seconds=10)
        try:
            with BlockingClient(where.endpoint, timeout=10) as client:
                for queue, leases in (offset or {}).get("queues", {}).items():
                    for lease, _ in leases:
                        client.request(queue, "com.tandem:abandon-lease", {"lease-id": lease})
        except TransportError as error:
            log.warning("leases could not be given back and lapse by themselves: %s", error)


def _supervise(
    job: _Job,
    settings: SyphonSettings,
    state: _Run,
    told: Callable[[Sequence[Mapping[str, Any]]], None],
    idle: Callable[[], None],
    stop: threading.Event,
) -> None:
    """Run the query; when it fails (executors lost once too often), start it again from its checkpoint."""

    def each(frame: DataFrame, number: int) -> None:
        with state.batch():
            rows = [row.asDict() for row in frame.collect()]
            if any(row["moved"] for row in rows):
                state.move()
            told(rows)

    backoff = Backoff(0.5, _RESTART_SECONDS_MAX)
    while True:
        query = job.start(each)
        error = _watch(query, settings, state, idle, stop)
        if error is None:
            if stop.is_set():
                job.abandon(query)
            return
        text = str(error)
        if "OptionError" in text:
            raise OptionError(*_option_of(text)) from error
        if not state.failures:
            backoff.reset()
        state.fail()
        if state.failures > settings.restarts_max:
            raise error
        pause = backoff.next_pause()
        log.warning("the query failed and starts again in %.1f s: %s", pause, text.splitlines()[0] if text else error)
        if stop.wait(pause):
            return


def _watch(
    query: StreamingQuery, settings: SyphonSettings, state: _Run, idle: Callable[[], None], stop: threading.Event
) -> Exception | None:
    """Until the query ends or we are told to stop, then between two batches if one ends in time."""
    try:
        while not query.awaitTermination(_TICK_SECONDS):
            if not stop.is_set():
                idle()
                continue
            patience = time.monotonic() + settings.stop_grace_seconds
            while state.in_batch and time.monotonic() < patience:
                time.sleep(0.05)
            query.stop()
            return None
    except Exception as error:  # noqa: BLE001 - whatever Spark raises; the supervisor decides by what it says
        return error
    return None


def _option_of(text: str) -> tuple[str, str]:
    """(option, text) out of Spark's report of a failed planner."""
    said = text.partition("OptionError: ")[2].splitlines()[0]
    name = said.partition("'")[2].partition("'")[0]
    return name, said.partition(": ")[2] or said
