"""The classes without `await`, as type checkers see them: generated from the asynchronous ones, `make docs` writes it again."""

import asyncio
import datetime
import os
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Sequence
from typing import Any

from azure.core.credentials import AccessToken
from azure.servicebus import ServiceBusMessageBatch, ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from prometheus_client.core import Metric

from tandem.client.backlog import Administration
from tandem.client.coupling import PairSide
from tandem.client.dedup import SeenIds
from tandem.client.events import Callback, Counters, EventHub
from tandem.client.health import PathState
from tandem.client.metrics import PairMetrics as AsyncPairMetrics
from tandem.client.outbox import Outbox as AsyncOutbox
from tandem.client.outbox import OutboxCounters, OutboxSettings
from tandem.client.outbox_store import Dead, OutboxEntry, OutboxStore
from tandem.client.pairing import Duration, PairingOptions
from tandem.client.pairing import PairedNamespaces as AsyncPairedNamespaces
from tandem.client.paths import PathMonitor, PathStatus
from tandem.client.pipelined import PipelinedSender as AsyncPipelinedSender
from tandem.client.pipelined import SendReport
from tandem.client.receiver import DuplicateSuppressingReceiver as AsyncDuplicateSuppressingReceiver
from tandem.client.receiver import ReceiverSettings
from tandem.client.replication import Acceptance, ReplicaRoles, ReplicationCounters
from tandem.client.replication import ActiveReplication as AsyncActiveReplication
from tandem.client.replication import ActiveSender as AsyncActiveSender
from tandem.client.replication import PassiveReplication as AsyncPassiveReplication
from tandem.client.replication import PassiveSender as AsyncPassiveSender
from tandem.client.sender import Pair
from tandem.client.sender import PairedSender as AsyncPairedSender
from tandem.client.session_order import SessionOrder
from tandem.client.syphon import ClientSyphonSettings, QueueMeasure
from tandem.client.syphon import Syphon as AsyncSyphon
from tandem.client.tokens import Issue
from tandem.client.tokens import IssuerCredential as AsyncIssuerCredential
from tandem.client.tokens import SasCredential as AsyncSasCredential
from tandem.client.transport import NamespaceTransport, Receiver, Single

class PairedNamespaces:
    """A primary the application addresses, and a secondary that holds nothing but its backlog queues."""

    aio: AsyncPairedNamespaces
    def __init__(
        self,
        primary: str | ServiceBusClient | NamespaceTransport,
        secondary: str | ServiceBusClient | NamespaceTransport,
        *,
        options: PairingOptions | None = ...,
        secondary_administration: ServiceBusAdministrationClient | Administration | None = ...,
        unreachable: Callable[[BaseException], bool] = ...,
        on_event: Callback | None = ...,
        tracer_provider: Any = ...,
        sdk_options: dict[str, Any] | None = ...,
        now_ms: Callable[[], int] | None = ...,
        choose: Callable[[int], int] = ...,
        new_id: Callable[[], str] = ...,
        **fields: Any,
    ) -> None: ...
    def close(self) -> None:
        """Close senders, pings, syphon and the namespaces that were made here. A syphon's secondary is closed in any case."""
    def fail_over(self, path: str, *, hold: bool = ...) -> None:
        """Divert a path now, for a drill. Pings bring it back when the primary answers, unless held until `mark_path_healthy`."""
    def forget(self, sender: PairedSender) -> None: ...
    def get_queue_sender(
        self, queue_name: str, *, timeout: Duration | None = ..., sdk_options: dict[str, Any] | None = ...
    ) -> PairedSender:
        """A protected sender; `timeout` is for its sends that give none, `sdk_options` for the SDK's sender to the primary."""
    def get_topic_sender(
        self, topic_name: str, *, timeout: Duration | None = ..., sdk_options: dict[str, Any] | None = ...
    ) -> PairedSender:
        """The same for a topic."""
    def mark_path_healthy(self, path: str) -> None:
        """Declare a path healthy: its next sends go to the primary."""
    def monitor(self, path: str) -> PathMonitor:
        """The health of a path (compared without case), made on first use."""
    def pair(self) -> int:
        """Find or create the backlog queues, start the syphon if asked to, and return how many queues are in use."""
    def state(self, path: str) -> PathStatus: ...
    def states(self) -> list[PathStatus]:
        """Every path this process has sent to, with its state."""
    def subscribe(self, callback: Callback) -> Callable[[], None]:
        """Hear of every change: `callback(event)`, on the loop. Returns what ends it."""
    def when_closed(self, told: Callable[[], None]) -> None:
        """Call this when the pair closes."""
    @property
    def backlog_confirmed(self) -> bool: ...
    @property
    def backlog_message_bytes_max(self) -> int: ...
    @property
    def backlog_queue_count(self) -> int: ...
    @property
    def counters(self) -> Counters: ...
    @property
    def ends_with_primary(self) -> bool: ...
    @property
    def events(self) -> EventHub: ...
    @property
    def now_ms(self) -> Any: ...
    @property
    def options(self) -> PairingOptions: ...
    @property
    def order(self) -> SessionOrder | None: ...
    @property
    def primary(self) -> PairSide: ...
    @property
    def primary_client(self) -> ServiceBusClient: ...
    @property
    def primary_namespace(self) -> Any: ...
    @property
    def rotation(self) -> Any: ...
    @property
    def secondary(self) -> PairSide: ...
    @property
    def syphon(self) -> Syphon | None: ...
    @property
    def unreachable(self) -> Callable[[BaseException], bool]: ...
    def __enter__(self) -> PairedNamespaces: ...
    def __exit__(self, *exception: object) -> None: ...

