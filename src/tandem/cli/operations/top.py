"""`tandem top`: a live table of a broker: rates, depth, dead letters, stores, connections; keys sort it."""

from __future__ import annotations

import contextlib
import json
import select
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

import typer

from tandem.cli.operations.broker_pages import call, fetch
from tandem.cli.operations.output import JsonFlag
from tandem.cli.operations.target import CaFile, ConnectionString, ContextName, OperationTarget, target_of
from tandem.model.errors import ConfigurationError

_IN: Final = frozenset({"send", "schedule"})
_OUT: Final = frozenset({"receive"})
_DEAD: Final = "/$deadletterqueue"
_KEYS: Final = {"n": "entity", "a": "active", "d": "dead_letters", "i": "in_per_second", "o": "out_per_second", "l": "locked"}
_COLUMNS: Final = ("entity", "active", "dead_letters", "scheduled", "locked", "in_per_second", "out_per_second", "size_bytes")


@dataclass(slots=True)
class TopSnapshot:
    """One scrape, added up by entity."""

    at: float
    entities: dict[str, dict[str, float]] = field(default_factory=dict)
    stores: list[str] = field(default_factory=list)
    connections: int = 0

    def rows(self, before: TopSnapshot | None, sort: str) -> list[dict[str, Any]]:
        seconds = max(0.001, self.at - before.at) if before is not None else 0.0
        rows: list[dict[str, Any]] = []
        for name, now in self.entities.items():
            earlier = before.entities.get(name, {}) if before is not None else now
            row: dict[str, Any] = {"entity": name}
            for column in ("active", "dead_letters", "scheduled", "locked", "size_bytes"):
                row[column] = int(now.get(column, 0))
            for column in ("in", "out"):
                grown = now.get(column, 0) - earlier.get(column, 0)
                row[f"{column}_per_second"] = round(max(0.0, grown) / seconds, 1) if seconds else 0.0
            rows.append(row)
        return sorted(rows, key=lambda row: row["entity"] if sort == "entity" else (-row[sort], row["entity"]))


def top(
    every: Annotated[float, typer.Option(min=0.2, help="Seconds between two looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Look twice, print, and end.")] = False,
    sort: Annotated[str, typer.Option(help=f"Column to sort by: {', '.join(_KEYS.values())}.")] = "active",
    connection_string: ConnectionString = None,
    context: ContextName = None,
    ca_file: CaFile = None,
    as_json: JsonFlag = False,
) -> None:
    """Watch a broker. Keys: n a d i o l sort by name, active, dead letters, in, out, locked; q ends.

    Example: tandem top
    """
    if sort not in _KEYS.values():
        raise ConfigurationError(f"--sort {sort}: one of {', '.join(_KEYS.values())}")
    target = target_of(connection_string, context, ca_file)
    if once or as_json or not sys.stdout.isatty():
        before = scrape(target)
        time.sleep(every)
        now = scrape(target)
        if as_json:
            print(json.dumps({"stores": now.stores, "connections": now.connections, "entities": now.rows(before, sort)}, indent=2))
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
        found.stores += [f"{store['name']} {store['state']}" for store in namespace["stores"]]
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
    elif name == "tandem_size_bytes":
        column = "size_bytes"
    elif name == "tandem_operations_total" and not dead:
        column = "in" if labels["operation"] in _IN else "out" if labels["operation"] in _OUT else ""
    if column:
        entity[column] = entity.get(column, 0.0) + value


def _table(now: TopSnapshot, before: TopSnapshot | None, sort: str, rows_max: int = 1_000) -> Any:
    from rich.table import Table
    from rich.text import Text

    rows = now.rows(before, sort)
    title = f"{'  '.join(now.stores)}   {now.connections} connections   {len(rows)} entities"
    table = Table(box=None, header_style="bold", title=Text(title), title_justify="left", pad_edge=False)
    for column in _COLUMNS:
        words = column.replace("_per_second", "/s").replace("_", " ")
        table.add_column(f"{words}{' ▾' if column == sort else ''}", justify="left" if column == "entity" else "right")
    for row in rows[:rows_max]:
        style = "red" if row["dead_letters"] else ""
        table.add_row(*(Text(f"{row[one]:,}" if one != "entity" else row[one]) for one in _COLUMNS), style=style)
    return table


def _watch(target: OperationTarget, every: float, sort: str) -> None:
    from rich.live import Live

    before: TopSnapshot | None = None
    now = scrape(target)
    with _single_keys(), Live(screen=True, auto_refresh=False) as live:
        while True:
            live.update(_table(now, before, sort, max(1, live.console.height - 4)), refresh=True)
            key = _key(every)
            if key in ("q", "\x03", "\x04"):
                return
            if key in _KEYS:
                sort = _KEYS[key]
                continue
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
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    return sys.stdin.read(1) if ready else ""
