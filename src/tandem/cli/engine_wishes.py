"""What an operator wishes of a cluster: told to its engine, which its nodes watch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tandem.model.errors import ConfigurationError, EngineAway

if TYPE_CHECKING:
    from tandem.stores.postgres_nodes import PostgresNodes
    from tandem.stores.postgres_schema import Schema


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


def must_know(nodes: PostgresNodes, node: str) -> None:
    known = [row[0] for row in nodes.look()[0]]
    if node not in known and node not in (row.name for row in nodes.followers()):
        raise ConfigurationError(f"there is no node {node!r}; known are {', '.join(known) or 'none'}")


def place_of(nodes: PostgresNodes, what: str) -> tuple[str, int | None]:
    """A namespace, and the store that is meant; None: all of them."""
    rows, stores, _, _, spread = nodes.look()
    if any(row.namespace == what for row in stores):
        return what, None
    namespace, _, number = what.rpartition("/")
    if not any(row.namespace == namespace and str(row.number) == number for row in stores):
        raise ConfigurationError(f"the cluster has no namespace or store {what!r}; see tandem cluster status")
    if namespace not in spread:
        raise ConfigurationError(f"the stores of {namespace} go together: name the namespace, or tandem cluster spread {namespace} first")
    if not any(row[3] for row in rows):
        raise ConfigurationError(f"the stores of {namespace} go together, because no node listens for others: give each cluster.listen")
    return namespace, int(number)


class EngineWishes:
    """What commands wish, and the console of a node too: checked, told to the engine, and said in words."""

    def __init__(self, engine: str) -> None:
        self._engine = engine

    def move(self, stores: str, node: str) -> str:
        with opened(self._engine) as (schema, nodes):
            schema.check(None)
            must_know(nodes, node)
            nodes.want(*place_of(nodes, stores), node)
        return f"{stores} moves to node {node}"

    def drain(self, node: str, end: bool) -> str:
        with opened(self._engine) as (schema, nodes):
            schema.check(None)
            must_know(nodes, node)
            nodes.drain(node, not end)
        return f"node {node} {'may serve again' if end else 'is drained: what it serves moves to others'}"
