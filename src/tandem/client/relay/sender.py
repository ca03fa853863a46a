"""The sending side of a relay: WebSockets to a listener, and HTTP requests."""

from __future__ import annotations

import asyncio
import urllib.parse
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final

import aiohttp

from tandem.client.relay.endpoint import RelayEndpoint
from tandem.client.relay.errors import RelayUnavailableError, ResponseLostError
from tandem.client.relay.opening import open_socket, refusal
from tandem.client.relay.reissue import IDEMPOTENT
from tandem.client.relay.stream import MESSAGE_BYTES_MAX, Opening, RelayStream

_NOT_DELIVERED: Final = "X-Tandem-Delivered"
"""`false`: the relay gave nothing of the request to a listener."""
_WORDS_BYTES: Final = 1_000
"""Of a refusal."""

Data = bytes | str | AsyncIterable[bytes] | Callable[[], AsyncIterable[bytes]] | None


@dataclass(slots=True, kw_only=True)
class RelayReply:
    """A listener's response. `body` is there when the request was made without `stream`; else iterate over it, and close it."""

    status: int
    reason: str
    headers: Mapping[str, str]
    """Looked up without regard to case."""
    body: bytes = b""
    _response: aiohttp.ClientResponse | None = field(default=None, repr=False)

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")

    async def chunks(self) -> AsyncIterator[bytes]:
        if self._response is None:
            yield self.body
            return
        try:
            async for chunk in self._response.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise ResponseLostError(f"the response ended in the middle: {error}") from error

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self.chunks()

    async def close(self) -> None:
        if self._response is not None:
            self._response.close()


class RelaySender:
    """Keeps HTTP connections open between requests: close it, or use it with `async with`."""

    def __init__(
        self,
        endpoint: RelayEndpoint,
        *,
        connect_timeout: float = 10.0,
        timeout: float = 70.0,
        message_bytes_max: int | None = MESSAGE_BYTES_MAX,
    ) -> None:
        """`timeout`: until a response begins, and for every pause in it; the relay's own is 60 seconds."""
        self.endpoint = endpoint
        self._connect_timeout = connect_timeout
        self._timeout = timeout
        self._message_bytes_max = message_bytes_max
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> RelaySender:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def connect(
        self, path: str = "", *, query: str = "", headers: Mapping[str, str] | None = None, sub_protocols: Sequence[str] | None = None
    ) -> Opening:
        """`async with sender.connect() as stream`: a WebSocket to one of the listeners, closed at the end of the block.

        Raises RelayRefusedError or RelayUnavailableError before anything was said.
        """
        return Opening(lambda: self.open(path, query=query, headers=headers, sub_protocols=sub_protocols))

    async def open(
        self, path: str = "", *, query: str = "", headers: Mapping[str, str] | None = None, sub_protocols: Sequence[str] | None = None
    ) -> RelayStream:
        """As `connect`; the caller closes it."""
        socket = await open_socket(
            self.endpoint.websocket_uri("connect", path, query),
            headers={**(headers or {}), **await self.endpoint.headers()},
            sub_protocols=sub_protocols,
            ssl_context=self.endpoint.ssl_context,
            timeout=self._connect_timeout + 30.0,
            message_bytes_max=self._message_bytes_max,
        )
        return RelayStream(socket)

    async def request(
        self,
        method: str,
        path: str = "",
        *,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        data: Data = None,
        stream: bool = False,
    ) -> RelayReply:
        """Whatever the listener answers is a reply, errors included; what the relay itself says is raised."""
        query = urllib.parse.urlencode(params) if params else ""
        given = {**(headers or {}), **await self.endpoint.headers()}
        payload: Any = data() if callable(data) else data
        if self._session is not None and method.upper() not in IDEMPOTENT:
            for _ in range(3):
                await asyncio.sleep(0)  # a kept connection that its peer has closed is found out now, not when the request is on it
        try:
            response = await self._http().request(
                method,
                self.endpoint.http_uri(path, query),
                headers=given,
                data=payload,
                ssl=self.endpoint.ssl_context or False,
                allow_redirects=False,
            )
        except aiohttp.ClientConnectorError as error:
            raise RelayUnavailableError(f"{self.endpoint} cannot be reached: {error}") from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            delivered = not isinstance(error, aiohttp.ConnectionTimeoutError)
            raise RelayUnavailableError(
                f"{self.endpoint} was lost before it answered: {type(error).__name__}: {error}", delivered=delivered
            ) from error
        try:
            if "Via" not in response.headers:
                delivered = response.headers.get(_NOT_DELIVERED, "").casefold() != "false"
                raise refusal(response.status, await _words(response), False, delivered)
            reply = RelayReply(status=response.status, reason=response.reason or "", headers=response.headers, _response=response)
            if stream:
                return reply
            reply.body = b"".join([chunk async for chunk in reply.chunks()])
            reply._response = None
            return reply
        except BaseException:
            response.close()
            raise

    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=None, connect=self._connect_timeout, sock_read=self._timeout)
            self._session = aiohttp.ClientSession(timeout=timeout, auto_decompress=False)
        return self._session


async def _words(response: aiohttp.ClientResponse) -> str:
    """Why it was refused, as far as that is said: whatever stands between here and the relay may say it, and break off."""
    said = b""
    try:
        while len(said) < _WORDS_BYTES and (piece := await response.content.read(_WORDS_BYTES - len(said))):
            said += piece
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        said += f" ({type(error).__name__})".encode()
    return said.decode("utf-8", "replace")
