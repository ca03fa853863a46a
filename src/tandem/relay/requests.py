"""HTTP through the relay: a request to a listener over its control channel, or at a rendezvous if it is large; the response back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from aiohttp import web

from tandem.model.entity import Right
from tandem.model.errors import BusError, NotAllowed, QuotaExceeded
from tandem.relay import commands
from tandem.relay.answers import AnswerReader, CommandTooLong
from tandem.relay.body import Body, BodyLost, Source
from tandem.relay.close_codes import GOING_AWAY, NORMAL, TOO_BIG
from tandem.relay.commands import Response
from tandem.relay.entity import HybridConnection
from tandem.relay.frames import BINARY, CONTINUATION, PIECE_BYTES_MAX, Piece
from tandem.relay.headers import HOP_BY_HOP, RELAY_TOKEN, joined, named_by_connection, size_of, with_via
from tandem.relay.listener import ListenerChannel
from tandem.relay.namespace import (
    BadGateway,
    HeadersTooLarge,
    NoListener,
    RelayNamespace,
    RelayTimeout,
    Surroundings,
    authorize,
    refusal,
    remote_of,
    token_of,
)
from tandem.relay.rendezvous import Rejection, Rendezvous, RendezvousDesk
from tandem.relay.share import LoopShare
from tandem.relay.socket import RelaySocket, answer_code
from tandem.relay.target import Action, RelayTarget, rendezvous_address
from tandem.relay.websockets import Arrival

_SOON_SECONDS: Final = 0.25
"""A body whose end is not known yet is waited for so long before it goes to a rendezvous."""
_CONTROL_RESPONSE_BYTES_MAX: Final = 1_048_576
"""Clients send 64 KiB at most over their control channel; what does not fit here is a loss, for it cannot be stopped."""


class PendingExchange:
    """Waits for the head of a response; its body comes after."""

    def __init__(self, buffer_bytes_max: int) -> None:
        self.head: asyncio.Future[tuple[Response, Body]] = asyncio.get_running_loop().create_future()
        self._buffer_bytes_max = buffer_bytes_max
        self._body: Body | None = None
        self.socket: RelaySocket | None = None
        """The rendezvous it has, if it needed one."""
        self.over = False
        """Nobody waits any more."""

    def response_came(self, response: Response, source: Source | None) -> Body | None:
        if self.head.done():
            return None
        self._body = Body(self._buffer_bytes_max if source is not None else _CONTROL_RESPONSE_BYTES_MAX, source)
        self.head.set_result((response, self._body))
        return self._body

    def response_refused(self, why: str) -> None:
        self._fail(BadGateway(f"The listener's response cannot be used: {why}.", delivered=True))

    def listener_gone(self) -> None:
        """Its control channel is lost. At a rendezvous the exchange goes on."""
        if self.socket is None:
            self._fail(BadGateway("The listener was lost before it answered.", delivered=True))

    def rendezvous_lost(self) -> None:
        self._fail(BadGateway("The listener was lost before it answered.", delivered=True))

    def _fail(self, error: BusError) -> None:
        if not self.head.done():
            self.head.set_exception(error)
        elif self._body is not None:
            self._body.fail(error.description)


class RequestSocket:
    """Owner of a listener's socket at the rendezvous of one request."""

    def __init__(self, socket: RelaySocket, exchange: PendingExchange) -> None:
        self.socket = socket
        self._exchange = exchange
        self._answers = AnswerReader(lambda id_: exchange, socket)
        self._room = asyncio.Event()
        self._room.set()
        socket.belong_to(self)
        exchange.socket = socket

    async def room(self) -> None:
        """Returns when the listener takes more, or is gone."""
        await self._room.wait()

    # -- SocketOwner

    def pieces_came(self, socket: RelaySocket, pieces: list[Piece]) -> None:
        try:
            self._answers.feed(pieces)
        except CommandTooLong as too_long:
            socket.close(TOO_BIG, str(too_long))

    def writing_paused(self, socket: RelaySocket, paused: bool) -> None:
        if paused:
            self._room.clear()
        else:
            self._room.set()

    def peer_closed(self, socket: RelaySocket, code: int, reason: str) -> None:
        self._answers.ended(code == NORMAL)
        socket.close(answer_code(code), reason)

    def socket_lost(self, socket: RelaySocket) -> None:
        self._answers.ended(False)
        self._room.set()
        self._exchange.rendezvous_lost()


