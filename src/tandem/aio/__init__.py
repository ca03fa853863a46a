"""The outage defences, asynchronous: what `tandem.client` offers to applications."""

from tandem.client.dedup import MemorySeenIds, SqliteSeenIds
from tandem.client.errors import (
    AliasInUseError,
    BothNamespacesUnavailableError,
    NamespaceClosedError,
    PairedNamespaceFaultedError,
    SendAvailabilityBacklogError,
    SendAvailabilityMessagingError,
    is_unreachable,
)
from tandem.client.events import Event
from tandem.client.health import PathState
from tandem.client.metrics import PairMetrics
from tandem.client.outbox import Outbox, OutboxFullError, OutboxSettings
from tandem.client.outbox_store import PostgresOutboxStore, SqliteOutboxStore
from tandem.client.paired_client import pair, unpair
from tandem.client.pairing import PairedNamespaces, PairingOptions
from tandem.client.paths import PathStatus
from tandem.client.pipelined import PipelinedSender, SendFailuresError, SendReport
from tandem.client.receiver import DuplicateSuppressingReceiver
from tandem.client.replication import Acceptance, ActiveReplication, PassiveReplication
from tandem.client.sender import PairedSender
from tandem.client.syphon import Syphon
from tandem.client.tokens import HttpIssuer, IssuerCredential, SasCredential, TokenUnavailableError

__all__ = [
    "Acceptance",
    "ActiveReplication",
    "AliasInUseError",
    "BothNamespacesUnavailableError",
    "DuplicateSuppressingReceiver",
    "Event",
    "HttpIssuer",
    "IssuerCredential",
    "MemorySeenIds",
    "NamespaceClosedError",
    "Outbox",
    "OutboxFullError",
    "OutboxSettings",
    "PairMetrics",
    "PairedNamespaceFaultedError",
    "PairedNamespaces",
    "PairedSender",
    "PairingOptions",
    "PassiveReplication",
    "PathState",
    "PathStatus",
    "PipelinedSender",
    "PostgresOutboxStore",
    "SasCredential",
    "SendAvailabilityBacklogError",
    "SendAvailabilityMessagingError",
    "SendFailuresError",
    "SendReport",
    "SqliteOutboxStore",
    "SqliteSeenIds",
    "Syphon",
    "TokenUnavailableError",
    "is_unreachable",
    "pair",
    "unpair",
]
