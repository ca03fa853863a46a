"""What an operator wishes of a cluster: told to its engine, which its nodes watch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from tandem.model.errors import ConfigurationError, EngineAway

if TYPE_CHECKING:
    from tandem.stores.postgres_nodes import PostgresNodes
    from tandem.stores.postgres_schema import Schema


_PATIENCE_SECONDS: Final = 10.0
"""So long a command waits for an engine beside the first."""


def engine_missing() -> ConfigurationError:
    return ConfigurationError("cluster.engine: needs the PostgreSQL client: pip install 'tandem-bus[postgres]'")


@contextmanager
def opened(dsn: str) -> Iterator[tuple[Schema, PostgresNodes]]:
    try:
        from tandem.stores.postgres_connection import EngineConnection, Hosts
        from tandem.stores.postgres_nodes import PostgresNodes
        from tandem.stores.postgres_schema import Schema
    except ImportError as error:
        raise engine_missing() from error
    from tandem.model.clock import SystemClock

    connection = EngineConnection(Hosts(dsn), "tandem cluster", SystemClock())
    try:
        yield Schema(dsn, connection), PostgresNodes(connection)
    except EngineAway as error:
        raise ConfigurationError(f"cluster.engine: {error.description}") from error
    finally:
        connection.close()


@contextmanager
def reached(name: str, dsn: str) -> Iterator[tuple[Schema, PostgresNodes]]:
    """An engine beside the first. EngineAway if it does not answer."""
    from tandem.model.clock import SystemClock
    from tandem.stores.postgres_connection import EngineConnection, Hosts
    from tandem.stores.postgres_engines import key_of, label_of
    from tandem.stores.postgres_nodes import PostgresNodes
    from tandem.stores.postgres_schema import Schema

    connection = EngineConnection(Hosts(dsn, label=label_of(name)), "tandem cluster", SystemClock())
    patience = threading.Timer(_PATIENCE_SECONDS, connection.shut)
    patience.daemon = True
    patience.start()
    try:
        yield Schema(dsn, connection, key_of(name)), PostgresNodes(connection)
    finally:
        patience.cancel()
        connection.close()


def told_where_they_live(
    nodes: PostgresNodes, place: tuple[str, int | None], tell: Callable[[PostgresNodes], object], known: Mapping[str, str] | None = None
) -> None:
    """The engine of each of these stores is told. `known`: connection strings by name; others are those that the first engine keeps."""
    namespace, number = place
    tell(nodes)
    dsns = {**nodes.registry.engines(), **(known or {})}
    for name in sorted({name for one, name in nodes.registry.placed().items() if one[0] == namespace and number in (None, one[1])}):
        try:
            with reached(name, dsns[name]) as (_, there):
                tell(there)
        except EngineAway as error:
            raise ConfigurationError(f"{error.description}; stores that live elsewhere were told. Try again when it answers") from error


def must_know(nodes: PostgresNodes, node: str, followers: bool = False) -> bool:
    """Whether that node is drained. `followers`: one of another region is meant as well."""
    known = {row[0]: row[5] for row in nodes.look()[0]}
    if node not in known and not (followers and node in (row.name for row in nodes.followers())):
        raise ConfigurationError(f"there is no node {node!r}; known are {', '.join(known) or 'none'}")
    return known.get(node, False)


def must_take_stores(nodes: PostgresNodes, node: str) -> None:
    if must_know(nodes, node):
        raise ConfigurationError(f"node {node} is drained, and gets no stores; first, tandem cluster drain {node} --end")


def place_of(nodes: PostgresNodes, what: str) -> tuple[str, int | None]:
    """A namespace, and the store that is meant; None: all of them."""
    rows, stores, _, _, spread = nodes.look()
    places = {*((row.namespace, row.number) for row in stores), *nodes.registry.placed()}
    if any(place[0] == what for place in places):
        return what, None
    namespace, _, number = what.rpartition("/")
    if not any(place[0] == namespace and str(place[1]) == number for place in places):
        raise ConfigurationError(f"the cluster has no namespace or store {what!r}; see tandem cluster status")
    if namespace not in spread:
        raise ConfigurationError(f"the stores of {namespace} go together: name the namespace, or tandem cluster spread {namespace} first")
    if not any(row[3] for row in rows):
        raise ConfigurationError(f"the stores of {namespace} go together, because no node listens for others: give each cluster.listen")
    return namespace, int(number)


class EngineWishes:
    """What commands wish, and the console of a node too: checked, told to the engine, and said in words."""

    def __init__(self, engine: str, others: Mapping[str, str] | None = None) -> None:
        """`others`: connection strings of the engines beside the first, if they are known here."""
        self._engine = engine
        self._others = others

    def move(self, stores: str, node: str) -> str:
        with opened(self._engine) as (schema, nodes):
            schema.check(None)
            must_take_stores(nodes, node)
            place = place_of(nodes, stores)
            told_where_they_live(nodes, place, lambda there: there.want(*place, node), self._others)
        return f"{stores} moves to node {node}"

    def drain(self, node: str, end: bool) -> str:
        with opened(self._engine) as (schema, nodes):
            schema.check(None)
            must_know(nodes, node)
            nodes.drain(node, not end)
        return f"node {node} {'may serve again' if end else 'is drained: what it serves moves to others'}"