class HttpDoor:
    """Serves `/{relay}/…`."""

    def __init__(self, around: Surroundings, desk: RendezvousDesk[Arrival], share: LoopShare) -> None:
        self._around = around
        self._share = share
        self._limits = around.limits
        self._desk = desk

    async def serve(
        self, namespace: RelayNamespace, request: web.BaseRequest, target: RelayTarget, entity: HybridConnection, depth: int
    ) -> web.StreamResponse:
        entity.request_came(counted=True)
        try:
            headers = await self._admit(namespace, request, target, entity)
            return await self._relay(namespace, request, target, entity, depth, headers)
        except NoListener as error:
            return refusal(namespace, request, BadGateway(error.description), entity.name)
        except BusError as error:
            return refusal(namespace, request, error, entity.name)
        finally:
            entity.request_ended()

    async def _admit(
        self, namespace: RelayNamespace, request: web.BaseRequest, target: RelayTarget, entity: HybridConnection
    ) -> dict[str, str]:
        """The headers that the listener gets."""
        if namespace.relays.connection_count > self._limits.relay_connections_max:
            raise QuotaExceeded(
                f"The relays of this namespace have {self._limits.relay_connections_max} connections, which is all they may."
            )
        without = HOP_BY_HOP | named_by_connection(request.headers.items()) | {RELAY_TOKEN}
        if entity.description.requires_client_authorization:
            token = token_of(request, target)
            if token is None:
                token = request.headers.get("Authorization")
                without |= {"authorization"}
            await authorize(namespace, token, target.path, Right.SEND)
        if "Upgrade" in request.headers and "websocket" in request.headers["Upgrade"].casefold():
            raise NotAllowed(f"WebSockets connect at /$hc/{entity.name}.")
        headers = with_via(joined(request.headers.items(), without), namespace.name)
        if size_of(headers) > self._limits.relay_header_bytes_max:
            raise HeadersTooLarge(f"The headers have more than {self._limits.relay_header_bytes_max} bytes.")
        return headers

    async def _relay(
        self,
        namespace: RelayNamespace,
        request: web.BaseRequest,
        target: RelayTarget,
        entity: HybridConnection,
        depth: int,
        headers: dict[str, str],
    ) -> web.StreamResponse:
        id_ = self._around.new_id()
        requested = "/" + "/".join(target.raw_segments) + (f"?{target.user_query}" if target.user_query else "")
        if not entity.pick_listener(self._around.chance, set()):
            raise NoListener(f"There is no listener on the hybrid connection '{entity.name}' now.")
        first, whole = await self._first_part(request, self._limits.relay_control_bytes_max - size_of(headers) - len(requested))
        channel = entity.pick_listener(self._around.chance, set())
        if channel is None:
            raise NoListener(f"There is no listener on the hybrid connection '{entity.name}' now.")
        rendezvous = self._desk.open(entity.name, Action.REQUEST)
        address = rendezvous_address(channel.base, entity.name, target.suffix(depth), "", Action.REQUEST, id_, rendezvous.key)
        exchange = PendingExchange(self._limits.relay_buffer_bytes_max)
        channel.exchanges[id_] = exchange
        has_body = not (whole and not first and not request.can_read_body)
        text = commands.request(address, id_, request.method, requested, headers, has_body, remote_of(request))
        sending: asyncio.Task[None] | None = None
        answered = False
        try:
            if whole and len(text) <= self._limits.relay_control_bytes_max:
                channel.send_request(text, first if has_body else None)
                rendezvous.arrival.add_done_callback(lambda arrival: self._answered_elsewhere(arrival, exchange))
            else:
                channel.send_command(commands.request_elsewhere(address, id_))
                meeting = await self._met(rendezvous, channel, exchange)
                meeting.socket.resume_reading()
                meeting.socket.send_text(text)
                if has_body:
                    sending = asyncio.get_running_loop().create_task(self._send_body(request, first, meeting))
            response, body = await self._head(exchange)
            answer = await self._answer(namespace, request, response, body)
            answered = True
            return answer
        finally:
            exchange.over = True
            channel.exchanges.pop(id_, None)
            self._desk.close(rendezvous)
            if sending is not None:
                sending.cancel()
            if exchange.socket is not None and answered:
                exchange.socket.close(NORMAL, "")
            elif exchange.socket is not None:
                exchange.socket.close(GOING_AWAY, "the request is over")  # 1000 would say that its body was whole
            elif rendezvous.arrival.done() and not isinstance(came := rendezvous.arrival.result(), Rejection):
                came[0].close(GOING_AWAY, "the request is over")  # it came in the same moment

    async def _first_part(self, request: web.BaseRequest, bytes_max: int) -> tuple[bytes, bool]:
        """The beginning of the body, and whether that is all of it."""
        if not request.can_read_body:
            return b"", True
        if request.headers.get("Expect", "").casefold() == "100-continue":
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0
        if (request.content_length or 0) > bytes_max:
            return b"", False
        first = bytearray()
        patience = self._limits.http_body_ms_max / 1000 if request.content_length is not None else _SOON_SECONDS
        try:
            async with asyncio.timeout(patience):
                while len(first) <= bytes_max:
                    chunk = await request.content.readany()
                    if not chunk and request.content.at_eof():
                        return bytes(first), True
                    first += chunk
        except TimeoutError:
            pass  # the rest goes where it can be waited for
        return bytes(first), False

    async def _met(self, rendezvous: Rendezvous[Arrival], channel: ListenerChannel, exchange: PendingExchange) -> RequestSocket:
        gone = channel.gone()
        try:
            async with asyncio.timeout(self._limits.relay_accept_ms_max / 1000):
                await asyncio.wait((rendezvous.arrival, gone), return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            raise RelayTimeout(f"The listener did not fetch the request within {self._limits.relay_accept_ms_max} ms.") from None
        finally:
            gone.cancel()
        if not rendezvous.arrival.done():
            raise BadGateway("The listener was lost before it fetched the request.")
        arrival = rendezvous.arrival.result()
        if isinstance(arrival, Rejection):
            raise BadGateway("The listener did not want the request.")
        return RequestSocket(arrival[0], exchange)

    def _answered_elsewhere(self, arrival: asyncio.Future[Arrival], exchange: PendingExchange) -> None:
        """The request went over the control channel and the response is too large for it."""
        if not arrival.cancelled() and not isinstance(came := arrival.result(), Rejection):
            if exchange.over or exchange.head.done():
                came[0].close(GOING_AWAY, "the request is over")
            else:
                RequestSocket(came[0], exchange).socket.resume_reading()

    async def _send_body(self, request: web.BaseRequest, first: bytes, meeting: RequestSocket) -> None:
        """One binary message in as many frames as it takes, at the listener's pace."""
        socket = meeting.socket
        opcode = BINARY
        async for chunk in _chunks(request, first):
            await self._share.turn(len(chunk))
            for at in range(0, len(chunk), PIECE_BYTES_MAX):
                socket.send([(opcode, False, bytearray(chunk[at : at + PIECE_BYTES_MAX]))])
                opcode = CONTINUATION
            await meeting.room()
            if socket.lost:
                return
        socket.send([(opcode, True, bytearray())])

    async def _head(self, exchange: PendingExchange) -> tuple[Response, Body]:
        try:
            async with asyncio.timeout(self._limits.relay_response_ms_max / 1000):
                return await exchange.head
        except TimeoutError:
            raise RelayTimeout(f"The listener did not answer within {self._limits.relay_response_ms_max} ms.", delivered=True) from None

    async def _answer(self, namespace: RelayNamespace, request: web.BaseRequest, response: Response, body: Body) -> web.StreamResponse:
        headers: list[tuple[str, str]] = [(name, value) for name, value in response.headers if name.casefold() != "via"]
        given = {"Via": ", ".join(value for name, value in response.headers if name.casefold() == "via")}
        headers += with_via(given if given["Via"] else {}, namespace.name).items()
        if not any(name.casefold() == "server" for name, _ in headers):
            headers.append(("Server", "Tandem"))  # else the library would name itself, with its version
        bare = request.method == "HEAD" or response.status in (204, 304)
        if bare or body.is_whole:
            return web.Response(
                status=response.status, reason=response.reason or None, headers=headers, body=None if bare else body.take_all()
            )
        answer = web.StreamResponse(status=response.status, reason=response.reason or None, headers=headers)
        await answer.prepare(request)
        try:
            while True:
                async with asyncio.timeout(self._limits.relay_response_ms_max / 1000):
                    chunk = await body.next()
                if chunk is None:
                    break
                await answer.write(chunk)
        except (BodyLost, TimeoutError):
            if request.transport is not None:
                request.transport.abort()  # the only way left to say that this is not all
            raise ConnectionResetError("the listener's response ended in the middle") from None
        await answer.write_eof()
        return answer


async def _chunks(request: web.BaseRequest, first: bytes) -> AsyncIterator[bytes]:
    if first:
        yield first
    while not request.content.at_eof():
        chunk = await request.content.readany()
        if chunk:
            yield chunk
