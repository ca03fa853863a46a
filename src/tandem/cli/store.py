"""`tandem store`: is it whole, what does it hold, and a copy that opens; on a live or a stopped broker."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from pathlib import Path
from typing import Annotated

import typer

from tandem.cli.data_copy import copy_data, problems_of
from tandem.cli.operations.output import JsonFlag
from tandem.model.errors import ConfigurationError, Corrupt
from tandem.stores import journal_dump
from tandem.stores import repair as repairing
from tandem.stores import verify as verify_store
from tandem.stores.engines import METADATA, stores_in, without_stores
from tandem.stores.metadata import Beside, Metadata
from tandem.stores.metadata_reading import problems_of as metadata_problems
from tandem.stores.recover_metadata import described, recover_metadata
from tandem.stores.verify import VerifyReport

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Look into messaging stores, copy them, put them right.")

_Data = Annotated[Path, typer.Argument(help="Data directory of the broker, of one namespace, or of one store.", metavar="DIR")]


@app.callback()
def store() -> None:
    """Look into messaging stores, copy them, and put them right.

    Example: tandem store check tandem-data
    """


def stores_below(directory: Path) -> list[Path]:
    """The store directories a path means."""
    if directory.name.startswith("store-"):
        return [directory]
    found = _stores_of(directory, "store-*") or _stores_of(directory, "*/store-*")
    if not found:
        raise without_stores(directory)
    return found


def _stores_of(directory: Path, pattern: str) -> list[Path]:
    """Those that a broker would take for one: not somebody's `store-0.old`."""
    return sorted(path for path in directory.glob(pattern) if path.name.removeprefix("store-").isdigit() and path.is_dir())


@app.command(name="check")
def check(directory: _Data, as_json: JsonFlag = False) -> None:
    """Verify every checksum and invariant, of the stores and of the metadata beside them. Exit code 1 when anything is wrong.

    Example: tandem store check tandem-data
    """
    stores = stores_below(directory)
    reports = [(path, _verified(path, directory)) for path in stores]
    catalogs = {path: metadata_problems(path) for path in _metadata_beside(stores, directory)}
    if as_json:
        found: list[dict[str, object]] = [
            {"store": str(path), "segments": r.segments, "records": r.records, "bytes": r.bytes, "problems": r.problems}
            | {"metadata_problems": catalogs.get(path.parent / METADATA, [])}
            for path, r in reports
        ]
        print(json.dumps(found))
    else:
        for path, report in reports:
            verdict = "whole" if not report.problems else f"{len(report.problems)} problems"
            print(f"{path}: {verdict}; {report.segments} segments, {report.records} records, {report.bytes} bytes")
            for line in report.problems + report.notes:
                print(f"  {line}")
        for path, problems in catalogs.items():
            print("\n".join(problems) or f"{path}: whole")
    if any(report.problems for _, report in reports) or any(catalogs.values()):
        raise typer.Exit(1)


def _metadata_beside(stores: list[Path], directory: Path) -> list[Path]:
    """Of each namespace that is looked at; whoever asks for one store asks for nothing else."""
    namespaces = sorted({path.parent for path in stores if path != directory})
    return [namespace / METADATA for namespace in namespaces if (namespace / METADATA).exists()]


def _verified(path: Path, directory: Path) -> VerifyReport:
    """Of several, one that is not there (its disk is not mounted) is a problem, and the others are looked at."""
    try:
        return verify_store(path)
    except ConfigurationError as error:
        if path == directory:
            raise
        return VerifyReport(problems=[str(error)])


@app.command(name="dump")
def dump(directory: _Data) -> None:
    """Print every fact as a line of JSON. Exit code 1 when something is damaged: a line says where, and what can be read goes on.

    Example: tandem store dump tandem-data/tandem/store-0 | head
    """
    damaged = False
    try:
        for path in stores_below(directory):
            try:
                for fact in journal_dump.dump(path):
                    damaged = damaged or fact["kind"] == journal_dump.DAMAGED
                    print(json.dumps({"store": path.name, **fact}, default=_text))
            except (Corrupt, ConfigurationError) as error:
                if path == directory and isinstance(error, ConfigurationError):
                    raise
                damaged = True
                print(json.dumps({"store": path.name, "kind": journal_dump.DAMAGED, "text": str(error)}))
    except BrokenPipeError:
        raise typer.Exit(0) from None
    if damaged:
        raise typer.Exit(1)


@app.command(name="backup")
def backup(
    directory: _Data,
    target: Annotated[Path, typer.Argument(help="A directory that does not exist yet.", metavar="TARGET")],
    as_json: JsonFlag = False,
) -> None:
    """Copy a data directory so that a broker started on the copy is the same broker: messages, entities, keys, certificates, meters.

    Works while the broker runs: the copy is as it was at one instant. Given one namespace or one store, only that is copied.

    Example: tandem store backup tandem-data backup-monday
    """
    if target.exists():
        raise ConfigurationError(f"{target} exists already; name a new directory")
    if target.resolve().is_relative_to(directory.resolve()):
        raise ConfigurationError(f"{target} is inside of {directory}, which a broker reads; name a directory elsewhere")
    copied = [_told(line, as_json) for line in copy_data(directory, target, stores_below(directory))]
    if as_json:
        print(json.dumps({"backup": str(target), "copied": copied}))


