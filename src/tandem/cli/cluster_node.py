"""A node of a cluster from its settings: the engine is checked before anything starts, keys are those of all nodes."""

from __future__ import annotations

import atexit
import json
import os
import stat
from collections.abc import Callable
from typing import Any, Final

from tandem.cli.configuration.keyring import KeyRing
from tandem.cli.engine_wishes import EngineWishes, engine_missing
from tandem.cli.event_file import kind_of
from tandem.model.errors import ConfigurationError, EngineAway
from tandem.server.settings import ClusterSettings, ServerSettings

SECRET_BYTES_MIN: Final = 16
_LAST_EVENTS_SECONDS: Final = 3.0
"""So long a process that ends waits for the engine to have what it said last."""


def read_secret(settings: ClusterSettings) -> bytes:
    try:
        secret = settings.secret_file.read_bytes().strip()
    except OSError as error:
        raise ConfigurationError(
            f"cluster.secret_file: {settings.secret_file} cannot be read: {error.strerror}; copy that of `tandem cluster init`"
        ) from error
    if len(secret) < SECRET_BYTES_MIN:
        raise ConfigurationError(
            f"cluster.secret_file: {settings.secret_file} has {len(secret)} bytes; allowed are {SECRET_BYTES_MIN} or more"
        )
    return secret


def check_engine(settings: ServerSettings, now_ms: Callable[[], int], say: Callable[[str], None]) -> None:
    """Everything that would keep this node from serving well is found before it does anything."""
    try:
        from tandem.stores.postgres_schema import Schema
    except ImportError as error:
        raise engine_missing() from error
    from tandem.cli.more_engines import must_have_engines, places_of
    from tandem.model.clock import SystemClock
    from tandem.stores.postgres_connection import EngineConnection, Hosts

    cluster = settings.cluster
    assert cluster is not None
    connection = EngineConnection(Hosts(cluster.engine), f"tandem check {cluster.node}", SystemClock())
    try:
        schema = Schema(cluster.engine, connection)
        secret = read_secret(cluster)
        schema.must_keep_sessions()
        schema.check(secret)
        schema.complete()
        state = schema.must_be_durable(cluster.durability, now_ms)
        for problem in state.problems:
            say(f"the engine may lose what it acknowledged: {problem}")
        must_have_engines(settings, connection)
        for namespace in settings.namespaces:
            elsewhere = [place[1] for place in places_of(settings) if place[0] == namespace.name and cluster.engine_of(*place)]
            schema.ensure_stores(namespace.name, settings.stores.count, elsewhere)
    finally:
        connection.close()


def share_keys(settings: ServerSettings, ring: KeyRing) -> None:
    """Keys that were made by any node are those of all; a node that has others from before it joined forgets them."""
    from tandem.model.clock import SystemClock
    from tandem.stores.postgres_connection import EngineConnection, Hosts
    from tandem.stores.postgres_schema import Schema

    cluster = settings.cluster
    assert cluster is not None
    connection = EngineConnection(Hosts(cluster.engine), f"tandem keys {cluster.node}", SystemClock())
    try:
        schema = Schema(cluster.engine, connection)
        for namespace in settings.namespaces:
            shared = schema.shared_keys(namespace.name, json.dumps(ring.of_namespace(namespace.name)))
            ring.adopt(namespace.name, json.loads(shared))
    finally:
        connection.close()


def make_node_server(settings: ServerSettings, log: Callable[[str], None], **rest: Any) -> Any:
    """The composition root of a node: who it is, what it may open, and the server around it."""
    from tandem import __version__
    from tandem.cli.more_engines import other_engines
    from tandem.cluster.node import Node
    from tandem.cluster.owners_clock import OwnersClock
    from tandem.cluster.peers import ClusterNode
    from tandem.model.clock import SystemClock
    from tandem.server.server import Server
    from tandem.stores.ledger_engines import LedgerEngines
    from tandem.stores.postgres_connection import EngineConnection, Hosts
    from tandem.stores.postgres_events import EngineEvents
    from tandem.stores.postgres_nodes import PostgresNodes
    from tandem.stores.settings import LogSettings

    cluster = settings.cluster
    assert cluster is not None

    def must_stop(why: str) -> None:
        log(why)
        os.kill(os.getpid(), 15)

    clock = OwnersClock(SystemClock())
    hosts = Hosts(cluster.engine)
    nodes = PostgresNodes(EngineConnection(hosts, f"tandem beats {cluster.node}", clock))
    try:
        incarnation = nodes.join(cluster.node, cluster.advertise or cluster.listen, __version__)
        others = other_engines(settings, (cluster.node, incarnation, __version__), read_secret(cluster), clock, log)
        node = Node(
            cluster.node,
            incarnation,
            nodes,
            clock,
            cluster.lease_ms,
            log,
            others=others,
            engine_of=cluster.engine_of,
            stall_ms=cluster.stall_deadline_ms,
            must_stop=must_stop,
        )
        node.first_look()
    except EngineAway as error:
        raise ConfigurationError(f"cluster.engine: {error.description}; is PostgreSQL up?") from error
    if cluster.secret_file.stat().st_mode & stat.S_IROTH:
        log(f"everybody here can read {cluster.secret_file}, and join the cluster with it: chmod o= {cluster.secret_file.name}")
    stores = LogSettings(
        segment_bytes=settings.stores.segment_bytes,
        audit_retention_ms=settings.stores.audit_retention_ms,
        engine_bytes_max=cluster.engine_bytes_max,
    )
    by_name = {other.name: other.hosts for other in others}
    engines = LedgerEngines(hosts, stores, clock, cluster.node, incarnation, node.may_take, by_name, cluster.engine_of, node.why_away)

    events = EngineEvents(EngineConnection(hosts, f"tandem events {cluster.node}", clock), cluster.node, incarnation)
    atexit.register(events.flush, _LAST_EVENTS_SECONDS)
    keep = rest.pop("on_event", None)

    def on_event(event: dict[str, Any]) -> None:
        if keep is not None:
            keep(event)
        events.add((event["number"], event["at_ms"], kind_of(event), str(event["subject"]), str(event["cause"])))

    peers = None
    if cluster.listen:
        peers = ClusterNode(node=cluster.node, listen=cluster.listen, secret=read_secret(cluster), ownership=node.ownership)
    server = Server(settings, engines, clock=clock, log=log, node=node, cluster=peers, on_event=on_event, **rest)
    server.wishes = EngineWishes(cluster.engine, {one.name: one.engine for one in cluster.more_engines})
    return server
