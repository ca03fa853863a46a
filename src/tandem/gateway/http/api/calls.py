"""One call of the console: who makes it, what it may do, what it brought along; and how answers and refusals look."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from aiohttp import web

from tandem.gateway.http.onward import HEADER
from tandem.gateway.http.types import PASSIVE, note_refused
from tandem.model.address import Address, parse
from tandem.model.entity import Right
from tandem.model.errors import ArgumentRefused, AuthenticationFailed, BusError, Refused, Unauthorized
from tandem.server import sas

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tandem.gateway.http.onward import Onward
    from tandem.gateway.http.operated_broker import OperatedBroker
    from tandem.server.administration import NamespaceAdmin
    from tandem.server.context import NamespaceContext

NAMESPACE_HEADER: Final = "Tandem-Namespace"
"""Says which namespace is meant, where the name of the host does not."""
SEQ_MAX: Final = (1 << 63) - 1
_DIGITS_MAX: Final = 19
_ASK_SECONDS: Final = 2.0
"""So long another worker, or node, is waited for."""
_T = TypeVar("_T")


class CallTooLarge(Refused):
    condition = "amqp:link:message-size-exceeded"
    status = 413


class Caller:
    """Whose token came with a request, and what it is good for."""

    def __init__(self, grants: list[sas.Grant], namespace: str) -> None:
        self.grants = [grant for grant in grants if grant.rights]
        self._namespace = namespace

    @classmethod
    async def of(cls, context: NamespaceContext, token: str | None) -> Caller:
        """Raises AuthenticationFailed."""
        if not token:
            raise AuthenticationFailed("MissingToken: the request has no Authorization header. Log in.")
        path = sas.parse(token).path if sas.looks_like_sas(token) else ""
        return cls(await context.authority.grants_looking(token, path), context.namespace.name)

    @property
    def name(self) -> str:
        return self.grants[0].key_name if self.grants else ""

    @property
    def expires_at_ms(self) -> int:
        return max((grant.expires_at_ms for grant in self.grants), default=0)

    def may(self, path: str, right: Right) -> bool:
        return any(grant.allows(right) and grant.covers(path) for grant in self.grants)

    def need(self, path: str, right: Right) -> None:
        if not self.may(path, right):
            raise Unauthorized(f"InsufficientClaims: the claim '{right.value}' is needed for '{path or self._namespace}'.")

    def described(self) -> list[dict[str, Any]]:
        return [{"path": grant.scope, "rights": sorted(right.value for right in grant.rights)} for grant in self.grants]


class ApiCall:
    """A request, taken apart. `argument` reads what came as JSON, and refuses what is missing or of another type."""

    def __init__(self, server: OperatedBroker, number: int, request: web.BaseRequest, caller: Caller, body: dict[str, Any]) -> None:
        self.server = server
        self.number = number
        self.request = request
        self.caller = caller
        self.body = body

    @property
    def context(self) -> NamespaceContext:
        return self.server.contexts[self.number]

    @property
    def admin(self) -> NamespaceAdmin:
        return self.server.admins[self.number]

    def argument(self, name: str, kind: type[_T], default: _T | None = None) -> _T:
        value = self.body.get(name)
        if value is None:
            value = default
        fits = isinstance(value, kind) and not (kind is int and isinstance(value, bool))
        if value is None or not fits:
            raise ArgumentRefused(f"'{name}' must be a {kind.__name__}, found {_shown(value)}")
        return cast("_T", value)

    def number_of(self, name: str, least: int, most: int, default: int | None = None) -> int:
        """Browsers cannot hold large numbers: those come as text."""
        value = _whole(self.body.get(name, default))
        if value is None or not least <= value <= most:
            raise ArgumentRefused(f"'{name}' must be a number from {least} to {most}, found {_shown(self.body.get(name))}")
        return value

    def numbers(self, name: str, most: int) -> list[int]:
        """Sequence numbers, as text or as numbers, each once."""
        found: list[int] = []
        for given in self.argument(name, list):
            value = _whole(given)
            if value is None or not 0 <= value <= SEQ_MAX:
                raise ArgumentRefused(f"'{name}' must be a list of sequence numbers, found {_shown(given)} in it")
            found.append(value)
        if not 0 < len(found) <= most or len(set(found)) != len(found):
            raise ArgumentRefused(f"'{name}' must have 1 to {most} different sequence numbers, found {len(found)}")
        return found

    async def others_say(self, what: str = "", body: dict[str, Any] | None = None, seconds: float = _ASK_SECONDS) -> dict[str, Any]:
        """By worker, or node, what every other one answers to a call, this one unless `what` names another; one that does not answer, or
        refuses, is left out. Empty where there are no others, and when one of them asks."""
        onward = self._onward()
        if onward is None:
            return {}
        given = self.body if body is None else body
        raw = json.dumps(given).encode() if given else b""
        method, _, path = what.partition(" ")
        return await onward.others_say(self.request, raw, f"{method} /$tandem/api/{path}" if what else "", seconds)

    @property
    def others(self) -> Sequence[str]:
        """Whom `others_say` asks."""
        onward = self._onward()
        return onward.others if onward is not None else ()

    def _onward(self) -> Onward | None:
        """None: this answer is nobody else's."""
        return None if HEADER in self.request.headers else self.server.onward

    def address(self, right: Right, name: str = "path") -> Address:
        """Where, and whether the caller may do it there: without the right nobody learns what exists."""
        address = parse(self.argument(name, str))
        self.caller.need(address.resource, right)
        return address


