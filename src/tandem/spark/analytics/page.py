"""One self-contained page about an outage, for somebody who was not there: the verdict first, in words, then pictures, then lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from importlib import resources
from typing import TYPE_CHECKING, Final

from tandem.spark.analytics.plots import Band, PlotLine, bar_plot, column_plot, line_plot, seconds_text, short, timeline

if TYPE_CHECKING:
    from tandem.spark.analytics.availability import Availability, Outage
    from tandem.spark.analytics.bill import Cost
    from tandem.spark.analytics.reconcile import Reconciliation
    from tandem.spark.analytics.series import Series

_COLUMNS: Final = (
    ("sent", "sent"),
    ("delivered", "delivered"),
    ("diverted", "diverted"),
    ("forwarded", "forwarded"),
    ("waiting", "waiting"),
    ("dead_lettered", "dead-lettered"),
    ("expired", "expired"),
    ("delayed", "delayed"),
    ("out_of_order", "out of order"),
    ("duplicated", "duplicated"),
    ("lost", "lost"),
)
_BAD: Final = ("duplicated", "lost", "out_of_order")


@dataclass(frozen=True, slots=True)
class OutageStory:
    """Everything the page tells."""

    title: str
    made_at_ms: int
    reconciliation: Reconciliation
    series: Series
    availability: Availability | None = None
    cost: Cost | None = None


def instant(milliseconds: int) -> str:
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return f"{milliseconds} ms"  # no calendar has it: a ledger may hold anything


def render(story: OutageStory) -> str:
    parts = [
        f"<h1>{escape(story.title)}</h1>",
        f'<p class="sub">{_period(story.series)}</p>',
        _verdict(story),
        _tiles(story),
    ]
    if story.availability is not None:
        parts.append(_outages(story))
    parts += [_throughput(story), _backlog(story), _latency(story)]
    if story.cost is not None:
        parts.append(_cost(story.cost))
    parts += [_entities(story.reconciliation), _findings(story.reconciliation)]
    parts.append(
        f"<footer>Made by <code>tandem report</code> on {instant(story.made_at_ms)}, from journals, meters and event logs.</footer>"
    )
    page = resources.files("tandem.spark.analytics").joinpath("report.html").read_text(encoding="utf-8")
    return page.replace("{{body}}", "\n".join(part for part in parts if part)).replace("{{title}}", escape(story.title))


def _period(series: Series) -> str:
    end = series.start_ms + len(series.sent) * series.step_ms
    length = seconds_text((end - series.start_ms) / 1000)
    return f"{instant(series.start_ms)} to {instant(end)} ({length})" if series.sent else "No messages in this period."


def _longest(outages: Sequence[Outage]) -> float | None:
    known = [one.seconds_to_heal for one in outages if one.seconds_to_heal is not None]
    return max(known, default=None)


def _verdict(story: OutageStory) -> str:
    total = story.reconciliation.total
    if story.reconciliation.held:
        words = "<b>Nothing was lost, and nothing was delivered twice.</b>"
    else:
        words = f"<b>{total.lost:,} lost, {total.duplicated:,} delivered twice.</b> The messages are listed at the end."
    outage = _longest(story.availability.outages) if story.availability is not None else None
    more = f" The primary could not be reached for {seconds_text(outage)}." if outage else ""
    if total.diverted:
        more += f" Meanwhile {total.diverted:,} messages were kept in the secondary and brought home afterwards."
    if story.availability is not None and story.availability.paths:
        failed = sum(one.failed for one in story.availability.paths)
        attempted = sum(one.attempted for one in story.availability.paths)
        more += f" Of {attempted:,} sends {'none' if not failed else f'{failed:,}'} failed."
    return f'<p class="verdict{"" if story.reconciliation.held else " bad"}">{words}{more}</p>'


def _tiles(story: OutageStory) -> str:
    total = story.reconciliation.total
    tiles = [
        ("sent", f"{total.sent:,}", ""),
        ("delivered", f"{total.delivered:,}", ""),
        ("lost", f"{total.lost:,}", "bad" if total.lost else "good"),
        ("duplicated", f"{total.duplicated:,}", "bad" if total.duplicated else "good"),
        ("diverted", f"{total.diverted:,}", ""),
        ("still waiting", f"{total.waiting:,}", ""),
    ]
    if story.cost is not None:
        tiles.append(("operations", f"{story.cost.billed:,}", ""))
    inner = "".join(f'<div class="tile {kind}"><b>{value}</b><span>{name}</span></div>' for name, value, kind in tiles)
    return f'<div class="tiles">{inner}</div>'


def _bands(story: OutageStory) -> list[Band]:
    if story.availability is None or not story.series.sent:
        return []
    start = story.series.start_ms
    end = start + len(story.series.sent) * story.series.step_ms
    merged: list[list[int]] = []
    for one in sorted(story.availability.outages, key=lambda outage: outage.began_ms):
        healed = one.healed_ms or end
        if merged and one.began_ms <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], healed)
        else:
            merged.append([one.began_ms, healed])
    return [Band((began - start) / 1000, (healed - start) / 1000, "outage", "the primary cannot be reached") for began, healed in merged]


def _outages(story: OutageStory) -> str:
    found = story.availability
    if found is None or not (found.outages or found.stores):
        return ""
    start, seconds = _span(story.series, [*found.outages, *found.stores])
    lanes: list[tuple[str, list[Band]]] = []
    for one in [*found.outages, *found.stores]:
        began = (one.began_ms - start) / 1000
        healed = seconds if one.healed_ms is None else (one.healed_ms - start) / 1000
        over = None if one.failed_over_ms is None else (one.failed_over_ms - start) / 1000
        bands = [Band(began, healed if over is None else over, "outage", "unreachable")]
        if over is not None:
            bands.append(Band(over, healed, "failover", "sends go to the secondary"))
        lanes.append((one.path[:20], bands))
    rows = "".join(
        f"<tr><td>{escape(one.path)}</td><td>{escape(one.who)}</td><td>{instant(one.began_ms)}</td>"
        f"<td>{seconds_text(one.seconds_to_failover) if one.seconds_to_failover is not None else '–'}</td>"
        f"<td>{seconds_text(one.seconds_to_heal) if one.seconds_to_heal is not None else 'lasts'}</td><td>{one.pings_failed}</td></tr>"
        for one in [*found.outages, *found.stores][:50]
    )
    table = (
        '<div class="wide"><table><tr><th>what</th><th>seen by</th><th>began</th><th>until failover</th><th>until healed</th>'
        f"<th>failed pings</th></tr>{rows}</table></div>"
    )
    slo = "".join(
        f"<li><b>{escape(one.path)}</b>: {one.achieved:.3%} of {one.attempted:,} sends accepted (goal {one.target:.3%}, "
        f"{'met' if one.met else '<b>missed</b>'}); without the second namespace it would have been {one.primary_only:.3%}.</li>"
        for one in found.paths
    )
    return (
        '<h2>The outage</h2><p class="note">Red: the primary does not answer. Orange: sends are accepted by the secondary.</p>'
        + timeline(lanes[:12], seconds, "Timeline of the outage")
        + table
        + (f"<ul>{slo}</ul>" if slo else "")
    )


def _span(series: Series, outages: Sequence[Outage]) -> tuple[int, float]:
    """Where the timeline begins, in ms, and how many seconds it has: those of the messages, or of the outages where there are none."""
    if series.sent:
        return series.start_ms, len(series.sent) * series.step_ms / 1000
    start = min(one.began_ms for one in outages)
    end = max(one.healed_ms or one.failed_over_ms or one.began_ms for one in outages)
    return start, max(1.0, (end - start) / 1000)


def _throughput(story: OutageStory) -> str:
    series = story.series
    if not series.sent:
        return ""
    lines = [
        PlotLine("sent to the primary", "sent", series.sent, filled=True),
        PlotLine("diverted to the secondary", "diverted", series.diverted, filled=True),
        PlotLine("brought home by the syphon", "home", series.brought_home),
        PlotLine("delivered to receivers", "delivered", series.delivered),
    ]
    shown = [line for line in lines if any(line.values)]
    return '<h2>Throughput</h2><p class="note">Messages per second, before, during and after.</p>' + line_plot(
        shown, series.step_ms / 1000, _bands(story), label="Messages per second over time"
    )


def _backlog(story: OutageStory) -> str:
    series = story.series
    if not any(series.backlog):
        return ""
    return (
        f'<h2>Backlog</h2><p class="note">Messages waiting in the secondary; {max(series.backlog):,} at the most, '
        f"{series.backlog[-1]:,} at the end.</p>"
        + line_plot(
            [PlotLine("in backlog queues", "diverted", series.backlog, filled=True)],
            series.step_ms / 1000,
            _bands(story),
            190,
            "Backlog depth",
        )
    )


def _latency(story: OutageStory) -> str:
    latency = story.reconciliation.latency_ms
    if not story.series.latency:
        return ""
    words = ", ".join(
        f"{name} {seconds_text(latency[key] / 1000)}"
        for key, name in (("p50", "half within"), ("p90", "90 % within"), ("p99", "99 % within"), ("max", "the slowest"))
        if key in latency
    )
    columns = [(f"≤ {seconds_text(edge / 1000)}", float(count)) for edge, count in story.series.latency]
    return f'<h2>How long messages took</h2><p class="note">From sending to delivery: {words}.</p>' + column_plot(
        columns, "delivered", label="Messages by time to delivery"
    )


def _cost(cost: Cost) -> str:
    kinds = {"one namespace": "plain", "paired, idle": "sent", "paired, with failover": "diverted"}
    bars = [
        (one.name, one.operations, f"{short(one.operations)} ops, {cost.currency} {one.price:,.2f}", kinds.get(one.name, "home"))
        for one in cost.scenarios
    ]
    idle = cost.idle
    return (
        '<h2>What it costs</h2><p class="note">Operations in 30 days, and their price by the table given, for '
        f"{escape(cost.basis)}. "
        f"{idle.queues} idle backlog queues take {idle.per_hour:,.0f} operations an hour, {idle.per_day:,.0f} a day, "
        f"{idle.per_month:,.0f} in 30 days; a diverted message takes four operations instead of two.</p>"
        + bar_plot(bars, "Operations in 30 days")
    )


def _entities(reconciliation: Reconciliation) -> str:
    head = "".join(f"<th>{words}</th>" for _, words in _COLUMNS)
    rows = "".join(
        f"<tr><td>{escape(one.entity)}</td>"
        + "".join(f"<td{' class=bad' if name in _BAD and getattr(one, name) else ''}>{getattr(one, name):,}</td>" for name, _ in _COLUMNS)
        + "</tr>"
        for one in reconciliation.entities[:200]
    )
    threshold = seconds_text(reconciliation.delayed_after_ms / 1000)
    broken = reconciliation.broken_lines
    told = f" Not counted: {broken:,} lines of ledgers that are damaged or were just being written." if broken else ""
    note = f'<p class="note">Delayed: delivered more than {threshold} after sending.{told}</p>'
    return f'<h2>Entity by entity</h2>{note}<div class="wide"><table><tr><th>entity</th>{head}</tr>{rows}</table></div>'


def _findings(reconciliation: Reconciliation) -> str:
    if not reconciliation.findings:
        return ""
    rows = "".join(
        f"<tr><td><code>{escape(one.message_id)}</code></td><td>{escape(one.entity)}</td><td>{one.problem.replace('_', ' ')}</td>"
        f"<td>{instant(one.sent_at_ms) if one.sent_at_ms else '–'}</td>"
        f"<td>{instant(one.delivered_at_ms) if one.delivered_at_ms else '–'}</td>"
        f"<td>{seconds_text(one.delay_ms / 1000) if one.delay_ms is not None else '–'}</td></tr>"
        for one in reconciliation.findings[:100]
    )
    return (
        '<h2>Messages to look at</h2><p class="note">The worst first, and of those the longest on their way; at most 100, '
        "<code>tandem reconcile</code> lists more.</p>"
        '<div class="wide"><table><tr><th>message id</th><th>entity</th><th>what</th><th>sent</th><th>delivered</th>'
        "<th>took</th></tr>"
        f"{rows}</table></div>"
    )
