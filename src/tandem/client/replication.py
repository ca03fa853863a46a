"""The same entity in two namespaces: active replication sends every message to both, passive to one at a time, switching when it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import OperationTimeoutError

from tandem.client.errors import BothNamespacesUnavailableError, NamespaceClosedError, describe, is_unreachable
from tandem.client.events import Callback, EventHub
from tandem.client.receiver import DuplicateSuppressingReceiver, ReceiverSettings, message_id_of
from tandem.client.sdk import as_namespace
from tandem.client.sdk_codec import ensure_message_id
from tandem.model.clock import SystemClock

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusReceivedMessage
    from azure.servicebus.aio import ServiceBusClient

    from tandem.client.dedup import SeenIds
    from tandem.client.transport import NamespaceTransport, Outgoing, Sender


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Which namespaces stored the message, by host, and what the others answered."""

    accepted: tuple[str, ...]
    errors: Mapping[str, BaseException]

    @property
    def by_both(self) -> bool:
        return not self.errors


@dataclass(slots=True)
class ReplicationCounters:
    sent: int = 0
    sent_to_one_only: int = 0
    failed: int = 0
    role_switches: int = 0

    def accept(self, by_both: bool = True) -> None:
        self.sent += 1
        if not by_both:
            self.sent_to_one_only += 1

    def fail(self) -> None:
        """Neither namespace took it."""
        self.failed += 1

    def switch_roles(self) -> None:
        self.role_switches += 1


def outgoing(message: Any) -> Outgoing | None:
    """A message in a form that can be sent twice under one id; None if there is nothing to send."""
    if isinstance(message, (ServiceBusMessage, AmqpAnnotatedMessage)):
        ensure_message_id(message)
        return message
    if isinstance(message, ServiceBusMessageBatch):
        # It is encoded already: where ids are missing, it is packed again with them.
        return message if all(map(_identified, message._messages)) else outgoing(list(message._messages))
    if isinstance(message, Mapping):
        return outgoing(ServiceBusMessage(**message))
    if isinstance(message, Iterable) and not isinstance(message, str):
        singles: list[Any] = [outgoing(one) for one in message]
        return singles or None
    raise TypeError(
        f"messages are ServiceBusMessage, AmqpAnnotatedMessage, mappings, or lists or batches of them, not {type(message).__name__}"
    )


def _identified(message: ServiceBusMessage) -> bool:
    return message.message_id is not None


