"""The standbys of a second region, one for each engine of a cluster: all of them are there, and of that cluster, or none is used."""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Mapping
from typing import Final

from tandem.model.clock import Clock
from tandem.model.errors import ConfigurationError, EngineAway
from tandem.model.store_row import FIRST_ENGINE
from tandem.stores.postgres_connection import EngineConnection, Hosts, without_password
from tandem.stores.postgres_engines import EngineRegistry, label_of
from tandem.stores.postgres_schema import Schema

_NAMED: Final = re.compile(r"([\w-]+)=((?:postgres(?:ql)?://|\w+=).*)", re.DOTALL)
"""`name=DSN`; a connection string may be words with equals signs itself."""


def by_engine(given: Iterable[str], option: str) -> dict[str, str]:
    """Of `DSN` (the first engine) and `NAME=DSN`. ConfigurationError if one is there twice, or the first is not."""
    found: dict[str, str] = {}
    for text in given:
        named = _NAMED.fullmatch(text)
        name, dsn = named.groups() if named is not None else (FIRST_ENGINE, text)
        if name in found:
            raise ConfigurationError(
                f"{option}: engine {name} is there twice; allowed is one for each, as in {option} second=postgresql://…"
            )
        found[name] = dsn
    if FIRST_ENGINE not in found:
        raise ConfigurationError(f"{option}: that of the first engine is missing, which has no name: {option} postgresql://…")
    return found


class Standbys:
    """By name of their engine, the first one among them. Calls block."""

    def __init__(self, dsns: Mapping[str, str], option: str, application: str, clock: Clock) -> None:
        """`option`: how they were given, for refusals."""
        self.dsns = dsns
        self._option = option
        self.connections = {name: EngineConnection(Hosts(dsn, "any", _label(name)), application, clock) for name, dsn in dsns.items()}
        self.schemas = {
            name: Schema(dsn, self.connections[name], option if name == FIRST_ENGINE else f"{option} {name}=…")
            for name, dsn in dsns.items()
        }

    def where(self, name: str) -> str:
        """For operators."""
        return without_password(self.dsns[name])

    def check(self) -> dict[str, str]:
        """ConfigurationError unless each engine of the cluster has its standby here, and no other is among them. By name: where the engines
        beside the first are, as the first knows."""
        first = self.schemas[FIRST_ENGINE]
        for schema in self.schemas.values():
            schema.check(None)
        try:
            registry = EngineRegistry(self.connections[FIRST_ENGINE])
            if called := registry.called():
                raise ConfigurationError(f"{self._option}: {self.where(FIRST_ENGINE)} is the engine {called} of its cluster, not the first")
            known = registry.engines()
            for name in known.keys() - self.dsns.keys():
                raise ConfigurationError(
                    f"{self._option}: this cluster has an engine {name}, and its standby is missing; give {self._option} {name}=postgresql://…"
                )
            for name in self.dsns.keys() - known.keys() - {FIRST_ENGINE}:
                raise ConfigurationError(
                    f"{self._option} {name}=…: this cluster has no engine {name}; it has {', '.join([FIRST_ENGINE, *known])}"
                )
            for name in known:
                self._must_belong(name, first)
        except EngineAway as error:
            raise ConfigurationError(f"{self._option}: {error.description}") from error
        return known

    def _must_belong(self, name: str, first: Schema) -> None:
        key, connection = f"{self._option} {name}=…", self.connections[name]
        called = EngineRegistry(connection).called()
        if called != name:
            what = f"is a standby of engine {called}" if called else "is a standby of a first engine, or of a cluster with one"
            raise ConfigurationError(f"{key}: {self.where(name)} {what}; allowed is one of engine {name}")
        if not self.schemas[name].is_of_cluster(first):
            raise ConfigurationError(f"{key}: {self.where(name)} belongs to another cluster than the standby of the first engine")
        placed = self.connections[FIRST_ENGINE].execute("SELECT namespace, number, journal FROM tandem.placed WHERE engine = %s", (name,))
        journals = {(row[0], row[1]): bytes(row[2]) for row in placed.fetchall()}
        for namespace, number, journal in connection.execute("SELECT namespace, number, journal FROM tandem.store").fetchall():
            expected = journals.get((namespace, number), bytes(journal))
            if not hmac.compare_digest(bytes(journal), expected):
                raise ConfigurationError(f"{key}: store-{number} of namespace {namespace} there is another cluster's")

    def close(self) -> None:
        for connection in self.connections.values():
            connection.close()


def _label(name: str) -> str:
    return "the engine" if name == FIRST_ENGINE else label_of(name)