class PairMetrics:
    """`prometheus_client.REGISTRY.register(PairMetrics(pair))`: nothing is counted for it, it reads what the pair counts …"""

    aio: AsyncPairMetrics
    def __init__(self, pair: PairedNamespaces) -> None: ...
    def collect(self) -> Iterator[Metric]: ...
    def measure(self) -> None:
        """Ask the secondary what is in the backlog queues."""

class Syphon:
    """One pump per backlog queue. Any number of processes may run one: they compete under peek-lock."""

    aio: AsyncSyphon
    def __init__(
        self,
        primary: PairSide,
        secondary: PairSide,
        queues: Sequence[str],
        *,
        settings: ClientSyphonSettings,
        events: EventHub,
        counters: Counters,
        now_ms: Callable[[], int],
        administration: Administration | None = ...,
        failed_over: Callable[[str], bool] = ...,
    ) -> None: ...
    def drain(self, idle: float = ...) -> int:
        """Move what is in the queues now and return how many messages that were; for tools and tests. Not beside `start`."""
    def interrupt(self, path: str) -> None:
        """The path has failed over: what is under way to it would only run into its timeout."""
    def measure(self, timeout: float = ...) -> list[QueueMeasure]:
        """Depth and age of every backlog queue, asked of the secondary now."""
    def start(self, queues: Sequence[str] = ...) -> None:
        """A pump for each queue, and for those found since."""
    def stop(self) -> None:
        """Let each pump finish the message it is moving, give the others back, and end."""
    def wake(self, path: str) -> None:
        """The path can be reached again: end every pause now."""
    @property
    def queues(self) -> Any: ...
    @property
    def running(self) -> bool: ...
    @property
    def settings(self) -> ClientSyphonSettings: ...

class PairedSender:
    """Sends to one queue or topic of the primary namespace. Made by `PairedNamespaces.get_queue_sender` or `get_topic_sender`."""

    aio: AsyncPairedSender
    def __init__(self, pair: Pair, path: str, timeout: float, sdk_options: dict[str, Any]) -> None: ...
    def cancel_scheduled_messages(self, sequence_numbers: int | list[int], *, timeout: float | None = ...) -> None:
        """Cancel scheduled messages of the primary. Diverted ones have no number and cannot be cancelled."""
    def close(self) -> None: ...
    def create_message_batch(self, max_size_in_bytes: int | None = ...) -> ServiceBusMessageBatch:
        """An empty batch, its limit low enough that every message in it can be diverted. Works during an outage too."""
    def drop_backlog(self) -> None: ...
    def schedule_messages(self, messages: Any, schedule_time_utc: datetime.datetime, *, timeout: float | None = ...) -> list[int]:
        """Schedule messages; their sequence numbers. While failed over they are diverted, and **no number** is returned."""
    def send_messages(self, message: Any, *, timeout: float | None = ...) -> None:
        """Send a message, a list of messages (one batch) or a batch. Returns once a namespace has stored it."""
    @property
    def client_identifier(self) -> str | None: ...
    @property
    def entity_name(self) -> str: ...
    @property
    def fully_qualified_namespace(self) -> Any: ...
    @property
    def state(self) -> PathState: ...
    def __enter__(self) -> PairedSender: ...
    def __exit__(self, *exception: object) -> None: ...

