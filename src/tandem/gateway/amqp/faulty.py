"""The AMQP door of a broker whose faults may be injected: the same connections, wrapped in what makes them fail on purpose."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from tandem.amqp.link import Link, ReceiverLink
from tandem.amqp.outcomes import encode_rejected
from tandem.amqp.session import Session
from tandem.amqp.terminus import Coordinator
from tandem.gateway.amqp.attach import attach
from tandem.gateway.amqp.connection import ConnectionWriter, PeerConnection
from tandem.gateway.amqp.pump import AmqpPump
from tandem.gateway.amqp.sending import Sending
from tandem.model import address as addresses
from tandem.server.faults import FaultKind

if TYPE_CHECKING:
    from tandem.server.context import NamespaceContext
    from tandem.server.fault_points import FaultPoints


class FaultyPump(AmqpPump):
    """Refuses connections while a fault says so."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        points = self._context_of("").fault_points
        if points is not None and points.refuses_connection() and isinstance(transport, asyncio.WriteTransport):
            transport.abort()
            return
        super().connection_made(transport)

    def open_connection(self, writer: ConnectionWriter, peer: str) -> PeerConnection:
        return FaultyConnection(self._context_of, attach, writer, peer, self._container_id)


class FaultyConnection(PeerConnection):
    """Loses bytes, attaches, transfers and answers while a fault says so."""

    def __init__(
        self,
        context_of: Callable[[str], NamespaceContext],
        attach: Callable[[PeerConnection, Link], None],
        writer: ConnectionWriter,
        peer: str,
        container_id: str,
    ) -> None:
        super().__init__(context_of, attach, writer, peer, container_id)
        self._points: FaultPoints | None = self.context.fault_points

    def fault_points(self) -> FaultPoints | None:
        """Those of the namespace it belongs to, while any fault is in force."""
        points = self._points
        return points if points is not None and points.active else None

    def move_to(self, context: NamespaceContext) -> None:
        super().move_to(context)
        self._points = context.fault_points

    def receive(self, data: bytes) -> None:
        points = self.fault_points()
        if points is None or not points.swallows():
            super().receive(data)

    def flush(self) -> None:
        points = self.fault_points()
        if points is None or not points.swallows():
            super().flush()
        else:
            self.dirty = False

    def on_attach(self, link: Link) -> None:
        if not self._fails_to_attach(link):
            super().on_attach(link)
            handler = link.handler
            if isinstance(handler, Sending):
                link.handle_with(FaultySending(self, handler))

    def _fails_to_attach(self, link: Link) -> bool:
        """True: it was refused, or is left without an answer."""
        points = self.fault_points()
        terminus = link.target if link.receiver else link.source
        if points is None or terminus is None or isinstance(terminus, Coordinator) or terminus.address is None:
            return False
        address = addresses.parse(terminus.address)
        if address.entity.casefold() == addresses.CBS:
            return False
        if points.strike(FaultKind.ENTITY_UNREACHABLE, address.entity) is not None:
            return True
        refusal = points.refusal(address.entity)
        if refusal is not None:
            link.refuse(self.error_of(refusal, address.path))
            self.touch()
        return refusal is not None

    def send_disposition(self, session: Session, receiver_role: bool, first: int, last: int, state: bytes, entity: str) -> None:
        points = self.fault_points() if entity else None
        if points is not None:
            if receiver_role and points.strike(FaultKind.LOSE_ACKNOWLEDGEMENT, entity) is not None:
                self.cut()
                return
            slow = points.strike(FaultKind.SLOW_DISPOSITIONS, entity)
            if slow is not None:
                late = _LateDisposition(self, session, receiver_role, first, last, state)
                asyncio.get_running_loop().call_later(slow.delay_ms / 1000, late.send)
                return
        super().send_disposition(session, receiver_role, first, last, state, entity)


class FaultySending(Sending):
    """A sending link whose transfers are refused, or vanish, while a fault says so."""

    def __init__(self, connection: FaultyConnection, link: Sending) -> None:
        super().__init__(connection, link.queue, link.address)
        self._faulty = connection
        self._inner = link

    def on_transfer(
        self, link: ReceiverLink, delivery_id: int, tag: bytes, payload: bytes, settled: bool, message_format: int, state: bytes | None
    ) -> None:
        points = self._faulty.fault_points()
        if points is not None:
            if points.strike(FaultKind.ENTITY_UNREACHABLE, self.queue.path) is not None:
                return
            refusal = points.refusal(self.queue.path)
            if refusal is not None:
                if not settled:
                    rejected = encode_rejected(self._faulty.error_of(refusal, self.queue.path))
                    self._faulty.send_disposition(link.session, True, delivery_id, delivery_id, rejected, "")
                return
        self._inner.on_transfer(link, delivery_id, tag, payload, settled, message_format, state)


class _LateDisposition:
    def __init__(self, connection: FaultyConnection, session: Session, receiver_role: bool, first: int, last: int, state: bytes) -> None:
        self._connection = connection
        self._session = session
        self._receiver_role = receiver_role
        self._first = first
        self._last = last
        self._state = state

    def send(self) -> None:
        if not self._connection.gone:
            self._connection.send_disposition(self._session, self._receiver_role, self._first, self._last, self._state, "")
