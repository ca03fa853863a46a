"""Finds the node that has an entity and attaches a client's link there; holds the attach while the store is between two owners."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol, cast

from tandem.amqp.connection import Connection
from tandem.amqp.link import ATTACH_RECEIVED, Link, ReceiverLink, SenderLink
from tandem.amqp.types import Symbol
from tandem.broker.entities.partitioned import PARTITIONED, PartitionedQueue
from tandem.cluster.ownership import Ownership
from tandem.cluster.peers import RIGHTS_PROPERTY, ClusterNode, unfit_version
from tandem.gateway.amqp.attach import SESSION_FILTER
from tandem.gateway.amqp.carrying import CarriedConnection, CarriedLink, CarriedReceiving, CarriedRequests, CarriedSending
from tandem.gateway.amqp.connection import PeerConnection
from tandem.gateway.amqp.management import ManagementNode
from tandem.gateway.amqp.moving import move
from tandem.gateway.amqp.pump import TransportWriter
from tandem.gateway.amqp.receiving import Receiving
from tandem.gateway.amqp.recording import Recording
from tandem.gateway.amqp.spread import Spread
from tandem.gateway.amqp.spread_receiving import SpreadReceiving
from tandem.gateway.amqp.spread_requests import SpreadManagement
from tandem.gateway.amqp.spread_sending import SpreadSending
from tandem.gateway.fragment_owners import Ask
from tandem.gateway.something_ready import answer_awaits
from tandem.gateway.waiting import to_the_end
from tandem.model.address import Address
from tandem.model.entity import Right
from tandem.model.errors import BusError, StoreUnavailable
from tandem.server.backpressure import Backpressure
from tandem.server.context import NamespaceContext

HOLD_MS: Final = 10_000
"""An attach waits so long for an owner; then it is refused, retryably."""
_LOOK_AGAIN_SECONDS: Final = 0.2
_CONNECT_SECONDS: Final = 2.0


class AttachHere(Protocol):
    def __call__(self, connection: PeerConnection, link: Link, address: Address, right: Right) -> None: ...


class LinkCarrier:
    """Of one namespace of one node of a cluster."""

    def __init__(
        self,
        context: NamespaceContext,
        cluster: ClusterNode,
        ownership: Ownership,
        backpressure: Backpressure,
        entropy: Callable[[int], bytes],
        attach_here: AttachHere,
        ask: Ask,
    ) -> None:
        self._context = context
        self._cluster = cluster
        self._ownership = ownership
        self._backpressure = backpressure
        self._entropy = entropy
        self._attach_here = attach_here
        self._changed = asyncio.Event()
        self.moved = 0
        """Connections that went to another worker as a whole."""
        self._told: dict[str, str] = {}
        """By node what the operator was told last about connecting to it."""
        self._opening: dict[tuple[PeerConnection, str], asyncio.Future[CarriedConnection]] = {}
        self.spread = Spread(context, ownership, self._continued, self._carry_to, ask)
        answer_awaits(context)
        ownership.subscribe(self._owner_changed)

    def takes(self, connection: PeerConnection, link: Link, address: Address, right: Right) -> bool:
        """Is the entity elsewhere? Then the link is carried there: it is answered when its owner has. Its claim is checked already."""
        recording = connection.recording
        if isinstance(recording, Recording) and recording.frozen:
            recording.later.append((link, address, right))  # said there again, if the connection is moved
            return True
        store = self._context.namespace.store_of(address)
        if store == PARTITIONED:
            front = self._context.namespace.front(address)
            if front is not None and self._is_spread(front):
                connection.recording = None  # it is as well placed here as anywhere
                self.spread.attach(connection, link, address, right, front)
                return True
            store = 0 if front is not None else None
        if store is None or self._ownership.here(store):
            connection.recording = None
            return False
        if isinstance(recording, Recording) and not connection.links and not connection.carried:
            recording.frozen = True
            connection.writer.hold_reading(True)
            self._context.spawn(self._move(connection, recording, link, address, right, store))
        else:
            self._context.spawn(self._attach(connection, link, address, right, store))
        return True

    async def _move(self, connection: PeerConnection, recording: Recording, link: Link, address: Address, right: Right, store: int) -> None:
        """The whole connection to the owner of its first entity, which most clients stay with; if that cannot be, the link alone."""
        owner = self._ownership.owner(store)
        if owner is not None and await move(connection, f"{self._cluster.moving}/{owner}.move"):
            self.moved += 1
            return
        if connection.gone:
            return
        connection.turn.begin()
        connection.recording = None
        recording.thaw()
        connection.writer.hold_reading(False)
        self._context.spawn(self._attach(connection, link, address, right, store))
        for later in recording.later:
            its_link, its_address, its_right = cast("tuple[Link, Address, Right]", later)
            if not self.takes(connection, its_link, its_address, its_right):
                self._attach_here(connection, its_link, its_address, its_right)

    def _is_spread(self, front: PartitionedQueue) -> bool:
        """Do several nodes have its fragments? Else the first one stands for all of them."""
        ownership = self._ownership
        stores = {self.spread.store_of(fragment) for fragment in range(len(front.fragments.queues))}
        return len({ownership.owner(store) for store in stores}) > 1

    def _carry_to(self, connection: PeerConnection, link: Link, address: Address, right: Right, store: int) -> None:
        self._context.spawn(self._attach(connection, link, address, right, store))

    # -- attach ------------------------------------------------------------------------------

    async def _attach(self, connection: PeerConnection, link: Link, address: Address, right: Right, store: int) -> None:
        clock = self._context.connection_clock
        deadline = clock.steady_ms() + HOLD_MS
        while not connection.gone and link.state == ATTACH_RECEIVED:
            changed = self._changed
            owner = self._ownership.owner(store)
            front = None if is_of_session(link) else self._context.namespace.front(address)
            if front is not None and self._is_spread(front):
                connection.turn.begin()
                self.spread.attach(connection, link, address, right, front)
                return
            if self._ownership.here(store):
                connection.turn.begin()
                self._attach_here(connection, link, address, right)
                return
            if owner is not None:
                carried = await self._continued(connection, owner)
                if front is not None and self._is_spread(front):
                    continue  # a store has moved meanwhile: one node alone would leave out what others have
                if carried is not None and self._ownership.owner(store) == owner:
                    connection.turn.begin()
                    if not connection.gone and link.state == ATTACH_RECEIVED:
                        self._carry(connection, link, carried, address, right)
                    return
            if clock.steady_ms() >= deadline:
                where = f"node '{owner}', which cannot be reached" if owner is not None else "another node"
                self._refuse(connection, link, address, f"The store of '{address.path}' is being taken over by {where}. Try again.")
                return
            try:
                async with asyncio.timeout(_LOOK_AGAIN_SECONDS):
                    await changed.wait()
            except TimeoutError:
                continue

    def _refuse(self, connection: PeerConnection, link: Link, address: Address, why: str) -> None:
        connection.turn.begin()
        if not connection.gone and link.state == ATTACH_RECEIVED:
            link.refuse(connection.error_of(StoreUnavailable(why), address.path))
            connection.touch()

    def _carry(self, connection: PeerConnection, link: Link, carried: CarriedConnection, address: Address, right: Right) -> None:
        properties = dict(link.properties)
        if isinstance(link, SenderLink):
            if address.management:
                properties[Symbol(RIGHTS_PROPERTY)] = sorted(right.value for right in connection.rights_on(address))
            CarriedReceiving(connection, carried, address, right, link).attach(properties or None)
        elif isinstance(link, ReceiverLink):
            if address.management:
                rights = connection.rights_on(address)
                properties[Symbol(RIGHTS_PROPERTY)] = sorted(right.value for right in rights)
                CarriedRequests(connection, carried, address, right, link, rights).attach(properties)
            else:
                CarriedSending(connection, carried, address, right, link).attach(properties or None)

    # -- connections -------------------------------------------------------------------------

    async def _continued(self, connection: PeerConnection, node: str) -> CarriedConnection | None:
        """This client's connection to that node, opened if need be; None: it cannot be had now."""
        found = connection.carried.get(node)
        if found is not None and not found.engine.closed:
            return found
        key = (connection, node)
        opening = self._opening.get(key)
        if opening is None:
            opening = self._opening[key] = asyncio.ensure_future(self._open(connection, node))
            opening.add_done_callback(lambda _: self._opening.pop(key, None))
        try:
            opened = await to_the_end(opening)
        except (OSError, BusError) as error:
            if self._told.get(node) != str(error):
                self._told[node] = str(error)
                self._context.log(f"node '{node}' cannot be reached: {error}")
            return None
        return None if opened.engine.closed else opened  # it may have ended before its first user came to it

    async def _open(self, connection: PeerConnection, node: str) -> CarriedConnection:
        context = self._context
        where = self._ownership.address(node)
        if where is None:
            raise StoreUnavailable(f"nobody knows the address of node '{node}'")
        config = self._cluster.config_to(context.namespace.name, context.limits, self._entropy)
        carried = CarriedConnection(connection, node, config)
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        carried.on_ready = lambda: None if ready.done() else ready.set_result(None)

        def pump() -> CarriedPump:
            return CarriedPump(carried, self._backpressure, context.limits.egress_bytes_buffered_max)

        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                if where.startswith("unix:"):
                    await loop.create_unix_connection(pump, where.removeprefix("unix:"))
                else:
                    host, _, port = where.rpartition(":")
                    await loop.create_connection(pump, host.strip("[]"), int(port))
                await ready
        except TimeoutError:
            carried.client_gone(True)
            raise StoreUnavailable(f"it did not answer at {where} within {_CONNECT_SECONDS:g} s") from None
        except OSError as error:
            raise StoreUnavailable(f"at {where}, where it says it is (cluster.advertise): {error.strerror or error}") from error
        self._must_be_usable(carried, where)
        self._told.pop(node, None)
        connection.carried[node] = carried
        if not connection.writable:
            carried.hold_reading(True)
        return carried

    def _must_be_usable(self, carried: CarriedConnection, where: str) -> None:
        engine: Connection = carried.engine
        unfit = unfit_version(engine.remote_properties) if engine.remote_open else ""
        if unfit:
            carried.client_gone(False)
            raise StoreUnavailable(unfit)
        if engine.closed or carried.gone or carried.client.gone:
            error = carried.error
            carried.client_gone(True)
            if error is not None and error.condition == "amqp:unauthorized-access":
                raise StoreUnavailable(f"at {where}: it does not know the same cluster secret")
            raise StoreUnavailable(f"at {where}: {error.description if error is not None else 'it hung up'}")

    def _owner_changed(self, store: int) -> None:
        """Whoever waits looks again; links that lead where the store is no longer, or not alone, are detached and come again."""
        self._changed.set()
        self._changed = asyncio.Event()
        moved = StoreUnavailable("The store of this entity has moved to another node. Attach the link again.")
        self._context.turn.begin()
        for connection in list(self._context.connections):
            if isinstance(connection, PeerConnection) and connection.may_carry:
                self._detach_moved(connection, store, moved)

    def _detach_moved(self, connection: PeerConnection, store: int, moved: BusError) -> None:
        for session in list(connection.engine.sessions.values()):
            for link in list(session.links.values()):
                handler = link.handler
                if isinstance(handler, SpreadReceiving):
                    self.spread.draw_from_all(connection, handler, *connection.links[link])
                    continue
                address = _address_of(connection, link)
                # An attach that is being answered by who had the store is refused as well: else it leads there from now on.
                answered = link.attached or (isinstance(handler, CarriedLink) and link.state == ATTACH_RECEIVED)
                if address is None or not answered or self._leads_right(link, address, store):
                    continue
                error = connection.error_of(moved, address.path)
                if isinstance(handler, (Receiving, CarriedReceiving)):
                    handler.take_away(error)
                else:
                    link.detach(error)
                if isinstance(handler, ManagementNode):
                    for reply in connection.replies.of_node(handler.node):
                        reply.detach(error)
                connection.touch()

    def _leads_right(self, link: Link, address: Address, store: int) -> bool:
        """Whether a link is where it would be put if it was attached now; those to other stores than the one that has moved are."""
        handler = link.handler
        namespace = self._context.namespace
        found = namespace.store_of(address)
        front = namespace.front(address)
        if found is None or isinstance(handler, (SpreadSending, SpreadManagement)) or is_of_session(link):
            return not isinstance(handler, CarriedLink) or found != store or handler.carried.node == self._ownership.owner(store)
        if found == PARTITIONED and front is not None:
            if self._is_spread(front):
                return False
            found = store
        elif found != store:
            return True
        owner = self._ownership.owner(found)
        return handler.carried.node == owner if isinstance(handler, CarriedLink) else self._ownership.here(found)


