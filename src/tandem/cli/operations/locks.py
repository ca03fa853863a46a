"""`tandem lock list|release`: which messages and sessions somebody holds, and how to take them back."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import quote, urlencode

import typer

from tandem.cli.operations.broker_pages import call
from tandem.cli.operations.links import Entity
from tandem.cli.operations.output import JsonFlag, Yes, confirm, show
from tandem.cli.operations.target import OperationTarget, takes_target

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Locks of messages and sessions.")


@app.callback()
def lock() -> None:
    """Locks of messages and sessions, of a Tandem broker; the key needs Manage.

    Example: tandem lock list orders
    """


@app.command(name="list")
@takes_target
def list_locks(target: OperationTarget, entity: Entity, as_json: JsonFlag = False) -> None:
    """List what is locked, what ends first in front, with who holds it.

    Example: tandem lock list orders
    """
    found: dict[str, Any] = call(target, "GET", f"locks/{quote(entity)}")
    rows = [_row(one) for one in found["locks"]]
    in_hand = {row["session_id"] for row in rows}
    rows += [_row(one) for one in found["sessions"] if one["session_id"] not in in_hand]
    show(rows, as_json, ("sequence_number", "session_id", "locked_until", "deliveries_before", "holder"))
    if not as_json and found["total"] > len(found["locks"]):
        print(f"and {found['total'] - len(found['locks'])} more")


@app.command(name="release")
@takes_target
def release(
    target: OperationTarget,
    entity: Entity,
    sequence_numbers: Annotated[list[int] | None, typer.Argument(help="Of the messages, as `tandem lock list` prints them.")] = None,
    session: Annotated[str | None, typer.Option(help="The lock of this session, with those of its messages.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every lock of the entity.")] = False,
    yes: Yes = False,
    as_json: JsonFlag = False,
) -> None:
    """Take locks from their holders, as if their time were over: messages are available again, and the delivery counts.

    Example: tandem lock release orders 1201
    """
    query: list[tuple[str, Any]] = [("seq", number) for number in sequence_numbers or ()]
    if session is not None:
        query.append(("session", session))
    if everything:
        query.append(("all", "true"))
        confirm(f"Release every lock of {entity}?", yes)
    found = call(target, "DELETE", f"locks/{quote(entity)}?{urlencode(query)}")
    if as_json:
        show([found], as_json, ())
    else:
        print(f"released {found['released']}")


def _row(one: dict[str, Any]) -> dict[str, Any]:
    until = datetime.fromtimestamp(one["locked_until_ms"] / 1000, UTC)
    return one | {"locked_until": until.isoformat(timespec="milliseconds")}
