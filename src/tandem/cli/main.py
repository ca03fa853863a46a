"""The command `tandem`: finds the subcommand, loads nothing else, and turns errors into words and exit codes."""

from __future__ import annotations

import os
import sys
from typing import Final

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
    os.environ.setdefault("TYPER_USE_RICH", "0")  # boxes around help cost more time than all the rest of it
    from tandem.cli.application import app

    app(prog_name="tandem")


if __name__ == "__main__":
    main()