@app.command(name="restore")
def restore(
    source: Annotated[Path, typer.Argument(help="What `tandem store backup` made of a data directory.", metavar="BACKUP")],
    data: Annotated[Path, typer.Argument(help="The data directory to be: not there yet, or empty.", metavar="DATA")],
    as_json: JsonFlag = False,
) -> None:
    """Verify a backup and put it where a broker can be started on it. Exit code 1 when the backup is damaged: nothing is written then.

    Example: tandem store restore backup-monday tandem-data
    """
    if data.exists() and any(data.iterdir()):
        raise ConfigurationError(f"{data} is not empty; move what is there away, or name another directory")
    problems = problems_of(stores_below(source))
    copied = [] if problems else [_told(line, as_json) for line in copy_data(source, data, stores_below(source))]
    if as_json:
        print(json.dumps({"data": str(data), "problems": problems, "copied": copied}))
    elif problems:
        print("\n".join(problems))
    if problems:
        raise typer.Exit(1)


def _told(line: str, as_json: bool) -> str:
    """Said at once where a person waits."""
    if not as_json:
        print(line)
    return line


@app.command(name="repair")
def repair(directory: _Data, as_json: JsonFlag = False) -> None:
    """Make damaged stores open again, with their broker stopped. What can be proved is kept; every record that is lost is listed.

    A lost body leaves its message, which is dead-lettered. Files that are replaced go to damaged/ in the store.
    Exit code 1 when anything is lost.

    Example: tandem store repair tandem-data/tandem/store-0
    """
    reports: list[tuple[Path, repairing.RepairReport]] = []
    whole = True
    for path in stores_below(directory):
        try:
            report = repairing.repair(path)
            whole = whole and not report.losses and not report.blocks_lost
        except Corrupt as error:
            report = repairing.RepairReport(notes=[f"cannot be repaired: {error.description}"])
            whole = False
        reports.append((path, report))
        if not as_json:
            _tell_repair(path, report)
    if as_json:
        print(json.dumps([{"store": str(path), **dataclasses.asdict(report)} for path, report in reports]))
    if not whole:
        raise typer.Exit(1)


def _tell_repair(path: Path, report: repairing.RepairReport) -> None:
    print(f"{path}: {report.segments} segments, {len(report.rewritten)} rewritten, {len(report.losses)} records lost")
    for line in report.notes:
        print(f"  {line}")
    for loss in report.losses:
        what = "the body of" if loss.body_only else "all of"
        doubt = "" if loss.proved else ", as far as the damaged bytes can be believed"
        place = f"segment {loss.segment}, offset {loss.offset}"
        print(f"  lost: {what} {loss.kind}, entity {loss.entity}, sequence number {loss.seq} ({place}){doubt}")
    if report.blocks_lost:
        print(f"  blocks that are gone: {', '.join(map(str, report.blocks_lost[:100]))} ({len(report.blocks_lost)} in all)")


@app.command(name="reset")
def reset(directory: Annotated[Path, typer.Argument(help="The store: <data>/<namespace>/store-<n>.", metavar="STORE")]) -> None:
    """Give up a store that is lost: it is begun anew, empty. Nothing else brings that about, and nothing is deleted.

    For a store that is not there and will not come back. A running broker begins it within ten seconds, a stopped one at its start; if the
    old one turns up before, that is taken. Messages it held are gone; sequence numbers go on above those that were given.

    Example: tandem store reset tandem-data/tandem/store-1
    """
    number = directory.name.removeprefix("store-")
    metadata = directory.parent / METADATA
    if not directory.name.startswith("store-") or not number.isdigit():
        raise ConfigurationError(f"{directory} does not name a store: give <data>/<namespace>/store-<n>")
    if not metadata.exists():
        raise ConfigurationError(f"{metadata} is missing: without it nobody knows which stores there have to be")
    if int(number) in stores_in(directory.parent):
        raise ConfigurationError(f"{directory} is there. Move it away first if it is to be given up: nothing is deleted here")
    with contextlib.closing(Metadata(metadata, look_beside=lambda: Beside(found=stores_in(directory.parent)))) as catalog:
        if catalog.known_store(int(number)) is None:
            raise ConfigurationError(f"{directory.parent} has never had a store of this number; one is begun when the broker is given it")
        catalog.give_up_store(int(number), time.time_ns() // 1_000_000)
    print(f"{directory}: given up; it is begun anew when a broker opens it next")


@app.command(name="recover-metadata")
def recover(
    directory: Annotated[Path, typer.Argument(help="<data>/<namespace>, or <data> for all that lack metadata.", metavar="DIR")],
) -> None:
    """Rebuild metadata.sqlite from the journals beside it: entities, their numbers, descriptions and rules.

    The broker must not be running. Says what journals do not know; keys, for one. Exit code 1 when a journal is damaged.

    Example: tandem store recover-metadata tandem-data/tandem
    """
    namespaces = [directory] if stores_in(directory) else sorted(path for path in directory.glob("*/") if stores_in(path))
    lacking = [path for path in namespaces if not (path / METADATA).exists() or not (path / METADATA).stat().st_size]
    if not namespaces:
        raise without_stores(directory)
    for path in lacking or namespaces[:1]:
        try:
            found = recover_metadata(path)
        except Corrupt as error:
            print(f"{path}: a journal is damaged, nothing was written: {error.description}")
            raise typer.Exit(1) from error
        print(f"{path / METADATA}: rebuilt with {len(found.entities)} entities from {len(found.stores)} stores, {len(found.relays)} relays")
        for line in described(found):
            print(f"  {line}")
        print("  not known to the journals:")
        for line in found.unknown:
            print(f"    {line}")


def _text(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