def _whole(value: object) -> int | None:
    """A whole number that came as one, or as its digits."""
    if isinstance(value, str):
        return int(value) if value.isascii() and value.isdigit() and len(value) <= _DIGITS_MAX else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _shown(value: object) -> str:
    return "nothing" if value is None else repr(value)[:60]


async def read_body(request: web.BaseRequest, bytes_max: int, ms_max: int) -> bytes:
    """Bounded in size and time."""
    found = bytearray()
    too_large = CallTooLarge(f"the request has more than the {bytes_max} bytes that are allowed; `tandem send` takes larger messages")
    if (request.content_length or 0) > bytes_max:
        raise too_large
    try:
        async with asyncio.timeout(ms_max / 1000):
            async for chunk in request.content.iter_any():
                found += chunk
                if len(found) > bytes_max:
                    raise too_large
    except TimeoutError:
        raise ArgumentRefused(f"the request did not arrive within {ms_max} ms") from None
    return bytes(found)


def parse_body(found: bytes) -> dict[str, Any]:
    """A JSON object; nothing counts as an empty one."""
    if not found:
        return {}
    try:
        value = json.loads(found, parse_constant=_no_number)
        if b"\\u" in found:
            json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair is no text, and could not be kept
    except UnicodeEncodeError:
        raise ArgumentRefused("the request has half of a surrogate pair (\\ud800 to \\udfff) in it, which is no character") from None
    except (ValueError, RecursionError) as error:
        raise ArgumentRefused(f"the request is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ArgumentRefused("the request must be a JSON object")
    return value


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def answer(value: object, status: int = 200) -> web.Response:
    headers = PASSIVE | {"Cache-Control": "no-store"}
    return web.Response(text=json.dumps(value), status=status, content_type="application/json", headers=headers)


def refusal(context: NamespaceContext, request: web.BaseRequest, error: BusError, now: int) -> web.Response:
    """With the condition of the specification and a tracking id. No challenge: a browser would ask for a password of its own accord."""
    error.reword(context.tracker.describe(error, "", now))
    if isinstance(error, AuthenticationFailed | Unauthorized):
        note_refused(request, error)
    response = answer({"error": error.condition, "description": error.description}, error.status)
    if isinstance(error, CallTooLarge):
        response.force_close()
    return response