class ActiveReplication:
    """Every message goes to both namespaces under one id. A send fails only if both fail. Twice the operations, no gap in an …"""

    aio: AsyncActiveReplication
    def __init__(self, *namespaces: Any, laggard_timeout: float = ..., **options: Any) -> None:
        """`laggard_timeout`: seconds the slower namespace gets once the faster one has accepted."""
    def check_open(self) -> None: ...
    def close(self) -> None:
        """Close what was made here; clients passed in stay open."""
    def get_queue_receiver(
        self,
        queue_name: str,
        *,
        session_id: str | None = ...,
        max_wait_time: float | None = ...,
        seen: SeenIds | None = ...,
        identify: Callable[[ServiceBusReceivedMessage], str | None] = ...,
        settings: ReceiverSettings | None = ...,
    ) -> DuplicateSuppressingReceiver:
        """Listen to the queue in both namespaces; each message is handed out once. With `seen` the memory can outlive the process."""
    def get_queue_sender(self, queue_name: str) -> ActiveSender: ...
    def get_subscription_receiver(self, topic_name: str, subscription_name: str, **options: Any) -> DuplicateSuppressingReceiver: ...
    def get_topic_sender(self, topic_name: str) -> ActiveSender: ...
    @property
    def counters(self) -> ReplicationCounters: ...
    @property
    def events(self) -> EventHub: ...
    @property
    def laggard_timeout(self) -> float: ...
    @property
    def namespaces(self) -> tuple[NamespaceTransport, NamespaceTransport]: ...
    @property
    def now_ms(self) -> Any: ...
    @property
    def operation_timeout(self) -> float: ...
    @property
    def unreachable(self) -> Callable[[BaseException], bool]: ...
    def __enter__(self) -> ActiveReplication: ...
    def __exit__(self, *exception: object) -> None: ...

class ActiveSender:
    """Sends to the same entity of both namespaces at the same time."""

    aio: AsyncActiveSender
    def __init__(self, replication: ActiveReplication, path: str) -> None: ...
    def close(self) -> None: ...
    def send_messages(self, message: Any, *, timeout: float | None = ...) -> Acceptance:
        """Returns which namespaces stored it (at least one); raises BothNamespacesUnavailableError with both causes otherwise."""
    @property
    def entity_name(self) -> str: ...
    def __enter__(self) -> ActiveSender: ...
    def __exit__(self, *exception: object) -> None: ...

class PassiveReplication:
    """Messages go to the active namespace; one that fails to be reached hands its role to the backup. As cheap as no …"""

    aio: AsyncPassiveReplication
    def __init__(self, *namespaces: Any, **options: Any) -> None: ...
    def active_host(self, path: str) -> str: ...
    def check_open(self) -> None: ...
    def close(self) -> None:
        """Close what was made here; clients passed in stay open."""
    def get_queue_receiver(
        self,
        queue_name: str,
        *,
        session_id: str | None = ...,
        max_wait_time: float | None = ...,
        seen: SeenIds | None = ...,
        identify: Callable[[ServiceBusReceivedMessage], str | None] = ...,
        settings: ReceiverSettings | None = ...,
    ) -> DuplicateSuppressingReceiver:
        """Listen to the queue in both namespaces; each message is handed out once. With `seen` the memory can outlive the process."""
    def get_queue_sender(self, queue_name: str) -> PassiveSender: ...
    def get_subscription_receiver(self, topic_name: str, subscription_name: str, **options: Any) -> DuplicateSuppressingReceiver: ...
    def get_topic_sender(self, topic_name: str) -> PassiveSender: ...
    def roles(self, path: str) -> ReplicaRoles:
        """The roles for one path, shared by all its senders."""
    @property
    def counters(self) -> ReplicationCounters: ...
    @property
    def events(self) -> EventHub: ...
    @property
    def namespaces(self) -> tuple[NamespaceTransport, NamespaceTransport]: ...
    @property
    def now_ms(self) -> Any: ...
    @property
    def operation_timeout(self) -> float: ...
    @property
    def unreachable(self) -> Callable[[BaseException], bool]: ...
    def __enter__(self) -> PassiveReplication: ...
    def __exit__(self, *exception: object) -> None: ...

