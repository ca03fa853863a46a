"""The REST data plane: send, receive, lock, unlock, delete and renew, one HTTP request each."""

from __future__ import annotations

import enum
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tandem.gateway import verbs
from tandem.gateway.http.data_port import ReceivedMessage
from tandem.gateway.http.properties import read_batch, read_single, write_headers
from tandem.gateway.http.types import HttpNamespace, Reply, Request
from tandem.gateway.waiting import to_the_end
from tandem.model.address import Address, parse
from tandem.model.entity import Right
from tandem.model.errors import ArgumentOutOfRange, BusError, EntityNotFound, LockLost, MessageNotFound, MessageSizeExceeded

BATCH_TYPE: Final = "application/vnd.microsoft.servicebus.json"
WAIT_SECONDS_DEFAULT: Final = 60
WAIT_SECONDS_MAX: Final = 1_800


class Verb(enum.Enum):
    SEND = "send"
    HEAD = "head"
    """The first message: POST locks it, DELETE takes it."""
    LOCKED = "locked"
    """A locked message: PUT unlocks it, DELETE completes it, POST renews its lock."""


@dataclass(frozen=True, slots=True)
class RestTarget:
    verb: Verb
    path: str
    message: str = ""
    lock_token: uuid.UUID | None = None


_METHODS: Final = {Verb.SEND: ("POST",), Verb.HEAD: ("POST", "DELETE"), Verb.LOCKED: ("PUT", "DELETE", "POST")}


def read_target(method: str, segments: tuple[str, ...]) -> RestTarget | None:
    """None when the address belongs to administration: an entity may have `messages` in its own name. A slash at the end says nothing."""
    if segments[-1:] == ("",):
        segments = segments[:-1]
    folded = [segment.casefold() for segment in segments]
    target: RestTarget | None = None
    if len(folded) >= 2 and folded[-1] == "messages":
        target = RestTarget(Verb.SEND, "/".join(segments[:-1]))
    elif len(folded) >= 3 and folded[-2:] == ["messages", "head"]:
        target = RestTarget(Verb.HEAD, "/".join(segments[:-2]))
    elif len(folded) >= 4 and folded[-3] == "messages":
        token = _lock_token(segments[-1])
        if token is not None:
            target = RestTarget(Verb.LOCKED, "/".join(segments[:-3]), segments[-2], token)
    return target if target is not None and method in _METHODS[target.verb] else None


def _lock_token(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(text)
    except ValueError:
        return None


def status_of(error: BusError) -> int:
    """This API has its own idea of some codes: 410 for a missing entity, 404 for a lost lock, 403 for too large."""
    if isinstance(error, EntityNotFound):
        return 410
    if isinstance(error, LockLost | MessageNotFound):
        return 404
    if isinstance(error, MessageSizeExceeded):
        return 403
    return error.status


class Rest:
    async def handle(self, namespace: HttpNamespace, request: Request, target: RestTarget, headers: Iterable[tuple[str, str]]) -> Reply:
        """`headers` are the request's, in order and as written. Raises BusError; see `status_of`."""
        address = await self._allowed(namespace, request, target)
        if target.verb is Verb.SEND:
            try:
                return await self._send(namespace, request, address, headers)
            except BusError:
                namespace.data.count_refused_send(address)
                raise
        if target.verb is Verb.HEAD:
            return await self._receive(namespace, request, address, target.path)
        return await self._locked(namespace, request, address, target)

    async def refuse(self, namespace: HttpNamespace, request: Request, target: RestTarget) -> None:
        """Its body was not taken: who may not send hears that first, and for others it counts as a send that was refused."""
        address = await self._allowed(namespace, request, target)
        if target.verb is Verb.SEND:
            namespace.data.count_refused_send(address)

    async def _allowed(self, namespace: HttpNamespace, request: Request, target: RestTarget) -> Address:
        address = parse(target.path)
        right = Right.SEND if target.verb is Verb.SEND else Right.LISTEN
        # Some clients sign for the entity, some for the URL that they call.
        rest = "/".join(request.segments).strip("/")[len(address.entity) :].strip("/")
        await namespace.data.authorize(request.token, address.entity, right, rest)
        if not address.entity or address.entity.startswith("$"):
            raise EntityNotFound(f"there is no entity '{target.path[:80]}'")
        return address

    async def _send(self, namespace: HttpNamespace, request: Request, address: Address, headers: Iterable[tuple[str, str]]) -> Reply:
        content_type = request.headers.get("Content-Type")
        if content_type is not None and content_type.partition(";")[0].strip().casefold() == BATCH_TYPE:
            messages = read_batch(request.body)
        else:
            messages = [read_single(request.body, content_type, request.headers.get("BrokerProperties"), headers)]
        if messages:
            # A sender that hangs up must not split a batch: it goes through whole, heard or not.
            await to_the_end(namespace.data.send(address, messages))
        return Reply(status=201)

    async def _receive(self, namespace: HttpNamespace, request: Request, address: Address, path: str) -> Reply:
        lock = request.method == "POST"
        received = await namespace.data.receive(address, lock=lock, wait_ms=_wait_ms(request.query))
        if received is None:
            return Reply(status=204)
        headers = write_headers(received)
        headers["Content-Disposition"] = "attachment"  # a browser keeps it, and does not show it
        if received.lock_token is not None:
            headers["Location"] = f"{request.scheme}://{request.host}/{path}/messages/{received.sequence_number}/{received.lock_token}"
        return Reply(status=201 if lock else 200, body=received.message.body, content_type=_content_type(received), headers=headers)

    async def _locked(self, namespace: HttpNamespace, request: Request, address: Address, target: RestTarget) -> Reply:
        assert target.lock_token is not None
        if request.method == "POST":
            await namespace.data.renew(address, target.message, target.lock_token)
        else:
            how = verbs.COMPLETED if request.method == "DELETE" else verbs.ABANDONED
            await to_the_end(namespace.data.settle(address, target.message, target.lock_token, how))
        return Reply(status=200)


def _content_type(received: ReceivedMessage) -> str | None:
    given = received.message.content_type
    if given is None or not given.isascii() or not given.isprintable():
        return None
    return given


def _wait_ms(query: Mapping[str, str]) -> int:
    text = query.get("timeout", "").strip()
    if not text:
        return WAIT_SECONDS_DEFAULT * 1000
    if not (text.isascii() and text.isdigit() and len(text) <= 6) or int(text) > WAIT_SECONDS_MAX:
        raise ArgumentOutOfRange(f"timeout is '{text[:40]}'; 0 to {WAIT_SECONDS_MAX} seconds are allowed")
    return int(text) * 1000
