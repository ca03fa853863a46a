"""`tandem reload`: a running broker reads its configuration again."""

from __future__ import annotations

import json

import typer

from tandem.cli.operations.broker_pages import call
from tandem.cli.operations.output import JsonFlag
from tandem.cli.operations.target import OperationTarget, takes_target


@takes_target
def reload(target: OperationTarget, as_json: JsonFlag = False) -> None:
    """Let a broker read its configuration again, as SIGHUP does, and say what changed. Exit code 1 when part of it was refused.

    Example: tandem reload
    """
    told = call(target, "POST", "reload")
    if as_json:
        print(json.dumps(told, indent=2))
    else:
        for name, words in (("changed", "changed"), ("refused", "refused"), ("left", "no longer configured, left as it is")):
            for one in told[name]:
                print(f"{words}: {one}")
        for one in told["needs_restart"]:
            print(f"needs a restart: {one}")
        if not any(told.values()):
            print("nothing changed")
    if told["refused"]:
        raise typer.Exit(1)
