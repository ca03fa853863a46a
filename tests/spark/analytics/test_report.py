"""The page stands alone, says the verdict first, and shows what the figures say."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from tandem.cli.application import app
from tandem.model.errors import ConfigurationError
from tandem.spark.analytics.availability import Availability, Outage, PathAvailability
from tandem.spark.analytics.page import OutageStory, render
from tandem.spark.analytics.plots import column_plot, nice_ceiling, seconds_text, short
from tandem.spark.analytics.reconcile import EntityCounts, Finding, Reconciliation
from tandem.spark.analytics.series import Series, step_of
from tests.spark.ledger_lines import NOON

SERIES = Series(NOON, 1_000, [5.0, 0.0, 5.0], [0.0, 5.0, 0.0], [0.0, 0.0, 5.0], [5.0, 0.0, 10.0], [0, 5, 0], [(10, 3), (30, 12)])
GOOD = Reconciliation(EntityCounts("", sent=15, delivered=15, diverted=5), (EntityCounts("orders", sent=15, delivered=15, diverted=5),), ())
OUTAGES = Availability(
    (Outage("web-1", "orders", NOON + 1_000, NOON + 1_200, NOON + 2_000, 1),), (), (PathAvailability("orders", 15, 5, 0, 1, 0.66, 0.99),)
)
STORY = OutageStory("A <bold> outage", NOON + 5_000, GOOD, SERIES, OUTAGES)


def test_page_refers_to_nothing_outside_itself() -> None:
    page = render(STORY)
    assert "http" not in page and "src=" not in page and "<script" not in page and "{{" not in page
    assert "A &lt;bold&gt; outage" in page and "<bold>" not in page


def test_every_plot_is_well_formed() -> None:
    page = render(STORY)
    plots = ["<svg" + part.partition("</svg>")[0] + "</svg>" for part in page.split("<svg")[1:]]
    assert len(plots) == 4
    for plot in plots:
        ElementTree.fromstring(plot)


def test_verdict_says_what_was_lost_and_names_it() -> None:
    assert "Nothing was lost, and nothing was delivered twice." in render(STORY)
    total = replace(GOOD.total, lost=1, delivered=14)
    bad = replace(GOOD, total=total, findings=(Finding("orders", "m-7", "lost", NOON, None),))
    page = render(replace(STORY, reconciliation=bad))
    assert "1 lost, 0 delivered twice." in page and "m-7" in page and "Nothing was lost" not in page


def test_a_story_without_messages_can_be_told() -> None:
    nothing = Reconciliation(EntityCounts(""), (), ())
    assert "No messages in this period." in render(OutageStory("Quiet", NOON, nothing, Series()))


def test_outages_are_shown_where_no_message_was_sent_as_those_of_relays() -> None:
    page = render(OutageStory("Relays only", NOON, Reconciliation(EntityCounts(""), (), ()), Series(), OUTAGES))
    assert "<td>orders</td><td>web-1</td>" in page and "Timeline of the outage" in page


def test_numbers_are_short_and_axes_end_on_round_ones() -> None:
    assert [short(value) for value in (7, 1234, 56_700, 2_500_000)] == ["7", "1,234", "56.7 k", "2.5 M"]
    assert [nice_ceiling(value) for value in (0, 3, 7, 26, 130)] == [1, 5, 10, 50, 200]
    assert [seconds_text(value) for value in (0.25, 12, 600, 7_200)] == ["250 ms", "12 s", "10 min", "2 h"]
    assert 'height="0.0"' in column_plot([("a", 0.0), ("b", 1.0)], "sent")


def test_times_that_no_calendar_has_are_shown_and_keep_the_plots_small() -> None:
    seen = Outage("w", "orders", 9 * 10**18, None, None, 0)
    finding = Finding("orders", "m", "lost", NOON * 1_000_000, None)
    page = render(replace(STORY, reconciliation=replace(GOOD, findings=(finding,)), availability=replace(OUTAGES, outages=(seen,))))
    assert f"{NOON * 1_000_000} ms" in page and "9000000000000000000 ms" in page
    spans = (0, 1_000, 86_400_000, NOON, NOON * 1_000_000, 1 << 62)
    assert all(span // step_of(span) <= 240 for span in spans)
    assert [step_of(span) for span in (1_000, 240 * 86_400_000)] == [250, 86_400_000]


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["report", "--primary", ".", "--out", "nowhere/report.html"], "is in no directory"),
        (["report", "--primary", ".", "--out", "."], "is a directory"),
        (["report", "--primary", ".", "--delayed-after", "nan"], "no number of seconds"),
        (["reconcile", "--primary", ".", "--delayed-after", "inf"], "no number of seconds"),
        (["reconcile", "--primary", ".", "--delayed-after", "1e300"], "no number of seconds"),
    ],
)
def test_what_cannot_be_done_is_said_before_the_work(arguments: list[str], says: str) -> None:
    found = CliRunner().invoke(app, arguments)
    assert isinstance(found.exception, ConfigurationError) and says in str(found.exception)
