"""Answers to HTTP requests: over the control channel if they are small, at the request's rendezvous if they are not."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from websockets.exceptions import ConnectionClosed

from tandem.client.relay.endpoint import RelayEndpoint
from tandem.client.relay.errors import RelayError
from tandem.client.relay.opening import open_socket
from tandem.client.relay.requests import Handler, RelayRequest, RelayResponse, at_once, read_request, streamed

log = logging.getLogger("tandem.client.relay")

_CONTROL_BYTES_MAX: Final = 65_536 - 8_192
"""Body of an answer on the control channel; headers and the rest of the command have their own share."""
_PIECE_BYTES_MAX: Final = 65_536


class Answering:
    """Of one listener. At most `requests_max` requests are worked on at a time; further ones are told 503."""

    def __init__(self, endpoint: RelayEndpoint, requests_max: int) -> None:
        self.handler: Handler | None = None
        self.under_way = 0
        self._endpoint = endpoint
        self._requests_max = requests_max
        self._channel = asyncio.Lock()
        """Nothing may come between the head and the body of an answer."""

    async def answer(self, channel: Any, command: dict[str, Any], body: bytes) -> None:
        """`command` is a whole request, or only says where one waits."""
        try:
            if "method" in command:
                response = await self._ask(read_request(command, self._endpoint, at_once(body)))
                if isinstance(response.body, bytes | str) and len(_bytes(response.body)) <= _CONTROL_BYTES_MAX:
                    async with self._channel:
                        await _send(channel, command["id"], response)
                else:
                    async with self._at(command["address"]) as socket:
                        await _send(socket, command["id"], response)
                return
            async with self._at(command["address"]) as socket:
                whole = json.loads(await socket.recv())["request"]
                pieces = streamed(socket) if whole.get("body") else at_once(b"")
                await _send(socket, whole["id"], await self._ask(read_request(whole, self._endpoint, pieces)))
        except (RelayError, ConnectionClosed) as error:
            log.warning("a request on %s was lost: %s", self._endpoint, error)

    @asynccontextmanager
    async def _at(self, address: str) -> AsyncIterator[Any]:
        """A rendezvous. Left by an error or by being cancelled, it is cut: the sender must not take a part for the whole."""
        socket = await open_socket(address, ssl_context=self._endpoint.ssl_context, message_bytes_max=None)
        try:
            yield socket
            await socket.close()
        except BaseException:
            socket.transport.abort()
            raise

    async def _ask(self, request: RelayRequest) -> RelayResponse:
        if self.handler is None:
            return RelayResponse(status=501, body="this listener answers no HTTP requests")
        if self.under_way >= self._requests_max:
            return RelayResponse(status=503, body="the listener is busy")
        self.under_way += 1
        try:
            response = await self.handler(request)
            if not isinstance(response, RelayResponse):
                raise TypeError(f"the handler gave {type(response).__name__}, which is no RelayResponse")
            return response
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("%s %s failed", request.method, request.target[:100])
            return RelayResponse(status=500, body="the listener could not answer this request")
        finally:
            self.under_way -= 1


async def _send(socket: Any, id_: str, response: RelayResponse) -> None:
    head: dict[str, Any] = {"requestId": id_, "statusCode": response.status, "responseHeaders": dict(response.headers)}
    if response.reason:
        head["statusDescription"] = response.reason
    text = json.dumps({"response": {**head, "body": True}})
    await socket.send(text)
    await socket.send(_bytes(response.body) if isinstance(response.body, bytes | str) else _pieces(response.body))


async def _pieces(body: Any) -> AsyncIterator[bytes]:
    yield b""  # an empty first piece: a body may have none
    async for chunk in body:
        for at in range(0, len(chunk), _PIECE_BYTES_MAX):
            yield chunk[at : at + _PIECE_BYTES_MAX]


def _bytes(body: bytes | str) -> bytes:
    return body.encode() if isinstance(body, str) else body
