"""A broker: its namespaces, its stores and its listeners, wired and driven by one event loop."""

from __future__ import annotations

import asyncio
import functools
import importlib
import os
import socket
import ssl
import uuid
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from tandem.broker.entities.namespace import Namespace
from tandem.broker.ports import Journal
from tandem.broker.recovery.unplugged import Elsewhere
from tandem.cluster.peers import ClusterNode
from tandem.gateway.amqp.attach import attach_here
from tandem.gateway.amqp.carrier import LinkCarrier
from tandem.gateway.amqp.faulty import FaultyPump
from tandem.gateway.amqp.moving import TakingOver
from tandem.gateway.amqp.peer_requests import PeerChannels
from tandem.gateway.amqp.pump import AmqpPump, PeerPump
from tandem.gateway.fragment_owners import FragmentOwners
from tandem.gateway.http.data import DataPlane
from tandem.gateway.http.spread_data import SpreadData
from tandem.gateway.http.types import HttpNamespace, note_refused
from tandem.gateway.translate import Translator
from tandem.model.clock import Clock, SystemClock
from tandem.model.errors import BusError, shutting_down
from tandem.server.administration import Catalog, NamespaceAdmin
from tandem.server.audit import Audit, no_audit
from tandem.server.catalog_follower import CatalogFollower
from tandem.server.client_reports import ClientReports
from tandem.server.context import NamespaceContext
from tandem.server.draining import Drained, drain
from tandem.server.fault_points import FaultPoints
from tandem.server.faults import Faults
from tandem.server.following import FollowingAdmin, LeadingAdmin, NodeAdmin
from tandem.server.history import NamespaceHistory
from tandem.server.idle_entities import IdleEntities
from tandem.server.metadata_watch import metadata_watch
from tandem.server.meter_roller import MeterRoller
from tandem.server.open_files import no_file_for_connection
from tandem.server.settings import NamespaceSettings, ServerSettings
from tandem.server.shared_stores import EngineCatalog, SharedStores, TakenStore
from tandem.server.state_changes import StateChanges
from tandem.server.store_supervisor import StoreSupervisor
from tandem.server.tracking import Tracker
from tandem.server.turn_driver import TurnDriver
from tandem.tracing import MessageSpans
from tandem.wire.sniff import Doors, SniffProtocol
from tandem.wire.splice import Splice, SplicedDoor

if TYPE_CHECKING:
    from tandem.cluster.node import HeldStore, Node
    from tandem.cluster.wishes import ClusterWishes
    from tandem.gateway.http.front import HttpFront
    from tandem.gateway.http.onward import Onward
    from tandem.server.meter_roller import MeterFiles
    from tandem.server.reloading import Reloaded
    from tandem.tokens.trust import TrustedIssuer
    from tandem.tokens.verifier import TokenVerifier


class Engines(Protocol):
    """Opens what remembers. `stores` has engines on disk and in memory; the composition root chooses."""

    def open_catalog(self, namespace: str, store_count: int) -> Catalog:
        """Before its journals: they belong to it."""
        ...

    def open_journal(self, namespace: str, index: int, loop_call: Callable[[Callable[[], None]], None]) -> Journal: ...

    def open_meters(self, namespace: str, index: int) -> MeterFiles: ...

    def set_faults(self, namespace: str, index: int, *, down: bool, failing: bool, full: bool, sync_delay_ms: int) -> None: ...


_CONNECTIONS_TOLD: Final = 100
"""Beyond `connections_max`: these hear why they are refused, further ones are hung up on."""


def _no_log(text: str) -> None:
    """The operator is told nothing."""


def _no_events(event: dict[str, Any]) -> None:
    """State changes are kept in memory only."""


