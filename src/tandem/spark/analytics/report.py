"""From journals, meters and event logs to one page: reads each once, judges, draws."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tandem.spark.analytics.availability import availability
from tandem.spark.analytics.cost import cost
from tandem.spark.analytics.ledgers import gather, load_ledger
from tandem.spark.analytics.page import OutageStory, render
from tandem.spark.analytics.reconcile import judge, summarize
from tandem.spark.analytics.series import draw_series

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def tell(
    spark: SparkSession,
    *,
    journals: list[str],
    now_ms: int,
    sent: str | None = None,
    received: str | None = None,
    events: list[str] | None = None,
    meters: list[str] | None = None,
    prices: str | None = None,
    title: str = "Outage report",
    delayed_after_ms: int = 60_000,
    target: float = 0.999,
) -> OutageStory:
    """Everything the page says. Journals are those of both namespaces; whatever else is given makes it richer."""
    evidence = gather(spark, journals, load_ledger(spark, sent) if sent else None, load_ledger(spark, received) if received else None)
    messages = judge(evidence, delayed_after_ms)
    try:
        reconciliation = summarize(evidence, messages, delayed_after_ms)
        series = draw_series(evidence, messages)
    finally:
        messages.unpersist()
        evidence.release()
    return OutageStory(
        title=title,
        made_at_ms=now_ms,
        reconciliation=reconciliation,
        series=series,
        availability=availability(spark, events=events, target=target) if events else None,
        cost=cost(spark, meters=meters, prices=prices) if meters else None,
    )


def write_report(story: OutageStory, file: Path) -> None:
    file.write_text(render(story), encoding="utf-8")
