"""`tandem demo`: two brokers, a SIGKILL, sends that go on, a Spark job that carries every message home, and the proof on one page."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from tandem.model.errors import ConfigurationError
from tandem.spark.java import missing_java
from tandem.spark.pyspark_version import missing_pyspark

STORIES = ("broker", "issuer")


def demo(
    rate: Annotated[float, typer.Option(help="Messages a second, over both queues.", min=1.0, max=2_000.0)] = 100.0,
    before: Annotated[float, typer.Option(help="Seconds of peace before the primary is killed.", min=1.0, max=600.0)] = 8.0,
    outage: Annotated[float, typer.Option(help="Seconds until it is started again.", min=1.0, max=600.0)] = 12.0,
    report: Annotated[Path, typer.Option(help="The page to write at the end.")] = Path("tandem-demo.html"),
    keep: Annotated[Path | None, typer.Option(help="Keep journals, meters, ledgers and events in this directory.")] = None,
    master: Annotated[str | None, typer.Option(help="Spark master; this machine unless given.")] = None,
    story: Annotated[
        str, typer.Option(help="What fails: `broker` (the primary is killed), or `issuer` (no more tokens; no Spark).")
    ] = "broker",
    small: Annotated[bool, typer.Option("--small", help="One broker, no Spark: kill it half way and count.")] = False,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="Three nodes on a PostgreSQL with a standby, no Spark: a node is killed, then the primary.")
    ] = False,
    messages: Annotated[int, typer.Option(help="With --small: how many messages to send.", min=2, max=100_000)] = 200,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict as JSON, and nothing else.")] = False,
) -> None:
    """Watch an outage from beginning to end. Exit code 0 only if nothing was lost and nothing delivered twice.

    Example: tandem demo --outage 20
    """
    if story not in STORIES:
        raise ConfigurationError(f"--story: found {story!r}; allowed is {' or '.join(STORIES)}")
    if story == "issuer":
        from tandem.demo.issuer import issuer_demo

        return issuer_demo(as_json)
    if cluster:
        return _cluster(rate, before, keep, as_json)
    if small:
        from tandem.demo.small import small_demo

        return small_demo(messages, as_json)
    _need_spark()
    from tandem.demo.story import Plan, play
    from tandem.demo.view import LiveView, PlainView, SilentView, show_verdict

    plan = Plan(rate=rate, before=before, outage=outage, report=report.resolve(), master=master)
    view = SilentView() if as_json else LiveView() if sys.stdout.isatty() else PlainView()
    with tempfile.TemporaryDirectory(prefix="tandem-demo-") as temporary:
        directory = Path(temporary) if keep is None else keep
        directory.mkdir(parents=True, exist_ok=True)
        with view:
            verdict = asyncio.run(play(plan, directory.resolve(), view))
    if as_json:
        print(json.dumps(verdict.as_dict()))
    else:
        show_verdict(verdict)
    if not verdict.held:
        raise typer.Exit(1)


def _cluster(rate: float, calm: float, keep: Path | None, as_json: bool) -> None:
    if importlib.util.find_spec("psycopg") is None:
        raise ConfigurationError("the PostgreSQL client is not installed (pip install 'tandem-bus[postgres]')")
    from tandem.testing.postgres import programs

    if programs() is None:
        raise ConfigurationError(
            "PostgreSQL is not installed (on Debian: apt-get install postgresql; elsewhere: pip install 'tandem-bus[cluster-dev]')"
        )
    from tandem.demo.cluster import ClusterPlan, cluster_demo, show_json
    from tandem.demo.cluster_view import ClusterView, LiveClusterView, PlainClusterView, show_cluster_verdict

    view = ClusterView() if as_json else LiveClusterView() if sys.stdout.isatty() else PlainClusterView()
    verdict = cluster_demo(ClusterPlan(rate=rate, calm=calm), view, keep)
    if as_json:
        show_json(verdict)
    else:
        show_cluster_verdict(verdict)
    if not verdict.held:
        raise typer.Exit(1)


def _need_spark() -> None:
    """Said before anything is started; the small story is played only when asked for."""
    missing = missing_pyspark() or missing_java()
    if missing:
        raise ConfigurationError(f"{missing}; tandem demo --small shows a story without it")
