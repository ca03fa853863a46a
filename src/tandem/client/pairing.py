"""Two namespaces paired for send availability: while an entity of the primary cannot be reached, its messages wait in the secondary."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import secrets
import uuid
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.aio.management import ServiceBusAdministrationClient

from tandem.client.backlog import Administration, Rotation, SdkAdministration, queue_name
from tandem.client.coupling import Coupling, PairSide
from tandem.client.errors import NamespaceClosedError, is_unreachable
from tandem.client.events import Callback, Counters, Event, EventHub
from tandem.client.paths import PathMonitor, PathSettings, PathStatus
from tandem.client.provisioning import Provisioner, Provisioning
from tandem.client.sdk import SdkNamespace, as_namespace
from tandem.client.sender import PairedSender
from tandem.client.session_order import SessionOrder
from tandem.client.syphon import ClientSyphonSettings, Syphon
from tandem.client.transport import namespace_label
from tandem.model.clock import SystemClock

if TYPE_CHECKING:
    from tandem.client.transport import NamespaceTransport
    from tandem.tracing import MessageSpans

Duration = datetime.timedelta | float
_ROLES: weakref.WeakKeyDictionary[ServiceBusClient, str] = weakref.WeakKeyDictionary()
"""Clients handed in, by the role they already play: one client cannot be in two pairs."""


def seconds(value: Duration) -> float:
    return value.total_seconds() if isinstance(value, datetime.timedelta) else float(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairingOptions:
    """Every setting of a pair with its default; the first five are the original feature's. Durations: timedelta or seconds."""

    backlog_queue_count: int = 10
    """At least 1; with 1 there is no alternative when that queue fails."""
    failover_interval: Duration = datetime.timedelta(minutes=1)
    """0 to 60 minutes without a success after a failure before sends are diverted; 0 diverts the very send that failed."""
    enable_syphon: bool = False
    """Run the syphon in this process. Off in senders, on in (some) receivers: each one polls every backlog queue."""
    ping_primary_interval: Duration = datetime.timedelta(minutes=1)
    """1 second to 30 minutes between pings of a path that is failed over."""
    syphon_retry_interval: Duration = datetime.timedelta(seconds=1)
    """1 second to 2 minutes before a syphon goes on after an error; it doubles while the error stays."""
    primary_namespace: str | None = None
    """The name in `<name>/x-servicebus-transfer/<i>`; the first label of the primary's host unless given. Give it for `localhost`."""
    operation_timeout: Duration = datetime.timedelta(minutes=1)
    """For sends that are given no timeout of their own."""
    ping_timeout: Duration = datetime.timedelta(minutes=2)
    creation_attempts: int = 3
    creation_pause: Duration = datetime.timedelta(seconds=30)
    destination_wait: Duration = datetime.timedelta(days=1)
    """How long the syphon waits for a destination that is missing, disabled or full before it dead-letters what is for it; 0: at once."""
    subtract_time_in_backlog: bool = False
    """Let time spent in the backlog count against a message's time-to-live. Off, as it always was: it starts again in the primary."""
    keep_session_order: bool = False
    """Messages of one session arrive in the order of their sends, outages or not. Needs Listen on the backlog queues, and a syphon."""
    paths_max: int = 10_000
    """Entity paths one pair keeps the health of."""

    def __post_init__(self) -> None:
        self._within("backlog_queue_count", self.backlog_queue_count, 1, 1_000)
        self._within("failover_interval", seconds(self.failover_interval), 0, 3_600)
        self._within("ping_primary_interval", seconds(self.ping_primary_interval), 1, 1_800)
        self._within("syphon_retry_interval", seconds(self.syphon_retry_interval), 1, 120)
        self._within("creation_attempts", self.creation_attempts, 1, 100)
        self._within("creation_pause", seconds(self.creation_pause), 0, 600)
        self._within("destination_wait", seconds(self.destination_wait), 0, 366 * 86_400)
        for name in ("operation_timeout", "ping_timeout"):
            if seconds(getattr(self, name)) <= 0:
                raise ValueError(f"{name} must be greater than 0")

    @staticmethod
    def _within(name: str, value: float, low: float, high: float) -> None:
        if not low <= value <= high:
            raise ValueError(f"{name} is {value}; allowed is {low} to {high}")


