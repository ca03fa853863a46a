"""What somebody sees while the demo runs: a live page on a terminal, lines elsewhere, nothing when JSON was asked for."""

from __future__ import annotations

import time
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from tandem.aio import PathStatus
    from tandem.client.events import Event
    from tandem.demo.processes import BrokerProcess, TrafficCount
    from tandem.demo.verdict import DemoVerdict

_BLOCKS: Final = " ▁▂▃▄▅▆▇█"
_SECONDS_SHOWN: Final = 60
_EVENTS_SHOWN: Final = 7
_TOLD: Final = {
    "path-suspect": "yellow",
    "path-failed-over": "bold red",
    "path-healthy": "bold green",
    "backlog-queue-out": "red",
    "send-failed": "bold red",
    "paired": "cyan",
}


class DemoView:
    """Told by the story; each kind of view shows what it can."""

    def __enter__(self) -> DemoView:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        """Nothing was opened."""

    def phase(self, text: str) -> None: ...

    def brokers(self, primary: BrokerProcess, secondary: BrokerProcess) -> None: ...

    def event(self, event: Event) -> None: ...

    def standing(self, tally: TrafficCount, diverted: int, paths: list[PathStatus]) -> None: ...

    def syphon(self, moved: int, remaining: int) -> None: ...


class SilentView(DemoView):
    """JSON only."""


class PlainView(DemoView):
    """Lines, for logs."""

    def phase(self, text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)

    def event(self, event: Event) -> None:
        if event.kind in _TOLD:
            print(f"{time.strftime('%H:%M:%S')}    {event.kind} {event.path}: {event.detail}", flush=True)

    def syphon(self, moved: int, remaining: int) -> None:
        print(f"{time.strftime('%H:%M:%S')}    syphon: {moved} moved, {remaining} remaining", flush=True)


class Rates:
    """Counts once a second, as a row of blocks."""

    def __init__(self) -> None:
        self._values: deque[int] = deque([0] * _SECONDS_SHOWN, maxlen=_SECONDS_SHOWN)
        self._last = 0
        self._second = int(time.monotonic())

    def note(self, total: int) -> None:
        second = int(time.monotonic())
        if second > self._second:
            self._values.append(total - self._last)
            self._last, self._second = total, second

    def text(self, style: str) -> Text:
        top = max(max(self._values), 1)
        blocks = "".join(_BLOCKS[min(8, -(-value * 8 // top))] for value in self._values)
        return Text(blocks, style=style) + Text(f" {self._values[-1]:>5}/s", style="dim")


class LiveView(DemoView):
    """Both data centres, rates, counts and events, redrawn a few times a second."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._phase = ""
        self._brokers: tuple[BrokerProcess, BrokerProcess] | None = None
        self._events: deque[Text] = deque(maxlen=_EVENTS_SHOWN)
        self._tally: TrafficCount | None = None
        self._paths: list[PathStatus] = []
        self._diverted = 0
        self._moved: tuple[int, int] | None = None
        self._sent, self._diverting, self._received = Rates(), Rates(), Rates()
        self._live = Live(console=Console(), get_renderable=self._draw, refresh_per_second=4)

    def __enter__(self) -> DemoView:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._live.stop()

    def phase(self, text: str) -> None:
        self._phase = text
        self._say("bold", text)

    def brokers(self, primary: BrokerProcess, secondary: BrokerProcess) -> None:
        self._brokers = (primary, secondary)

    def event(self, event: Event) -> None:
        style = _TOLD.get(event.kind)
        if style is not None:
            self._say(style, f"{event.kind} {event.path}: {event.detail}")

    def standing(self, tally: TrafficCount, diverted: int, paths: list[PathStatus]) -> None:
        self._tally, self._diverted, self._paths = tally, diverted, paths
        self._sent.note(tally.sent - diverted)
        self._diverting.note(diverted)
        self._received.note(tally.received)

    def syphon(self, moved: int, remaining: int) -> None:
        self._moved = (moved, remaining)

    def _say(self, style: str, text: str) -> None:
        self._events.append(Text(f"{time.monotonic() - self._began:6.1f} s  ", style="dim") + Text(text[:140], style=style))

    def _draw(self) -> Any:
        head = Text(f"{time.monotonic() - self._began:5.1f} s   ", style="dim") + Text(self._phase, style="bold")
        return Panel(
            Group(head, Text(), self._places(), Text(), self._figures(), Text(), *self._events), title="tandem demo", padding=(1, 2)
        )

    def _places(self) -> Any:
        table = Table.grid(padding=(0, 4))
        if self._brokers is not None:
            table.add_row(*[_place(role, broker) for role, broker in zip(("primary", "secondary"), self._brokers, strict=True)])
        table.add_row(*[_path(path) for path in self._paths])
        return table

    def _figures(self) -> Any:
        table = Table.grid(padding=(0, 2))
        tally = self._tally
        sent, received = (tally.sent, tally.received) if tally is not None else (0, 0)
        table.add_row("sent to the primary", f"{sent - self._diverted:>7,}", self._sent.text("blue"))
        table.add_row("diverted to the secondary", f"{self._diverted:>7,}", self._diverting.text("yellow"))
        table.add_row("received", f"{received:>7,}", self._received.text("green"))
        if tally is not None and tally.failed:
            table.add_row("failed", f"{tally.failed:>7,}", "")
        if self._moved is not None:
            moved, remaining = self._moved
            table.add_row("carried home by Spark", f"{moved:>7,}", Text(f"{remaining:,} remaining", style="magenta"))
        return table


def _place(role: str, broker: BrokerProcess) -> Text:
    mark = Text("● up    ", style="bold green") if broker.up else Text("✖ down  ", style="bold red")
    return Text(f"{role} ", style="dim") + Text(f"{broker.name} ", style="bold") + mark


def _path(path: PathStatus) -> Text:
    style = {"healthy": "green", "suspect": "yellow"}.get(path.state.value, "red")
    return Text(f"{path.path} ", style="dim") + Text(path.state.value, style=style)


def show_figures(console: Console, figures: dict[str, int]) -> None:
    """In one row, what must be zero in its colour."""
    table = Table(box=None, padding=(0, 2), show_header=True, header_style="dim")
    for name in figures:
        table.add_column(name, justify="right")
    table.add_row(*[_figure(value, name in ("lost", "duplicated")) for name, value in figures.items()])
    console.print()
    console.print(table)


def show_verdict(verdict: DemoVerdict) -> None:
    """The last words: every figure of the contract, and where the page is."""
    console = Console(highlight=False)
    show_figures(console, {name: getattr(verdict, name) for name in ("sent", "delivered", "lost", "duplicated", "diverted", "operations")})
    words = "Nothing was lost, nothing was delivered twice." if verdict.held else "It did not hold: see the page for the message ids."
    console.print(f"\n[bold {'green' if verdict.held else 'red'}]{words}[/]")
    if verdict.seconds_to_failover is not None and verdict.seconds_to_heal is not None:
        console.print(
            f"Sends were diverted {verdict.seconds_to_failover:.1f} s after the first failure; "
            f"the primary was back in use after {verdict.seconds_to_heal:.1f} s, and {verdict.seconds_to_drain:.1f} s later the backlog "
            f"was home; {verdict.failed} sends failed."
        )
    console.print(f"report: {verdict.report}", soft_wrap=True)


def _figure(value: int, must_be_zero: bool) -> str:
    style = ("green" if value == 0 else "red") if must_be_zero else "bold"
    return f"[{style}]{value:,}[/]"