class _Replication:
    """What both patterns share: two namespaces, receivers that suppress duplicates, events."""

    def __init__(
        self,
        first: str | ServiceBusClient | NamespaceTransport,
        second: str | ServiceBusClient | NamespaceTransport,
        *,
        operation_timeout: float = 60.0,
        unreachable: Callable[[BaseException], bool] = is_unreachable,
        on_event: Callback | None = None,
        sdk_options: dict[str, Any] | None = None,
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        self.namespaces: tuple[NamespaceTransport, NamespaceTransport] = (
            as_namespace(first, sdk_options),
            as_namespace(second, sdk_options),
        )
        if self.namespaces[0].host.casefold() == self.namespaces[1].host.casefold():
            raise ValueError(f"both are the same namespace, {self.namespaces[0].host}")
        self.operation_timeout = operation_timeout
        self.unreachable = unreachable
        self.now_ms = now_ms or SystemClock().now_ms
        self.events = EventHub(self.now_ms)
        if on_event is not None:
            self.events.subscribe(on_event)
        self.counters = ReplicationCounters()
        self._closed = False

    def get_queue_receiver(
        self,
        queue_name: str,
        *,
        session_id: str | None = None,
        max_wait_time: float | None = None,
        seen: SeenIds | None = None,
        identify: Callable[[ServiceBusReceivedMessage], str | None] = message_id_of,
        settings: ReceiverSettings | None = None,
    ) -> DuplicateSuppressingReceiver:
        """Listen to the queue in both namespaces; each message is handed out once. With `seen` the memory can outlive the process."""
        self.check_open()
        if session_id is not None and not isinstance(session_id, str):
            raise ValueError("give the session id itself: the next available one may differ between the namespaces")
        receivers = [namespace.receiver(queue_name, session_id=session_id) for namespace in self.namespaces]
        return DuplicateSuppressingReceiver(
            receivers, seen=seen, identify=identify, max_wait_time=max_wait_time, now_ms=self.now_ms, settings=settings
        )

    def get_subscription_receiver(self, topic_name: str, subscription_name: str, **options: Any) -> DuplicateSuppressingReceiver:
        return self.get_queue_receiver(f"{topic_name}/Subscriptions/{subscription_name}", **options)

    def check_open(self) -> None:
        if self._closed:
            raise NamespaceClosedError("the replication is closed")

    async def close(self) -> None:
        """Close what was made here; clients passed in stay open."""
        self._closed = True
        for namespace in self.namespaces:
            if getattr(namespace, "owned", True):
                await namespace.close()

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class ActiveReplication(_Replication):
    """Every message goes to both namespaces under one id. A send fails only if both fail. Twice the operations, no gap in an outage."""

    def __init__(self, *namespaces: Any, laggard_timeout: float = 5.0, **options: Any) -> None:
        """`laggard_timeout`: seconds the slower namespace gets once the faster one has accepted."""
        super().__init__(*namespaces, **options)
        self.laggard_timeout = laggard_timeout

    async def __aenter__(self) -> ActiveReplication:
        return self

    def get_queue_sender(self, queue_name: str) -> ActiveSender:
        self.check_open()
        return ActiveSender(self, queue_name)

    def get_topic_sender(self, topic_name: str) -> ActiveSender:
        return self.get_queue_sender(topic_name)


class _TwoSenders:
    def __init__(self, replication: _Replication, path: str) -> None:
        self._senders: tuple[Sender, Sender] = (replication.namespaces[0].sender(path), replication.namespaces[1].sender(path))
        self._hosts = (replication.namespaces[0].host, replication.namespaces[1].host)
        self._default_timeout = replication.operation_timeout
        self.entity_name = path

    def _seconds(self, timeout: float | None) -> float:
        if timeout is not None and timeout <= 0:
            raise ValueError("The timeout must be greater than 0.")
        return self._default_timeout if timeout is None else timeout

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        for sender in self._senders:
            await sender.close()


class ActiveSender(_TwoSenders):
    """Sends to the same entity of both namespaces at the same time."""

    def __init__(self, replication: ActiveReplication, path: str) -> None:
        super().__init__(replication, path)
        self._replication = replication

    async def __aenter__(self) -> ActiveSender:
        return self

    async def send_messages(self, message: Any, *, timeout: float | None = None) -> Acceptance:
        """Returns which namespaces stored it (at least one); raises BothNamespacesUnavailableError with both causes otherwise."""
        prepared = outgoing(message)
        if prepared is None:
            return Acceptance((), {})
        seconds = self._seconds(timeout)
        tasks = [asyncio.ensure_future(sender.send(prepared, seconds)) for sender in self._senders]
        try:
            errors = await self._outcomes(tasks)
        finally:
            for task in tasks:
                task.cancel()
        accepted = tuple(host for host in self._hosts if host not in errors)
        counters = self._replication.counters
        if not accepted:
            counters.fail()
            causes = [errors[host] for host in self._hosts]
            raise BothNamespacesUnavailableError(
                f"neither namespace took a message for {self.entity_name}: " + "; ".join(describe(cause) for cause in causes), causes
            ) from causes[-1]
        counters.accept(not errors)
        if errors:
            (host,) = errors
            self._replication.events.tell("one-copy-only", self.entity_name, f"{host}: {describe(errors[host])}", errors[host])
        return Acceptance(accepted, errors)

    async def _outcomes(self, tasks: Sequence[asyncio.Future[None]]) -> dict[str, BaseException]:
        pending: set[asyncio.Future[None]] = set(tasks)
        while pending:
            accepted = any(task.done() and task.exception() is None for task in tasks)
            wait = self._replication.laggard_timeout if accepted else None
            done, pending = await asyncio.wait(pending, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                break
        errors: dict[str, BaseException] = {}
        for host, task in zip(self._hosts, tasks, strict=True):
            if not task.done():
                errors[host] = OperationTimeoutError(
                    message=f"{host} did not answer within {self._replication.laggard_timeout:.3g} s of the other"
                )
            elif (error := task.exception()) is not None:
                errors[host] = error
        return errors


class ReplicaRoles:
    """Which of the two is active. Switching is compare-and-set: of many sends that fail together, one switches."""

    __slots__ = ("active", "version")

    def __init__(self, active: int = 0) -> None:
        self.active = active
        self.version = 0

    def switch(self, version: int) -> bool:
        """Swap the roles if they are still those of `version`."""
        if version != self.version:
            return False
        self.active = 1 - self.active
        self.version += 1
        return True


class PassiveReplication(_Replication):
    """Messages go to the active namespace; one that fails to be reached hands its role to the backup. As cheap as no replication.

    A message accepted before an outage is delayed by it (lost in a disaster) while later ones flow; a send whose answer was lost is
    repeated to the other namespace: receive with `get_queue_receiver`, which hands the two copies out once.
    """

    def __init__(self, *namespaces: Any, **options: Any) -> None:
        super().__init__(*namespaces, **options)
        self._roles: dict[str, ReplicaRoles] = {}

    async def __aenter__(self) -> PassiveReplication:
        return self

    def roles(self, path: str) -> ReplicaRoles:
        """The roles for one path, shared by all its senders."""
        return self._roles.setdefault(path.casefold(), ReplicaRoles())

    def active_host(self, path: str) -> str:
        return self.namespaces[self.roles(path).active].host

    def get_queue_sender(self, queue_name: str) -> PassiveSender:
        self.check_open()
        return PassiveSender(self, queue_name)

    def get_topic_sender(self, topic_name: str) -> PassiveSender:
        return self.get_queue_sender(topic_name)


class PassiveSender(_TwoSenders):
    """Sends to the active namespace, or to the backup if that cannot be reached; roles switch only if the backup accepted."""

    def __init__(self, replication: PassiveReplication, path: str) -> None:
        super().__init__(replication, path)
        self._replication = replication
        self._roles = replication.roles(path)

    async def __aenter__(self) -> PassiveSender:
        return self

    async def send_messages(self, message: Any, *, timeout: float | None = None) -> str:
        """Returns the host that stored the message. If both fail the roles stay as they are, and the error has both causes."""
        prepared = outgoing(message)
        roles = self._roles
        active, version = roles.active, roles.version
        if prepared is None:
            return self._hosts[active]
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._seconds(timeout)
        try:
            await self._senders[active].send(prepared, (deadline - loop.time()) / 2)
        except Exception as error:
            if not self._replication.unreachable(error):
                raise
            await self._send_to_backup(prepared, 1 - active, version, max(0.001, deadline - loop.time()), error)
            active = 1 - active
        self._replication.counters.accept()
        return self._hosts[active]

    async def _send_to_backup(self, prepared: Outgoing, backup: int, version: int, left: float, cause: BaseException) -> None:
        try:
            await self._senders[backup].send(prepared, left)
        except Exception as error:
            self._replication.counters.fail()
            raise BothNamespacesUnavailableError(
                f"neither namespace took a message for {self.entity_name}: {describe(cause)}; {describe(error)}", (cause, error)
            ) from error
        if self._roles.switch(version):
            self._replication.counters.switch_roles()
            self._replication.events.tell("roles-switched", self.entity_name, f"{self._hosts[backup]} is active: {describe(cause)}", cause)
