"""`tandem reconcile`, `cost`, `availability` and `report`: Spark jobs over what brokers and clients wrote down, as tables or as JSON."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tandem.model.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.console import Console
    from rich.table import Table

    from tandem.spark.analytics.availability import Availability, Outage
    from tandem.spark.analytics.bill import Cost
    from tandem.spark.analytics.reconcile import Reconciliation

Primary = Annotated[Path | None, typer.Option(help="Data directory of the primary broker (its journals).")]
Secondary = Annotated[Path | None, typer.Option(help="Data directory of the secondary broker.")]
Journals = Annotated[list[Path] | None, typer.Option("--journal", help="Further data directories; may be given again.")]
Engines = Annotated[
    list[str] | None,
    typer.Option("--engine", help="Cluster: connection string of its PostgreSQL, without password; may be given again.", metavar="DSN"),
]
Sent = Annotated[Path | None, typer.Option(help="Ledger of the senders: JSON lines or Parquet with message_id, path, at_ms.")]
Received = Annotated[Path | None, typer.Option(help="Ledger of the receivers, likewise.")]
Master = Annotated[str | None, typer.Option(help="Spark master; this machine unless given.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DelayedAfter = Annotated[float, typer.Option(help="Seconds after which a delivery counts as delayed.", min=0.0)]
Events = Annotated[list[Path] | None, typer.Option("--events", help="Event logs, or directories that hold them; may be given again.")]
Meters = Annotated[list[Path] | None, typer.Option("--meters", help="Data directories with meters; may be given again.")]
PriceFile = Annotated[Path | None, typer.Option(help="Price table (JSON); the one that comes with Tandem unless given.")]
Target = Annotated[float, typer.Option(help="Share of sends that have to be accepted.", min=0.0, max=1.0)]

_DELAY_SECONDS_MAX = 1e10
_GIVEN_UP = "the segment was given up while it was read"
_CONF = {"spark.driver.memory": "3g", "spark.sql.shuffle.partitions": "8", "spark.sql.execution.arrow.pyspark.enabled": "true"}


@contextmanager
def _session(name: str, master: str | None) -> Iterator[SparkSession]:
    """What a task could not read because a node gave it up meanwhile is one line, not a page of Java."""
    from tandem.spark.session import open_session

    with open_session(name, master, _CONF) as spark:
        try:
            yield spark
        except Exception as error:
            if _GIVEN_UP not in str(error):
                raise
            raise ConfigurationError(
                "--engine: a segment was given up by its node while it was read: run it again, or have segments kept: audit_retention"
            ) from error


def reconcile(
    primary: Primary = None,
    secondary: Secondary = None,
    journal: Journals = None,
    engine: Engines = None,
    sent: Sent = None,
    received: Received = None,
    delayed_after: DelayedAfter = 60.0,
    findings: Annotated[int, typer.Option(help="List at most so many messages.", min=0)] = 20,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Prove that nothing was lost, doubled or left behind. Exit code 1 if something was lost or doubled.

    Example: tandem reconcile --primary data-a --secondary data-b --sent sent.jsonl --received received.jsonl
    """
    journals = [*_directories(primary, secondary, journal), *_engines(engine)]
    delayed_after_ms = _milliseconds(delayed_after)
    if not journals and sent is None and received is None:
        raise ConfigurationError("nothing to reconcile: give --primary and --secondary, --engine, or --sent and --received")
    with _session("tandem reconcile", master) as spark:
        from tandem.spark.analytics.reconcile import reconcile as job

        result = job(
            spark,
            journals=journals or None,
            sent=_text(sent),
            received=_text(received),
            delayed_after_ms=delayed_after_ms,
            findings_max=findings,
        )
    if as_json:
        print(json.dumps(result.as_dict()))
    else:
        show_reconciliation(result, _console())
    if not result.held:
        raise typer.Exit(1)


