"""WebSockets of the relay: listeners that register, senders that connect, and listeners that come to a rendezvous."""

from __future__ import annotations

import asyncio
from typing import Final, NoReturn

from aiohttp import web

from tandem.model.entity import Right
from tandem.model.errors import ArgumentRefused, BusError, EntityNotFound, QuotaExceeded
from tandem.relay import commands
from tandem.relay.close_codes import GOING_AWAY
from tandem.relay.connection import RelayedConnection
from tandem.relay.entity import HybridConnection
from tandem.relay.frames import Piece
from tandem.relay.handshake import Handshake, read_handshake
from tandem.relay.headers import RELAY_TOKEN, joined, size_of
from tandem.relay.listener import ListenerChannel
from tandem.relay.namespace import (
    HeadersTooLarge,
    NoListener,
    Rejected,
    RelayNamespace,
    RelayTimeout,
    Surroundings,
    authorize,
    refusal,
    remote_of,
    token_of,
)
from tandem.relay.pulse import Pulse
from tandem.relay.rendezvous import Rejection, Rendezvous, RendezvousDesk
from tandem.relay.share import LoopShare
from tandem.relay.socket import RelaySocket
from tandem.relay.target import Action, RelayTarget, rendezvous_address

_NOT_FORWARDED: Final = frozenset({RELAY_TOKEN})

Arrival = tuple[RelaySocket, str | None] | Rejection
"""A listener's socket, not read yet, with the sub-protocol it chose; or its refusal."""


class Undecided:
    """Owner of a socket that nobody has taken yet: it is not read, so all that can happen is that it is lost."""

    def pieces_came(self, socket: RelaySocket, pieces: list[Piece]) -> None: ...

    def peer_closed(self, socket: RelaySocket, code: int, reason: str) -> None: ...

    def socket_lost(self, socket: RelaySocket) -> None: ...

    def writing_paused(self, socket: RelaySocket, paused: bool) -> None: ...


