"""HTTP as a listener's application sees it: a request with a body that streams, and the response it gives."""

from __future__ import annotations

import urllib.parse
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from websockets.exceptions import ConnectionClosed

from tandem.client.relay.endpoint import RelayEndpoint
from tandem.client.relay.errors import RelayUnavailableError


@dataclass(slots=True, kw_only=True)
class RelayRequest:
    """One request. The body may be read once, whole with `read` or piece by piece by iterating."""

    method: str
    target: str
    """Path, with the relay's name, and query."""
    headers: Mapping[str, str]
    """Names in lower case."""
    relay: str
    host: str = ""
    """Where senders reach the relay, with its port: their own `Host` stays behind at the relay."""
    tls: bool = True
    remote: tuple[str, int] | None = None
    body: AsyncIterator[bytes]

    @property
    def path(self) -> str:
        """Decoded, with the relay's name."""
        return urllib.parse.unquote(self.target.partition("?")[0])

    @property
    def query(self) -> str:
        return self.target.partition("?")[2]

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self.body

    async def read(self) -> bytes:
        return b"".join([piece async for piece in self.body])


@dataclass(slots=True, kw_only=True)
class RelayResponse:
    """`body`: bytes, text, or an asynchronous iterable of bytes, which streams."""

    status: int = 200
    reason: str = ""
    headers: Mapping[str, str | list[str]] = field(default_factory=dict)
    """A list for a header that comes several times, as Set-Cookie may."""
    body: bytes | str | AsyncIterable[bytes] = b""


Handler = Callable[[RelayRequest], Awaitable[RelayResponse]]


def read_request(command: Mapping[str, Any], endpoint: RelayEndpoint, body: AsyncIterator[bytes]) -> RelayRequest:
    return RelayRequest(
        method=command["method"],
        target=command["requestTarget"],
        headers={name.lower(): value for name, value in (command.get("requestHeaders") or {}).items()},
        relay=endpoint.relay,
        host=endpoint.host,
        tls=endpoint.tls,
        remote=read_remote(command),
        body=body,
    )


def read_remote(command: Mapping[str, Any]) -> tuple[str, int] | None:
    """The sender, if the relay tells."""
    remote = command.get("remoteEndpoint") or {}
    return (remote["address"], remote["port"]) if "address" in remote and "port" in remote else None


async def at_once(body: bytes) -> AsyncIterator[bytes]:
    if body:
        yield body


async def streamed(socket: Any) -> AsyncIterator[bytes]:
    """The next message of a socket, piece by piece."""
    try:
        async for piece in socket.recv_streaming():
            if piece:
                yield piece
    except ConnectionClosed as closed:
        raise RelayUnavailableError(f"the request's body ended in the middle: {closed}") from closed
