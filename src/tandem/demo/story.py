"""The outage, act by act: peace, a kill, sends that go on, a restart, healing, the way home, the proof."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from tandem.aio import PairedNamespaces
from tandem.client.event_log import EventLog
from tandem.demo.processes import QUEUES, BrokerProcess, PairedTraffic, Traffic, now_ms
from tandem.demo.verdict import DemoVerdict

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tandem.client.events import Event
    from tandem.demo.view import DemoView
    from tandem.spark.analytics.page import OutageStory
    from tandem.spark.syphon.progress import Progress

PRIMARY: Final = "contoso"
SECONDARY: Final = "contoso-backup"
_BACKLOG_QUEUES: Final = 4
_HEAL_SECONDS_MAX: Final = 60.0
_DRAIN_SECONDS_MAX: Final = 120.0
_AFTER_SECONDS: Final = 4.0
_PATIENCE_SECONDS: Final = 30.0
_TICK_SECONDS: Final = 0.25
_CONF: Final = {
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "2",
    # a few thousand rows: compiling Java for them would take longer than they do
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


@dataclass(frozen=True, slots=True)
class Plan:
    rate: float
    before: float
    outage: float
    report: Path
    master: str | None


async def play(plan: Plan, directory: Path, view: DemoView) -> DemoVerdict:
    """The whole story; brokers and Spark are gone when it returns."""
    primary = BrokerProcess(directory, PRIMARY, QUEUES)
    secondary = BrokerProcess(directory, SECONDARY, ())
    session = _Session(plan.master, directory / "spark.log")
    try:
        view.phase("two data centres start")
        await asyncio.gather(primary.start(), secondary.start())
        view.brokers(primary, secondary)
        starting = asyncio.ensure_future(asyncio.to_thread(session.open))
        with _logs_to(directory / "client.log"):
            drained = await _outage(plan, directory, primary, secondary, starting, view)
        await asyncio.gather(primary.stop(), secondary.stop())
        view.brokers(primary, secondary)
        view.phase("Spark reads the journals of both brokers and compares them with the ledgers of senders and receivers")
        story = await asyncio.to_thread(_prove, await starting, directory, primary, secondary)
    finally:
        await asyncio.gather(primary.stop(), secondary.stop())
        await asyncio.to_thread(session.close)
    from tandem.spark.analytics.report import write_report

    write_report(story, plan.report)
    return _verdict(story, drained, plan.report)


async def _outage(
    plan: Plan, directory: Path, primary: BrokerProcess, secondary: BrokerProcess, starting: asyncio.Future[SparkSession], view: DemoView
) -> float:
    """Seconds from healing until the backlog was home."""
    log = EventLog(directory / "client-events.jsonl", "demo")

    def told(event: Event) -> None:
        log(event)
        view.event(event)

    options: dict[str, Any] = {
        "primary_namespace": PRIMARY,
        "backlog_queue_count": _BACKLOG_QUEUES,
        "failover_interval": 0,
        "ping_primary_interval": 1,
        "ping_timeout": 5,
        "operation_timeout": 20,
        "sdk_options": {"connection_verify": str(secondary.data / "ca.pem")},
        "on_event": told,
    }
    async with PairedNamespaces(primary.connection_string, secondary.connection_string, **options) as pair:
        traffic = PairedTraffic(primary, pair, plan.rate, directory)
        async with _watching(view, traffic, pair):
            traffic.start()
            view.phase(f"peace: {plan.rate:g} messages a second go to the primary; Spark starts beside it")
            async with _Syphon(primary, secondary, directory, view) as syphon:
                await asyncio.gather(asyncio.sleep(plan.before), syphon.warm(starting))
                primary.kill()
                view.phase("SIGKILL: the primary is gone. Sends go on")
                await asyncio.sleep(plan.outage)
                view.phase("the primary starts again on its data")
                await primary.start()
                await asyncio.wait_for(_healed(pair), _HEAL_SECONDS_MAX)
                view.phase("healed: new sends go home. The Spark syphon, which has waited for this, carries the backlog after them")
                healed = asyncio.get_running_loop().time()
                await syphon.drained()
                drained = asyncio.get_running_loop().time() - healed
                await asyncio.sleep(_AFTER_SECONDS)
                await traffic.stop_sending()
                view.phase("everything is sent; the receivers take what is left")
                await traffic.finish(_PATIENCE_SECONDS)
                log.count(pair.counters, now_ms)
    log.close()
    return drained


async def _healed(pair: PairedNamespaces) -> None:
    await asyncio.gather(*(pair.monitor(queue).healed.wait() for queue in QUEUES))


@contextlib.asynccontextmanager
async def _watching(view: DemoView, traffic: Traffic, pair: PairedNamespaces) -> AsyncIterator[None]:
    """The view learns a few times a second how things stand."""

    async def watch() -> None:
        while True:
            view.standing(traffic.tally, pair.counters.diverted, [pair.state(queue) for queue in QUEUES])
            await asyncio.sleep(_TICK_SECONDS)

    watching = asyncio.ensure_future(watch())
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.wait((watching,))


class _Syphon:
    """The Spark syphon as a service: started in peace, warm when it is needed, stopped when everything is home."""

    def __init__(self, primary: BrokerProcess, secondary: BrokerProcess, directory: Path, view: DemoView) -> None:
        self._primary = primary
        self._secondary = secondary
        self._directory = directory
        self._view = view
        self._loop = asyncio.get_running_loop()
        self._stop = threading.Event()
        self._told = asyncio.Event()
        self._last: Progress | None = None
        self._running: asyncio.Future[Progress] | None = None

    async def warm(self, starting: asyncio.Future[SparkSession]) -> None:
        """Until it has made its first attempt, at nothing."""
        spark = await starting
        self._running = asyncio.ensure_future(asyncio.to_thread(self._run, spark))
        await self._until(lambda progress: True)

    async def drained(self) -> None:
        """Until the backlog is empty: the secondary is asked, since a task that was killed moved more than it could say."""
        async with asyncio.timeout(_DRAIN_SECONDS_MAX):
            await self._until(lambda progress: progress.moved > 0 and progress.remaining == 0)

    async def __aenter__(self) -> _Syphon:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        """It runs to the end of the story, for stragglers; and it is stopped if the story fails, or its thread would outlive the demo."""
        self._stop.set()
        if self._running is not None:
            await asyncio.wait((self._running,))
            if kind is None:
                self._running.result()

    async def _until(self, enough: Callable[[Progress], bool]) -> None:
        assert self._running is not None
        while self._last is None or not enough(self._last):
            self._told.clear()
            waiting = asyncio.ensure_future(self._told.wait())
            await asyncio.wait((waiting, self._running), return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if self._running.done():
                self._running.result()
                return

    def _run(self, spark: SparkSession) -> Progress:
        from tandem.spark.syphon.job import SyphonSettings, run

        return run(
            self._primary.connection_string,
            self._secondary.connection_string,
            checkpoint=self._directory / "checkpoint",
            spark=spark,
            settings=SyphonSettings(primary_namespace=PRIMARY, backlog_queue_count=_BACKLOG_QUEUES, poll_ms=250),
            on_progress=self._progress,
            stop=self._stop,
        )

    def _progress(self, progress: Progress) -> None:
        """On Spark's thread."""
        self._last = progress
        if progress.moved or progress.remaining:
            self._view.syphon(progress.moved, progress.remaining)
        self._loop.call_soon_threadsafe(self._told.set)


