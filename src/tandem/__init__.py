"""Tandem: a bus that speaks Azure Service Bus, and the defences for the day it is down.

The client classes here are synchronous; `tandem.aio` has the same names, asynchronous. They are loaded on first use, so that
importing `tandem` stays cheap for those who need none of them. Type checkers read `__init__.pyi`, which `make docs` writes.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_SYNC = (
    "ActiveReplication",
    "DuplicateSuppressingReceiver",
    "IssuerCredential",
    "Outbox",
    "PairMetrics",
    "PairedNamespaces",
    "PassiveReplication",
    "PipelinedSender",
    "SasCredential",
)
_SHARED = (
    "Acceptance",
    "AliasInUseError",
    "BothNamespacesUnavailableError",
    "Event",
    "HttpIssuer",
    "MemorySeenIds",
    "NamespaceClosedError",
    "OutboxFullError",
    "OutboxSettings",
    "PairedNamespaceFaultedError",
    "PairingOptions",
    "PathState",
    "PathStatus",
    "PostgresOutboxStore",
    "SendAvailabilityBacklogError",
    "SendAvailabilityMessagingError",
    "SendFailuresError",
    "SendReport",
    "SqliteOutboxStore",
    "SqliteSeenIds",
    "TokenUnavailableError",
    "is_unreachable",
)
_OF_RELAYS = ("RelayListener", "RelayPair", "RelaySender")
_SHARED_OF_RELAYS = (
    "BothRelaysUnavailableError",
    "ReissueRefusedError",
    "RelayEndpoint",
    "RelayError",
    "RelayRefusedError",
    "RelayResponse",
    "RelayUnavailableError",
    "ResponseLostError",
)
_OF_CLIENTS = ("pair", "unpair")


def __getattr__(name: str) -> Any:
    if name in _SYNC:
        return getattr(importlib.import_module("tandem.client.sync"), name)
    if name in _SHARED:
        return getattr(importlib.import_module("tandem.aio"), name)
    if name in _OF_RELAYS:
        return getattr(importlib.import_module("tandem.client.relay.sync"), name)
    if name in _SHARED_OF_RELAYS:
        return getattr(importlib.import_module("tandem.aio.relay"), name)
    if name in _OF_CLIENTS:
        return getattr(importlib.import_module("tandem.client.paired_blocking_client"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted((*globals(), *_SYNC, *_SHARED, *_OF_RELAYS, *_SHARED_OF_RELAYS, *_OF_CLIENTS))