class PassiveSender:
    """Sends to the active namespace, or to the backup if that cannot be reached; roles switch only if the backup accepted."""

    aio: AsyncPassiveSender
    def __init__(self, replication: PassiveReplication, path: str) -> None: ...
    def close(self) -> None: ...
    def send_messages(self, message: Any, *, timeout: float | None = ...) -> str:
        """Returns the host that stored the message. If both fail the roles stay as they are, and the error has both causes."""
    @property
    def entity_name(self) -> str: ...
    def __enter__(self) -> PassiveSender: ...
    def __exit__(self, *exception: object) -> None: ...

class DuplicateSuppressingReceiver:
    """Receives under peek-lock from several copies of an entity, with the SDK's method names."""

    aio: AsyncDuplicateSuppressingReceiver
    def __init__(
        self,
        receivers: Sequence[Receiver],
        *,
        seen: SeenIds | None = ...,
        identify: Callable[[ServiceBusReceivedMessage], str | None] = ...,
        max_wait_time: float | None = ...,
        now_ms: Callable[[], int] | None = ...,
        settings: ReceiverSettings | None = ...,
    ) -> None:
        """`identify` names what both copies share: the message id, or for example a property of your own."""
    def abandon_message(self, message: ServiceBusReceivedMessage) -> None:
        """Give the message back; another copy of it that waits is handed out next."""
    def close(self) -> None:
        """Give back what was not handed out, and close the receivers (and the memory of ids, unless it was passed in)."""
    def complete_message(self, message: ServiceBusReceivedMessage) -> None:
        """The message is processed: its id is remembered first, then this copy and all waiting ones are completed."""
    def dead_letter_message(
        self, message: ServiceBusReceivedMessage, reason: str | None = ..., error_description: str | None = ...
    ) -> None:
        """Dead-letter this copy. That is not processing: the other copy, if there is one, is handed out."""
    def defer_message(self, message: ServiceBusReceivedMessage) -> None: ...
    def receive_messages(self, max_message_count: int = ..., max_wait_time: float | None = ...) -> list[ServiceBusReceivedMessage]:
        """Up to that many messages as soon as there is one; an empty list when the wait is over."""
    def renew_message_lock(self, message: ServiceBusReceivedMessage) -> None: ...
    @property
    def counters(self) -> Any: ...
    def __enter__(self) -> DuplicateSuppressingReceiver: ...
    def __exit__(self, *exception: object) -> None: ...
    def __iter__(self) -> Iterator[ServiceBusReceivedMessage]: ...

