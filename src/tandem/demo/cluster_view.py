"""What somebody sees while the cluster's demo runs: nodes, the engine, rates and events."""

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

from tandem.demo.view import Rates, show_figures

if TYPE_CHECKING:
    from tandem.demo.cluster_verdict import ClusterVerdict
    from tandem.demo.processes import BrokerProcess, TrafficCount
    from tandem.testing.postgres import PostgresEngine

_EVENTS_SHOWN: Final = 8


class ClusterView:
    """Told by the story; this one shows nothing."""

    def __enter__(self) -> ClusterView:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        """Nothing was opened."""

    def phase(self, text: str) -> None: ...

    def places(self, nodes: list[BrokerProcess], engine: PostgresEngine) -> None: ...

    def standing(self, tally: TrafficCount, serves: dict[str, int], engine_answers: bool) -> None: ...


class PlainClusterView(ClusterView):
    """Lines, for logs."""

    def phase(self, text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


class LiveClusterView(ClusterView):
    """Redrawn a few times a second."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._phase = ""
        self._events: deque[Text] = deque(maxlen=_EVENTS_SHOWN)
        self._nodes: list[BrokerProcess] = []
        self._engine: PostgresEngine | None = None
        self._tally: TrafficCount | None = None
        self._serves: dict[str, int] = {}
        self._answers = False
        self._sent, self._received = Rates(), Rates()
        self._live = Live(console=Console(), get_renderable=self._draw, refresh_per_second=4)

    def __enter__(self) -> ClusterView:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._live.stop()

    def phase(self, text: str) -> None:
        self._phase = text
        self._events.append(Text(f"{time.monotonic() - self._began:6.1f} s  ", style="dim") + Text(text))

    def places(self, nodes: list[BrokerProcess], engine: PostgresEngine) -> None:
        self._nodes, self._engine = nodes, engine

    def standing(self, tally: TrafficCount, serves: dict[str, int], engine_answers: bool) -> None:
        self._tally, self._serves, self._answers = tally, serves, engine_answers
        self._sent.note(tally.sent)
        self._received.note(tally.received)

    def _draw(self) -> Any:
        head = Text(f"{time.monotonic() - self._began:5.1f} s   ", style="dim") + Text(self._phase, style="bold")
        return Panel(
            Group(head, Text(), self._places(), Text(), self._figures(), Text(), *self._events),
            title="tandem demo --cluster",
            padding=(1, 2),
        )

    def _places(self) -> Any:
        table = Table.grid(padding=(0, 4))
        table.add_row(*[self._node(node) for node in self._nodes])
        if self._engine is not None:
            table.add_row(*[self._server(number) for number in range(len(self._engine.nodes))])
        return table

    def _node(self, node: BrokerProcess) -> Text:
        if not node.up:
            return Text(f"node {node.name} ", style="bold") + Text("✖ down", style="bold red")
        count = self._serves.get(node.name, 0)
        role = Text(f"serves {count} {'store' if count == 1 else 'stores'}", style="bold cyan") if count else Text("carries", style="dim")
        return Text(f"node {node.name} ", style="bold") + Text("● ", style="bold green") + role

    def _server(self, number: int) -> Text:
        assert self._engine is not None
        role = "primary" if number == 0 else "standby"
        up = self._engine.nodes[number].process is not None and (self._answers or number > 0)
        mark = Text("● up", style="bold green") if up else Text("✖ does not answer", style="bold red")
        return Text("PostgreSQL ", style="dim") + Text(f"{role} ", style="bold") + mark

    def _figures(self) -> Any:
        table = Table.grid(padding=(0, 2))
        tally = self._tally
        sent, received = (tally.sent, tally.received) if tally is not None else (0, 0)
        table.add_row("sent", f"{sent:>7,}", self._sent.text("blue"))
        table.add_row("received", f"{received:>7,}", self._received.text("green"))
        if tally is not None and tally.failed:
            table.add_row("sent again by the application", f"{tally.failed:>7,}", "")
        return table


def show_cluster_verdict(verdict: ClusterVerdict) -> None:
    console = Console(highlight=False)
    show_figures(console, {name: getattr(verdict, name) for name in ("sent", "delivered", "lost", "duplicated")})
    words = "Nothing was lost, nothing was delivered twice." if verdict.held else "It did not hold."
    console.print(f"\n[bold {'green' if verdict.held else 'red'}]{words}[/]")
    console.print(
        f"After node {verdict.killed} was killed no send to its queue was answered for {verdict.seconds_without_node:.1f} s (lease "
        f"{verdict.lease} s), after PostgreSQL's primary was for {verdict.seconds_without_engine:.1f} s. "
        f"The SDK made such sends again; the application "
        f"had to do so {verdict.failed} times."
    )
