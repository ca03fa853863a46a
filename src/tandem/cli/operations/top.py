"""`tandem top`: a live table of a broker: rates, depth, dead letters, stores, connections; keys sort it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

import typer

from tandem.cli.operations.broker_pages import call, fetch
from tandem.cli.operations.output import JsonFlag
from tandem.cli.operations.target import OperationTarget, takes_target
from tandem.model.errors import ConfigurationError

_IN: Final = frozenset({"send", "schedule"})
_OUT: Final = frozenset({"receive"})
_DEAD: Final = "/$deadletterqueue"
_KEYS: Final = {
    "n": "entity",
    "a": "active",
    "d": "dead_letters",
    "i": "in_per_second",
    "o": "out_per_second",
    "l": "locked",
    "c": "consumers",
    "w": "oldest_seconds",
}
_PLAIN: Final = ("active", "dead_letters", "scheduled", "locked", "deferred", "leased", "consumers", "oldest_seconds", "size_bytes")
_COLUMNS: Final = (
    "entity",
    "active",
    "dead_letters",
    "scheduled",
    "locked",
    "in_per_second",
    "out_per_second",
    "consumers",
    "oldest_seconds",
    "size_bytes",
)
_UP, _DOWN, _ENTER, _BACK = ("k", "\x1b[A"), ("j", "\x1b[B"), ("\n", "\r"), ("\x1b", "b")


_GAUGES: Final = {"tandem_size_bytes": "size_bytes", "tandem_consumers": "consumers", "tandem_oldest_message_seconds": "oldest_seconds"}


@dataclass(slots=True)
class TopSnapshot:
    """One scrape, added up by entity."""

    at: float
    entities: dict[str, dict[str, float]] = field(default_factory=dict)
    stores: list[str] = field(default_factory=list)
    connections: int = 0
    failed_over: list[str] = field(default_factory=list)
    """Paths that clients have reported as failed over, with who did."""

    def rows(self, before: TopSnapshot | None, sort: str) -> list[dict[str, Any]]:
        seconds = max(0.001, self.at - before.at) if before is not None else 0.0
        rows: list[dict[str, Any]] = []
        for name, now in self.entities.items():
            earlier = before.entities.get(name, {}) if before is not None else now
            row: dict[str, Any] = {"entity": name}
            for column in _PLAIN:
                row[column] = int(now.get(column, 0))
            for column in ("in", "out"):
                grown = now.get(column, 0) - earlier.get(column, 0)
                row[f"{column}_per_second"] = round(max(0.0, grown) / seconds, 1) if seconds else 0.0
            rows.append(row)
        return sorted(rows, key=lambda row: row["entity"] if sort == "entity" else (-row[sort], row["entity"]))


@takes_target
def top(
    target: OperationTarget,
    every: Annotated[float, typer.Option(min=0.2, help="Seconds between two looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Look twice, print, and end.")] = False,
    sort: Annotated[str, typer.Option(help=f"Column to sort by: {', '.join(_KEYS.values())}.")] = "active",
    as_json: JsonFlag = False,
) -> None:
    """Watch a broker, with the paths that its clients report as failed over.

    Keys: n a d i o l c w sort by name, active, dead letters, in, out, locked, consumers, waiting time; j and k (or arrows) choose an
    entity, Enter shows all of it and who is attached, b goes back; q ends.

    Example: tandem top
    """
    if sort not in _KEYS.values():
        raise ConfigurationError(f"--sort {sort}: one of {', '.join(_KEYS.values())}")
    if once or as_json or not sys.stdout.isatty():
        before = scrape(target)
        time.sleep(every)
        now = scrape(target)
        if as_json:
            shown = {"stores": now.stores, "connections": now.connections, "failed_over": now.failed_over}
            print(json.dumps(shown | {"entities": now.rows(before, sort)}, indent=2))
        else:
            from rich.console import Console

            Console(highlight=False).print(_table(now, before, sort))
        return
    _watch(target, every, sort)


def scrape(target: OperationTarget) -> TopSnapshot:
    from prometheus_client.parser import text_string_to_metric_families

    found = TopSnapshot(time.monotonic())
    for family in text_string_to_metric_families(fetch(target, "GET", "metrics").decode()):
        for sample in family.samples:
            _add(found, sample.name, sample.labels, sample.value)
    health = call(target, "GET", "health")
    for namespace in health.get("namespaces", ()):
        found.stores.extend(f"{store['name']} {store['state']}" for store in namespace["stores"])
    for reporter in call(target, "GET", "api/outage")["reporters"]:
        found.failed_over.extend(f"{one['path']} ({reporter['who']})" for one in reporter["paths"] if one["state"] != "healthy")
    return found


def _add(found: TopSnapshot, name: str, labels: Mapping[str, str], value: float) -> None:
    if name == "tandem_connections":
        found.connections += int(value)
    if "entity" not in labels:
        return
    path = labels["entity"]
    dead = path.casefold().endswith(_DEAD)
    entity = found.entities.setdefault(path[: -len(_DEAD)] if dead else path, {})
    column = ""
    if name == "tandem_messages":
        column = ("dead_letters" if labels["state"] == "active" else "") if dead else labels["state"]
    elif name in _GAUGES and not dead:
        column = _GAUGES[name]
    elif name == "tandem_operations_total" and not dead:
        column = "in" if labels["operation"] in _IN else "out" if labels["operation"] in _OUT else ""
    if column == "oldest_seconds":  # each worker has an oldest one of its own
        entity[column] = max(entity.get(column, 0.0), value)
    elif column:
        entity[column] = entity.get(column, 0.0) + value


def _table(now: TopSnapshot, before: TopSnapshot | None, sort: str, rows_max: int = 1_000, chosen: int = -1) -> Any:
    from rich.table import Table
    from rich.text import Text

    rows = now.rows(before, sort)
    title = f"{'  '.join(now.stores)}   {now.connections} connections   {len(rows)} entities"
    if now.failed_over:
        title += f"\nfailed over: {', '.join(now.failed_over[:10])}"
    table = Table(box=None, header_style="bold", title=Text(title), title_justify="left", pad_edge=False)
    for column in _COLUMNS:
        words = column.replace("_per_second", "/s").replace("_", " ")
        table.add_column(f"{words}{' ▾' if column == sort else ''}", justify="left" if column == "entity" else "right")
    first = max(0, chosen - rows_max + 1)
    for number, row in enumerate(rows[first : first + rows_max], first):
        style = ("reverse " if number == chosen else "") + ("red" if row["dead_letters"] else "")
        table.add_row(*(Text(f"{row[one]:,}" if one != "entity" else row[one]) for one in _COLUMNS), style=style)
    return table


class _TopView:
    """What is on the screen, and what a key does to it."""

    def __init__(self, sort: str) -> None:
        self.sort = sort
        self.chosen = 0
        self.entity = ""
        """Shown alone; empty: all of them."""

    def press(self, key: str, rows: list[dict[str, Any]]) -> bool:
        """False: it ends."""
        if key in _KEYS:
            self.sort = _KEYS[key]
        elif key in _UP:
            self.chosen = max(0, self.chosen - 1)
        elif key in _DOWN:
            self.chosen = min(max(0, len(rows) - 1), self.chosen + 1)
        elif key in _ENTER and rows:
            self.entity = str(rows[min(self.chosen, len(rows) - 1)]["entity"])
        elif key in _BACK:
            self.entity = ""
        return key not in ("q", "\x03", "\x04")


def _detail(target: OperationTarget, now: TopSnapshot, before: TopSnapshot | None, entity: str) -> Any:
    """One entity: everything that is counted, and who is attached to it."""
    from rich.text import Text

    row = next((one for one in now.rows(before, "entity") if one["entity"] == entity), {})
    lines = [entity, "", *(f"{name.replace('_', ' '):18}{value:,}" for name, value in row.items() if name != "entity"), ""]
    for client in call(target, "GET", "connections")["connections"]:
        roles = sorted({link["role"] for link in client["links"] if str(link["entity"]).casefold().startswith(entity.casefold())})
        if roles:
            lines.append(f"{client['peer']:24}{' and '.join(roles):20}{client['client'][:60]}")
    return Text("\n".join([*lines, "", "b: back"]))


def _watch(target: OperationTarget, every: float, sort: str) -> None:
    from rich.live import Live

    before: TopSnapshot | None = None
    now = scrape(target)
    view = _TopView(sort)
    with _single_keys(), Live(screen=True, auto_refresh=False) as live:
        while True:
            height = max(1, live.console.height - 5)
            shown = _detail(target, now, before, view.entity) if view.entity else _table(now, before, view.sort, height, view.chosen)
            live.update(shown, refresh=True)
            key = _key(every)
            if not view.press(key, now.rows(before, view.sort)):
                return
            if not key:
                before, now = now, scrape(target)


@contextlib.contextmanager
def _single_keys() -> Iterator[None]:
    """A key counts when it is pressed, without Enter."""
    import termios
    import tty

    if not sys.stdin.isatty():
        yield
        return
    kept = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, kept)


def _key(seconds: float) -> str:
    """What was pressed within so many seconds; empty if nothing was."""
    if not select.select([sys.stdin], [], [], seconds)[0]:
        return ""
    return os.read(sys.stdin.fileno(), 8).decode(errors="replace")  # an arrow is three characters
