"""Plots as inline SVG, drawn from plain numbers: no script, no font and no picture from anywhere else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

WIDTH: Final = 860
_LEFT: Final = 64
_RIGHT: Final = 16
_TOP: Final = 14
_BOTTOM: Final = 30


@dataclass(frozen=True, slots=True)
class PlotLine:
    """`kind` is a class of the page's style: it gives the colour, in light and in dark."""

    name: str
    kind: str
    values: Sequence[float]
    filled: bool = False


@dataclass(frozen=True, slots=True)
class Band:
    """A stretch of time behind the lines."""

    start: float
    end: float
    kind: str
    name: str = ""


def nice_ceiling(value: float) -> float:
    """The next of 1, 2, 2.5, 5 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= value)


def short(value: float) -> str:
    """1234567 as 1.2 M."""
    for limit, unit in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if abs(value) >= limit:
            return f"{value / limit if limit != 1e4 else value / 1e3:.3g}{unit}"
    return f"{value:,.0f}" if value == int(value) else f"{value:.3g}"


def seconds_text(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    if seconds < 7200:
        return f"{seconds / 60:.3g} min"
    return f"{seconds / 3600:.3g} h"


class _Frame:
    """Axes, grid, and how numbers become places."""

    def __init__(self, height: int, seconds: float, top: float, label: str) -> None:
        self.height = height
        self.seconds = max(seconds, 1e-9)
        self.top = top
        self.parts: list[str] = []
        self._label = label

    def x(self, second: float) -> float:
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * min(max(second / self.seconds, 0.0), 1.0)

    def y(self, value: float) -> float:
        return _TOP + (self.height - _TOP - _BOTTOM) * (1 - value / self.top)

    def grid(self) -> None:
        for number in range(5):
            value = self.top * number / 4
            y = self.y(value)
            self.parts.append(f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{WIDTH - _RIGHT}" y2="{y:.1f}"/>')
            self.parts.append(f'<text class="tick" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{short(value)}</text>')
        step = nice_ceiling(self.seconds / 8)
        count = int(self.seconds / step)
        for number in range(count + 1):
            words = seconds_text(number * step) if number else "0"
            self.parts.append(
                f'<text class="tick" x="{self.x(number * step):.1f}" y="{self.height - 10}" text-anchor="middle">{words}</text>'
            )

    def bands(self, bands: Sequence[Band]) -> None:
        for band in bands:
            left, right = self.x(band.start), self.x(band.end)
            width = max(right - left, 1.0)
            self.parts.append(
                f'<rect class="band {band.kind}" x="{left:.1f}" y="{_TOP}" width="{width:.1f}" height="{self.height - _TOP - _BOTTOM}">'
                f"<title>{escape(band.name)}</title></rect>"
            )

    def svg(self) -> str:
        return _svg(self.height, self._label, self.parts)


def _svg(height: int, label: str, parts: list[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'


def line_plot(lines: Sequence[PlotLine], step_seconds: float, bands: Sequence[Band] = (), height: int = 230, label: str = "") -> str:
    """Values over time. The legend stands above the plot."""
    points = max((len(line.values) for line in lines), default=0)
    top = nice_ceiling(max((max(line.values, default=0.0) for line in lines), default=0.0))
    frame = _Frame(height, points * step_seconds, top, label)
    frame.bands(bands)
    frame.grid()
    for line in lines:
        places = [f"{frame.x((number + 0.5) * step_seconds):.1f},{frame.y(value):.1f}" for number, value in enumerate(line.values)]
        if not places:
            continue
        if line.filled:
            base = frame.y(0)
            first, last = frame.x(0.5 * step_seconds), frame.x((points - 0.5) * step_seconds)
            frame.parts.append(
                f'<polygon class="area {line.kind}" points="{first:.1f},{base:.1f} {" ".join(places)} {last:.1f},{base:.1f}"/>'
            )
        frame.parts.append(f'<polyline class="line {line.kind}" points="{" ".join(places)}"/>')
    return legend([(line.name, line.kind) for line in lines]) + frame.svg()


def legend(entries: Sequence[tuple[str, str]]) -> str:
    return '<p class="legend">' + "".join(f'<span><i class="{kind}"></i>{escape(name)}</span>' for name, kind in entries) + "</p>"


def column_plot(columns: Sequence[tuple[str, float]], kind: str, height: int = 210, label: str = "") -> str:
    """One column per name, with its number on top."""
    top = nice_ceiling(max((value for _, value in columns), default=0.0))
    frame = _Frame(height, 1.0, top, label)
    parts = frame.parts
    slot = (WIDTH - _LEFT - _RIGHT) / max(len(columns), 1)
    for number in range(5):
        y = frame.y(top * number / 4)
        parts.append(f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{WIDTH - _RIGHT}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{short(top * number / 4)}</text>')
    for number, (name, value) in enumerate(columns):
        x, y = _LEFT + slot * number + slot * 0.15, frame.y(value)
        parts.append(
            f'<rect class="bar {kind}" x="{x:.1f}" y="{y:.1f}" width="{slot * 0.7:.1f}" height="{max(frame.y(0) - y, 0):.1f}" rx="2"/>'
        )
        middle = x + slot * 0.35
        if value:
            parts.append(f'<text class="value" x="{middle:.1f}" y="{y - 4:.1f}" text-anchor="middle">{short(value)}</text>')
        parts.append(f'<text class="tick" x="{middle:.1f}" y="{height - 10}" text-anchor="middle">{escape(name)}</text>')
    return frame.svg()


def bar_plot(bars: Sequence[tuple[str, float, str, str]], label: str = "") -> str:
    """(name, value, what stands behind the bar, class) each; longest is as wide as the page allows."""
    name_width, row = 190, 34
    top = max((value for _, value, _, _ in bars), default=0.0) or 1.0
    room = WIDTH - name_width - 190
    parts: list[str] = []
    for number, (name, value, words, kind) in enumerate(bars):
        y = number * row + 6
        width = max(room * value / top, 2.0)
        parts.append(f'<text class="name" x="{name_width - 10}" y="{y + 16}" text-anchor="end">{escape(name)}</text>')
        parts.append(f'<rect class="bar {kind}" x="{name_width}" y="{y}" width="{width:.1f}" height="22" rx="3"/>')
        parts.append(f'<text class="value" x="{name_width + width + 8:.1f}" y="{y + 16}">{escape(words)}</text>')
    return _svg(len(bars) * row + 10, label, parts)


def timeline(rows: Sequence[tuple[str, Sequence[Band]]], seconds: float, label: str = "") -> str:
    """One lane per name, stretches of time on it, with their names where they fit."""
    lane, name_width = 38, 150
    parts: list[str] = []
    height = len(rows) * lane + 34
    room = WIDTH - name_width - _RIGHT

    def x(second: float) -> float:
        return name_width + room * min(max(second / max(seconds, 1e-9), 0.0), 1.0)

    for number, (name, bands) in enumerate(rows):
        y = number * lane + 6
        parts.append(f'<text class="name" x="{name_width - 10}" y="{y + 18}" text-anchor="end">{escape(name)}</text>')
        parts.append(f'<rect class="lane" x="{name_width}" y="{y}" width="{room}" height="26" rx="4"/>')
        for band in bands:
            left, width = x(band.start), max(x(band.end) - x(band.start), 2.0)
            parts.append(
                f'<rect class="bar {band.kind}" x="{left:.1f}" y="{y}" width="{width:.1f}" height="26" rx="4">'
                f"<title>{escape(band.name)}</title></rect>"
            )
            if width > 6.6 * len(band.name) + 8:
                parts.append(
                    f'<text class="inside" x="{left + width / 2:.1f}" y="{y + 17}" text-anchor="middle">{escape(band.name)}</text>'
                )
    step = nice_ceiling(seconds / 8)
    for number in range(int(seconds / step) + 1):
        words = seconds_text(number * step) if number else "0"
        parts.append(f'<text class="tick" x="{x(number * step):.1f}" y="{height - 8}" text-anchor="middle">{words}</text>')
    return _svg(height, label, parts)
