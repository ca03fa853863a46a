"""Engines beside the first, from the settings of a node: prepared once, and checked whenever a node has them answer for the first time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from tandem.cli.engine_wishes import reached
from tandem.model.errors import ConfigurationError, EngineAway
from tandem.model.store_row import FIRST_ENGINE, StoreRow

if TYPE_CHECKING:
    from tandem.model.clock import Clock
    from tandem.server.settings import ClusterSettings, EngineSettings, ServerSettings
    from tandem.stores.postgres_connection import EngineConnection
    from tandem.stores.postgres_engines import EngineParts, EngineRegistry, Place, PostgresOther
    from tandem.stores.postgres_nodes import PostgresNodes
    from tandem.stores.postgres_schema import Schema


def places_of(settings: ServerSettings) -> Iterator[Place]:
    for namespace in settings.namespaces:
        for number in range(settings.stores.count):
            yield namespace.name, number


def must_have_engines(settings: ServerSettings, first: EngineConnection) -> None:
    """The cluster has the engines that this node is told of, and no others, and no store lives elsewhere."""
    from tandem.stores.postgres_engines import EngineRegistry

    cluster = settings.cluster
    assert cluster is not None
    configured = {one.name: one.engine for one in cluster.more_engines}
    try:
        EngineRegistry(first).must_fit(configured, [(place, cluster.engine_of(*place)) for place in places_of(settings)])
    except EngineAway as error:
        raise ConfigurationError(f"cluster.engine: {error.description}") from error


def other_engines(
    settings: ServerSettings, who: tuple[str, int, str], secret: bytes, clock: Clock, log: Callable[[str], None]
) -> list[PostgresOther]:
    """`who`: this node's name, incarnation and version."""
    from tandem.stores.postgres_connection import EngineConnection, Hosts
    from tandem.stores.postgres_engines import PostgresOther, label_of

    cluster = settings.cluster
    assert cluster is not None
    found: list[PostgresOther] = []
    for one in cluster.more_engines:
        hosts = Hosts(one.engine, label=label_of(one.name))
        connection = EngineConnection(hosts, f"tandem beats {cluster.node}", clock)
        found.append(PostgresOther(one.name, hosts, connection, who, _preparation(settings, one, secret, log)))
    return found


def _preparation(
    settings: ServerSettings, engine: EngineSettings, secret: bytes, log: Callable[[str], None]
) -> Callable[[EngineConnection], None]:
    """Run when the engine answers for the first time: it may be away when a node starts."""

    def prepare(connection: EngineConnection) -> None:
        from tandem.model.clock import SystemClock
        from tandem.stores.postgres_connection import EngineConnection, Hosts
        from tandem.stores.postgres_engines import EngineParts, EngineRegistry

        cluster = settings.cluster
        assert cluster is not None
        parts = EngineParts(engine.name, engine.engine, connection)
        for problem in parts.check(secret, cluster.durability, now_ms):
            log(f"engine {engine.name} may lose what it acknowledged: {problem}")
        first = EngineConnection(Hosts(cluster.engine), f"tandem check {cluster.node}", SystemClock())
        try:
            mine = [place for place in places_of(settings) if cluster.engine_of(*place) == engine.name]
            parts.ensure_stores(EngineRegistry(first), mine)
        finally:
            first.close()

    return prepare


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def make_engines(cluster: ClusterSettings, first: Schema, registry: EngineRegistry, secret: bytes, durability: str) -> list[str]:
    """For `tandem cluster init`, after the first: each is prepared, and known to the first. What was done, in words."""
    from tandem.model.clock import SystemClock
    from tandem.stores.postgres_connection import EngineConnection, Hosts
    from tandem.stores.postgres_engines import EngineParts, key_of, label_of

    first.must_be_upgraded()
    said: list[str] = []
    for one in cluster.more_engines:
        other = EngineConnection(Hosts(one.engine, label=label_of(one.name)), "tandem cluster", SystemClock())
        parts = EngineParts(one.name, one.engine, other)
        try:
            made = _make(one, parts, registry, secret, durability)
            first.has_several_engines()
        except EngineAway as error:
            raise ConfigurationError(f"{key_of(one.name)}: {error.description}") from error
        finally:
            other.close()
        said.append(f"engine {one.name} is {'made' if made else 'as it should be'}: stores {', '.join(map(str, one.stores))}")
    return said


def _make(one: EngineSettings, parts: EngineParts, registry: EngineRegistry, secret: bytes, durability: str) -> bool:
    parts.schema.must_keep_sessions()
    parts.schema.must_be_durable(durability, now_ms)
    added = registry.add(one.name, one.engine)  # before it is looked at: a database that knows of engines is the first under another name
    try:
        made = parts.initialize(secret)
        parts.schema.has_several_engines()
    except (ConfigurationError, EngineAway):
        if added:
            registry.strike(one.name)
        raise
    return made


class ClusterEngines:
    """For `tandem cluster status`: the stores of all engines, and which of those answer."""

    def __init__(self, nodes: PostgresNodes, first: list[StoreRow]) -> None:
        self._known = nodes.registry.engines()
        self._away: dict[str, str] = {}
        """Those that do not answer, and why."""
        stores = list(first)
        for name, dsn in self._known.items():
            try:
                with reached(name, dsn) as (_, there):
                    stores += [replace(row, engine=name) for row in there.look()[1]]
            except EngineAway as error:
                self._away[name] = error.description
                mine = [place for place, engine in nodes.registry.placed().items() if engine == name]
                stores += [StoreRow(0, *place, b"", 0, 0, "", 0, "", 0, 0, 0, engine=name) for place in mine]
        self.stores = sorted(stores, key=lambda row: (row.namespace, row.number))

    def of(self, row: StoreRow) -> dict[str, object]:
        """Nothing, where there is one engine."""
        return {"engine": row.engine or FIRST_ENGINE, "answers": row.engine not in self._away} if self._known else {}

    def state(self) -> dict[str, object]:
        if not self._known:
            return {}
        others = [{"name": name, "answers": name not in self._away, "cause": self._away.get(name, "")} for name in self._known]
        return {"engines": [{"name": FIRST_ENGINE, "answers": True, "cause": ""}, *others]}
