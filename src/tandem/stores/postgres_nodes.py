"""Nodes and stores of a cluster as PostgreSQL has them: joined, beaten for, looked at, and told by commands where to go."""

from __future__ import annotations

from typing import Final

from tandem.model.errors import EngineAway
from tandem.model.follower_row import FollowerRow
from tandem.model.store_row import FIRST_ENGINE, StoreRow
from tandem.stores.postgres_catalog import CHANNEL
from tandem.stores.postgres_connection import EngineConnection
from tandem.stores.postgres_engines import EngineRegistry
from tandem.stores.postgres_ledger import STORE_COLUMNS

SPREAD_VERSION: Final = 2
"""Of the schema: with it every node knows that the stores of a namespace may be with several."""
Beat = tuple[list[tuple[str, int, int, str, str, bool]], list[StoreRow], dict[str, int], int, frozenset[str]]
"""Nodes (name, incarnation, beat, address, version, draining), stores, revisions by namespace, the engine's clock in ms, and the namespaces
whose stores may be with several nodes."""


class PostgresNodes:
    """Used by one thread. Calls block."""

    def __init__(self, connection: EngineConnection) -> None:
        self._connection = connection
        self.registry = EngineRegistry(connection)
        """The engines beside this one."""

    def join(self, node: str, address: str, version: str) -> int:
        """The incarnation of this process, which none of this name had before, not even one that was struck: whoever ran under it is told
        at its next beat."""
        row = self._connection.execute(
            "INSERT INTO tandem.node (name, incarnation, beat, address, version) "
            "SELECT %s, coalesce(max(incarnation), 0) + 1, 0, %s, %s FROM tandem.event WHERE node = %s ON CONFLICT (name) DO UPDATE "
            "SET incarnation = greatest(tandem.node.incarnation + 1, excluded.incarnation), address = excluded.address, "
            "version = excluded.version RETURNING incarnation",
            (node, address, version, node),
        ).fetchone()
        if row is None:
            raise EngineAway("the engine did not let us join")
        return int(row[0])

    def beat(self, node: str, incarnation: int) -> bool:
        """False: another process runs under this name."""
        done: int = self._connection.execute(
            "UPDATE tandem.node SET beat = beat + 1 WHERE name = %s AND incarnation = %s", (node, incarnation)
        ).rowcount
        return done == 1

    def look(self) -> Beat:
        nodes = self._connection.execute("SELECT name, incarnation, beat, address, version, draining FROM tandem.node ORDER BY name")
        rows = [(row[0], row[1], row[2], row[3], row[4], row[5]) for row in nodes.fetchall()]
        stores = self._connection.execute(f"SELECT {STORE_COLUMNS} FROM tandem.store ORDER BY namespace, number").fetchall()
        spaces = self._connection.execute(
            "SELECT name, revision, (extract(epoch FROM clock_timestamp()) * 1000)::bigint FROM tandem.namespace"
        ).fetchall()
        engine_ms = max((row[2] for row in spaces), default=0)
        return rows, [StoreRow(*row) for row in stores], {row[0]: row[1] for row in spaces}, engine_ms, self._spread()

    def _spread(self) -> frozenset[str]:
        """None as long as nodes of an older version may join, which take all stores of a namespace together."""
        sql = (
            "SELECT name FROM tandem.namespace WHERE (SELECT version FROM tandem.cluster) >= %s "
            "AND name NOT IN (SELECT namespace FROM tandem.gathered)"
        )
        return frozenset(row[0] for row in self._connection.rows_if_there(sql, (SPREAD_VERSION,)))

    def followers(self) -> list[FollowerRow]:
        """Who follows from other regions."""
        sql = (
            "SELECT name, greatest((extract(epoch FROM clock_timestamp()) * 1000)::bigint - at_ms, 0), lag_ms, messages, blocks, engine "
            "FROM (SELECT *, %s::text AS engine FROM tandem.follower UNION ALL SELECT name, at_ms, lag_ms, messages, blocks, engine "
            "FROM tandem.follower_of) AS told ORDER BY name, engine <> %s, engine"
        )
        return [FollowerRow(*row) for row in self._connection.rows_if_there(sql, (FIRST_ENGINE, FIRST_ENGINE))]

    def wait(self, seconds: float) -> bool:
        """True as soon as another node has changed a namespace; False after so long."""
        return bool(self._connection.notices_of(CHANNEL, seconds))

    def give_up_after(self, milliseconds: int) -> None:
        """On any thread: a call that takes longer fails."""
        self._connection.shut_if_slow(milliseconds)

    # -- commands ----------------------------------------------------------------------------

    def want(self, namespace: str, number: int | None, node: str) -> int:
        """The stores of the namespace, or this one, go to this node as soon as their owner has finished what it is at, and stay there while
        it lives; the empty name: they are anybody's. How many stores."""
        sql = "UPDATE tandem.store SET wanted = %s WHERE namespace = %s AND number = coalesce(%s::int, number)"
        return self._changed(sql, (node, namespace, number))

    def depose(self, namespace: str, number: int | None, node: str) -> int:
        """Nobody is waited for: whatever their owner has not confirmed is refused from now on."""
        sql = (
            "UPDATE tandem.store SET epoch = epoch + 1, owner = '', incarnation = 0, wanted = %s "
            "WHERE namespace = %s AND number = coalesce(%s::int, number)"
        )
        return self._changed(sql, (node, namespace, number))

    def gather(self, namespace: str) -> None:
        """Its stores go together from now on."""
        self._changed("INSERT INTO tandem.gathered (namespace) VALUES (%s) ON CONFLICT DO NOTHING", (namespace,))

    def spread(self, namespace: str) -> None:
        self._changed("DELETE FROM tandem.gathered WHERE namespace = %s", (namespace,))

    def drain(self, node: str, draining: bool) -> bool:
        return self._changed("UPDATE tandem.node SET draining = %s WHERE name = %s", (draining, node)) == 1

    def forget(self, node: str) -> bool:
        """A node, or a follower, that is never coming back."""
        followers = self._changed("DELETE FROM tandem.follower WHERE name = %s", (node,))
        self._changed("DELETE FROM tandem.follower_of WHERE name = %s", (node,))
        return self._changed("DELETE FROM tandem.node WHERE name = %s", (node,)) + followers > 0

    def _changed(self, sql: str, values: tuple[object, ...]) -> int:
        count: int = self._connection.execute(sql, values).rowcount
        return count

    def close(self) -> None:
        self._connection.close()
