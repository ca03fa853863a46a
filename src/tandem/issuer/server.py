"""The issuer on the network: HTTPS with the addresses that azure-identity and brokers ask at."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import parse_qsl

from aiohttp import web

from tandem.issuer.clients import ClientBook
from tandem.issuer.endpoint import Answer, TokenEndpoint
from tandem.issuer.settings import IssuerSettings
from tandem.issuer.signing_keys import SigningKeys
from tandem.model.clock import Clock
from tandem.model.errors import ConfigurationError
from tandem.tokens.key_set import REVOKED
from tandem.wire.patience import GuardedHandler
from tandem.wire.tls import changing_context

logger: Final = logging.getLogger("tandem.issuer")

_BODY_BYTES_MAX: Final = 16_384
_BODY_MS_MAX: Final = 10_000
_HEADER_MS_MAX: Final = 10_000
"""A peer that has not finished the header of a request by then is hung up on; as is one that has not begun any."""
_HANDSHAKE_SECONDS_MAX: Final = 10
_GRACE_SECONDS: Final = 2.0
"""For requests under way when it stops."""
_REQUESTS_MAX: Final = 1_000
_CONNECTIONS_MAX: Final = 2_000
_LOOK_SECONDS: Final = 30
_HEADERS: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Server": "Tandem"}


class IssuerServer:
    """`start` returns when it serves."""

    def __init__(
        self,
        settings: IssuerSettings,
        keys: SigningKeys,
        book: ClientBook,
        endpoint: TokenEndpoint,
        *,
        clock: Clock,
        note: Callable[[str], None],
        header_ms_max: int = _HEADER_MS_MAX,
        body_ms_max: int = _BODY_MS_MAX,
        connections_max: int = _CONNECTIONS_MAX,
    ) -> None:
        self._header_ms_max = header_ms_max
        self._body_ms_max = body_ms_max
        self._connections_max = connections_max
        self._settings = settings
        self._keys = keys
        self._book = book
        self._endpoint = endpoint
        self._clock = clock
        self._note = note
        self._server: web.Server | None = None
        self._door: asyncio.Server | None = None
        self._looking: asyncio.Task[None] | None = None
        self._under_way = 0

    async def start(self, listener: socket.socket, tls: ssl.SSLContext) -> None:
        await asyncio.to_thread(self._keys.look_after, self._clock.now_ms())
        self._tls = tls
        loop = asyncio.get_running_loop()
        server = self._server = web.Server(self._serve)

        def handler() -> GuardedHandler:
            return GuardedHandler(
                server,
                loop=loop,
                connections_max=self._connections_max,
                header_ms_max=self._header_ms_max,
                keepalive_timeout=30,
                lingering_time=2.0,
                auto_decompress=False,
                access_log=None,
                logger=logger,
            )

        self._door = await loop.create_server(
            handler,
            sock=listener,
            ssl=changing_context(lambda: self._tls),
            backlog=512,
            ssl_handshake_timeout=_HANDSHAKE_SECONDS_MAX,
            ssl_shutdown_timeout=2,
        )
        self._looking = asyncio.create_task(self._look_after_keys())

    def use_certificate(self, tls: ssl.SSLContext) -> None:
        """For connections from now on."""
        self._tls = tls

    async def stop(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._looking
        if self._door is not None and self._server is not None:
            self._door.close()
            await self._server.shutdown(_GRACE_SECONDS)

    async def _look_after_keys(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                self._keys.reload()
                await asyncio.to_thread(self._keys.look_after, self._clock.now_ms())
            except (OSError, ConfigurationError) as error:
                self._note(f"signing keys could not be looked after, those at hand stay in use: {error}")

    # -- requests ----------------------------------------------------------------------------

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        if self._under_way >= _REQUESTS_MAX:
            return _json(Answer(503, {"error": "temporarily_unavailable"}, 1))
        guard = request.protocol
        assert isinstance(guard, GuardedHandler)
        guard.request_began()
        self._under_way += 1
        try:
            return _json(await self._routed(request))
        except ConfigurationError as error:
            self._note(f"{request.method} {request.path[:100]}: {error}")
            return _json(Answer(500, {"error": "server_error"}))
        finally:
            self._under_way -= 1
            guard.request_ended()

    async def _routed(self, request: web.BaseRequest) -> Answer:
        tenant, _, rest = request.path.removeprefix("/").partition("/")
        if request.path == "/health" and request.method == "GET":
            return Answer(200, {"status": "up"})
        if tenant.casefold() != self._settings.tenant.casefold():
            return Answer(404, {"error": "invalid_request", "error_description": "There is no such tenant here."})
        if rest == "oauth2/v2.0/token":
            if request.method != "POST":
                return Answer(405, {"error": "invalid_request", "error_description": "Tokens are asked for with POST."})
            return await self._token(request)
        documents: dict[str, Callable[[], dict[str, Any]]] = {
            "v2.0/.well-known/openid-configuration": self._openid_configuration,
            ".well-known/openid-configuration": self._openid_configuration,
            "discovery/v2.0/keys": self.key_set,
        }
        if rest in documents and request.method == "GET":
            return Answer(200, documents[rest]())
        return Answer(404, {"error": "invalid_request", "error_description": "There is nothing here."})

    async def _token(self, request: web.BaseRequest) -> Answer:
        if request.headers.get("Expect", "").casefold() == "100-continue":
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0
        try:
            async with asyncio.timeout(self._body_ms_max / 1000):
                body = await request.content.read(_BODY_BYTES_MAX + 1) if request.can_read_body else b""
                while len(body) <= _BODY_BYTES_MAX and not request.content.at_eof():
                    body += await request.content.read(_BODY_BYTES_MAX)
        except TimeoutError:
            return Answer(408, {"error": "invalid_request", "error_description": "The body did not arrive in time."})
        if len(body) > _BODY_BYTES_MAX:
            return Answer(413, {"error": "invalid_request", "error_description": f"The body has more than {_BODY_BYTES_MAX} bytes."})
        try:
            form = dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=32))
        except ValueError:
            return Answer(400, {"error": "invalid_request", "error_description": "The body is no form."})
        return await self._endpoint.answer(form, request.headers.get("Authorization", ""), request.remote or "")

    def _openid_configuration(self) -> dict[str, Any]:
        settings = self._settings
        return {
            "issuer": settings.issuer,
            "token_endpoint": settings.token_url,
            "jwks_uri": settings.keys_url,
            "authorization_endpoint": f"{settings.url}/{settings.tenant}/oauth2/v2.0/authorize",
            "token_endpoint_auth_methods_supported": ["client_secret_post", "client_secret_basic"],
            "grant_types_supported": ["client_credentials"],
            "response_types_supported": ["token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256"],
        }

    def key_set(self) -> dict[str, Any]:
        """Public keys, and whose tokens are void."""
        return {"keys": self._keys.published(), REVOKED: self._book.revoked()}


def _json(answer: Answer) -> web.Response:
    headers = _HEADERS | ({"Retry-After": str(answer.retry_after)} if answer.retry_after else {})
    if answer.status == 401:
        headers = headers | {"WWW-Authenticate": 'Basic realm="Tandem issuer", charset="UTF-8"'}
    return web.Response(status=answer.status, text=json.dumps(answer.body), content_type="application/json", headers=headers)
