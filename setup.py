"""Builds Tandem: pure Python everywhere, and the hot modules compiled with mypyc where a C compiler is present.

The same source runs both ways. `TANDEM_COMPILE=0` turns compiling off, `TANDEM_COMPILE=1` makes a failure to compile an error;
otherwise a failure falls back to pure Python and says why, on standard error and in `build/compiled.txt`. `TANDEM_COMPILE_TESTING=1`
compiles the simulator too.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import shutil
import sys
import sysconfig
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
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
    "amqp/message.py",
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
    "model/clock.py",
    "model/message.py",
    "model/histogram.py",
    "relay/frames.py",
    "broker/facts.py",
    "broker/ports.py",
    "broker/turn.py",
    "broker/meters.py",
    "broker/queue/index.py",
    "broker/queue/sessions.py",
    "broker/queue/lease.py",
    "broker/queue/dedup.py",
    "broker/queue/locks.py",
    "broker/queue/terms.py",
    "broker/queue/passage.py",
    "broker/queue/rows.py",
    "broker/queue/ledger.py",
    "broker/queue/ready.py",
    "broker/queue/bodies.py",
    "broker/queue/intake.py",
    "broker/queue/moves.py",
    "broker/queue/settlement.py",
    "broker/queue/delivery.py",
    "broker/queue/selective.py",
    "broker/queue/entity.py",
    "broker/queue/session_holding.py",
    "broker/queue/browsing.py",
    "broker/queue/leases.py",
    "broker/queue/schedule.py",
    "broker/queue/queue.py",
    "broker/forwarding.py",
    "broker/entities/topic.py",
    "broker/entities/joined.py",
    "broker/entities/rerouting.py",
    "broker/entities/partitioned.py",
    "broker/recovery/cross_store.py",
    "broker/recovery/operations.py",
    "broker/recovery/replay.py",
    "broker/recovery/relocation.py",
    "broker/recovery/tenant.py",
    "broker/rules/message_view.py",
    "broker/rules/sql_like.py",
    "broker/rules/sql_convert.py",
    "broker/rules/sql_values.py",
    "broker/rules/rules.py",
    "broker/rules/topic_rules.py",
    "gateway/translate.py",
    "gateway/verbs.py",
    "gateway/amqp/answers.py",
    "gateway/amqp/sending.py",
    "gateway/amqp/sending_once.py",
    "gateway/amqp/receiving.py",
    "gateway/amqp/traced.py",
    "gateway/amqp/connection.py",
    "gateway/amqp/pump.py",
    "gateway/amqp/carrying.py",
    "gateway/amqp/carried_trial.py",
    "gateway/amqp/spread_receiving.py",
    "gateway/amqp/spread_sending.py",
    "gateway/amqp/peer_door.py",
    "gateway/amqp/faulty.py",
    "server/fault_points.py",
    "server/store_supervisor.py",
    "server/backpressure.py",
    "server/turn_driver.py",
    "server/idle_entities.py",
    "server/meter_roller.py",
    "stores/disk.py",
    "stores/fault_disk.py",
    "stores/worker.py",
    "stores/blocks.py",
    "stores/guard.py",
    "stores/scan.py",
    "stores/segment_index.py",
    "stores/body_reader.py",
    "stores/fetching.py",
    "stores/synced.py",
    "stores/committer.py",
    "stores/recovery.py",
    "stores/compaction.py",
    "stores/upkeep.py",
    "stores/maintenance.py",
    "stores/block_log.py",
    "stores/group_commit.py",
    "stores/file_log.py",
    "stores/segment.py",
    "stores/ledger_upkeep.py",
    "stores/ledger_log.py",
    "stores/ledger_store.py",
)
"""Compiled together as one group, so that calls between them are calls of C functions. A name that does not exist is an error."""

SIMULATOR_MODULES = (
    "simulator/agenda.py",
    "simulator/network.py",
    "simulator/amqp_client.py",
    "simulator/checker.py",
    "simulator/invariants.py",
)
"""With `TANDEM_COMPILE_TESTING=1` only: the simulator runs an eighth faster for it, a broker not at all."""

MODE = os.environ.get("TANDEM_COMPILE", "auto")
WITH_SIMULATOR = os.environ.get("TANDEM_COMPILE_TESTING") == "1"
FAILED = "compiling failed"
"""How the report begins if it could have been compiled; `make test` takes it for an error."""
PROGRESS_SECONDS = 2.0
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def report(text: str) -> None:
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(text + "\n", encoding="utf-8")
    sys.stderr.write(f"tandem: {text}\n")


def fall_back(reason: str, begin: str = "not compiled") -> None:
    """Pure Python it is; unless compiling was demanded."""
    report(f"{begin}, running as pure Python (slower): {reason}")
    if MODE == "1":
        raise SystemExit(f"TANDEM_COMPILE=1, but {reason}")


def cannot_compile() -> str:
    """What is missing; empty if nothing is."""
    command = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    if shutil.which(shlex.split(command)[0]) is None:
        return "no C compiler found (on Debian: apt-get install gcc python3-dev)"
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        return "the headers of Python are not installed (on Debian: apt-get install python3-dev)"
    return ""


def hot_files() -> list[str]:
    files = [f"src/tandem/{name}" for name in (*HOT_MODULES, *(SIMULATOR_MODULES if WITH_SIMULATOR else ()))]
    gone = [name for name in files if not (HERE / name).exists()]
    if gone:
        raise SystemExit(f"setup.py lists hot modules that do not exist: {', '.join(gone)}")
    return files


def extensions() -> list[Extension]:
    files = hot_files()
    if MODE == "0":
        report("not compiled, running as pure Python (slower): TANDEM_COMPILE=0")
        return []
    if "egg_info" in sys.argv or "dist_info" in sys.argv or "sdist" in sys.argv:
        return []
    missing = cannot_compile()
    if missing:
        fall_back(missing)
        return []
    try:
        import mypyc
        from mypyc.build import mypycify
    except ImportError as error:
        fall_back(f"mypyc cannot be imported ({error}); pip install 'mypy[mypyc]'")
        return []
    said = io.StringIO()
    sys.stderr.write("tandem: translating the hot modules to C\n")
    try:
        with contextlib.redirect_stdout(said):
            # Modules that are only imported are not our business here: their types are checked by `make lint`.
            # One C file for each module, so that every core has something to compile.
            built = mypycify(["--follow-imports=silent", *files], opt_level="2", debug_level="0", group_name="tandem_hot", multi_file=True)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - mypyc exits the interpreter on a type error; pure Python still works
        sys.stderr.write(said.getvalue())
        first = next((line for line in said.getvalue().splitlines() if " error: " in line), str(error))
        fall_back(f"mypyc refused the source: {first}", FAILED)
        return []
    for extension in built:
        # A new compiler's new warning is no reason to run slowly. What is hidden is called directly, from file to file as within one.
        extension.extra_compile_args = [*extension.extra_compile_args, "-Wno-error", "-fvisibility=hidden"]
        extension.depends = [*extension.depends, mypyc.__file__]
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
            fall_back(f"the C compiler failed ({shown})", FAILED)
        else:
            count = sum(1 for extension in self.extensions if extension.name.startswith("tandem."))
            if count:
                report(f"compiled with mypyc: {count} modules")

    def build_extensions(self) -> None:
        """First every C file of every extension, on all cores; then what setuptools does, which finds them compiled."""
        objects = self._compile_side_by_side({source: extension for extension in self.extensions for source in extension.sources})
        self.compiler.compile = lambda sources, **_: [name for source in sources for name in objects[source]]
        self.parallel = CORES
        super().build_extensions()

    def _compile_side_by_side(self, jobs: dict[str, Extension]) -> dict[str, list[str]]:
        done: dict[str, list[str]] = {}
        sizes = {source: os.path.getsize(source) for source in jobs}

        def work(source: str) -> None:
            done[source] = self._compile(source, jobs[source])

        with ThreadPoolExecutor(CORES) as pool:
            # The largest first: nobody waits for one at the end while others have nothing to do.
            waiting = {pool.submit(work, source) for source in sorted(jobs, key=sizes.__getitem__, reverse=True)}
            try:
                while waiting:
                    ended, waiting = wait(waiting, PROGRESS_SECONDS, FIRST_EXCEPTION)
                    for one in ended:
                        one.result()
                    share = sum(sizes[source] for source in list(done)) / sum(sizes.values())
                    sys.stderr.write(f"tandem: compiling C, {share:.0%} done\n")
            finally:
                pool.shutdown(cancel_futures=True)
        return done

    def _compile(self, source: str, extension: Extension) -> list[str]:
        """The object files; those of an earlier build if nothing they were made from is newer."""
        found: list[str] = self.compiler.object_filenames([source], output_dir=self.build_temp)
        newest = max(os.path.getmtime(file) for file in (source, __file__, *extension.depends))
        if all(os.path.exists(name) and os.path.getmtime(name) > newest for name in found):
            return found
        return list(
            self.compiler.compile(
                [source],
                output_dir=self.build_temp,
                macros=[*extension.define_macros, *((name,) for name in extension.undef_macros)],
                include_dirs=extension.include_dirs,
                debug=self.debug,
                extra_postargs=extension.extra_compile_args,
                depends=extension.depends,
            )
        )

    def _remove_stale(self) -> None:
        """Extensions of an earlier build that nobody asks for any more would shadow the source."""
        suffix = sysconfig.get_config_var("EXT_SUFFIX")
        wanted = {Path(output).resolve() for output in self.get_outputs()}
        for found in Path(self.build_lib).rglob(f"*{suffix}"):
            if found.resolve() not in wanted:
                found.unlink()


os.chdir(HERE)
setup(ext_modules=extensions(), cmdclass={"build_ext": BuildOrFallBack})
