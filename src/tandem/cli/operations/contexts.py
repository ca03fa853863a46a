"""Contexts: connection strings under a name, in a file that only its owner may read, so that nobody types keys."""

from __future__ import annotations

import json
import os
import stat
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from tandem.cli.operations.output import JsonFlag, show, tell
from tandem.model.errors import ConfigurationError

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Connection strings under a name.")


@dataclass(frozen=True, slots=True)
class Context:
    connection_string: str
    ca_file: str | None = None


@dataclass(slots=True)
class Contexts:
    """All of them, and which one is meant when none is named."""

    current: str | None = None
    named: dict[str, Context] = field(default_factory=dict)

    def get(self, name: str) -> Context:
        if name not in self.named:
            known = ", ".join(sorted(self.named)) or "none yet"
            raise ConfigurationError(f"there is no context '{name}' (known: {known}); see `tandem context add`")
        return self.named[name]


def contexts_file() -> Path:
    if named := os.environ.get("TANDEM_CONTEXTS"):
        return Path(named)
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "tandem" / "contexts.json"


def load_contexts(file: Path) -> Contexts:
    try:
        mode = file.stat().st_mode
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read: {error.strerror}") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigurationError(f"{file} holds keys and others may read it; say: chmod 600 {file}")
    try:
        found = json.loads(text)
        return Contexts(found.get("current"), {name: Context(**one) for name, one in found["contexts"].items()})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigurationError(f"{file} is not a file of contexts: {error}") from error


def save_contexts(file: Path, contexts: Contexts) -> None:
    """Whole or not at all, and never readable by others, not even for a moment."""
    text = json.dumps({"current": contexts.current, "contexts": {name: asdict(one) for name, one in contexts.named.items()}}, indent=2)
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, draft = tempfile.mkstemp(dir=file.parent, prefix=".contexts-")  # mkstemp's mode is 0600
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.write(text + "\n")
        os.replace(draft, file)
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be written: {error.strerror}") from error


@app.callback()
def context() -> None:
    """Connection strings under a name, kept in a file with mode 0600.

    Example: tandem context add prod --connection-string-file prod.txt
    """


@app.command(name="add")
def add(
    name: Annotated[str, typer.Argument(help="What you will call it.")],
    connection_string: Annotated[
        str | None, typer.Option("--connection-string", "-c", envvar="TANDEM_CONNECTION_STRING", help="Stays in the history of your shell.")
    ] = None,
    connection_string_file: Annotated[
        Path | None, typer.Option(help="A file that holds it; - reads standard input.", metavar="FILE", allow_dash=True)
    ] = None,
    ca_file: Annotated[Path | None, typer.Option(help="CA file to trust, if the certificate is a generated one.", metavar="FILE")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Add a context, or replace it. The first one becomes the current one.

    Example: tandem context add prod --connection-string-file prod.txt
    """
    from tandem.engine_client.endpoint import Endpoint

    if not name:
        raise ConfigurationError("a context has a name")
    if connection_string_file is not None:
        connection_string = _read(connection_string_file)
    if connection_string is None:
        raise ConfigurationError("say --connection-string-file FILE (or - for standard input), or --connection-string")
    try:
        Endpoint.parse(connection_string)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
    file = contexts_file()
    contexts = load_contexts(file)
    contexts.named[name] = Context(connection_string, str(ca_file.resolve()) if ca_file is not None else None)
    contexts.current = contexts.current or name
    save_contexts(file, contexts)
    current = contexts.current == name
    tell(as_json, f"context {name}{' (current)' if current else ''}", name=name, current=current)


@app.command(name="list")
def list_contexts(as_json: JsonFlag = False) -> None:
    """Show all contexts, without their keys.

    Example: tandem context list
    """
    contexts = load_contexts(contexts_file())
    rows = [_shown(name, one, contexts.current) for name, one in sorted(contexts.named.items())]
    show(rows, as_json, ("current", "name", "endpoint", "key_name"))


@app.command(name="use")
def use(name: Annotated[str, typer.Argument(help="The context to use when none is named.")]) -> None:
    """Make a context the current one.

    Example: tandem context use prod
    """
    file = contexts_file()
    contexts = load_contexts(file)
    contexts.get(name)
    contexts.current = name
    save_contexts(file, contexts)


@app.command(name="remove")
def remove(name: Annotated[str, typer.Argument(help="The context to forget.")]) -> None:
    """Forget a context.

    Example: tandem context remove prod
    """
    file = contexts_file()
    contexts = load_contexts(file)
    contexts.get(name)
    del contexts.named[name]
    if contexts.current == name:
        contexts.current = None
    save_contexts(file, contexts)


def _read(file: Path) -> str:
    if str(file) == "-":
        return typer.get_text_stream("stdin").read().strip()
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read: {error.strerror}") from error


def _shown(name: str, one: Context, current: str | None) -> dict[str, Any]:
    from tandem.engine_client.endpoint import Endpoint

    endpoint = Endpoint.parse(one.connection_string)
    place = f"{endpoint.place}"
    return {"current": "*" if name == current else "", "name": name, "endpoint": place, "key_name": endpoint.key_name}
