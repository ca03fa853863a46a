"""`tandem cluster`: make one, see who serves what, and say where it should be served."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tandem.cli.engine_wishes import EngineWishes, must_know, must_take_stores, opened, place_of, reached, told_where_they_live
from tandem.cli.more_engines import ClusterEngines
from tandem.cli.second_region import follow, promote
from tandem.model.errors import ConfigurationError, EngineAway

if TYPE_CHECKING:
    from tandem.server.settings import ClusterSettings
    from tandem.stores.postgres_nodes import PostgresNodes
    from tandem.stores.postgres_schema import Schema

application = typer.Typer(no_args_is_help=True, help="Nodes that serve the same namespaces, with their journals in PostgreSQL.")
Engine = Annotated[
    str, typer.Option("--engine", envvar="TANDEM_CLUSTER", help="Connection string of PostgreSQL, with all its hosts.", metavar="DSN")
]
Json = Annotated[bool, typer.Option("--json", help="As JSON.")]
_SILENT_SECONDS = 10
_LISTEN_SECONDS_MAX = 3_600
application.command()(follow)
application.command()(promote)


@application.command()
def init(
    engine: Annotated[
        str | None,
        typer.Option("--engine", envvar="TANDEM_CLUSTER", help="Connection string of PostgreSQL, with all its hosts.", metavar="DSN"),
    ] = None,
    secret_file: Annotated[Path | None, typer.Option(help="What all nodes know; made if it is not there.", metavar="FILE")] = None,
    durability: Annotated[str | None, typer.Option(help="quorum, or assumed: do not look how the engine replicates.")] = None,
    config: Annotated[
        Path | None, typer.Option(help="The file of the nodes: engine, secret and all further engines.", metavar="FILE")
    ] = None,
) -> None:
    """Make a cluster in a PostgreSQL, once: its schema, its secret, and a check of the engine's settings with what to change.

    With --config all engines of that file are prepared. Again, after an engine was added to it, that one is.

    Example: tandem cluster init --engine postgresql://tandem@pg1,pg2/tandem --secret-file cluster.key
    """
    from tandem.cli.more_engines import make_engines, now_ms

    cluster = _configured(config, engine, secret_file)
    durability = durability or cluster.durability
    if durability not in ("quorum", "assumed"):
        raise ConfigurationError(f'--durability: found "{durability}"; allowed is quorum or assumed')
    with opened(cluster.engine) as (schema, nodes):
        schema.must_keep_sessions()
        schema.must_be_durable(durability, now_ms)
        secret = _made_secret(cluster.secret_file)
        made = schema.initialize(secret)
        said = make_engines(cluster, schema, nodes.registry, secret, durability) if cluster.more_engines else []
    typer.echo("the cluster is made" if made else "the cluster was there already, and is as it should be")
    for line in said:
        typer.echo(line)
    typer.echo(f"on each machine: tandem serve --cluster … --secret-file {cluster.secret_file.name} --node <name>")


def _configured(config: Path | None, engine: str | None, secret_file: Path | None) -> ClusterSettings:
    from tandem.cli.configuration.settings import Flags, load
    from tandem.server.settings import ClusterSettings

    if config is not None:
        found = load(Flags(config=config, cluster=engine, secret_file=secret_file), os.environ, Path.cwd()).server.cluster
        if found is None:
            raise ConfigurationError(f"--config: {config} has no cluster.engine; give it there, or as --engine")
        return found
    if engine is None or secret_file is None:
        raise ConfigurationError(f"{'--secret-file' if engine else '--engine'} is missing; give --engine and --secret-file, or --config")
    return ClusterSettings(engine=engine, node="", secret_file=secret_file)


def _made_secret(file: Path) -> bytes:
    from tandem.cli.cluster_node import SECRET_BYTES_MIN

    try:
        if not file.exists():
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="ascii") as opened_file:
                opened_file.write(secrets.token_urlsafe(32) + "\n")
        secret = file.read_bytes().strip()
    except OSError as error:
        raise ConfigurationError(f"--secret-file: {file} cannot be made or read: {error.strerror}; give another file") from error
    if len(secret) < SECRET_BYTES_MIN:
        raise ConfigurationError(f"--secret-file: {file} has {len(secret)} bytes; allowed are {SECRET_BYTES_MIN} or more")
    return secret


def _status(nodes: PostgresNodes) -> dict[str, Any]:
    rows, stores, revisions, _, spread = nodes.look()
    engines = ClusterEngines(nodes, stores)
    return {
        "nodes": [
            {"name": name, "incarnation": incarnation, "beat": beat, "address": address, "version": version, "draining": draining}
            for name, incarnation, beat, address, version, draining in rows
        ],
        "followers": [row.as_dict() for row in nodes.followers()],
        "namespaces": [
            {
                "name": namespace,
                "revision": revision,
                "spread": namespace in spread,
                "stores": [
                    {"store": row.number, "owner": row.owner, "epoch": row.epoch, "wanted": row.wanted, **engines.of(row)}
                    for row in engines.stores
                    if row.namespace == namespace
                ],
            }
            for namespace, revision in sorted(revisions.items())
        ],
        **engines.state(),
    }


def _beats(nodes: PostgresNodes) -> dict[str, int]:
    return {row[0]: row[2] for row in nodes.look()[0]}


def _beats_before(nodes: PostgresNodes, seconds: float) -> dict[str, int]:
    """So long ago: whose count is the same now was silent."""
    if not 0 <= seconds <= _LISTEN_SECONDS_MAX:
        raise ConfigurationError(f"--seconds: found {seconds}; allowed are 0 to {_LISTEN_SECONDS_MAX}")
    before = _beats(nodes)
    if before:
        time.sleep(seconds)
    return before


@application.command()
def status(
    engine: Engine, as_json: Json = False, seconds: Annotated[float, typer.Option(help="How long to listen for beats.")] = 2.5
) -> None:
    """Which nodes there are, which of them beat, and who serves which store."""
    with opened(engine) as (schema, nodes):
        schema.check(None)
        before = _beats_before(nodes, seconds)
        found = _status(nodes)
    for node in found["nodes"]:
        node["beats"] = node["beat"] != before.get(node["name"])
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    for node in found["nodes"]:
        state = "beats" if node["beats"] else f"silent for {seconds:g} s"
        address = f", peers at {node['address']}" if node["address"] else ""
        typer.echo(f"node {node['name']}: {state}, version {node['version']}{address}{', draining' if node['draining'] else ''}")
    for one in found.get("engines", ()):
        typer.echo(f"engine {one['name']}: {'answers' if one['answers'] else 'does not answer: ' + one['cause']}")
    for namespace in found["namespaces"]:
        for store in namespace["stores"]:
            if not store.get("answers", True):
                typer.echo(f"{namespace['name']} store-{store['store']}: not known, engine {store['engine']} does not answer")
                continue
            where = f", in engine {store['engine']}" if "engine" in store else ""
            owner = f"node {store['owner']}" if store["owner"] else "nobody"
            placed = store["wanted"] and store["wanted"] == store["owner"]
            wanted = ", put there by hand" if placed else f", wanted by {store['wanted']}" if store["wanted"] else ""
            typer.echo(f"{namespace['name']} store-{store['store']}: {owner}, epoch {store['epoch']}{wanted}{where}")
    for follower in found["followers"]:
        silent = f", silent for {follower['silent_seconds']:.0f} s" if follower["silent_seconds"] > _SILENT_SECONDS else ""
        of = f", engine {follower['engine']}" if found.get("engines") else ""
        typer.echo(
            f"follower {follower['name']}{of}: {follower['lag_seconds']:.1f} s and {follower['lag_messages']} messages behind{silent}"
        )


Stores = Annotated[str, typer.Argument(metavar="NAMESPACE[/STORE]", help="All stores of a namespace, or one: tandem/2.")]


@application.command()
def move(engine: Engine, stores: Stores, node: str) -> None:
    """Let another node serve a namespace, or one store; its owner finishes what it is at first. There it stays while the node lives."""
    typer.echo(EngineWishes(engine).move(stores, node))


@application.command()
def take(engine: Engine, stores: Stores, node: str) -> None:
    """Let another node serve a namespace, or one store, at once, whatever its owner is doing. Nothing that was acknowledged is lost."""
    with opened(engine) as (schema, nodes):
        schema.check(None)
        must_take_stores(nodes, node)
        place = place_of(nodes, stores)
        told_where_they_live(nodes, place, lambda there: there.depose(*place, node))
    typer.echo(f"{stores} was taken from its owner, for node {node}")


@application.command()
def spread(engine: Engine, stores: Stores) -> None:
    """Let the nodes share the stores of a namespace evenly again: what was moved by hand, or gathered, is anybody's."""
    with opened(engine) as (schema, nodes):
        schema.check(None)
        namespace, number = place_of(nodes, stores)
        if number is None:
            nodes.spread(namespace)
        told_where_they_live(nodes, (namespace, number), lambda there: there.want(namespace, number, ""))
    typer.echo(f"{stores} is spread over the nodes that listen for each other")


