"""What the relay needs of a namespace and of the HTTP server around it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from tandem.model.clock import Clock
from tandem.model.entity import Right
from tandem.model.errors import AuthenticationFailed, BusError, Refused, Retry, Unauthorized
from tandem.model.limits import Limits
from tandem.relay.entity import Relays
from tandem.relay.rendezvous import Rejection
from tandem.relay.target import RelayTarget

NOT_DELIVERED: Final = "X-Tandem-Delivered"
"""`false`: nothing of the request has reached a listener; it may be made again elsewhere."""

Authorize = Callable[[str | None, str, Right], Awaitable[int]]
"""(token, path, right) -> until when it is good, in ms UTC. Raises AuthenticationFailed or Unauthorized."""


class NoListener(Retry):
    """Nobody listens there now. WebSocket senders hear 404, HTTP senders 502."""

    condition = "amqp:not-found"
    status = 404


class ListenerFailed(Retry):
    """`delivered`: it may have got the request before it failed, so that repeating it may do it twice."""

    def __init__(self, description: str, *, delivered: bool = False) -> None:
        super().__init__(description)
        self.delivered = delivered


class RelayTimeout(ListenerFailed):
    condition = "com.microsoft:timeout"
    status = 504


class BadGateway(ListenerFailed):
    """The listener went away, or answered nonsense."""

    condition = "amqp:internal-error"
    status = 502


class Rejected(BusError):
    """The listener's own words."""

    condition = "amqp:not-allowed"

    def __init__(self, rejection: Rejection) -> None:
        super().__init__(rejection.reason or "The listener rejected the connection.")
        self.status = rejection.status  # type: ignore[misc]


class HeadersTooLarge(Refused):
    condition = "amqp:link:message-size-exceeded"
    status = 431


class Forbidden(Refused):
    """A good token, for something else."""

    condition = "amqp:unauthorized-access"
    status = 403


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayNamespace:
    """One namespace, as its relays need it."""

    name: str
    relays: Relays
    clock: Clock
    """The one that tokens expire by."""
    authorize: Authorize
    describe: Callable[[BusError, str], str]
    """An error and the entity it is about -> the text with its tracking id."""
    note_refused: Callable[[web.BaseRequest, BusError], None]
    """Told of every token that did not open anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Of all relays of one broker."""

    limits: Limits
    chance: Callable[[], float]
    new_id: Callable[[], str]
    detach: Callable[[web.BaseRequest], asyncio.Transport]
    """Takes a connection away from the HTTP server; the task that calls it is cancelled."""


async def authorize(namespace: RelayNamespace, token: str | None, path: str, right: Right) -> int:
    """401: no token, or one that is not good at all; 403: a good one that is not for this."""
    if not token:
        raise AuthenticationFailed("MissingToken: a token is needed, as sb-hc-token in the query or as ServiceBusAuthorization.")
    try:
        return await namespace.authorize(token, path, right)
    except Unauthorized as error:
        raise Forbidden(error.description) from None
    except AuthenticationFailed as error:
        if error.description.startswith("InvalidAudience"):
            raise Forbidden(error.description) from None
        raise


def token_of(request: web.BaseRequest, target: RelayTarget) -> str | None:
    """The query's is asked first, then the relay's own header."""
    return target.token or request.headers.get("ServiceBusAuthorization")


def refusal(namespace: RelayNamespace, request: web.BaseRequest, error: BusError, entity: str) -> web.Response:
    """The text stands in the reason too: WebSocket clients see nothing else of a refused handshake."""
    text = namespace.describe(error, entity)
    error.reword(text)
    if isinstance(error, AuthenticationFailed | Forbidden):
        namespace.note_refused(request, error)
    reason = "".join(letter if " " <= letter <= "~" else "?" for letter in text)
    headers = {"Server": "Tandem", "Content-Type": "text/plain; charset=utf-8", "X-Content-Type-Options": "nosniff"}
    if error.status == 401:
        headers["WWW-Authenticate"] = "SharedAccessSignature"
    if isinstance(error, Rejected):
        headers["Via"] = f"1.1 {namespace.name}"
    elif not (isinstance(error, ListenerFailed) and error.delivered):
        headers[NOT_DELIVERED] = "false"
    response = web.Response(status=error.status, reason=reason, body=text.encode(), headers=headers)
    response.force_close()
    return response


def remote_of(request: web.BaseRequest) -> tuple[str, int] | None:
    peer = request.transport.get_extra_info("peername") if request.transport is not None else None
    return (str(peer[0]), int(peer[1])) if isinstance(peer, tuple) and len(peer) >= 2 else None