def _prove(spark: SparkSession, directory: Path, primary: BrokerProcess, secondary: BrokerProcess) -> OutageStory:
    from tandem.spark.analytics.report import tell

    return tell(
        spark,
        journals=[str(primary.data), str(secondary.data)],
        now_ms=now_ms(),
        sent=str(directory / "sent.jsonl"),
        received=str(directory / "received.jsonl"),
        events=[str(directory / "client-events.jsonl"), str(primary.data / "events.jsonl"), str(secondary.data / "events.jsonl")],
        meters=[str(primary.data), str(secondary.data)],
        title="The demo: the primary was killed, and this is what became of every message",
        delayed_after_ms=5_000,
    )


def _verdict(story: OutageStory, drained: float, report: Path) -> DemoVerdict:
    total = story.reconciliation.total
    outages = story.availability.outages if story.availability is not None else ()
    return DemoVerdict(
        sent=total.sent,
        delivered=total.delivered,
        lost=total.lost,
        duplicated=total.duplicated,
        diverted=total.diverted,
        operations=story.cost.billed if story.cost is not None else 0,
        failed=sum(path.failed for path in story.availability.paths) if story.availability is not None else 0,
        seconds_to_failover=max((one.seconds_to_failover for one in outages if one.seconds_to_failover is not None), default=None),
        seconds_to_heal=max((one.seconds_to_heal for one in outages if one.seconds_to_heal is not None), default=None),
        seconds_to_drain=drained,
        report=str(report),
    )


class _Session:
    """Spark starts while the story begins; what its Java says goes to a file, not over the view."""

    def __init__(self, master: str | None, log: Path) -> None:
        self._master = master
        self._log = log
        self._stack = contextlib.ExitStack()

    def open(self) -> SparkSession:
        from tandem.spark.session import open_session

        with _stderr_to(self._log):
            return self._stack.enter_context(open_session("tandem demo", self._master, _CONF))

    def close(self) -> None:
        self._stack.close()


@contextlib.contextmanager
def _logs_to(file: Path) -> Iterator[None]:
    """What the libraries log: the view tells the same in fewer words, and a line in between would break it."""
    handler = logging.FileHandler(file, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()


@contextlib.contextmanager
def _stderr_to(log: Path) -> Iterator[None]:
    """For programs started meanwhile, which keep it."""
    kept = os.dup(2)
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(target, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(target)