@application.command()
def gather(engine: Engine, namespace: str) -> None:
    """Let one node serve all stores of a namespace: transactions over any of its entities. `spread` is the way back."""
    with opened(engine) as (schema, nodes):
        schema.check(None)
        found, number = place_of(nodes, namespace)
        if number is not None:
            raise ConfigurationError(f"a namespace is gathered as a whole: tandem cluster gather {found}")
        schema.complete()
        nodes.gather(found)
    typer.echo(f"the stores of {found} go together")


@application.command()
def drain(engine: Engine, node: str, end: Annotated[bool, typer.Option("--end", help="It may serve again.")] = False) -> None:
    """Let a node serve nothing, for its maintenance: what it serves moves to others."""
    typer.echo(EngineWishes(engine).drain(node, end))


@application.command()
def upgrade(
    engine: Engine,
    check: Annotated[bool, typer.Option("--check", help="Only say whether all nodes are new.")] = False,
    seconds: Annotated[float, typer.Option(help="How long to listen for beats.")] = 2.5,
) -> None:
    """At the end of a rolling upgrade: all nodes run this version, so stores may be written as older ones cannot read them.

    Until then newer nodes write what older ones know. Example: tandem cluster upgrade --engine postgresql://tandem@pg1,pg2/tandem
    """
    from tandem import __version__

    with opened(engine) as (schema, nodes):
        schema.check(None)
        before = _beats_before(nodes, seconds)
        known = _status(nodes)["nodes"]
        for node in known:
            if node["version"] == __version__:
                continue
            if node["beat"] == before.get(node["name"]):
                what = f"start it with version {__version__}, or strike it: tandem cluster forget {node['name']}"
                raise ConfigurationError(f"node {node['name']} is silent, and was version {node['version']}: {what}")
            what = f"tandem cluster drain {node['name']}, stop it, start version {__version__}, then drain --end"
            raise ConfigurationError(f"node {node['name']} runs version {node['version']}, this command is {__version__}: {what}")
        done = not check and _upgraded(schema, nodes)
    typer.echo(f"all nodes run version {__version__}: {', '.join(node['name'] for node in known) or 'there are none'}")
    if not check:
        typer.echo("older versions cannot join any more" if done else "nothing has to be changed")


def _upgraded(schema: Schema, nodes: PostgresNodes) -> bool:
    """The first engine last: it says that all are."""
    changed = False
    for name, dsn in nodes.registry.engines().items():
        with reached(name, dsn) as (there, _):
            changed |= there.upgrade()
    return schema.upgrade() or changed


@application.command()
def forget(engine: Engine, node: str) -> None:
    """Strike a node from the list that is never coming back."""
    with opened(engine) as (schema, nodes):
        schema.check(None)
        must_know(nodes, node, followers=True)
        nodes.forget(node)
        for name, dsn in nodes.registry.engines().items():
            with contextlib.suppress(EngineAway), reached(name, dsn) as (_, there):  # what it had there it has to beat for
                there.forget(node)
    typer.echo(f"node {node} is forgotten")
