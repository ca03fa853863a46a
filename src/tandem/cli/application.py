"""The whole command line, with help: commands are imported one at a time, when they are asked for."""

from __future__ import annotations

import importlib
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from tandem import __version__
from tandem.cli.main import COMMANDS


class LazyGroup(TyperGroup):
    """Starting a broker must not wait for Spark's modules."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    _listing = False

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The list of all commands needs their names and a line each, and none of their modules."""
        self._listing = True
        super().format_help(ctx, formatter)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module, attribute, help_text = entry
        if self._listing:
            return TyperCommand(cmd_name, short_help=help_text, help=help_text)
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
