"""The whole command line, with help: commands are imported one at a time, when they are asked for."""

from __future__ import annotations

import importlib
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from tandem import __version__

COMMANDS: Final[dict[str, tuple[str, str, str]]] = {
    "serve": ("tandem.cli.serve", "serve", "Run a broker."),
    "cluster": ("tandem.cli.cluster", "application", "Make a cluster, see who serves what, move it."),
    "demo": ("tandem.cli.demo", "demo", "Kill a broker under way and see that nothing is lost."),
    "syphon": ("tandem.cli.pipeline", "syphon", "Carry diverted messages home, on Spark."),
    "reconcile": ("tandem.cli.analytics", "reconcile", "Prove that nothing was lost, doubled or left behind."),
    "cost": ("tandem.cli.analytics", "cost", "Price what was counted, and compare ways to survive an outage."),
    "availability": ("tandem.cli.analytics", "availability", "Outages, failovers, and whether the goal was met."),
    "report": ("tandem.cli.analytics", "report", "Write one page with plots about an outage."),
    "import": ("tandem.cli.importing", "import_topology", "Write a tandem.toml from the entities of a living namespace."),
    "relay": ("tandem.cli.relay", "app", "Manage relays, and carry TCP through them."),
    "queue": ("tandem.cli.operations.entities", "queue", "Create, list, show, change and delete queues."),
    "topic": ("tandem.cli.operations.entities", "topic", "Create, list, show, change and delete topics."),
    "subscription": ("tandem.cli.operations.entities", "subscription", "Create, list, show, change and delete subscriptions."),
    "rule": ("tandem.cli.operations.rules", "app", "Rules of subscriptions, and why one matches a message or not."),
    "send": ("tandem.cli.operations.messages", "send", "Send messages."),
    "schedule": ("tandem.cli.operations.messages", "schedule", "Schedule messages."),
    "cancel": ("tandem.cli.operations.messages", "cancel", "Cancel scheduled messages."),
    "peek": ("tandem.cli.operations.messages", "peek", "Look at messages without taking them."),
    "receive": ("tandem.cli.operations.messages", "receive", "Take messages."),
    "purge": ("tandem.cli.operations.purge", "purge", "Drop every message of an entity."),
    "dead-letter": ("tandem.cli.operations.dead_letter", "app", "Look at dead letters, send them again, or drop them."),
    "session": ("tandem.cli.operations.sessions", "app", "Sessions of an entity, and their states."),
    "connection": ("tandem.cli.operations.connections", "app", "Who is connected; close a connection."),
    "lock": ("tandem.cli.operations.locks", "app", "What is locked and by whom; release a lock."),
    "top": ("tandem.cli.operations.top", "top", "Watch a broker live."),
    "bench": ("tandem.cli.operations.bench", "bench", "Measure how fast a broker is, ours or another."),
    "context": ("tandem.cli.operations.contexts", "app", "Connection strings under a name."),
    "fault": ("tandem.cli.fault", "app", "Make a store, an entity or the namespace fail on purpose."),
    "reload": ("tandem.cli.operations.reload", "reload", "Let a running broker read its configuration again."),
    "store": ("tandem.cli.store", "app", "Check, dump or back up messaging stores."),
    "upgrade": ("tandem.cli.upgrade", "upgrade", "Say what this version would change in a data directory."),
    "keys": ("tandem.cli.keys", "keys", "Show the keys and connection strings of a broker."),
    "issuer": ("tandem.cli.issuer", "app", "Issue tokens to clients that have secrets."),
    "token": ("tandem.cli.token", "token", "Sign a token for programs that speak HTTP."),
}
"""name -> (module, function or Typer application, one line of help). A module is imported when its command runs."""


class LazyGroup(TyperGroup):
    """Starting a broker must not wait for Spark's modules."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    _listing = False

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The list of all commands needs their names and a line each, and none of their modules."""
        self._listing = True
        super().format_help(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        self._listing = True
        return super().shell_complete(ctx, incomplete)

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


app = typer.Typer(cls=LazyGroup, no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]})


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
