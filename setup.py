"""Builds Tandem: pure Python everywhere, and the hot modules compiled with mypyc where a C compiler is present.

The same source runs both ways. `TANDEM_COMPILE=0` turns compiling off, `TANDEM_COMPILE=1` makes a failure to compile an error;
otherwise a failure falls back to pure Python and says why, on standard error and in `build/compiled.txt`.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import shutil
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).resolve().parent
REPORT = HERE / "build" / "compiled.txt"

HOT_MODULES = (
    "amqp/serial.py",
    "amqp/numbers.py",
    "amqp/codec.py",
    "amqp/encoder.py",
    "amqp/fields.py",
    "amqp/sections.py",
    "amqp/terminus.py",
    "amqp/outcomes.py",
    "amqp/performatives.py",
    "amqp/frames.py",
    "amqp/errors.py",
    "amqp/handlers.py",
    "amqp/sasl.py",
    "amqp/link.py",
    "amqp/answers.py",
    "amqp/idle.py",
    "amqp/transfers.py",
    "amqp/dispositions.py",
    "amqp/session.py",
    "amqp/connection.py",
    "model/message.py",
    "broker/facts.py",
    "broker/journal.py",
    "broker/index.py",
    "broker/locks.py",
    "broker/dedup.py",
    "broker/turn.py",
    "broker/meters.py",
    "broker/message_sessions.py",
    "broker/state.py",
    "broker/dispatch.py",
    "broker/settlement.py",
    "broker/browse.py",
    "broker/leases.py",
    "broker/forwarding.py",
    "broker/queue.py",
    "broker/gathering.py",
    "broker/partitions.py",
    "broker/topic.py",
    "broker/partitioned_topic.py",
    "broker/between_stores.py",
    "broker/operations.py",
    "broker/replay.py",
    "broker/message_view.py",
    "broker/sql_like.py",
    "broker/sql_convert.py",
    "broker/sql_values.py",
    "broker/rules.py",
    "broker/topic_rules.py",
    "gateway/translate.py",
    "gateway/confirming.py",
    "gateway/links.py",
    "gateway/client.py",
    "gateway/store_keeper.py",
    "gateway/ingress.py",
    "gateway/rhythm.py",
    "gateway/idle_entities.py",
    "gateway/metering.py",
    "stores/blocks.py",
    "stores/effects.py",
    "stores/recent.py",
    "stores/scan.py",
    "stores/index.py",
    "stores/reader.py",
    "stores/fetching.py",
    "stores/synced.py",
    "stores/committer.py",
    "stores/recovery.py",
    "stores/compaction.py",
    "stores/upkeep.py",
    "stores/segment.py",
    "testing/agenda.py",
    "testing/simnet.py",
    "testing/amqp_client.py",
    "testing/checker.py",
    "testing/invariants.py",
)
"""Compiled together as one group. Names that do not exist (yet) are skipped."""

MODE = os.environ.get("TANDEM_COMPILE", "auto")


def report(text: str) -> None:
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(text + "\n", encoding="utf-8")
    sys.stderr.write(f"tandem: {text}\n")


def fall_back(reason: str) -> None:
    """Pure Python it is; unless compiling was demanded."""
    report(f"not compiled, running as pure Python: {reason}")
    if MODE == "1":
        raise SystemExit(f"TANDEM_COMPILE=1, but {reason}")


def compiler() -> str | None:
    command = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    program = shlex.split(command)[0]
    return program if shutil.which(program) else None


def extensions() -> list[Extension]:
    if MODE == "0":
        report("not compiled, running as pure Python: TANDEM_COMPILE=0")
        return []
    if "egg_info" in sys.argv or "dist_info" in sys.argv or "sdist" in sys.argv:
        return []
    if compiler() is None:
        fall_back("no C compiler found (on Debian: apt-get install gcc python3-dev)")
        return []
    try:
        from mypyc.build import mypycify
    except ImportError as error:
        fall_back(f"mypyc cannot be imported ({error}); pip install 'mypy[mypyc]'")
        return []
    package = Path("src/tandem")
    files = [str(package / name) for name in HOT_MODULES if (HERE / package / name).exists()]
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            # Modules that are only imported are not our business here: their types are checked by `make check`.
            built = mypycify(["--follow-imports=silent", *files], opt_level="2", debug_level="0", group_name="tandem_hot")
    except (Exception, SystemExit) as error:  # noqa: BLE001 - mypyc exits the interpreter on a type error; pure Python still works
        sys.stderr.write(said.getvalue())
        first = next((line for line in said.getvalue().splitlines() if " error: " in line), str(error))
        fall_back(f"mypyc refused the source: {first}")
        return []
    for extension in built:
        # A new compiler's new warning is no reason to run slowly.
        extension.extra_compile_args = [*extension.extra_compile_args, "-Wno-error"]
    return list(built)


class BuildOrFallBack(build_ext):
    """All hot modules or none: a shim without its shared library would not import."""

    def run(self) -> None:
        self._remove_stale()
        try:
            super().run()
        except Exception as error:  # noqa: BLE001 - whatever the compiler's trouble is, pure Python still works
            for output in self.get_outputs():
                Path(output).unlink(missing_ok=True)
            self.extensions = []
            shown = str(error) if len(str(error)) <= 160 else "…" + str(error)[-160:]
            fall_back(f"the C compiler failed ({shown}); are the Python headers installed (python3-dev)?")
        else:
            count = sum(1 for extension in self.extensions if extension.name.startswith("tandem."))
            if count:
                report(f"compiled with mypyc: {count} modules")

    def _remove_stale(self) -> None:
        """Extensions of an earlier build that nobody asks for any more would shadow the source."""
        suffix = sysconfig.get_config_var("EXT_SUFFIX")
        wanted = {Path(output).resolve() for output in self.get_outputs()}
        for found in Path(self.build_lib).rglob(f"*{suffix}"):
            if found.resolve() not in wanted:
                found.unlink()


os.chdir(HERE)
setup(ext_modules=extensions(), cmdclass={"build_ext": BuildOrFallBack})
