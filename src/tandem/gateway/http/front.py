"""The HTTP/1.1 front: administration, REST data plane, AMQP over WebSocket and our own pages, on any accepted connection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, Final, cast

from aiohttp import web

from tandem.gateway.http import rest
from tandem.gateway.http.atom.verbs import Atom
from tandem.gateway.http.atom.xml import ERROR_TYPE, KEY_ELEMENT, error_document
from tandem.gateway.http.onward import HEADER, Onward
from tandem.gateway.http.types import PASSIVE, HttpNamespace, Reply, Request, note_refused, peer_of, split_target
from tandem.gateway.waiting import to_the_end
from tandem.model.clock import Clock
from tandem.model.errors import AuthenticationFailed, BusError, EntityNotFound, NotAllowed, Refused, Unauthorized
from tandem.model.limits import Limits
from tandem.relay.front import RelayFront, is_websocket_path
from tandem.server.audit import CHANGED, READ_KEYS
from tandem.server.tracking import Entropy
from tandem.wire.patience import GuardedHandler
from tandem.wire.websocket import MaskedFrames, serve_websocket

Mount = Callable[[web.BaseRequest, tuple[str, ...]], Awaitable[web.StreamResponse]]
"""Serves `/$tandem/<name>/…`; told the decoded segments after the name. It answers for its own authorization."""

logger: Final = logging.getLogger("tandem.http")
_READ_BYTES: Final = 65_536
_HEADER_LINE_BYTES_MAX: Final = 16_384
_HEADERS_MAX: Final = 128
_SERVER: Final = "Tandem"


class BodyTooLarge(Refused):
    condition = "amqp:link:message-size-exceeded"
    status = 413


class BodyTooSlow(Refused):
    condition = "com.microsoft:timeout"
    status = 408


class EncodingRefused(Refused):
    condition = "amqp:invalid-field"
    status = 415


class HttpFront:
    """Make it inside the running loop; give `protocol_factory` to the listener, and `close` it at the end."""

    def __init__(
        self,
        *,
        namespace_for: Callable[[str], HttpNamespace | None],
        amqp: Callable[[], asyncio.Protocol],
        limits: Limits,
        clock: Clock,
        entropy: Entropy,
        known_hosts: frozenset[str] | None = None,
        onward: Onward | None = None,
    ) -> None:
        """`known_hosts`: names, in lower case, that requests may be made to and come from; None allows all."""
        self._known_hosts = known_hosts
        self._onward = onward
        """None: everything is answered here."""
        self._namespace_for = namespace_for
        self._amqp = amqp
        self._limits = limits
        self._clock = clock
        self._atom = Atom(limits, clock, entropy)
        self._rest = rest.Rest()
        self._mounts: dict[str, Mount] = {}
        self.before_close: list[Callable[[], None]] = []
        """Told when it closes: what would run on for ever ends."""
        self._relay = RelayFront(limits=limits, entropy=entropy, detach=_detach)
        self._loop = asyncio.get_running_loop()
        # A receiver that hangs up must not take a message with it: its handler is cancelled.
        self._server = web.Server(self._serve, handler_cancellation=True)

    def mount(self, name: str, handler: Mount) -> None:
        """Serve `/$tandem/<name>` and everything beneath it."""
        if name.casefold() in self._mounts:
            raise ValueError(f"/$tandem/{name} is served already")
        self._mounts[name.casefold()] = handler

    def protocol_factory(self) -> asyncio.Protocol:
        """One per connection. It may be handed a transport that was accepted, and bytes that were read, elsewhere."""
        return _GuardedHandler(
            self._server,
            loop=self._loop,
            header_ms_max=self._limits.http_header_ms_max,
            keepalive_timeout=self._limits.http_keepalive_ms_max / 1000,
            max_line_size=_HEADER_LINE_BYTES_MAX,
            max_field_size=_HEADER_LINE_BYTES_MAX,
            max_headers=_HEADERS_MAX,
            read_bufsize=_READ_BYTES,
            lingering_time=2.0,
            auto_decompress=False,
            access_log=None,
            logger=logger,
        )

    def use_limits(self, limits: Limits) -> None:
        """For connections and requests from now on."""
        self._limits = limits

    def connection_count(self) -> int:
        return len(self._server.connections)

    async def close(self, grace_seconds: float = 2.0) -> None:
        """Let requests under way finish for a moment, then hang up."""
        for tell in self.before_close:
            tell()
        await self._relay.close(min(0.5, grace_seconds))
        if self._onward is not None:
            await self._onward.close()
        self._server.pre_shutdown()
        await self._server.shutdown(grace_seconds)

    # --- one request

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        guard = request.protocol
        if isinstance(guard, _GuardedHandler):
            guard.request_began()
        try:
            return await self._routed(request)
        finally:
            if isinstance(guard, _GuardedHandler):
                guard.request_ended()

    async def _routed(self, request: web.BaseRequest) -> web.StreamResponse:
        stranger = self._stranger(request)
        if stranger:
            return _response(self._refusal(None, NotAllowed(stranger), 421, ""))
        relayed = self._relayed(request)
        if relayed is not None:
            return await relayed
        try:
            segments, query = split_target(request.raw_path)
        except BusError as error:
            return _response(self._refusal(None, error, error.status, ""))
        folded = [segment.casefold() for segment in segments]
        if folded[0] == "$servicebus" and folded[1:2] == ["websocket"]:
            return await serve_websocket(request, self._amqp, self._limits.ingress_bytes_in_flight_max)
        passed_on = await self._passed_on(request, segments, folded) if self._onward is not None else None
        if passed_on is not None:
            return passed_on
        mounted = self._mounted(request, folded, query)
        if mounted is not None:
            handler, rest_of = mounted
            return await handler(request, segments[rest_of:])
        if folded == [""] and "console" in self._mounts and "text/html" in request.headers.get("Accept", ""):
            return web.Response(status=302, headers={"Location": "/$tandem/console/", "Server": _SERVER})
        return _response(await self._api(request, segments, query))

    async def _passed_on(self, request: web.BaseRequest, segments: tuple[str, ...], folded: list[str]) -> web.StreamResponse | None:
        """What concerns the messages of an entity is answered by the node that has it."""
        assert self._onward is not None
        target = rest.read_target(request.method, segments)
        path = target.path if target is not None else "/".join(segments[2:]) if folded[:2] == ["$tandem", "locks"] else ""
        node = self._onward.owner_of(request, path) if path else None
        if node is None:
            return None
        try:
            return await self._onward.answer(node, request, await self._body(request))
        except BusError as error:
            namespace = self._namespace_for(request.headers.get("Host", ""))
            return _response(self._refusal(namespace, error, error.status, path[:100]))

    def _relayed(self, request: web.BaseRequest) -> Coroutine[Any, Any, web.StreamResponse] | None:
        """What serves it, if it is for a relay. Its administration has the same path: clients of the service say which they mean."""
        namespace = self._namespace_for(request.headers.get("Host", ""))
        if namespace is None or namespace.relay is None:
            return None
        if is_websocket_path(request.raw_path):
            return self._relay.serve_websocket(namespace.relay, request)
        if "X-PROCESS-AT" in request.headers:
            return None
        meant = self._relay.target_of(namespace.relay, request)
        return self._relay.serve_http(namespace.relay, request, meant) if meant is not None else None

    def _stranger(self, request: web.BaseRequest) -> str:
        """Everybody knows the key of a development broker: no web page may reach it, under a name of its own (DNS rebinding) or ours."""
        if self._known_hosts is None:
            return ""
        host = request.headers.get("Host", "")
        origin = request.headers.get("Origin", "")
        for what, name in (("Host", host), ("Origin", origin.partition("://")[2])):
            bare = name.partition("]")[0][1:] if name.startswith("[") else name.partition(":")[0]
            if (what == "Host" or origin) and bare.casefold().rstrip(".") not in self._known_hosts:
                return f"{what} is '{name[:100]}', which is no name of this broker; add it to tls.names, or run it without --dev"
        return ""

    def _mounted(self, request: web.BaseRequest, folded: list[str], query: dict[str, str]) -> tuple[Mount, int] | None:
        if folded[0] == "$tandem" and len(folded) > 1:
            handler = self._mounts.get(folded[1])
            return (handler, 2) if handler is not None else None
        if folded == ["health"] and "health" in self._mounts and "api-version" not in query and "Authorization" not in request.headers:
            return self._mounts["health"], 1  # where the official emulator has it
        return None

    async def _api(self, incoming: web.BaseRequest, segments: tuple[str, ...], query: dict[str, str]) -> Reply:
        host = incoming.headers.get("Host", "")
        namespace = self._namespace_for(host)
        target = rest.read_target(incoming.method, segments)
        entity = "/".join(segments)[:100]
        try:
            if namespace is None:
                raise EntityNotFound(f"no namespace answers for the host '{host[:100]}'")
            request = Request(
                method=incoming.method,
                segments=segments,
                query=query,
                headers=incoming.headers,
                body=b"",
                scheme="https" if incoming.secure or incoming.headers.get(HEADER) == "https" else "http",
                host=host,
            )
            try:
                request = replace(request, body=await self._body(incoming))
            except (BodyTooLarge, BodyTooSlow, EncodingRefused):
                if target is not None:
                    await self._rest.refuse(namespace, request, target)
                raise
            if target is not None:
                return await self._rest.handle(namespace, request, target, incoming.headers.items())
            return await to_the_end(self._administered(namespace, request, peer_of(incoming), entity))
        except BusError as error:
            if error.status >= 500:
                logger.error("%s /%s: %s", incoming.method, entity, error.description)
            if namespace is not None and isinstance(error, AuthenticationFailed | Unauthorized):
                error.reword(namespace.tracker.describe(error, entity, self._clock.now_ms()))
                note_refused(incoming, error)
            return self._refusal(namespace, error, rest.status_of(error) if target is not None else error.status, entity)
        except MemoryError:
            raise
        except Exception as error:
            logger.exception("%s /%s failed", incoming.method, entity)
            failure = BusError(f"the broker could not do this: {type(error).__name__}")
            return self._refusal(namespace, failure, 500, entity)

    async def _administered(self, namespace: HttpNamespace, request: Request, peer: str, entity: str) -> Reply:
        reply = await self._atom.handle(namespace, request)
        action = CHANGED if request.method in ("PUT", "DELETE") else READ_KEYS if KEY_ELEMENT in reply.body else ""
        if action and reply.status < 300:
            done = {"PUT": "created" if reply.status == 201 else "updated", "DELETE": "deleted"}.get(request.method, "")
            namespace.audited(action, request.token or "", peer, entity, done)
        return reply

    def _refusal(self, namespace: HttpNamespace | None, error: BusError, status: int, entity: str) -> Reply:
        detail = error.description
        if namespace is not None:
            detail = namespace.tracker.describe(error, entity, self._clock.now_ms())
        headers = {"WWW-Authenticate": "SharedAccessSignature"} if status == 401 else {}
        if isinstance(error, BodyTooLarge | BodyTooSlow):
            headers["Connection"] = "close"
        body = error_document(status, f"SubCode={status}00. {detail}")
        return Reply(status=status, body=body, content_type=ERROR_TYPE, headers=headers)

    async def _body(self, request: web.BaseRequest) -> bytes:
        """All of it, bounded in size and time."""
        if not request.can_read_body:
            return b""
        encoding = request.headers.get("Content-Encoding", "identity").strip().casefold()
        if encoding not in ("", "identity"):
            raise EncodingRefused(f"Content-Encoding is '{encoding[:40]}'; bodies must not be compressed")
        bytes_max = self._limits.http_body_bytes_max
        if (request.content_length or 0) > bytes_max:
            raise BodyTooLarge(f"the body has {request.content_length} bytes; at most {bytes_max} are allowed")
        if request.headers.get("Expect", "").casefold() == "100-continue":
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0
        body = bytearray()
        try:
            async with asyncio.timeout(self._limits.http_body_ms_max / 1000):
                async for chunk in request.content.iter_any():
                    body += chunk
                    if len(body) > bytes_max:
                        raise BodyTooLarge(f"the body has more than the {bytes_max} bytes that are allowed")
        except TimeoutError:
            raise BodyTooSlow(f"the body did not arrive within {self._limits.http_body_ms_max} ms") from None
        return bytes(body)


def _detach(request: web.BaseRequest) -> asyncio.Transport:
    guard = request.protocol
    assert isinstance(guard, _GuardedHandler)
    return guard.detach()


def _response(reply: Reply) -> web.Response:
    response = web.Response(status=reply.status, body=reply.body or None, headers=reply.headers)
    if reply.content_type is not None:
        response.headers["Content-Type"] = reply.content_type
    response.headers["Server"] = _SERVER
    response.headers.update(PASSIVE)
    if response.headers.get("Connection") == "close":
        response.force_close()
    return response


class _GuardedHandler(GuardedHandler):
    """Its connection may become a WebSocket, or be taken over by a relay; nonsense is answered as documented."""

    _frames: MaskedFrames | None = None

    def set_parser(self, parser: Any, data_received_cb: Callable[[], None] | None = None) -> None:
        """From here on the peer speaks WebSocket."""
        self._frames = MaskedFrames(parser, self)
        super().set_parser(cast(Any, self._frames), data_received_cb)

    def takes_frames(self) -> bool:
        return not self._reading_paused

    def listen(self, on: bool) -> None:
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if not on and transport.is_reading():
            transport.pause_reading()
        elif on and not self._reading_paused and not transport.is_reading():
            transport.resume_reading()

    def soon(self, function: Callable[[], None]) -> None:
        self._loop.call_soon(function)

    def resume_reading(self, *how: Any, **named: Any) -> None:
        """The messages that waited were taken."""
        frames = self._frames
        if frames is None or not frames.behind:
            super().resume_reading(*how, **named)
            return
        self._reading_paused = False
        frames.go_on()

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Bytes that are no request, or a handler that broke. A stranger's nonsense must not fill the log."""
        if isinstance(exc, MemoryError):
            self._loop.call_exception_handler({"message": "out of memory in a request", "exception": exc})
        if isinstance(exc, ConnectionError):
            logger.warning("%s %s broke off: %s", request.method, request.path[:100], exc)
        elif status >= 500:
            logger.error("%s %s failed", request.method, request.path[:100], exc_info=exc)
        else:
            logger.debug("refused what is no HTTP request: %s", message or exc)
        if request.writer.output_size > 0:
            raise ConnectionError("part of a response is sent already; all that is left is to hang up")
        first_line = (message or "").strip().partition("\n")[0][:200]
        response = _response(
            Reply(status=status, body=error_document(status, f"SubCode={status}00. {first_line}".strip()), content_type=ERROR_TYPE)
        )
        response.force_close()
        return response

    def detach(self) -> asyncio.Transport:
        """The connection has another owner from now on. To us it is lost, so the task that serves it is cancelled."""
        transport, self.transport = self.transport, None
        if transport is None:
            raise ConnectionResetError("the peer hung up")
        self.connection_lost(None)
        return transport
