"""The command `tandem`: finds the subcommand, loads nothing else, and turns errors into words and exit codes."""

from __future__ import annotations

import importlib
import sys
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from tandem import __version__

COMMANDS: Final[dict[str, tuple[str, str, str]]] = {
    "serve": ("tandem.cli.serve", "serve", "Run a broker."),
    "demo": ("tandem.cli.demo", "demo", "Kill a broker under way and see that nothing is lost."),
    "keys": ("tandem.cli.keys", "keys", "Show the keys and connection strings of a broker."),
}
"""name -> (module, function or Typer application, one line of help). A module is imported when its command runs."""

EXIT_DONE: Final = 0
EXIT_DID_NOT_HOLD: Final = 1
EXIT_USAGE: Final = 2


class LazyGroup(TyperGroup):
    """Commands that are imported one at a time: starting a broker must not wait for Spark's modules."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module, attribute, help_text = entry
        found = getattr(importlib.import_module(module), attribute)
        if isinstance(found, typer.Typer):
            application = found
        else:
            application = typer.Typer(add_completion=False)
            application.command(name=cmd_name)(found)
        command = typer.main.get_command(application)
        command.name = cmd_name
        command.short_help = help_text
        return command


app = typer.Typer(cls=LazyGroup, no_args_is_help=True, add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"tandem {__version__}")
        raise typer.Exit


@app.callback()
def tandem(
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")] = False,
) -> None:
    """A bus that speaks Azure Service Bus, built for the day the broker is down.

    Example: tandem serve --dev
    """


def main() -> None:
    """Exit codes: 0 done, 1 it did not hold, 2 wrong usage or configuration."""
    from tandem.model.errors import ConfigurationError

    try:
        app(prog_name="tandem")
    except ConfigurationError as error:
        print(f"tandem: {error}", file=sys.stderr)
        sys.exit(EXIT_USAGE)


if __name__ == "__main__":
    main()
