"""`tandem fault`: make a store, an entity or the namespace fail on purpose, see what is in force, and heal it."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any

import typer

from tandem.cli.operations.broker_pages import call
from tandem.cli.operations.output import JsonFlag
from tandem.cli.operations.target import OperationTarget, takes_target
from tandem.model.errors import ConfigurationError

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Faults on purpose.")

_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}


@app.callback()
def fault() -> None:
    """Faults on purpose. The broker must run with --dev or faults = true; the key needs Manage.

    Example: tandem fault inject store-down --store 0 --for 30s
    """


@app.command(name="inject")
@takes_target
def inject(
    target: OperationTarget,
    kind: Annotated[str, typer.Argument(help="store-down, store-slow, entity-error, black-hole, … (an unknown one lists all).")],
    entity: Annotated[str | None, typer.Option(help="Path of the entity it concerns; without it, every entity.")] = None,
    store: Annotated[int | None, typer.Option(help="Number of the store it concerns.")] = None,
    condition: Annotated[str | None, typer.Option(help="AMQP condition of an entity-error.")] = None,
    delay: Annotated[str | None, typer.Option(help="For the slow ones: 200ms, 2s.")] = None,
    duration: Annotated[str | None, typer.Option("--for", help="Ends by itself after this: 30s, 5m.")] = None,
    count: Annotated[int | None, typer.Option(help="Ends by itself after so many strikes.")] = None,
    fraction: Annotated[float, typer.Option(help="Part of the occasions it strikes at.")] = 1.0,
    as_json: JsonFlag = False,
) -> None:
    """Put a fault in force.

    Example: tandem fault inject lose-acknowledgement --entity orders --count 1
    """
    wanted: dict[str, Any] = {"kind": kind, "fraction": fraction}
    given = {"entity": entity, "store": store, "condition": condition, "count": count}
    wanted.update({name: value for name, value in given.items() if value is not None})
    if delay is not None:
        wanted["delay_ms"] = _milliseconds("--delay", delay)
    if duration is not None:
        wanted["for_ms"] = _milliseconds("--for", duration)
    _show([call(target, "POST", "faults", wanted)], as_json)


@app.command(name="list")
@takes_target
def list_faults(target: OperationTarget, as_json: JsonFlag = False) -> None:
    """Show what is in force.

    Example: tandem fault list
    """
    _show(call(target, "GET", "faults")["faults"], as_json)


@app.command(name="heal")
@takes_target
def heal(
    target: OperationTarget,
    number: Annotated[int | None, typer.Argument(help="One fault; without it, all of them.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """End a fault, or all of them.

    Example: tandem fault heal
    """
    path = "faults" if number is None else f"faults/{number}"
    _show(call(target, "DELETE", path)["healed"], as_json)


def _milliseconds(option: str, text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)", text.strip())
    if found is None:
        raise ConfigurationError(f"{option}: {text!r} is no duration; write 200ms, 30s, 5m or 1h")
    return int(float(found.group(1)) * _UNITS[found.group(2)])


def _show(faults: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print(json.dumps(faults, indent=2))
        return
    if not faults:
        print("no faults")
    for one in faults:
        details = ", ".join(f"{name} {value}" for name, value in one.items() if name not in ("id", "kind") and value is not None)
        print(f"{one['id']:>4}  {one['kind']:<22} {details}")