class WebSocketDoor:
    """Serves `/$hc/…`."""

    def __init__(self, around: Surroundings, desk: RendezvousDesk[Arrival], pulse: Pulse, share: LoopShare) -> None:
        self._around = around
        self._limits = around.limits
        self._desk = desk
        self._pulse = pulse
        self._share = share

    async def serve(self, namespace: RelayNamespace, request: web.BaseRequest, target: RelayTarget) -> web.StreamResponse:
        entity_name = target.path[:100]
        try:
            found = namespace.relays.match(target)
            if found is not None:
                entity_name = found[0].name
            action = target.action
            if action is None:
                raise ArgumentRefused("sb-hc-action must be listen, connect, accept or request.")
            if action in (Action.ACCEPT, Action.REQUEST):
                return await self._arrive(request, target, found, action)
            if action is Action.LISTEN:
                await self._listen(namespace, request, target, found)
            else:
                await self._connect(namespace, request, target, found)
        except BusError as error:
            return refusal(namespace, request, error, entity_name)

    # -- a listener registers

    async def _listen(
        self, namespace: RelayNamespace, request: web.BaseRequest, target: RelayTarget, found: tuple[HybridConnection, int] | None
    ) -> NoReturn:
        token = token_of(request, target)
        expires_at_ms = await authorize(namespace, token, target.path, Right.LISTEN)
        handshake = read_handshake(request.method, request.headers)
        if found is None:
            raise EntityNotFound(f"There is no hybrid connection '{target.path[:100]}'.")
        entity = found[0]

        async def renew(renewed: str) -> int:
            return await authorize(namespace, renewed, target.path, Right.LISTEN)

        base = f"{'wss' if request.secure else 'ws'}://{request.headers.get('Host', '')}"
        channel = ListenerChannel(base, namespace.clock, renew, entity.remove_listener)
        entity.add_listener(channel, self._limits.relay_listeners_max)
        socket = self._upgrade(request, handshake, handshake.sub_protocols[0] if handshake.sub_protocols else None)
        socket.belong_to(channel)
        channel.start(socket, token or "", expires_at_ms)
        socket.resume_reading()
        await _cancelled()

    # -- a sender connects

    async def _connect(
        self, namespace: RelayNamespace, request: web.BaseRequest, target: RelayTarget, found: tuple[HybridConnection, int] | None
    ) -> NoReturn:
        if found is None or found[0].description.requires_client_authorization:
            await authorize(namespace, token_of(request, target), target.path, Right.SEND)
        handshake = read_handshake(request.method, request.headers)
        if found is None:
            raise EntityNotFound(f"There is no hybrid connection '{target.path[:100]}'.")
        entity, depth = found
        if namespace.relays.connection_count >= self._limits.relay_connections_max:
            raise QuotaExceeded(
                f"The relays of this namespace have {self._limits.relay_connections_max} connections, which is all they may."
            )
        entity.request_came(counted=False)
        try:
            listener, sub_protocol = await self._rendezvous(request, target, entity, depth)
        finally:
            entity.request_ended()
        if sub_protocol not in handshake.sub_protocols:
            sub_protocol = None
        sender = self._upgrade(request, handshake, sub_protocol)
        connection = RelayedConnection(sender, listener, entity.remove_connection)
        entity.add_connection(connection)
        if namespace.relays.find(entity.name) is not entity:
            connection.close(GOING_AWAY, "the relay was deleted")
        connection.start()
        await _cancelled()

    async def _rendezvous(
        self, request: web.BaseRequest, target: RelayTarget, entity: HybridConnection, depth: int
    ) -> tuple[RelaySocket, str | None]:
        """A listener's socket. One that is lost before it answers is replaced by another."""
        id_ = target.id or self._around.new_id()
        headers = joined(request.headers.items(), _NOT_FORWARDED)
        if size_of(headers) > self._limits.relay_header_bytes_max:
            raise HeadersTooLarge(f"The headers have more than {self._limits.relay_header_bytes_max} bytes.")
        asked: set[ListenerChannel] = set()
        deadline = asyncio.get_running_loop().time() + self._limits.relay_accept_ms_max / 1000
        while True:
            channel = entity.pick_listener(self._around.chance, asked)
            if channel is None:
                raise NoListener(f"There is no listener on the hybrid connection '{entity.name}' now.")
            asked.add(channel)
            rendezvous = self._desk.open(entity.name, Action.ACCEPT)
            address = rendezvous_address(
                channel.base, entity.name, target.suffix(depth), target.user_query, Action.ACCEPT, id_, rendezvous.key
            )
            text = commands.accept(address, id_, headers, remote_of(request))
            if len(text) > self._limits.relay_control_bytes_max:
                self._desk.close(rendezvous)
                raise HeadersTooLarge(f"Address and headers have more than {self._limits.relay_control_bytes_max} bytes as a command.")
            channel.send_command(text)
            arrival = await self._arrival(rendezvous, channel, deadline)
            if isinstance(arrival, Rejection):
                raise Rejected(arrival)
            if arrival is not None:
                return arrival

    async def _arrival(self, rendezvous: Rendezvous[Arrival], channel: ListenerChannel, deadline: float) -> Arrival | None:
        """None: the listener was lost and nobody came."""
        gone = channel.gone()
        try:
            async with asyncio.timeout_at(deadline):
                await asyncio.wait((rendezvous.arrival, gone), return_when=asyncio.FIRST_COMPLETED)
            return rendezvous.arrival.result() if rendezvous.arrival.done() else None
        except TimeoutError:
            raise RelayTimeout(f"No listener took the connection within {self._limits.relay_accept_ms_max} ms.") from None
        except asyncio.CancelledError:
            if rendezvous.arrival.done() and not isinstance(late := rendezvous.arrival.result(), Rejection):
                late[0].close(GOING_AWAY, "the sender is gone")
            raise
        finally:
            gone.cancel()
            self._desk.close(rendezvous)

    # -- a listener comes to a rendezvous

    async def _arrive(
        self, request: web.BaseRequest, target: RelayTarget, found: tuple[HybridConnection, int] | None, action: Action
    ) -> web.StreamResponse:
        entity = found[0].name if found is not None else target.path
        rendezvous = self._desk.take(target.parameters.get("rendezvous", ""), entity, action)
        status = target.parameters.get("statuscode")
        if action is Action.ACCEPT and status is not None:
            number = int(status) if status.isascii() and status.isdigit() and len(status) == 3 else 400
            text = target.parameters.get("statusdescription", "")[:200]
            rendezvous.arrival.set_result(Rejection(number if 400 <= number <= 599 else 400, text))
            return web.Response(status=410, text="The connection was rejected as asked.", headers={"Server": "Tandem"})
        handshake = read_handshake(request.method, request.headers)
        sub_protocol = handshake.sub_protocols[0] if handshake.sub_protocols else None
        socket = self._upgrade(request, handshake, sub_protocol)
        rendezvous.arrival.set_result((socket, sub_protocol))
        await _cancelled()

    def _upgrade(self, request: web.BaseRequest, handshake: Handshake, sub_protocol: str | None) -> RelaySocket:
        """The WebSocket is agreed on; it is read when its owner says so. The running task is on its way out from here on."""
        transport = self._around.detach(request)
        socket = RelaySocket(transport, Undecided(), self._limits.relay_buffer_bytes_max, self._share)
        transport.write(handshake.answer(sub_protocol))
        socket.pause_reading()
        self._pulse.add(socket)
        return socket


async def _cancelled() -> NoReturn:
    """`detach` has cancelled this task: it ends here."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError("the task was to be cancelled")
