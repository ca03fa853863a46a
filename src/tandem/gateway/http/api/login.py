"""Logging in: a key, a connection string or a token becomes a token that the browser keeps instead of the key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from tandem.gateway.http.api.calls import Caller
from tandem.model.errors import ArgumentRefused, AuthenticationFailed
from tandem.server import sas

if TYPE_CHECKING:
    from aiohttp import web

    from tandem.gateway.http.operated_broker import OperatedBroker
    from tandem.server.context import NamespaceContext

TOKEN_MS: Final = 12 * 3_600_000
"""A working day; then one logs in again."""
_FIELDS: Final = ("connection_string", "key_name", "key", "path", "token")


async def serve(server: OperatedBroker, number: int, request: web.BaseRequest, given: dict[str, Any]) -> dict[str, Any]:
    """GET says whether a login is needed, and nothing else. POST logs in; a development broker, whose key is known, lets in anybody."""
    if request.method == "GET":
        return {"dev": server.settings.dev}
    for name, value in given.items():
        if name not in _FIELDS or not isinstance(value, str):
            raise ArgumentRefused(f"'{name[:40]}': a login has texts named {', '.join(_FIELDS)}")
    parts = {name: value.strip() for name, value in given.items()}
    if parts.get("connection_string"):
        parts = _connection_string(parts["connection_string"])
        if parts["host"] and server.settings.namespaces[server.namespace_of(parts["host"])].hosts:
            number = server.namespace_of(parts["host"])
    elif not parts and server.settings.dev:
        root = next(iter(server.contexts[number].namespace.authorization_rules.values()))
        parts = {"key_name": root.key_name, "key": root.primary_key}
    context = server.contexts[number]
    token = parts.get("token") or _minted(context, parts, request.headers.get("Host", "localhost"))
    caller = await Caller.of(context, token)
    if not caller.grants:
        raise AuthenticationFailed("The token is good, but allows nothing in this namespace.")
    return {
        "token": token,
        "namespace": context.namespace.name,
        "name": caller.name,
        "grants": caller.described(),
        "expires_at_ms": caller.expires_at_ms,
        "now_ms": context.connection_clock.now_ms(),
        "faults": context.fault_points is not None,
        "cluster": server.node is not None,
        "dev": server.settings.dev,
    }


def _connection_string(text: str) -> dict[str, str]:
    fields = {name.strip().casefold(): value.strip() for name, equals, value in (part.partition("=") for part in text.split(";")) if equals}
    try:
        host = urlsplit(fields.get("endpoint", "")).hostname or ""
    except ValueError:
        raise ArgumentRefused("the connection string has an Endpoint that is no address") from None
    found = {
        "host": host,
        "key_name": fields.get("sharedaccesskeyname", ""),
        "key": fields.get("sharedaccesskey", ""),
        "token": fields.get("sharedaccesssignature", ""),
        "path": fields.get("entitypath", ""),
    }
    if not found["token"] and not (found["key_name"] and found["key"]):
        raise ArgumentRefused("the connection string needs SharedAccessKeyName and SharedAccessKey, or SharedAccessSignature")
    return found


def _minted(context: NamespaceContext, parts: dict[str, str], host: str) -> str:
    name, key, path = parts.get("key_name", ""), parts.get("key", ""), parts.get("path", "").strip("/")
    if not name or not key:
        raise AuthenticationFailed("Give a connection string, the name and the value of a key, or a token.")
    sas.verify_key(name, key, context.rule_lookup, path)
    scope = path if context.rule_lookup("", name) is None else ""
    return sas.make_token(f"http://{host}/{scope}", name, key, context.connection_clock.now_ms() + TOKEN_MS)
