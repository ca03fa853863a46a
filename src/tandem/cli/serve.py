"""`tandem serve`: its flags and its help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tandem.cli.configuration.settings import Flags
from tandem.cli.running import serve_with


def serve(
    port: Annotated[list[int] | None, typer.Option(help="Listen on this port only; may be repeated. [default: 5672, 5671, 5300]")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; 0.0.0.0 serves other machines. [default: 127.0.0.1]")] = None,
    data: Annotated[Path | None, typer.Option(help="Data directory. [default: tandem-data]", metavar="DIR")] = None,
    dev: Annotated[bool | None, typer.Option("--dev", help="The emulator's well-known key, faults allowed, loopback only.")] = None,
    memory: Annotated[bool | None, typer.Option("--memory", help="Keep messages in memory only.")] = None,
    faults: Annotated[bool | None, typer.Option("--faults", help="Allow faults to be injected.")] = None,
    key: Annotated[str | None, typer.Option(help="Primary key of RootManageSharedAccessKey.", envvar=[])] = None,
    config: Annotated[Path | None, typer.Option(help="tandem.toml, or the emulator's Config.json.", metavar="FILE")] = None,
    store_count: Annotated[int | None, typer.Option(help="Messaging stores per namespace. [default: 4]")] = None,
    log_format: Annotated[str | None, typer.Option(help="text or json. [default: text]")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error. [default: info]")] = None,
    cluster: Annotated[str | None, typer.Option(help="PostgreSQL that holds the journals of a cluster.", metavar="DSN")] = None,
    secret_file: Annotated[Path | None, typer.Option(help="What all nodes of the cluster know.", metavar="FILE")] = None,
    node: Annotated[str | None, typer.Option(help="This node's name in the cluster. [default: the host's]")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes behind the ports, each with some of the stores. [default: 1]")] = None,
) -> None:
    """Run one broker until it is told to stop (Ctrl-C or SIGTERM).

    Prints where it listens and where its keys are, the file clients must trust for TLS, the address of the console, and "ready" at last.

    Example: tandem serve --dev --port 5672 --data tandem-data
    """
    flags = Flags(
        config=config,
        port=tuple(port or ()),
        host=host,
        data=data,
        memory=memory,
        dev=dev,
        faults=faults,
        key=key,
        store_count=store_count,
        log_format=log_format,
        log_level=log_level,
        cluster=cluster,
        secret_file=secret_file,
        node=node,
        workers=workers,
    )
    serve_with(flags)
