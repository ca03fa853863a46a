"""Links to a partitioned entity whose fragments several nodes have: this node is its front for whoever came here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from tandem.amqp.errors import AmqpError
from tandem.amqp.handlers import LinkHandler
from tandem.amqp.link import ATTACH_RECEIVED, Link, ReceiverLink, SenderLink
from tandem.amqp.types import Symbol, UInt
from tandem.broker.entities.joined import fragment_of_key
from tandem.broker.entities.partitioned import PartitionedQueue
from tandem.broker.queue.entity import Entity
from tandem.broker.queue.sessions import MessageSession
from tandem.cluster.ownership import Ownership
from tandem.cluster.peers import PART_PROPERTY
from tandem.gateway.amqp.attach import (
    SESSION_FILTER,
    TIMEOUT_PROPERTY,
    AwaitingSession,
    NextSession,
    attach_here,
    attach_management,
    receiver_queue,
    refuse_choosing,
    sender_queue,
    serve_sender,
    serve_without_session,
    session_patience_ms,
    wanted_session,
)
from tandem.gateway.amqp.carried_trial import CarriedTrial
from tandem.gateway.amqp.connection import PeerConnection
from tandem.gateway.amqp.receiving import LinkConsumer
from tandem.gateway.amqp.spread_asking import Continued
from tandem.gateway.amqp.spread_receiving import FarSource, SpreadConsumer, SpreadReceiving
from tandem.gateway.amqp.spread_requests import SpreadManagement
from tandem.gateway.amqp.spread_sending import FarSending, SpreadSending
from tandem.gateway.fragment_owners import Ask, FragmentOwners
from tandem.gateway.something_ready import first_with_something
from tandem.model.address import Address
from tandem.model.entity import Right
from tandem.model.errors import BusError, OperationTimeout
from tandem.server.context import NamespaceContext

CarryTo = Callable[[PeerConnection, Link, Address, Right, int], None]
_SETTLED_MODE: Final = 1
_TRY_MS: Final = 100
"""A session that is there is had at once; one that somebody else took meanwhile is not waited for."""
_AGAIN: Final = 0.01
_LOOK_SECONDS: Final = 5.0
"""For so long those are looked at that have fragments now."""
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 2.0


class Spread(FragmentOwners):
    """Of one namespace of one node."""

    def __init__(self, context: NamespaceContext, ownership: Ownership, continued: Continued, carry: CarryTo, ask: Ask) -> None:
        super().__init__(context, ownership, ask)
        self.continued = continued
        self._carry = carry

    # -- links -------------------------------------------------------------------------------

    def attach(self, connection: PeerConnection, link: Link, address: Address, right: Right, front: PartitionedQueue) -> None:
        """Its claim is checked already."""
        try:
            if address.management:
                attach_management(link, SpreadManagement(connection, address, self, self.continued), address)
            elif isinstance(link, ReceiverLink):
                self._attach_sender(connection, link, address, right)
            elif isinstance(link, SenderLink):
                self._attach_receiver(connection, link, address, right, front)
        except BusError as error:
            link.refuse(connection.error_of(error, address.path))
        connection.touch()

    def _attach_sender(self, connection: PeerConnection, link: ReceiverLink, address: Address, right: Right) -> None:
        queue = sender_queue(connection, address)
        assert isinstance(queue, PartitionedQueue)

        def open_to(far: FarSending) -> None:
            connection.context.spawn(self._open_sending(connection, far, dict(link.properties)))

        serve_sender(link, address, queue, SpreadSending(connection, queue, address, right, link, self.owner_of, open_to))

    async def _open_sending(self, connection: PeerConnection, far: FarSending, properties: dict[object, object]) -> None:
        carried = await self.continued(connection, far.node)
        connection.turn.begin()
        if carried is None:
            far.lost("it cannot be reached", [])
        elif not connection.gone:
            far.attach(carried, properties or None)

    def _attach_receiver(
        self, connection: PeerConnection, link: SenderLink, address: Address, right: Right, front: PartitionedQueue
    ) -> None:
        source = link.source
        assert source is not None
        if SESSION_FILTER in source.filter:
            refuse_choosing(source, connection.context.limits)
            wanted = wanted_session(source.filter[SESSION_FILTER])
            if not front.terms.has_sessions or (wanted is not None and not isinstance(wanted, str)):
                attach_here(connection, link, address, right)  # which says what is wrong
            elif isinstance(wanted, str):
                self._accept_session(connection, link, address, right, front, wanted)
            else:
                self._await_session(connection, link, address, right)
            return
        queue = receiver_queue(connection, address)
        consumer = SpreadConsumer(connection, link, link.snd_settle_mode != _SETTLED_MODE)
        serve_without_session(link, address, queue, consumer)
        receiving = link.handler
        assert isinstance(receiving, SpreadReceiving)
        self.draw_from_all(connection, receiving, address, right)

    def draw_from_all(self, connection: PeerConnection, receiving: SpreadReceiving, address: Address, right: Right) -> None:
        """From everybody who has fragments now; again whenever a store has moved."""
        front = self.context.namespace.front(address)
        for node in self.others(front) if front is not None else []:
            if node not in receiving.nodes:
                receiving.nodes.add(node)
                receiving.opening.add(node)
                connection.context.spawn(self._keep_source(connection, receiving, node, address, right))

    def _has_part(self, node: str, address: Address) -> bool:
        front = self.context.namespace.front(address)
        return front is not None and node in self.others(front)

    async def _keep_source(self, connection: PeerConnection, receiving: SpreadReceiving, node: str, address: Address, right: Right) -> None:
        """As long as the client receives here, and that node has fragments, it gets what that node has too, whenever the node is there."""
        near = receiving.own.link
        pause = _FIRST_PAUSE
        while near.attached and not connection.gone and self._has_part(node, address):
            carried = await self.continued(connection, node)
            if carried is not None and near.attached and not connection.gone:
                connection.turn.begin()
                pause = _FIRST_PAUSE
                over = asyncio.get_running_loop().create_future()
                source = FarSource(receiving, connection, carried, address, right)
                source.on_over = lambda over=over: None if over.done() else over.set_result(None)
                receiving.add(source)
                source.attach({**near.properties, Symbol(PART_PROPERTY): True})
                await over
            else:
                connection.turn.begin()
                receiving.opened(node)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
        receiving.nodes.discard(node)
        connection.turn.begin()
        receiving.opened(node)

    # -- sessions ----------------------------------------------------------------------------

    def _accept_session(
        self, connection: PeerConnection, link: SenderLink, address: Address, right: Right, front: PartitionedQueue, wanted: str
    ) -> None:
        store = self.store_of(fragment_of_key(wanted, len(front.fragments.queues)))
        if self.ownership.here(store):
            attach_here(connection, link, address, right)
        else:
            self._carry(connection, link, address, right, store)

    def _await_session(self, connection: PeerConnection, link: SenderLink, address: Address, right: Right) -> None:
        """It waits at all owners, and takes a session from one: nobody holds two."""
        receiver_queue(connection, address)
        waiting = asyncio.get_running_loop().create_task(self._next_session(connection, link, address, right))
        link.handle_with(_Patience(waiting))

        async def waited() -> None:
            await asyncio.wait([waiting])
            if not waiting.cancelled() and waiting.exception() is not None:
                await waiting

        connection.context.spawn(waited())

    async def _next_session(self, connection: PeerConnection, link: SenderLink, address: Address, right: Right) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + session_patience_ms(link, connection.context.limits) / 1000
        while not connection.gone and link.state == ATTACH_RECEIVED:
            front = self.context.namespace.front(address)
            owners = self.owners(front) if front is not None else []
            left = deadline - loop.time()
            found = await first_with_something(self.context, address, owners, self.ask, min(left, _LOOK_SECONDS)) if left > 0 else None
            connection.turn.begin()
            if connection.gone or link.state != ATTACH_RECEIVED:
                return
            try:
                if found is None:
                    if left > _LOOK_SECONDS:
                        continue  # others may have fragments by now
                    raise OperationTimeout(f"There was no session with messages in '{address.path}' in the time given.")
                had = await (
                    self._try_there(connection, link, address, right, found) if found else self._try_here(connection, link, address)
                )
            except BusError as error:
                connection.turn.begin()
                link.refuse(connection.error_of(error, address.path))
                connection.touch()
                return
            if had:
                return
            await asyncio.sleep(_AGAIN)

    async def _try_here(self, connection: PeerConnection, link: SenderLink, address: Address) -> bool:
        queue = receiver_queue(connection, address)
        patience = link.handler
        consumer = LinkConsumer(connection, link, link.snd_settle_mode != _SETTLED_MODE)
        acceptor = _TrySession(link, address, queue, consumer, connection.turn.now + _TRY_MS)
        link.handle_with(_Trying(queue, acceptor))
        queue.sessions.await_next(acceptor)
        had = await acceptor.had
        if not had:
            link.handle_with(patience)
        return had

    async def _try_there(self, connection: PeerConnection, link: SenderLink, address: Address, right: Right, node: str) -> bool:
        carried = await self.continued(connection, node)
        connection.turn.begin()
        if carried is None or connection.gone or link.state != ATTACH_RECEIVED:
            return False
        patience = link.handler
        receiving = CarriedTrial(connection, carried, address, right, link)
        receiving.attach({**link.properties, Symbol(TIMEOUT_PROPERTY): UInt(_TRY_MS)})
        had = await receiving.had
        if not had and link.state == ATTACH_RECEIVED:
            link.handle_with(patience)
        return had


class _Patience(LinkHandler):
    """Of a client that waits for its next session, and may give up."""

    def __init__(self, waiting: asyncio.Task[None]) -> None:
        self._waiting = waiting

    def on_detach(self, link: Link, error: AmqpError | None) -> None:
        self._waiting.cancel()


class _TrySession(NextSession):
    """A session of this node, if there is one."""

    __slots__ = ("had",)

    def __init__(self, link: SenderLink, address: Address, queue: Entity, consumer: LinkConsumer, deadline: int) -> None:
        super().__init__(link, address, queue, consumer, deadline)
        self.had: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def accepted(self, session: MessageSession) -> None:
        super().accepted(session)
        if not self.had.done():
            self.had.set_result(True)

    def timed_out(self) -> None:
        if not self.had.done():
            self.had.set_result(False)


class _Trying(AwaitingSession):
    """The client gave up just then."""

    def on_detach(self, link: Link, error: AmqpError | None) -> None:
        super().on_detach(link, error)
        self.acceptor.timed_out()
