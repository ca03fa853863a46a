"""`tandem session list|state`: which sessions an entity has, and what state they keep."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final

import typer

from tandem.cli.operations.links import Entity, Path
from tandem.cli.operations.output import JsonFlag, show
from tandem.cli.operations.target import OperationTarget, refusals, takes_target

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Sessions of a queue or subscription, and their states.")

_PAGE: Final = 100
_EVER_MS: Final = 253_402_300_799_999
"""The instant with which the request means: sessions with messages. An earlier one asks for those whose state changed since."""


@app.callback()
def session() -> None:
    """Sessions of a queue or subscription, and their states.

    Example: tandem session list orders
    """


@app.command(name="list")
@takes_target
def list_sessions(
    target: OperationTarget,
    entity: Entity,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="At most so many.")] = 1_000,
    as_json: JsonFlag = False,
) -> None:
    """List sessions that have messages.

    Example: tandem session list orders
    """
    address = Path.parse(entity).address
    found: list[str] = []
    with refusals(), target.engine_client() as client:
        while len(found) < count:
            body: dict[str, object] = {
                "last-updated-time": client.instant(_EVER_MS),
                "skip": client.int32(len(found)),
                "top": client.int32(min(_PAGE, count - len(found))),
            }
            answer: dict[str, Any] = client.request(address, "com.microsoft:get-message-sessions", body) or {}
            ids = answer.get("sessions-ids", ())
            page = [str(one) for one in getattr(ids, "values", ids)]
            found += page
            if len(page) < _PAGE:
                break
    show([{"session_id": one} for one in found[:count]], as_json, ("session_id",))


@app.command(name="state")
@takes_target
def state(
    target: OperationTarget,
    entity: Entity,
    session_id: Annotated[str, typer.Argument(help="Its id.")],
    set_to: Annotated[str | None, typer.Option("--set", help="The new state; empty clears it.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Print a session's state, or set it. The session is taken for as long as that needs: it must be free.

    Example: tandem session state orders customer-17
    """
    from tandem.cli.operations.links import receiver

    with (
        refusals(),
        target.client() as client,
        receiver(client, Path.parse(entity), session_id, max_wait_time=5) as source,
    ):
        if set_to is not None:
            source.session.set_state(set_to.encode() if set_to else None)
        found = source.session.get_state()
    text = None if found is None else bytes(found).decode("utf-8", "replace")
    print(json.dumps({"session_id": session_id, "state": text}) if as_json else ("" if text is None else text))
