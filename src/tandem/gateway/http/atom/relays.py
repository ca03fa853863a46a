"""Administration of hybrid connections over ATOM."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from tandem.gateway.http.atom.entry import read_entry
from tandem.gateway.http.atom.target import AtomTarget, Kind, read_page
from tandem.gateway.http.atom.xml import ENTRY_TYPE, FEED_TYPE, Writer
from tandem.gateway.http.types import Reply, Request, check_if_match
from tandem.model.entity import AuthorizationRule, HybridConnectionDescription
from tandem.model.entity_json import dump_relay
from tandem.model.errors import ArgumentRefused
from tandem.relay.entity import HybridConnection
from tandem.server.administration_port import RelayPort

_NAME: Final = b"HybridConnectionDescription"

WithKeys = Callable[[tuple[AuthorizationRule, ...], tuple[AuthorizationRule, ...]], tuple[AuthorizationRule, ...]]


def is_for_relay(relays: RelayPort, request: Request, target: AtomTarget) -> bool:
    """A listing of relays, a relay that exists, or one that is to be."""
    if target.kind is not Kind.ENTITY:
        return target.kind is Kind.RELAYS
    return relays.find(target.entity) is not None or (request.method == "PUT" and _NAME in request.body)


async def handle_relay(relays: RelayPort, request: Request, target: AtomTarget, writer: Writer, with_keys: WithKeys) -> Reply:
    """The caller has checked the claim, and that the request is about relays."""
    author = request.host.partition(":")[0].partition(".")[0]
    if target.kind is Kind.RELAYS:
        page = read_page(request.query)
        found = relays.list(replace(page, top=page.top + 1))
        entries = [writer.feed_entry(*_parts(writer, one), author) for one in found[: page.top]]
        following = f"$skip={page.skip + page.top}&$top={page.top}" if len(found) > page.top else None
        return Reply(
            status=200, body=writer.feed("$Resources/HybridConnections", "HybridConnections", entries, following), content_type=FEED_TYPE
        )
    if request.method == "DELETE":
        check_if_match(request.headers.get("If-Match"), _etag(relays.get(target.entity).description))
        await relays.delete(target.entity)
        return Reply(status=200)
    status = 200
    if request.method == "PUT":
        status = await _put(relays, request, target, with_keys)
    entity = relays.get(target.entity)
    body = writer.entry(*_parts(writer, entity), author)
    return Reply(status=status, body=body, content_type=ENTRY_TYPE, headers={"ETag": _etag(entity.description)})


async def _put(relays: RelayPort, request: Request, target: AtomTarget, with_keys: WithKeys) -> int:
    wanted = read_entry(request.body, "")
    if wanted.kind != _NAME.decode():
        raise ArgumentRefused(f"a {wanted.kind} cannot be put at the address of a hybrid connection")
    fields: dict[str, Any] = dict(wanted.fields)
    existing = relays.find(target.entity)
    if "authorization_rules" in fields:
        fields["authorization_rules"] = with_keys(fields["authorization_rules"], existing.authorization_rules if existing else ())
    match = request.headers.get("If-Match")
    if match is None:
        await relays.create(HybridConnectionDescription(name=target.entity, **fields))
        return 201
    known = relays.get(target.entity).description
    check_if_match(match, _etag(known))
    await relays.update(replace(known, **({"user_metadata": None} | fields)))
    return 200


def _parts(writer: Writer, entity: HybridConnection) -> tuple[str, str, str, int, int]:
    description = entity.description
    content = writer.relay(description, len(entity.listeners))
    return description.name, description.name, content, description.created_at_ms, description.updated_at_ms


def _etag(description: HybridConnectionDescription) -> str:
    return f'"{zlib.crc32(dump_relay(description).encode()):08x}"'