def is_of_session(link: Link) -> bool:
    """It holds a session, or waits for one: whoever has its fragment tells it what becomes of that."""
    return isinstance(link, SenderLink) and link.source is not None and SESSION_FILTER in link.source.filter


def _address_of(connection: PeerConnection, link: Link) -> Address | None:
    """The entity that a link leads to; None: to none."""
    handler = link.handler
    if isinstance(handler, CarriedLink):
        return handler.address
    if isinstance(handler, ManagementNode):
        return handler.address
    kept = connection.links.get(link)
    return kept[0] if kept is not None else None


class CarriedPump(asyncio.Protocol):
    """Bytes between an asyncio transport and a CarriedConnection."""

    def __init__(self, carried: CarriedConnection, backpressure: Backpressure, egress_bytes_max: int) -> None:
        self._carried = carried
        self._backpressure = backpressure
        self._egress_bytes_max = egress_bytes_max
        self._writer: TransportWriter | None = None
        self._holds = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)
        stream.set_write_buffer_limits(high=self._egress_bytes_max)
        self._writer = TransportWriter(stream)
        self._carried.opened(self._writer)

    def data_received(self, data: bytes) -> None:
        if self._writer is not None:
            self._carried.receive(data)
            self._backpressure.took(self._writer, len(data))

    def pause_writing(self) -> None:
        self._holds = True
        self._carried.set_writable(False)

    def resume_writing(self) -> None:
        self._holds = False
        self._carried.set_writable(True)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._holds:
            self.resume_writing()
        self._carried.lost()
