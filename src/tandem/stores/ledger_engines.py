"""Opens what a node of a cluster remembers with: catalog, journals and meters in PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable

from tandem.model.clock import Clock
from tandem.model.store_row import StoreRow
from tandem.stores.ledger_store import LedgerStore
from tandem.stores.postgres_catalog import PostgresCatalog
from tandem.stores.postgres_connection import EngineConnection, Hosts
from tandem.stores.postgres_ledger import MayTake, PostgresLedger
from tandem.stores.postgres_meters import PostgresMeters
from tandem.stores.settings import LogSettings

LoopCall = Callable[[Callable[[], None]], None]


class LedgerEngines:
    """Of one node of one cluster; `may_take` says which stores it may open."""

    def __init__(
        self,
        hosts: Hosts,
        settings: LogSettings,
        clock: Clock,
        node: str,
        incarnation: int,
        may_take: MayTake,
        others: dict[str, Hosts] | None = None,
        engine_of: Callable[[str, int], str] = lambda namespace, store: "",
        away: Callable[[str], str] = lambda engine: "",
    ) -> None:
        """`hosts` is the first engine, which has the catalog; `engine_of` names the one of the `others` that a store lives in, `away` says
        why that one does not answer."""
        self._hosts = hosts
        self._others = others or {}
        self._engine_of = engine_of
        self._away = away
        self._settings = settings
        self._clock = clock
        self._node = node
        self._incarnation = incarnation
        self._may_take = may_take
        self._ledgers: dict[tuple[str, int], PostgresLedger] = {}
        self.stores: dict[tuple[str, int], LedgerStore] = {}

    def open_catalog(self, namespace: str, store_count: int) -> PostgresCatalog:
        return PostgresCatalog(EngineConnection(self._hosts, f"tandem catalog {self._node}", self._clock), namespace)

    def open_journal(self, namespace: str, index: int, loop_call: LoopCall) -> LedgerStore:
        keep_ms = self._settings.audit_retention_ms
        engine = self._engine_of(namespace, index)
        hosts = self._others[engine] if engine else self._hosts
        ledger = PostgresLedger(
            hosts,
            self._clock,
            (namespace, index),
            self._node,
            self._incarnation,
            self._may_take,
            keep_ms,
            engine,
            lambda: self._away(engine),
        )
        self._ledgers[namespace, index] = ledger
        store = LedgerStore(ledger, f"store-{index}", loop_call, self._settings, self._clock)
        self.stores[namespace, index] = store
        return store

    def open_meters(self, namespace: str, index: int) -> PostgresMeters:
        """After its journal, and where that is: they are written under the same epoch."""
        ledger = self._ledgers[namespace, index]
        return PostgresMeters(EngineConnection(ledger.hosts, f"tandem {namespace} {index} meters", self._clock), ledger)

    def set_faults(self, namespace: str, index: int, *, down: bool, failing: bool, full: bool, sync_delay_ms: int) -> None:
        """An engine that others use too can only be left alone."""


def always(row: StoreRow) -> bool:
    """A node that is the only one."""
    return True