class Outbox:
    """Messages on local disk, delivered in the background, in order per session (or `key`), with exponential back-off."""

    aio: AsyncOutbox
    def __init__(
        self,
        store: str | os.PathLike[str] | OutboxStore,
        target: Any,
        *,
        settings: OutboxSettings | None = ...,
        on_event: Callback | None = ...,
        now_ms: Callable[[], int] | None = ...,
        sdk_options: dict[str, Any] | None = ...,
    ) -> None: ...
    def close(self) -> None:
        """Stop delivering; what is not delivered stays on disk for the next time."""
    def dead_letters(self, limit: int = ...) -> list[Dead]: ...
    def enrol(self, connection: Any, entity: str, message: Single, *, key: str | None = ...) -> None:
        """Keep a message in the caller's own transaction: `connection` is its sqlite3 or psycopg connection to the outbox's database."""
    def enrol_async(self, connection: Any, entity: str, message: Single, *, key: str | None = ...) -> None:
        """`enrol` for a psycopg `AsyncConnection`."""
    def entry(self, entity: str, message: Single, key: str | None = ...) -> OutboxEntry: ...
    def flush(self, timeout: float | None = ...) -> None:
        """Wait until everything is delivered (or dead-lettered). TimeoutError if that takes longer."""
    def open(self) -> None: ...
    def pending(self) -> int:
        """Messages on disk that are not delivered yet."""
    def retry_dead_letters(self, ids: list[int]) -> int:
        """Put dead letters back, after whatever they were refused for was mended; returns how many."""
    def send(self, entity: str, message: Single | list[Single], *, key: str | None = ...) -> list[int]:
        """Keep a message, or several in order, for a queue or topic. Returns once they are on disk."""
    def wake(self) -> None: ...
    @property
    def counters(self) -> OutboxCounters: ...
    @property
    def events(self) -> EventHub: ...
    @property
    def settings(self) -> OutboxSettings: ...
    def __enter__(self) -> Outbox: ...
    def __exit__(self, *exception: object) -> None: ...

class PipelinedSender:
    """Sends without waiting for each answer, at most `max_in_flight` messages at a time."""

    aio: AsyncPipelinedSender
    def __init__(self, sender: Any, *, max_in_flight: int = ..., timeout: float = ..., failures_max: int = ...) -> None: ...
    def close(self) -> SendReport:
        """Await what is in flight and end; the sender itself stays open."""
    def drain(self) -> SendReport:
        """Await every send in flight; the report of all since the last one."""
    def send(self, message: Any) -> asyncio.Future[None]:
        """Send a message; waits for a free slot only. The future is its outcome, to look at or not: the report has it as well."""
    def send_all(self, messages: Iterable[Any] | AsyncIterable[Any]) -> SendReport:
        """Send every message and await every outcome. Reads the source no faster than slots come free."""
    @property
    def in_flight(self) -> int: ...
    @property
    def in_flight_peak(self) -> int: ...
    def __enter__(self) -> PipelinedSender: ...
    def __exit__(self, *exception: object) -> None: ...

class IssuerCredential:
    """Tokens from an issuer, fetched long before the old one ends, and kept in use while the issuer is down."""

    aio: AsyncIssuerCredential
    def __init__(
        self,
        issue: Issue,
        *,
        scope: str | None = ...,
        fallback: SasCredential | None = ...,
        refresh_share: float = ...,
        issue_timeout: float = ...,
        retry_pause: float = ...,
        retry_pause_max: float = ...,
        scopes_max: int = ...,
        now_ms: Callable[[], int] | None = ...,
        chance: Callable[[], float] = ...,
    ) -> None:
        """`scope`: what the issuer is asked for, when one token is good for all entities; None: each entity's own address."""
    def close(self) -> None: ...
    def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        """A token that is valid now: the held one, a new one, or one signed by the fallback."""
    @property
    def issued(self) -> int: ...
    @property
    def last_error(self) -> BaseException | None: ...
    @property
    def signed_by_fallback(self) -> int: ...
    def __enter__(self) -> IssuerCredential: ...
    def __exit__(self, *exception: object) -> None: ...

class SasCredential:
    """Signs its own tokens with a shared key: nobody else has to be up for a send."""

    aio: AsyncSasCredential
    def __init__(self, key_name: str, key: str, *, lifetime: float = ..., now_ms: Callable[[], int] | None = ...) -> None: ...
    def close(self) -> None:
        """Nothing is held open; here because the SDK closes its credentials."""
    @classmethod
    def from_connection_string(cls, connection_string: str, **options: Any) -> SasCredential:
        """The key of a connection string."""
    def get_token(self, *scopes: str, **_: Any) -> AccessToken: ...
    def __enter__(self) -> SasCredential: ...
    def __exit__(self, *exception: object) -> None: ...
