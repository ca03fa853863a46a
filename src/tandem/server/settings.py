"""What one broker is told before it starts: everything it needs to know, decided, checked and frozen."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tandem.model.entity import AuthorizationRule, HybridConnectionDescription, QueueDescription, SubscriptionDescription, TopicDescription
from tandem.model.limits import Limits
from tandem.tokens.trust import TrustedIssuer


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """One address to listen on. Every listener speaks everything: AMQP, TLS, HTTP, WebSocket."""

    host: str = "127.0.0.1"
    port: int = 5672
    """0 asks the system for a free port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceSettings:
    """A namespace and what it must contain when the broker starts; entities already stored are kept as they are."""

    name: str = "tandem"
    hosts: tuple[str, ...] = ()
    """Host names that lead here. The first namespace also answers for every host that nobody claims."""
    queues: tuple[QueueDescription, ...] = ()
    topics: tuple[TopicDescription, ...] = ()
    subscriptions: tuple[SubscriptionDescription, ...] = ()
    """Each names its topic. Without rules it gets `$Default`, which lets everything through."""
    relays: tuple[HybridConnectionDescription, ...] = ()
    authorization_rules: tuple[AuthorizationRule, ...] = ()
    """Rules on the namespace itself; those of queues and topics stand in their descriptions."""
    locks_outlive_connections: bool = False
    """Locks of a holder whose connection broke stay until their time is over; entities may say otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoresSettings:
    """The messaging stores of each namespace: how many, and how they keep their journals."""

    count: int = 4
    """Stores (failure domains) per namespace."""
    isolation: str = "thread"
    """`thread`: disks are driven inside the broker. `process`: each store has a process of its own that may be killed or stopped."""
    fragments: int = 16
    """Fragments of a partitioned entity, spread over the stores; fixed for an entity when it is created."""
    segment_bytes: int = 67_108_864
    """A journal segment is sealed and a new one begun beyond this."""
    free_bytes_min: int = 134_217_728
    """With less than this free on its file system a store takes no new messages; those it has can still be received and settled."""
    audit_retention_ms: int = 0
    """How long segments stay readable for audit after compaction would delete them; everything sent meanwhile stays on disk."""
    stall_deadline_ms: int = 5_000
    """A commit that has not returned for so long takes its store down; it comes back when the disk answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """One more PostgreSQL of a cluster, with the stores that live there for good."""

    name: str
    """What it is called in logs, health and metrics."""
    engine: str
    """Its connection string, with all its hosts."""
    stores: tuple[int, ...]
    """Numbers of the stores that live there, of every namespace; all others are in the first engine."""
    namespaces: tuple[str, ...] = ()
    """Only of these namespaces; empty: of all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """Several nodes that serve the same namespaces, with their journals in PostgreSQL."""

    engine: str
    """Connection string of PostgreSQL, with all its hosts."""
    node: str
    """This node's name: no other running one has it."""
    secret_file: Path
    """What all nodes of the cluster know, and nobody else."""
    listen: str = ""
    """`host:port` where the other nodes connect to; empty: they do not."""
    advertise: str = ""
    """Where the others reach that; empty: `listen` as it is."""
    lease_ms: int = 5_000
    """A node of which nothing was heard for so long is believed to be dead: others take its stores over."""
    durability: str = "quorum"
    """`quorum`: start only if the engine commits on two machines. `assumed`: for services that do not show it."""
    stall_deadline_ms: int = 15_000
    """An engine that has not answered for so long takes the stores down; until then they are suspended."""
    engine_bytes_max: int = 0
    """With a database larger than this no new messages are taken; 0: no limit. Of several engines each has this limit."""
    more_engines: tuple[EngineSettings, ...] = ()
    """Beside the first, which has the metadata."""

    def engine_of(self, namespace: str, store: int) -> str:
        """The name of the engine that a store lives in; empty: the first."""
        return next((one.name for one in self.more_engines if store in one.stores and namespace in (one.namespaces or (namespace,))), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """Certificate files to serve TLS with; `ca` is what clients must trust, None when they already do."""

    certificate: Path
    private_key: Path
    ca: Path | None = None
    made_for: tuple[str, ...] = ()
    """Of a generated certificate: the names it is for. It is renewed when it nears its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Everything `Server` is told."""

    listeners: tuple[Listener, ...] = (Listener(),)
    data_dir: Path | None = None
    """None: memory only, nothing survives the process."""
    namespaces: tuple[NamespaceSettings, ...] = (NamespaceSettings(),)
    limits: Limits = field(default_factory=Limits)
    stores: StoresSettings = field(default_factory=StoresSettings)
    tls: TlsSettings | None = None
    """None: a TLS ClientHello is refused."""
    faults: bool = False
    """Faults may be injected over `/$tandem/faults` (needs Manage)."""
    dev: bool = False
    """The emulator's well-known key is in use; the broker listens on loopback only."""
    known_hosts: tuple[str, ...] = ()
    """More names under which a development broker may be reached over HTTP; see `dev`."""
    trusted_issuers: tuple[TrustedIssuer, ...] = ()
    """Whose tokens are accepted beside self-signed ones."""
    housekeeping_ms: int = 250
    """How often stores, silent peers and idle entities are looked after."""
    drain_seconds: int = 10
    """When it is told to stop: how long receivers may take to settle what they have in hand."""
    tracing: bool = False
    """Spans of OpenTelemetry for messages that carry a trace context."""
    node: str = "G0"
    """Names this broker in tracking ids."""
    cluster: ClusterSettings | None = None
    """None: this broker is all there is, and keeps its journals in files."""