class Server:
    """One broker. `start` returns when it serves; `stop` when everything accepted is on disk."""

    def __init__(
        self,
        settings: ServerSettings,
        engines: Engines,
        *,
        clock: Clock | None = None,
        real_time: bool = True,
        connection_clock: Clock | None = None,
        log: Callable[[str], None] = _no_log,
        warn: Callable[[str], None] | None = None,
        audit: Audit = no_audit,
        tracing: MessageSpans | None = None,
        on_event: Callable[[dict[str, Any]], None] = _no_events,
        tls: ssl.SSLContext | None = None,
        entropy: Callable[[int], bytes] = os.urandom,
        cluster: ClusterNode | None = None,
        node: Node | None = None,
    ) -> None:
        self.settings = settings
        self.node = node
        """None: its stores are its own, for ever."""
        self.cluster = cluster
        """None: this broker is all there is."""
        self.wishes: ClusterWishes | None = None
        """Whoever started us: how operators of a cluster are obeyed."""
        self._faults_allowed = settings.faults or settings.dev
        self.entropy = entropy
        """n -> n bytes that nobody can foresee."""
        self.clock: Clock = clock or SystemClock()
        self._connection_clock: Clock = connection_clock or self.clock
        self.contexts: list[NamespaceContext] = []
        self.admins: list[NamespaceAdmin] = []
        self.ports: list[int] = []
        self.supervisors: list[StoreSupervisor] = []
        self.meters: list[MeterRoller] = []
        self.histories: list[NamespaceHistory] = []
        self.reports: list[ClientReports] = []
        self._data: list[DataPlane] = []
        self._front: HttpFront | None = None
        self._http_namespaces: list[HttpNamespace] = []
        self._engines = engines
        self._log = log
        self._warn = warn or log
        self._audit = audit
        self._tracing = tracing
        self._tls = tls
        self._tokens: TokenVerifier | None = None
        self.fetch_keys: Callable[[TrustedIssuer], Awaitable[bytes]] | None = None
        """Before `start`: how the keys of a trusted issuer are had, if not by HTTP or from a file."""
        self.on_reload: Callable[[], Awaitable[dict[str, Any]]] | None = None
        """Whoever started us: reads the configuration again and calls `reload`."""
        self.onward: Onward | None = None
        self._reloaded: Reloaded | None = None
        """What came of it the last time."""
        self._listeners: list[asyncio.Server] = []
        self._taking_over: TakingOver | None = None
        self._lobby: set[SniffProtocol] = set()
        self.driver = TurnDriver(self.clock, self._connection_clock, settings.limits.ingress_bytes_in_flight_max, real_time)
        self.turn = self.driver.turn
        self.events = StateChanges(self.turn, on_event)
        self.driver.on_jump = self._clock_jumped
        self.clock_jumps = 0
        """How often the machine's clock was set while we ran."""
        self.loop_lag = self.driver.loop_lag

    # -- life --------------------------------------------------------------------------------

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self.driver.start(loop)
        if self.settings.trusted_issuers:
            from tandem.server.trusted_issuers import open_verifier

            self._tokens = open_verifier(self.settings, self._connection_clock, self._log, self._drop_revoked, self.fetch_keys)
            await self._tokens.start()
        for namespace in self.settings.namespaces:
            await self._open_namespace(namespace)
        if self.node is not None:
            self.node.start(self.driver.hand_over)
            self.turn.guard = self.node.check
            for supervisor in self.supervisors:
                await supervisor.open_ours()
        for listener in self.settings.listeners:
            server = await loop.create_server(self._sniffer, listener.host, listener.port, backlog=4096)
            self._listeners.append(server)
            self.ports.append(server.sockets[0].getsockname()[1])
        if self.cluster is not None:
            self._listeners += await self._listen_for_peers(self.cluster)
        self.events.record("broker", "started", "")
        self.driver.start_housekeeping(self.settings.housekeeping_ms / 1000)
        self._loading = loop.run_in_executor(None, importlib.import_module, "tandem.gateway.http.front")

    async def reload(self, settings: ServerSettings, tls: ssl.SSLContext | None) -> Reloaded:
        """Take over what can be changed while it runs."""
        from tandem.server.reloading import Reloaded, reload_namespace, split_settings

        old, told = self.settings, Reloaded.after(self._reloaded)
        self._reloaded = told
        self.settings = settings = split_settings(old, settings, told)
        self._tls = tls
        for context, admin in zip(self.contexts, self.admins, strict=True):
            context.use_limits(settings.limits)
            admin.use_limits(settings.limits)
        if self._front is not None:
            self._front.use_limits(settings.limits)
        for number, (context, admin) in enumerate(zip(self.contexts, self.admins, strict=True)):
            entities_too = self.cluster is None or self.cluster.administers
            await reload_namespace(context, admin, old.namespaces[number], settings.namespaces[number], told, entities_too)
        return told

    def use_certificate(self, tls: ssl.SSLContext) -> None:
        """For connections from now on."""
        self._tls = tls

    async def drain(self) -> Drained:
        """Before `stop`: what clients have in hand is finished, for `drain_seconds` at most, and nothing new begins."""
        self._stop_listening()
        self.events.record("broker", "draining", "")
        return await drain(self.contexts, self.driver.journals, self.driver.run_turn, self.settings.drain_seconds)

    def _stop_listening(self) -> None:
        for listener in self._listeners:
            listener.close()
        if self._taking_over is not None:
            self._taking_over.close()
            self._taking_over = None

    async def _listen_for_peers(self, cluster: ClusterNode) -> list[asyncio.Server]:
        loop = asyncio.get_running_loop()

        def pump() -> PeerPump:
            return PeerPump(self._context_named, cluster.config_from(self.settings.limits, self.entropy), self.driver.backpressure)

        def sniffer() -> SniffProtocol:
            return SniffProtocol(Doors(amqp=pump, http=lambda: self._http().protocol_factory()))

        listening: list[asyncio.Server] = []
        if cluster.listen.startswith("unix:"):
            listening.append(await loop.create_unix_server(sniffer, cluster.listen.removeprefix("unix:"), backlog=4096))
        else:
            host, _, port = cluster.listen.rpartition(":")
            listening.append(await loop.create_server(sniffer, host.strip("[]"), int(port), backlog=4096))
        if cluster.http and cluster.administers:
            door = functools.partial(SplicedDoor, lambda: self._http().protocol_factory())
            listening.append(await loop.create_unix_server(door, cluster.http, backlog=4096))
        if cluster.moving:
            path = f"{cluster.moving}/{cluster.node}.move"
            self._taking_over = TakingOver(path, lambda: self._pump(False), self.driver.run_turn)
        return listening

    async def take(self, accepted: socket.socket) -> None:
        """A connection that somebody else accepted for us."""
        await asyncio.get_running_loop().connect_accepted_socket(self._sniffer, accepted)

    async def stop(self) -> None:
        self._stop_listening()
        self.events.record("broker", "stopped", "")
        leaving = shutting_down()
        for context in self.contexts:
            for client in list(context.connections):
                client.close(leaving)
        self.driver.run_turn()
        if self._front is not None:
            await self._front.close()
        if self._tokens is not None:
            await self._tokens.close()
        self.driver.stop_housekeeping()
        for context in self.contexts:
            await context.drain()
        self.driver.run_turn()
        for meters in self.meters:
            await meters.close()
        self.driver.stop()
        for journal in self.driver.journals:
            journal.close()  # on the loop: what still waits for the disk is answered from here
        for admin in self.admins:
            admin.close()
        if self.node is not None:
            self.node.stop()

    async def _open_namespace(self, wanted: NamespaceSettings) -> None:
        settings = self.settings
        cluster = self.cluster
        ownership = cluster.ownership(wanted.name) if cluster is not None else None
        translator = Translator(self._new_uuid, settings.limits.header_bytes_max, lambda: self.turn.now)
        namespace = Namespace(wanted.name, self.turn, settings.limits, translator, lambda: int.from_bytes(self.entropy(8), "big"))
        catalog = self._engines.open_catalog(wanted.name, settings.stores.count)
        namespace.locks_outlive_connections = wanted.locks_outlive_connections
        journals: list[Journal] = []
        for index in range(settings.stores.count):
            if self.node is None and ownership is not None and not ownership.here(index):
                namespace.attach_store(Elsewhere("another node serves it")).available = False
                continue
            journal = self._engines.open_journal(wanted.name, index, self.driver.hand_over)
            namespace.attach_store(journal)
            self.driver.add_journal(journal)
            journals.append(journal)
        context = NamespaceContext(
            namespace,
            self.turn,
            translator,
            Tracker(wanted.name, settings.node, self.entropy),
            settings.limits,
            self._log,
            self._connection_clock,
            self._warn,
            self._audit,
            self._tracing,
            self._tokens,
            self.connection_count,
        )
        admin = NamespaceAdmin(context, catalog, settings.stores.fragments)
        spread: FragmentOwners | None = None
        if cluster is not None and ownership is not None:
            ask = PeerChannels(context, cluster, ownership, self.entropy).ask
            context.carrier = carrier = LinkCarrier(context, cluster, ownership, self.driver.backpressure, self.entropy, attach_here, ask)
            spread = carrier.spread
            if cluster.administrator:
                made = LeadingAdmin if cluster.administers else FollowingAdmin
                admin = made(context, catalog, settings.stores.fragments, cluster, ownership, ask)
            elif self.node is not None:
                admin = NodeAdmin(context, catalog, settings.stores.fragments, cluster, self.node.ownership(wanted.name), ask)
        context.admin = admin
        keeper = self._share(context, admin, catalog, journals)
        await admin.load(wanted)
        namespace.replay()
        self.contexts.append(context)
        self.admins.append(admin)
        self._data.append(DataPlane(context, admin) if spread is None else SpreadData(context, admin, spread))
        stall_ms = settings.cluster.stall_deadline_ms if settings.cluster is not None else settings.stores.stall_deadline_ms
        supervisor = StoreSupervisor(context, stall_ms, functools.partial(self.events.record, namespace=wanted.name), keeper)
        supervisor.tell_opening()
        self.supervisors.append(supervisor)
        files = [self._engines.open_meters(wanted.name, index) for index in range(settings.stores.count)]
        self.meters.append(MeterRoller(namespace, files, context.spawn, self._warn))
        self.histories.append(NamespaceHistory(context, settings.data_dir, self.loop_lag))
        self.reports.append(ClientReports())
        if self._faults_allowed:
            faults = Faults(self._chance, settings.stores.count)
            apply_store_faults = functools.partial(supervisor.apply_faults, faults, self._engines.set_faults)
            context.fault_points = FaultPoints(namespace, faults, context.connections, self._log, apply_store_faults)
            self.driver.chores.append(context.fault_points)
        self.driver.contexts.append(context)
        self.driver.chores.extend((supervisor, self.meters[-1], IdleEntities(context), self.histories[-1]))
        self.driver.chores.extend(metadata_watch(context, catalog, settings.data_dir, cluster))

    def _share(self, context: NamespaceContext, admin: NamespaceAdmin, catalog: Catalog, journals: list[Journal]) -> SharedStores | None:
        """In a cluster: other nodes change the catalog too, and a journal is opened when it is this node's turn."""
        node = self.node
        if node is None:
            return None
        name = context.namespace.name
        shared = cast("EngineCatalog", catalog)
        follower = admin.follower = CatalogFollower(context, shared)
        node.stores.update({(name, index): cast("HeldStore", journal) for index, journal in enumerate(journals)})
        context.look_again = admin.follow
        node.on_takeover = self.events.record

        def beaten() -> None:
            shared.give_up_after(node.lease_ms)
            if node.membership.view.revisions.get(name, 0) != follower.revision:
                context.spawn(admin.follow())

        node.on_beat.append(beaten)
        node.on_notice.append(lambda: context.spawn(admin.follow()))
        return SharedStores(node, name, cast("list[TakenStore]", journals), follower, context, self.driver.check_clock)

    def _new_uuid(self) -> uuid.UUID:
        return uuid.UUID(bytes=self.entropy(16), version=4)

    def _chance(self) -> float:
        """A number in [0, 1) that nobody can foresee."""
        return int.from_bytes(self.entropy(4), "big") / 0x1_0000_0000

    def _sniffer(self) -> asyncio.Protocol:
        return SniffProtocol(
            Doors(
                amqp=self._amqp_pump,
                http=self._http_peer,
                tls=self._tls,
                silent_ms_max=self.settings.limits.handshake_ms_max,
                on_dropped=self._log,
                full=self._full,
                lobby=self._lobby,
            )
        )

    def _amqp_pump(self) -> asyncio.Protocol:
        return self._pump(self.cluster is not None and bool(self.cluster.moving))

    def _pump(self, movable: bool) -> AmqpPump:
        pump = FaultyPump if self._faults_allowed else AmqpPump
        known_as = self.cluster.broker if self.cluster is not None and self.cluster.broker else self.settings.node
        return pump(self._context_of, f"tandem-{known_as}", self.driver.backpressure, movable)

    def _http_peer(self) -> asyncio.Protocol:
        cluster = self.cluster
        return Splice(cluster.http) if cluster is not None and not cluster.administers else self._http().protocol_factory()

    def _http(self) -> HttpFront:
        """Made with the first HTTP connection: what it needs is loaded after `ready`, beside the first turns."""
        if self._front is None:
            from tandem.gateway.http.api.front import ConsoleApi
            from tandem.gateway.http.front import HttpFront
            from tandem.gateway.http.joined_pages import JoinedPages
            from tandem.gateway.http.pages import OperatorPages

            self._http_namespaces = [self._open_to_http(number) for number in range(len(self.contexts))]
            onward = self.onward = self._onward()
            self._front = HttpFront(
                namespace_for=self._http_namespace,
                amqp=self._amqp_pump,
                limits=self.settings.limits,
                clock=self.clock,
                entropy=self.entropy,
                known_hosts=self._known_hosts() if self.settings.dev else None,
                onward=onward,
            )
            if onward is not None and self.cluster is not None and self.cluster.others:
                JoinedPages(self, onward, self.cluster.node).install(self._front)
            else:
                OperatorPages(self).install(self._front)
            ConsoleApi(self).install(self._front)
        return self._front

    def _onward(self) -> Onward | None:
        if (cluster := self.cluster) is None:
            return None
        from tandem.gateway.http.onward import Onward

        others = self.node.membership.others_to_ask if self.node is not None else lambda: cluster.others
        return Onward(self.contexts, self.namespace_of, cluster.ownership, others)

    def _known_hosts(self) -> frozenset[str]:
        """Under which a development broker may be reached over HTTP."""
        settings = self.settings
        names = ["localhost", "127.0.0.1", "::1", *settings.known_hosts, *(listener.host for listener in settings.listeners)]
        return frozenset(name.casefold() for name in [*names, *(host for space in settings.namespaces for host in space.hosts)])

    def _context_of(self, host: str) -> NamespaceContext:
        return self.contexts[self.namespace_of(host)]

    def _context_named(self, name: str) -> NamespaceContext:
        """By the namespace's own name: other nodes know it."""
        return next((context for context in self.contexts if context.namespace.name == name), self.contexts[0])

    def _http_namespace(self, host: str) -> HttpNamespace | None:
        return self._http_namespaces[self.namespace_of(host)]

    def _open_to_http(self, number: int) -> HttpNamespace:
        from tandem.relay.namespace import RelayNamespace

        context, admin = self.contexts[number], self.admins[number]

        def describe(error: BusError, entity: str) -> str:
            return context.tracker.describe(error, entity, context.connection_clock.now_ms())

        relay = RelayNamespace(
            name=self.settings.namespaces[number].name,
            relays=context.relays,
            clock=context.connection_clock,
            authorize=admin.authorized_until,
            describe=describe,
            note_refused=note_refused,
        )

        def audited(action: str, token: str, peer: str, what: str, detail: str) -> None:
            context.audited(action, context.authority.holder_of(token), peer, what, detail)

        return HttpNamespace(
            admin=admin, data=self._data[number], tracker=context.tracker, relay=relay, relays=admin.relays, audited=audited
        )

    def namespace_of(self, host: str) -> int:
        """Which namespace a host name leads to: the one that claims it, else the first."""
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        for number, namespace in enumerate(self.settings.namespaces):
            if name.casefold() in (claimed.casefold() for claimed in namespace.hosts):
                return number
        return 0

    def connection_count(self) -> int:
        """AMQP connections over all namespaces."""
        return sum([len(context.connections) for context in self.contexts])

    def _full(self, descriptor: int) -> str:
        """Too many even to be told so: with those that have not said yet what they speak, and those that speak HTTP."""
        served = self.connection_count() + (self._front.connection_count() if self._front is not None else 0)
        is_full = served + len(self._lobby) >= self.settings.limits.connections_max + _CONNECTIONS_TOLD
        return no_file_for_connection(descriptor) or ("there are too many connections" if is_full else "")

    # -- turns -------------------------------------------------------------------------------

    def _clock_jumped(self, by_ms: int) -> None:
        self.clock_jumps += 1
        way = f"{abs(by_ms)} ms {'ahead' if by_ms > 0 else 'back'}"
        self._log(f"the clock of this machine was set {way}: locks and times to live last as before, schedules and tokens follow it")
        self.events.record("clock", "set", way)

    def _drop_revoked(self) -> None:
        self.turn.begin()
        for context in self.contexts:
            for connection in list(context.connections):
                connection.drop_revoked()
            context.relays.look_at_tokens_again()
