"""Relays as JSON under `/$tandem/relays`: what commands, the console and scrapers see and change."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from aiohttp import web

from tandem.model.entity import AuthorizationRule, HybridConnectionDescription, Right
from tandem.model.errors import ArgumentRefused
from tandem.relay.entity import HybridConnection
from tandem.server.administration_port import Page, RelayPort

_ALL: Final = Page(top=1_000_000)
_FIELDS: Final[dict[str, tuple[type, ...]]] = {
    "requires_client_authorization": (bool,),
    "user_metadata": (str, type(None)),
    "authorization_rules": (list,),
}


def described(entity: HybridConnection, keys: bool = False) -> dict[str, Any]:
    """`keys`: with those of its rules."""
    description = entity.description
    rules: list[dict[str, Any]] = []
    for rule in description.authorization_rules:
        rules.append({"name": rule.key_name, "rights": sorted(right.value for right in rule.rights)})
        if keys:
            rules[-1] |= {"primary_key": rule.primary_key, "secondary_key": rule.secondary_key}
    return {
        "name": description.name,
        "listener_count": len(entity.listeners),
        "connection_count": len(entity.connections),
        "requests_under_way": entity.requests,
        "requires_client_authorization": description.requires_client_authorization,
        "user_metadata": description.user_metadata,
        "authorization_rules": rules,
        "created_at_ms": description.created_at_ms,
        "updated_at_ms": description.updated_at_ms,
    }


async def serve_relays(relays: RelayPort, request: web.BaseRequest, rest: tuple[str, ...], entropy: Callable[[int], bytes]) -> object:
    """GET all or one, PUT to create or change one, DELETE one."""
    name = "/".join(rest).strip("/")
    if not name:
        return {"relays": [described(one, "keys" in request.query) for one in relays.list(_ALL)]}
    if request.method == "PUT":
        known = relays.find(name)
        fields = _fields(await request.read(), known.authorization_rules if known is not None else (), entropy)
        if known is None:
            await relays.create(HybridConnectionDescription(name=name, **fields))
        else:
            await relays.update(replace(known, **fields))
    shown = described(relays.get(name))
    if request.method == "DELETE":
        await relays.delete(name)
    return shown


def _fields(body: bytes, known: tuple[AuthorizationRule, ...], entropy: Callable[[int], bytes]) -> dict[str, Any]:
    given = json.loads(body or b"{}")
    if not isinstance(given, dict):
        raise ArgumentRefused("the body must be an object")
    for name, value in given.items():
        if name not in _FIELDS:
            raise ArgumentRefused(f"unknown: {name}; allowed: {', '.join(_FIELDS)}")
        if not isinstance(value, _FIELDS[name]):
            raise ArgumentRefused(f"{name} cannot be {value!r}")
    fields: dict[str, Any] = dict(given)
    if "authorization_rules" in given:
        kept = {rule.key_name: rule for rule in known}
        fields["authorization_rules"] = tuple(_rule(one, kept, entropy) for one in given["authorization_rules"])
    return fields


def _rule(given: Any, kept: dict[str, AuthorizationRule], entropy: Callable[[int], bytes]) -> AuthorizationRule:
    """A rule that is known keeps its keys; a new one gets some."""
    if not isinstance(given, dict) or not isinstance(given.get("name"), str) or not isinstance(given.get("rights"), list):
        raise ArgumentRefused("an authorization rule is an object with name and rights")
    try:
        rights = frozenset(Right(right) for right in given["rights"])
    except ValueError as error:
        raise ArgumentRefused(f"{error}; rights are Listen, Send and Manage") from None
    old = kept.get(given["name"])
    keys = (old.primary_key, old.secondary_key) if old is not None else tuple(base64.b64encode(entropy(32)).decode() for _ in range(2))
    everything = frozenset(Right) if Right.MANAGE in rights else rights
    return AuthorizationRule(key_name=given["name"], primary_key=keys[0], secondary_key=keys[1], rights=everything)
