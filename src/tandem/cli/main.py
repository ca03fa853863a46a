"""The command `tandem`: finds the subcommand, loads nothing else, and turns errors into words and exit codes."""

from __future__ import annotations

import os
import sys
from typing import Final

EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130
_STANDARD_ERROR: Final = 2
_NO_THREAD: Final = "can't start new thread"
"""As Python says it, in an error that has no class of its own."""


def main() -> None:
    """Exit codes: 0 done, 1 it did not hold, 2 wrong usage or configuration."""
    from tandem.model.errors import ConfigurationError

    _hold_standard_streams()
    try:
        _run(sys.argv[1:])
    except ConfigurationError as error:
        print(f"tandem: {error}", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    except RuntimeError as error:
        if str(error) != _NO_THREAD:
            raise
        print("tandem: the system allows no further thread; raise ulimit -u, TasksMax of the service, or its memory", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    except KeyboardInterrupt:  # while it starts: later ones are waited for
        sys.exit(EXIT_INTERRUPTED)
    except OSError as error:
        if not error.strerror:
            raise
        where = f"{error.filename}: " if error.filename is not None else ""
        print(f"tandem: {where}{error.strerror}", file=sys.stderr)
        sys.exit(EXIT_USAGE)


def _hold_standard_streams() -> None:
    """Those that were closed would be the numbers of our next files: whoever writes an error there would write into a journal."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _STANDARD_ERROR:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


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
