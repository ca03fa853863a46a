"""How commands print data: a table for people, JSON for programs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum
from typing import Annotated, Any

import typer

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def plain(value: object) -> Any:
    """A value as JSON and tables hold it."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return duration_text(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, Mapping):
        return {plain(name): plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no word for it
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)


def duration_text(value: timedelta) -> str:
    """As the configuration file takes it: 1d2h3m4s; a span that never ends is `never`."""
    if value.days >= 10_675_199:
        return "never"
    milliseconds = round(value / timedelta(milliseconds=1))
    text = ""
    for unit, worth in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)):
        count, milliseconds = divmod(milliseconds, worth)
        text += f"{count}{unit}" if count else ""
    return text or "0s"


def show(rows: Sequence[Mapping[str, Any]], as_json: bool, columns: Sequence[str]) -> None:
    """Rows of one kind; JSON holds all that is known of each, a table the columns named."""
    if as_json:
        print(json.dumps([plain(row) for row in rows], indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in columns:
        figures = any(isinstance(row.get(name), int) and not isinstance(row.get(name), bool) for row in rows)
        table.add_column(name.replace("_", " "), justify="right" if figures else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(row.get(name)) for name in columns))
    Console(highlight=False, soft_wrap=False).print(table)


def show_one(row: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(plain(row), indent=2))
        return
    width = max(map(len, row), default=0)
    for name, value in row.items():
        print(f"{name.replace('_', ' '):{width}}  {_text(value)}")


def tell(as_json: bool, words: str, **facts: Any) -> None:
    """What was done: in words, or as an object."""
    print(json.dumps(plain(facts)) if as_json else words)


def _cell(value: object) -> Any:
    from rich.text import Text

    return Text(_text(value))


def _text(value: object) -> str:
    found = plain(value)
    if found is None:
        return "-"
    if isinstance(found, bool):
        return "yes" if found else "no"
    if isinstance(found, dict | list):
        return json.dumps(found)
    return str(found)


def confirm(question: str, yes: bool) -> None:
    """Ends the command when the answer is no; without a terminal, --yes must be said."""
    if not yes and not typer.confirm(question, err=True):
        raise typer.Exit(2)
