"""`tandem connection list|close`: who is connected, from where, and to what."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from tandem.cli.operations.broker_pages import call
from tandem.cli.operations.output import JsonFlag, show, tell
from tandem.cli.operations.target import OperationTarget, takes_target

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Connections of a Tandem broker.")


@app.callback()
def connection() -> None:
    """Connections of a Tandem broker; the key needs Manage.

    Example: tandem connection list
    """


@app.command(name="list")
@takes_target
def list_connections(target: OperationTarget, as_json: JsonFlag = False) -> None:
    """List connections with their links.

    Example: tandem connection list
    """
    found: dict[str, Any] = call(target, "GET", "connections")
    rows = found["connections"]
    if not as_json:
        for row in rows:
            row["links"] = ", ".join(sorted({f"{one['role']} {one['entity']}" for one in row["links"]}))
    show(rows, as_json, ("peer", "open_seconds", "client", "link_count", "links"))


@app.command(name="close")
@takes_target
def close(
    target: OperationTarget,
    peer: Annotated[str, typer.Argument(help="As `tandem connection list` prints it: address:port.")],
    as_json: JsonFlag = False,
) -> None:
    """Close a connection; clients connect again by themselves.

    Example: tandem connection close 10.0.0.7:51234
    """
    call(target, "DELETE", f"connections/{quote(peer, safe='')}")
    tell(as_json, f"closed {peer}", closed=peer)
