"""Stores over ledgers in PostgreSQL, as tests want them."""

from __future__ import annotations

from collections.abc import Callable

from tandem.model.clock import Clock, SystemClock
from tandem.model.store_row import StoreRow
from tandem.stores import LogSettings
from tandem.stores.ledger_store import LedgerStore
from tandem.stores.postgres_connection import EngineConnection, Hosts
from tandem.stores.postgres_ledger import PostgresLedger
from tandem.stores.postgres_schema import Schema


def ledger(dsn: str, node: str = "a", may_take: Callable[[StoreRow], bool] = lambda row: True) -> PostgresLedger:
    hosts = Hosts(dsn)
    connection = EngineConnection(hosts, "test", SystemClock())
    Schema(dsn, connection).ensure_stores("tandem", 1)
    connection.close()
    return PostgresLedger(hosts, SystemClock(), ("tandem", 0), node, 1, may_take)


def ledger_store(
    dsn: str, loop_call: Callable[[Callable[[], None]], None], settings: LogSettings, clock: Clock, node: str = "a"
) -> LedgerStore:
    return LedgerStore(ledger(dsn, node), "store-0", loop_call, settings, clock)
