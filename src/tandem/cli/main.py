"""The command `tandem`: finds the subcommand, loads nothing else, and turns errors into words and exit codes."""

from __future__ import annotations

import sys
from typing import Final

COMMANDS: Final[dict[str, tuple[str, str, str]]] = {
    "serve": ("tandem.cli.serve", "serve", "Run a broker."),
    "demo": ("tandem.cli.demo", "demo", "Kill a broker under way and see that nothing is lost."),
    "syphon": ("tandem.cli.pipeline", "syphon", "Carry diverted messages home, on Spark."),
    "reconcile": ("tandem.cli.analytics", "reconcile", "Prove that nothing was lost, doubled or left behind."),
    "cost": ("tandem.cli.analytics", "cost", "Price what was counted, and compare ways to survive an outage."),
    "availability": ("tandem.cli.analytics", "availability", "Outages, failovers, and whether the goal was met."),
    "report": ("tandem.cli.analytics", "report", "Write one page with plots about an outage."),
    "import": ("tandem.cli.importing", "import_topology", "Write a tandem.toml from the entities of a living namespace."),
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
    "context": ("tandem.cli.operations.contexts", "app", "Connection strings under a name."),
    "fault": ("tandem.cli.fault", "app", "Make a store, an entity or the namespace fail on purpose."),
    "store": ("tandem.cli.store", "app", "Check, dump or back up messaging stores."),
    "keys": ("tandem.cli.keys", "keys", "Show the keys and connection strings of a broker."),
    "token": ("tandem.cli.token", "token", "Sign a token for programs that speak HTTP."),
}
"""name -> (module, function or Typer application, one line of help). A module is imported when its command runs."""

EXIT_DONE: Final = 0
EXIT_DID_NOT_HOLD: Final = 1
EXIT_USAGE: Final = 2


def main() -> None:
    """Exit codes: 0 done, 1 it did not hold, 2 wrong usage or configuration."""
    from tandem.model.errors import ConfigurationError

    try:
        _run(sys.argv[1:])
    except ConfigurationError as error:
        print(f"tandem: {error}", file=sys.stderr)
        sys.exit(EXIT_USAGE)


def _run(arguments: list[str]) -> None:
    if arguments[:1] == ["serve"]:
        # A broker must be back quickly after a crash; the command-line library takes longer to load than the broker itself.
        from tandem.cli.configuration.settings import quick_flags

        flags = quick_flags(arguments[1:])
        if flags is not None:
            import gc

            gc.disable()  # until the broker is ready: start-up makes no garbage worth looking for
            from tandem.cli.running import serve_with

            return serve_with(flags)
    from tandem.cli.application import app

    app(prog_name="tandem")


if __name__ == "__main__":
    main()