def cost(
    meters: Meters = None,
    engine: Engines = None,
    prices: PriceFile = None,
    backlog_queues: Annotated[int, typer.Option(help="Backlog queues of a pair.", min=1)] = 10,
    poll_minutes: Annotated[float, typer.Option(help="Length of one long poll of a syphon.", min=0.01)] = 15.0,
    messages: Annotated[int | None, typer.Option(help="Messages in 30 days; scaled from the meters unless given.", min=0)] = None,
    outage_minutes: Annotated[float, typer.Option(help="Minutes of outage in 30 days: the share that is diverted.", min=0.0)] = 60.0,
    paths: Annotated[int | None, typer.Option(help="Entities pinged during an outage; as counted, or 1, unless given.", min=1)] = None,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Price what was counted, and compare pairing, failover, active and passive replication. Without meters it only calculates.

    Example: tandem cost --meters data-a --meters data-b
    """
    from tandem.spark.analytics.bill import Counted, Month, bill

    if meters or engine:
        counted = [*(str(one) for one in meters or ()), *_engines(engine)]
        result = _counted_cost(counted, prices, backlog_queues, poll_minutes, messages, outage_minutes, paths, master)
    else:
        month = Month(
            backlog_queues=backlog_queues, poll_minutes=poll_minutes, messages=messages, outage_minutes=outage_minutes, paths=paths
        )
        result = bill(Counted(), month, _text(prices))
    if as_json:
        print(json.dumps(result.as_dict()))
    else:
        show_cost(result, _console())


def _counted_cost(
    meters: list[str],
    prices: Path | None,
    backlog_queues: int,
    poll_minutes: float,
    messages: int | None,
    outage_minutes: float,
    paths: int | None,
    master: str | None,
) -> Cost:
    with _session("tandem cost", master) as spark:
        from tandem.spark.analytics.cost import cost as job

        return job(
            spark,
            meters=meters,
            prices=_text(prices),
            backlog_queues=backlog_queues,
            poll_minutes=poll_minutes,
            messages_per_month=messages,
            outage_minutes_per_month=outage_minutes,
            paths=paths,
        )


def availability(
    events: Events = None, engine: Engines = None, target: Target = 0.999, master: Master = None, as_json: AsJson = False
) -> None:
    """Outages, times to failover and to healing, and the share of sends that were accepted. Exit code 1 if the goal was missed.

    Example: tandem availability --events events/ --target 0.9999
    """
    if not events and not engine:
        raise ConfigurationError("give --events, files of events or directories that hold them, or --engine, that of a cluster")
    with _session("tandem availability", master) as spark:
        from tandem.spark.analytics.availability import availability as job

        result = job(spark, events=[*(str(one) for one in events or ()), *_engines(engine)], target=target)
    if as_json:
        print(json.dumps(result.as_dict()))
    else:
        show_availability(result, _console())
    if not result.met:
        raise typer.Exit(1)


def report(
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    primary: Primary = None,
    secondary: Secondary = None,
    journal: Journals = None,
    engine: Engines = None,
    sent: Sent = None,
    received: Received = None,
    events: Events = None,
    prices: PriceFile = None,
    delayed_after: DelayedAfter = 60.0,
    target: Target = 0.999,
    title: Annotated[str, typer.Option(help="The page's title.")] = "Outage report",
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Write one self-contained page about an outage. Meters and events of the brokers are found beside their journals.

    Example: tandem report --primary data-a --secondary data-b --events client-events.jsonl --out outage.html
    """
    directories, engines = _directories(primary, secondary, journal), _engines(engine)
    delayed_after_ms = _milliseconds(delayed_after)
    _must_be_writable(out)
    if not directories and not engines:
        raise ConfigurationError("give --primary and --secondary, the data directories of the brokers, or --engine, that of a cluster")
    with _session("tandem report", master) as spark:
        from tandem.spark.analytics.report import tell, write_report

        story = tell(
            spark,
            journals=[*directories, *engines],
            now_ms=time.time_ns() // 1_000_000,
            sent=_text(sent),
            received=_text(received),
            events=[*(str(one) for one in events or []), *_found(directories, "events.jsonl"), *engines] or None,
            meters=[*(one for one in directories if _found([one], "*/meters/*.csv")), *engines] or None,
            prices=_text(prices),
            title=title,
            delayed_after_ms=delayed_after_ms,
            target=target,
        )
    write_report(story, out)
    if as_json:
        print(json.dumps({"file": str(out), **story.reconciliation.as_dict()}))
    else:
        print(f"written: {out}")
    if not story.reconciliation.held:
        raise typer.Exit(1)


def _milliseconds(delayed_after: float) -> int:
    if not 0 <= delayed_after <= _DELAY_SECONDS_MAX:
        raise ConfigurationError(f"--delayed-after: {delayed_after} is no number of seconds from 0 to {_DELAY_SECONDS_MAX:.0f}")
    return int(delayed_after * 1000)


def _must_be_writable(out: Path) -> None:
    """Said before the work is done."""
    if out.is_dir() or not out.parent.is_dir():
        raise ConfigurationError(f"--out: {out} {'is a directory' if out.is_dir() else 'is in no directory'}; give the page a name")
    if not os.access(out if out.exists() else out.parent, os.W_OK):
        raise ConfigurationError(f"--out: {out} cannot be written")


def _directories(primary: Path | None, secondary: Path | None, further: Sequence[Path] | None) -> list[str]:
    return [str(one) for one in (primary, secondary, *(further or ())) if one is not None]


def _engines(given: Sequence[str] | None) -> list[str]:
    from tandem.spark.analytics.engines import is_engine

    for number, dsn in enumerate(given or (), 1):
        if not is_engine(dsn):  # said by its number: it may hold a password
            raise ConfigurationError(f"--engine: number {number} is not of the form postgresql://user@host1,host2/database")
    return list(given or ())


def _found(directories: Sequence[str], pattern: str) -> list[str]:
    return [str(file) for one in directories for file in sorted(Path(one).glob(pattern))]


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _console() -> Console:
    from rich.console import Console

    return Console()


def _table(*columns: str) -> Table:
    from rich.table import Table

    return Table(*columns, box=None)


def show_reconciliation(result: Reconciliation, console: Console) -> None:
    from rich.markup import escape

    from tandem.spark.analytics.reconcile import PROBLEMS

    shown = [one for one in ("forwarded", *PROBLEMS) if one in ("lost", "duplicated") or getattr(result.total, one)]
    table = _table("entity", "sent", "delivered", "diverted", *[one.replace("_", " ") for one in shown])
    for one in [*result.entities, result.total]:
        name = escape(one.entity) or "[bold]all[/bold]"
        table.add_row(name, str(one.sent), str(one.delivered), str(one.diverted), *[_count(getattr(one, p), p) for p in shown])
    console.print(table)
    if result.latency_ms:
        console.print("time to delivery: " + ", ".join(f"{name} {value / 1000:g} s" for name, value in result.latency_ms.items()))
    if result.total.delayed:
        console.print(f"delayed: delivered more than {result.delayed_after_ms / 1000:g} s after sending", highlight=False)
    if result.broken_lines:
        console.print(f"[yellow]not counted: {result.broken_lines:,} lines of ledgers that are damaged or just being written[/yellow]")
    for finding in result.findings:
        console.print(f"  {finding.problem.replace('_', ' ')}: {finding.message_id} in {finding.entity}", highlight=False, markup=False)
    console.print("[green]nothing lost, nothing doubled[/green]" if result.held else "[red]it did not hold[/red]")


def _count(number: int, problem: str) -> str:
    return f"[red]{number}[/red]" if number and problem in ("lost", "duplicated", "out_of_order") else str(number)


def show_cost(result: Cost, console: Console) -> None:
    from rich.markup import escape

    if result.lines:
        table = _table("namespace", "entity", "operation", "outcome", "count", "billed", "bytes")
        for line in result.lines:
            counts = (f"{line.count:,}", f"{line.billed:,}", f"{line.bytes:,}")
            table.add_row(*map(escape, (line.namespace, line.entity, line.operation, line.outcome)), *counts)
        console.print(table)
        console.print(f"{result.billed:,} billed operations in {result.minutes:,} minutes", highlight=False)
    if result.broken_lines:
        console.print(f"[yellow]not counted: {result.broken_lines:,} lines of meter files that are damaged or just being written[/yellow]")
    idle = result.idle
    console.print(
        f"{idle.queues} idle backlog queues: {idle.per_hour:,.0f}/h, {idle.per_day:,.0f}/day, {idle.per_month:,.0f}/30 days",
        highlight=False,
    )
    if result.idle_measured_per_hour is not None:
        console.print(f"  measured: {result.idle_measured_per_hour:,.1f} empty receives from backlog queues an hour", highlight=False)
    console.print(
        "a diverted message: 4 operations (send to backlog, receive from backlog, send to primary, receive from primary)", highlight=False
    )
    if result.measured_per_diverted is not None:
        console.print(f"  measured: {result.measured_per_diverted:.2f} for {result.diverted:,} diverted messages", highlight=False)
    console.print(f"in 30 days: {result.basis}", highlight=False)
    table = _table("in 30 days", "operations", "price", "")
    for one in result.scenarios:
        table.add_row(one.name, f"{one.operations:,.0f}", f"{escape(result.currency)} {one.price:,.2f}", one.words)
    console.print(table)


def show_availability(result: Availability, console: Console) -> None:
    from rich.markup import escape

    table = _table("what", "seen by", "began", "until failover", "until healed", "failed pings")
    for one in [*result.outages, *result.stores]:
        table.add_row(
            escape(one.path),
            escape(one.who),
            _instant(one.began_ms),
            _seconds(one.seconds_to_failover),
            _healed(one),
            str(one.pings_failed),
        )
    console.print(table if result.outages or result.stores else "no outages")
    for path in result.paths:
        verdict = "[green]met[/green]" if path.met else "[red]missed[/red]"
        console.print(
            f"{escape(path.path)}: {path.attempted} attempted, {path.diverted} diverted, {path.failed} failed: "
            f"{path.achieved:.4%} accepted, goal {path.target:.4%} {verdict}; the primary alone: {path.primary_only:.4%}"
        )


def _instant(milliseconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(milliseconds / 1000))


def _seconds(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds:.1f} s"


def _healed(one: Outage) -> str:
    return "lasts" if one.seconds_to_heal is None else _seconds(one.seconds_to_heal)