class PairedNamespaces:
    """A primary the application addresses, and a secondary that holds nothing but its backlog queues.

        async with PairedNamespaces(primary, secondary, primary_namespace="contoso") as pair:
            async with pair.get_queue_sender("orders") as sender:
                await sender.send_messages(ServiceBusMessage("…"))

    `primary` and `secondary` are connection strings or `azure.servicebus.aio.ServiceBusClient` objects. Options are the fields of
    `PairingOptions`, or one such object as `options`. Only senders made by this object are protected; receivers are the primary's own.
    With a `tracer_provider` of OpenTelemetry (True: the process's own) sends, diversions, pings and moves are traced.
    """

    def __init__(
        self,
        primary: str | ServiceBusClient | NamespaceTransport,
        secondary: str | ServiceBusClient | NamespaceTransport,
        *,
        options: PairingOptions | None = None,
        secondary_administration: ServiceBusAdministrationClient | Administration | None = None,
        unreachable: Callable[[BaseException], bool] = is_unreachable,
        on_event: Callback | None = None,
        tracer_provider: Any = None,
        sdk_options: dict[str, Any] | None = None,
        now_ms: Callable[[], int] | None = None,
        choose: Callable[[int], int] = secrets.randbelow,
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
        **fields: Any,
    ) -> None:
        if options is not None and fields:
            raise ValueError("give either options or single settings, not both")
        self.options = options or PairingOptions(**fields)
        self._sdk_options = sdk_options or {}
        self.primary = PairSide("primary", as_namespace(primary, self._sdk_options))
        self.secondary = PairSide("secondary", as_namespace(secondary, self._sdk_options))
        if self.primary.host.casefold() == self.secondary.host.casefold():
            raise ValueError(f"primary and secondary are the same namespace, {self.primary.host}")
        self._secondary_string = secondary if isinstance(secondary, str) else None
        self._administration = secondary_administration
        self.unreachable = unreachable
        self.now_ms = now_ms or SystemClock().now_ms
        self._choose = choose
        self._new_id = new_id
        self.events = EventHub(self.now_ms)
        if on_event is not None:
            self.events.subscribe(on_event)
        self.counters = Counters()
        self._tracing: MessageSpans | None = None
        if tracer_provider is not None:
            from tandem.tracing import MessageSpans

            self._tracing = MessageSpans(tracer_provider if tracer_provider is not True else None)
        self.primary_namespace = self.options.primary_namespace or namespace_label(self.primary.host)
        self.backlog_message_bytes_max = 0
        self.rotation = self._make_rotation([])
        self.order: SessionOrder | None = None
        """Which sessions are still diverted after healing; only with `keep_session_order`."""
        if self.options.keep_session_order:
            self.order = SessionOrder(self.secondary, lambda: self.rotation, self.events, new_id, self.now_ms)
        self.syphon: Syphon | None = None
        self._coupling: Coupling | None = None
        self._provisioner: Provisioner | None = None
        self._own_administration: SdkAdministration | None = None
        self._monitors: dict[str, PathMonitor] = {}
        self._senders: set[PairedSender] = set()
        self._unhook: list[Callable[[], None]] = []
        self.ends_with_primary = False
        """Whether closing the application's client of the primary closes the pair."""
        self._paired = False
        self._closed = False

    # -- pairing -------------------------------------------------------------------------------------------------------

    async def pair(self) -> int:
        """Find or create the backlog queues, start the syphon if asked to, and return how many queues are in use.

        With a secondary that cannot be reached it pairs with what it knows, and goes on asking in the background (`backlog_confirmed`).
        When it fails nothing is left behind, and it may be called again.
        """
        if self._closed:
            raise NamespaceClosedError("the pair is closed")
        if self._paired:
            raise RuntimeError("these namespaces are paired already")
        self._take_roles()
        try:
            return await self._pair()
        except BaseException:
            self._leave_roles()
            raise

    def _take_roles(self) -> None:
        sides = [(side, side.namespace) for side in (self.primary, self.secondary) if isinstance(side.namespace, SdkNamespace)]
        for side, namespace in sides:
            role = _ROLES.get(namespace.client)
            if role is not None:
                raise RuntimeError(f"the client of {side.host} is already the {role} of a pair")
        for side, namespace in sides:
            _ROLES[namespace.client] = side.name
            if not namespace.owned:
                self._unhook.append(namespace.on_close(partial(self._closed_by_application, side)))

    async def _closed_by_application(self, side: PairSide) -> None:
        self.events.tell("namespace-closed", side.host, f"the application closed its client of the {side.name}")
        side.was_closed()
        if self.ends_with_primary and side is self.primary:
            await self.close()

    def _leave_roles(self) -> None:
        while self._unhook:
            self._unhook.pop()()
        for side in (self.primary, self.secondary):
            if isinstance(side.namespace, SdkNamespace):
                _ROLES.pop(side.namespace.client, None)

    async def _pair(self) -> int:
        options = self.options
        names = [queue_name(self.primary_namespace, i) for i in range(options.backlog_queue_count)]
        administration = self._administrate()
        settings = Provisioning(attempts_max=options.creation_attempts, attempts_pause=seconds(options.creation_pause))
        self.rotation = self._make_rotation(names)
        if options.enable_syphon:
            self._make_syphon(administration)
        self._provisioner = Provisioner(self.secondary.namespace, names, administration, settings, self.events.tell, self._use_backlog)
        try:
            await self._provisioner.first()
        except BaseException:
            self._unpair()
            await self._close_administration()
            raise
        if self.order is not None:
            await self.order.look(self._provisioner.possible)  # those that cannot be used now may hold messages all the same
        self._paired = True
        if self.syphon is None and not self._provisioner.asking:
            await self._close_administration()
        count = len(self.rotation.names)
        found = f"{count} of {len(names)} backlog queues of {self.primary_namespace}" + ("" if self.backlog_confirmed else ", not seen yet")
        self.events.tell("paired", self.primary.host, f"with {self.secondary.host}, {found}")
        return count

    def _use_backlog(self, names: list[str], message_bytes_max: int) -> None:
        """The secondary has said which queues there are."""
        self.rotation = self._make_rotation(names)
        self.backlog_message_bytes_max = message_bytes_max
        if self._paired:
            self.events.tell("backlog-confirmed", self.secondary.host, f"{len(names)} backlog queues of {self.primary_namespace}")
        if self.syphon is not None:
            self.syphon.start(names)

    def _unpair(self) -> None:
        self.rotation = self._make_rotation([])
        self._provisioner = self.syphon = self._coupling = None

    @property
    def backlog_confirmed(self) -> bool:
        """False while the secondary has not been reached: what the backlog queues are called is known, not whether they are there."""
        return self._provisioner is not None and self._provisioner.confirmed

    def _administrate(self) -> Administration | None:
        """What creates queues, if there is something."""
        given = self._administration
        if isinstance(given, ServiceBusAdministrationClient):
            return SdkAdministration(given)
        if given is not None or self._secondary_string is None:
            return given
        extra: dict[str, Any] = {k: v for k, v in self._sdk_options.items() if k == "connection_verify"}
        client = ServiceBusAdministrationClient.from_connection_string(self._secondary_string, retry_total=2, **extra)
        self._own_administration = SdkAdministration(client)
        return self._own_administration

    async def _close_administration(self) -> None:
        made, self._own_administration = self._own_administration, None
        if made is not None:
            await made.close()

    def _make_rotation(self, names: list[str]) -> Rotation:
        return Rotation(names, self._choose, lambda: asyncio.get_running_loop().time(), self.events.tell)

    def _make_syphon(self, administration: Administration | None) -> None:
        self.syphon = self._parts()[2](
            self.primary,
            self.secondary,
            [],
            settings=ClientSyphonSettings(
                retry_pause=seconds(self.options.syphon_retry_interval),
                destination_wait=seconds(self.options.destination_wait),
                subtract_time_in_backlog=self.options.subtract_time_in_backlog,
            ),
            events=self.events,
            counters=self.counters,
            now_ms=self.now_ms,
            administration=administration,
            failed_over=self._failed_over,
        )
        syphon = self.syphon

        def heard(event: Event) -> None:
            if event.kind == "path-healthy":
                syphon.wake(event.path)
            elif event.kind == "path-failed-over":
                syphon.interrupt(event.path)

        self.events.subscribe(heard)
        self._coupling = Coupling(self.primary, self.secondary, self.syphon.stop, self.events.tell)

    def _parts(self) -> tuple[Callable[..., PairedSender], Callable[..., PathMonitor], Callable[..., Syphon]]:
        """What makes senders, monitors and syphons: those that trace are loaded only where somebody wants traces."""
        if self._tracing is None:
            return PairedSender, PathMonitor, Syphon
        from tandem.client.traced import TracedMonitor, TracedSender, TracedSyphon

        return partial(TracedSender, self._tracing), partial(TracedMonitor, self._tracing), partial(TracedSyphon, self._tracing)

    def _failed_over(self, path: str) -> bool:
        monitor = self._monitors.get(path.casefold())
        return monitor is not None and monitor.health.diverting

    @property
    def backlog_queue_count(self) -> int:
        """The number of backlog queues in use: those really usable, once `backlog_confirmed`; 0 before pairing."""
        return len(self.rotation.names)

    # -- senders and receivers -----------------------------------------------------------------------------------------

    def get_queue_sender(
        self, queue_name: str, *, timeout: Duration | None = None, sdk_options: dict[str, Any] | None = None
    ) -> PairedSender:
        """A protected sender; `timeout` is for its sends that give none, `sdk_options` for the SDK's sender to the primary."""
        return self._sender(queue_name, timeout, sdk_options)

    def get_topic_sender(
        self, topic_name: str, *, timeout: Duration | None = None, sdk_options: dict[str, Any] | None = None
    ) -> PairedSender:
        """The same for a topic."""
        return self._sender(topic_name, timeout, sdk_options)

    def _sender(self, path: str, timeout: Duration | None, sdk_options: dict[str, Any] | None) -> PairedSender:
        if not self._paired:
            raise RuntimeError("pair first: only senders made after pairing are protected")
        if self._closed:
            raise NamespaceClosedError("the pair is closed")
        self.primary.check()
        longest = seconds(timeout if timeout is not None else self.options.operation_timeout)
        sender = self._parts()[0](self, path, longest, sdk_options or {})
        self._senders.add(sender)
        return sender

    def forget(self, sender: PairedSender) -> None:
        self._senders.discard(sender)

    @property
    def primary_client(self) -> ServiceBusClient:
        """The SDK's client of the primary, for receiving: receivers are not protected by a pairing."""
        namespace = self.primary.namespace
        if not isinstance(namespace, SdkNamespace):
            raise TypeError("this pair was not made from SDK clients")
        return namespace.client

    def monitor(self, path: str) -> PathMonitor:
        """The health of a path (compared without case), made on first use."""
        key = path.casefold()
        monitor = self._monitors.get(key)
        if monitor is None:
            if len(self._monitors) >= self.options.paths_max:
                raise RuntimeError(f"this pair already watches {self.options.paths_max} paths (paths_max)")
            settings = PathSettings(
                failover_interval_ms=int(seconds(self.options.failover_interval) * 1000),
                ping_interval=seconds(self.options.ping_primary_interval),
                ping_timeout=seconds(self.options.ping_timeout),
            )
            monitor = self._parts()[1](path, self.primary, settings, self.events, self.counters, self._new_id, self.unreachable)
            self._monitors[key] = monitor
        return monitor

    # -- looking at it, and by hand ------------------------------------------------------------------------------------

    def state(self, path: str) -> PathStatus:
        return self._status(self.monitor(path))

    def _status(self, monitor: PathMonitor) -> PathStatus:
        status = monitor.status()
        return status if self.order is None else dataclasses.replace(status, held_sessions=self.order.held_count(monitor.path))

    def states(self) -> list[PathStatus]:
        """Every path this process has sent to, with its state."""
        return [self._status(monitor) for monitor in self._monitors.values()]

    def subscribe(self, callback: Callback) -> Callable[[], None]:
        """Hear of every change: `callback(event)`, on the loop. Returns what ends it."""
        return self.events.subscribe(callback)

    async def mark_path_healthy(self, path: str) -> None:
        """Declare a path healthy: its next sends go to the primary."""
        self.monitor(path).mark_healthy()

    async def fail_over(self, path: str, *, hold: bool = False) -> None:
        """Divert a path now, for a drill. Pings bring it back when the primary answers, unless held until `mark_path_healthy`."""
        self.monitor(path).fail_over(hold)

    # -- the end -------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> PairedNamespaces:
        try:
            await self.pair()
        except BaseException:
            await self._release(secondary_too=True)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close senders, pings, syphon and the namespaces that were made here. A syphon's secondary is closed in any case."""
        if self._closed:
            return
        self._closed = True
        if self._provisioner is not None:
            self._provisioner.stop()
        for monitor in self._monitors.values():
            monitor.stop()
        if self.order is not None:
            self.order.stop()
        for sender in tuple(self._senders):
            await sender.close()
        if self.syphon is not None:
            await self.syphon.stop()
        if self._coupling is not None:
            await self._coupling.end()
        await self._close_administration()
        self._leave_roles()
        await self._release(secondary_too=self.syphon is not None)

    def when_closed(self, told: Callable[[], None]) -> None:
        """Call this when the pair closes."""
        self._unhook.append(told)

    async def _release(self, secondary_too: bool) -> None:
        for side in (self.primary, self.secondary):
            if side.ours or (secondary_too and side is self.secondary and self.syphon is not None):
                await side.close()
