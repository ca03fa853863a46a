"""`tandem syphon`: carries diverted messages home, on Spark, with a live view of how far it is."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tandem.model.errors import ConfigurationError
from tandem.spark.pyspark_version import need_pyspark

if TYPE_CHECKING:
    from tandem.spark.syphon.progress import Progress

_DID_NOT_HOLD = 1
_FLAGS = {"primary_namespace": "name", "queues": "queue"}
"""Options that have another name on the command line."""


def syphon(
    primary: Annotated[str, typer.Option(help="Connection string of the namespace messages were meant for.", metavar="CONNECTION")],
    secondary: Annotated[str, typer.Option(help="Connection string of the namespace with the backlog queues.", metavar="CONNECTION")],
    once: Annotated[bool, typer.Option("--once", help="End when the backlog is empty.")] = False,
    master: Annotated[str | None, typer.Option(help="Spark master; all cores of this machine by default.", metavar="URL")] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="Directory to go on from after a crash.", metavar="DIR")] = None,
    name: Annotated[str | None, typer.Option(help="Name the primary was paired under; the first label of its host by default.")] = None,
    queue: Annotated[list[str] | None, typer.Option(help="A backlog queue by path, instead of all of the pair; may be repeated.")] = None,
    queues: Annotated[int, typer.Option(help="How many backlog queues the pair has at most.", min=1, max=1000)] = 10,
    ca: Annotated[Path | None, typer.Option(help="CA file for both namespaces.", metavar="FILE")] = None,
    give_up: Annotated[int, typer.Option(help="--once: end, with code 1, when nothing moved for so many seconds; 0 = never.", min=0)] = 0,
    batch: Annotated[int, typer.Option(help="Messages per backlog queue and batch.", min=1, max=100_000)] = 20_000,
    destination_wait: Annotated[
        int, typer.Option(help="Seconds to wait for a destination that is missing, disabled or full before dead-lettering.", min=0)
    ] = 86_400,
    dead_letters: Annotated[
        bool, typer.Option("--dead-letters", help="Carry home what was dead-lettered in the backlog, once, without Spark.")
    ] = False,
    subtract: Annotated[bool, typer.Option("--subtract-time", help="Time in the backlog counts against the time-to-live.")] = False,
    tracing: Annotated[
        bool, typer.Option("--tracing", help="OpenTelemetry: a span for each move, sent where OTEL_EXPORTER_OTLP_ENDPOINT says.")
    ] = False,
    metrics: Annotated[Path | None, typer.Option(help="Prometheus text file to keep up to date.", metavar="FILE")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print progress as one JSON object per line.")] = False,
) -> None:
    """Carry every diverted message to where it was meant to go; settle it in the backlog once the primary has it.

    Example: tandem syphon --primary "$WEST" --secondary "$EAST" --once
    """
    if dead_letters:
        _carry_dead_letters(primary, secondary, name, queue or [], queues, ca, as_json)
        return
    need_pyspark()
    from tandem.spark.connector.options import OptionError
    from tandem.spark.syphon.job import SyphonSettings, run

    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("py4j").setLevel(logging.ERROR)
    settings = SyphonSettings(
        primary_namespace=name,
        backlog_queue_count=queues,
        queues=tuple(queue or ()),
        primary_ca_file=str(ca) if ca else None,
        secondary_ca_file=str(ca) if ca else None,
        max_messages_per_trigger=batch,
        give_up_seconds=give_up,
        destination_wait_seconds=destination_wait,
        subtract_time_in_backlog=subtract,
        tracing=tracing,
    )
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        with _view(as_json) as show:
            last = run(
                primary,
                secondary,
                once=once,
                checkpoint=checkpoint,
                master=master,
                settings=settings,
                on_progress=show,
                metrics_file=metrics,
                stop=stop,
            )
    except OptionError as error:
        raise ConfigurationError(f"--{_FLAGS.get(error.option, error.option)}: {error}") from error
    if once and last.remaining:
        print(f"{last.remaining} messages remain in the backlog", file=sys.stderr)
        raise typer.Exit(_DID_NOT_HOLD)


def _carry_dead_letters(
    primary: str, secondary: str, name: str | None, queue: list[str], queues: int, ca: Path | None, as_json: bool
) -> None:
    """Ends with code 1 when some were left."""
    from azure.servicebus.exceptions import ServiceBusError

    from tandem.client.backlog import queue_name
    from tandem.client.dead_letters import Carried, carry_home
    from tandem.client.sdk import SdkNamespace
    from tandem.client.transport import namespace_label

    options: dict[str, Any] = {"connection_verify": str(ca)} if ca else {}
    logging.getLogger("azure").setLevel(logging.CRITICAL)  # what goes wrong is said below, once

    async def carry() -> Carried:
        west, east = SdkNamespace(primary, **options), SdkNamespace(secondary, **options)
        try:
            names = queue or [queue_name(name or namespace_label(west.host), index) for index in range(queues)]
            return await carry_home(west, east, names)
        finally:
            await west.close()
            await east.close()

    try:
        carried = asyncio.run(carry())
    except (ValueError, ServiceBusError) as error:
        raise ConfigurationError(f"the dead letters cannot be carried home: {error}") from error
    if as_json:
        print(json.dumps(asdict(carried)))
    else:
        print(f"carried home {carried.moved}  left {carried.left}")
        for reason, count in carried.reasons.most_common(20):
            print(f"  {count} x {reason}", file=sys.stderr)
    if carried.left:
        raise typer.Exit(_DID_NOT_HOLD)


@contextmanager
def _view(as_json: bool) -> Iterator[Callable[[Progress], None]]:
    """Lines of JSON, a live table on a terminal, or a plain line per change elsewhere."""
    if as_json:
        yield lambda progress: print(json.dumps(asdict(progress)), flush=True)
    elif not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        yield lambda progress: print(_line(progress), flush=True)
    else:
        from rich.live import Live

        with Live(refresh_per_second=4) as live:
            yield lambda progress: live.update(_table(progress))


def _line(progress: Progress) -> str:
    age = "" if progress.oldest_age_seconds is None else f"  oldest {progress.oldest_age_seconds:.0f} s"
    waiting = f"  waiting {progress.waiting}" if progress.waiting else ""
    return (
        f"moved {progress.moved}  remaining {progress.remaining}  {progress.rate:.0f}/s"
        f"  dead-lettered {progress.dead_lettered}{waiting}{age}"
    )


def _table(progress: Progress) -> Any:
    from rich.markup import escape
    from rich.table import Table

    done = progress.moved + progress.dead_lettered
    share = 100.0 * done / max(1, done + progress.remaining)
    table = Table(title=f"syphon  {share:.0f} %", show_header=False, title_justify="left")
    table.add_column(justify="right", style="bold")
    table.add_column()
    table.add_row(f"{progress.moved:,}", "moved home")
    table.add_row(f"{progress.remaining:,}", "remaining in the backlog")
    table.add_row(f"{progress.rate:,.0f}", "messages a second")
    if progress.oldest_age_seconds is not None:
        table.add_row(f"{progress.oldest_age_seconds:,.0f}", "seconds old, the oldest")
    if progress.dead_lettered:
        table.add_row(f"{progress.dead_lettered:,}", "dead-lettered in the backlog")
    for path, reason in list(progress.reasons.items())[:5]:
        table.add_row("waits", escape(f"{path}: {reason[:100]}"))
    for path, moved in sorted(progress.by_path.items(), key=lambda item: -item[1])[:8]:
        table.add_row(f"{moved:,}", escape(f"to {path}"))
    return table
