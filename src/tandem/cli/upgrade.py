"""`tandem upgrade --check`: can this version open a data directory, and what would it change there?"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from tandem import __version__
from tandem.cli.operations.output import JsonFlag
from tandem.model.errors import ConfigurationError
from tandem.stores.formats import WHAT_TO_DO, Format, formats_of


def upgrade(
    data: Annotated[Path, typer.Argument(help="Data directory of a broker, running or stopped.", metavar="DIR")] = Path("tandem-data"),
    check: Annotated[bool, typer.Option("--check", help="Only look; nothing else is needed, the broker does the rest.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Say which formats a data directory has and what this version would change. Exit code 1 when a newer version wrote it.

    Example: tandem upgrade --check tandem-data
    """
    if not check:
        raise ConfigurationError("`tandem serve` brings older data up to date when it starts; say --check to see what that changes")
    found = formats_of(data)
    newer = [one for one in found if one.newer]
    if as_json:
        print(json.dumps({"version": __version__, "opens": not newer, "formats": [asdict(one) for one in found]}, indent=2))
    else:
        for one in found:
            print(f"{one.where}: format {one.version}, {_words(one)}")
        if newer:
            print(f"tandem {__version__} cannot open it. {WHAT_TO_DO}.")
        elif any(one.changes for one in found):
            print(f"tandem {__version__} can open it. Older versions will refuse it afterwards: back it up first (tandem store backup).")
        else:
            print(f"tandem {__version__} can open it, and nothing has to be changed for that.")
    if newer:
        raise typer.Exit(1)


def _words(one: Format) -> str:
    if one.newer:
        return f"newer than this version knows ({one.known})"
    if one.changes:
        return f"brought to {one.known} when it is opened, which keeps {', '.join(one.changes)}"
    return "as this version writes it" if one.version == one.known else f"read as it is; what is written anew has format {one.known}"
