"""HTTP as the rooms behind it see it: a request taken apart, a reply, and the namespace that a host name leads to."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, unquote

from tandem.gateway.http.data_port import DataPort
from tandem.model.errors import ArgumentRefused, BusError, PreconditionFailed
from tandem.server.administration_port import AdminPort
from tandem.server.tracking import Tracker

if TYPE_CHECKING:
    from aiohttp import web

    from tandem.relay.namespace import RelayNamespace
    from tandem.server.administration_port import RelayPort

audit: Final = logging.getLogger("tandem.audit")

PASSIVE: Final = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; sandbox",
    "X-Frame-Options": "DENY",
}
"""What somebody sent is data in a browser's eyes, whatever type its sender gave it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpNamespace:
    """One namespace, as seen over HTTP."""

    admin: AdminPort
    data: DataPort
    tracker: Tracker
    relay: RelayNamespace | None = None
    relays: RelayPort | None = None
    audited: Callable[[str, str, str, str, str], None] = lambda action, token, peer, what, detail: None
    """Given an action, the token it was done with, from where, to what, and more words about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """`segments` are decoded one by one: a slash inside one came as %2F."""

    method: str
    segments: tuple[str, ...]
    query: Mapping[str, str]
    """Names in lower case."""
    headers: Mapping[str, str]
    """Looked up without regard to case."""
    body: bytes
    scheme: str
    host: str
    """`host[:port]`, as the client wrote it."""

    @property
    def token(self) -> str | None:
        return self.headers.get("Authorization")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    status: int
    body: bytes = b""
    content_type: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


def split_target(target: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """Path segments and query of a request target. Raises ArgumentRefused where it cannot be decoded."""
    if "://" in target.partition("?")[0]:  # absolute form, as proxies send it
        target = "/" + target.partition("://")[2].partition("/")[2]
    path, _, query = target.partition("#")[0].partition("?")
    try:
        segments = tuple(unquote(segment, errors="strict") for segment in path.removeprefix("/").split("/"))
        pairs = parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=32)
    except ValueError as error:
        raise ArgumentRefused(f"the request's address cannot be decoded: {error}") from None
    return segments, {name.casefold(): value for name, value in pairs}


def check_if_match(header: str | None, etag: str) -> None:
    """RFC 9110 13.1.1, for a resource that exists."""
    if header is None:
        return
    given = [tag.strip().removeprefix("W/") for tag in header.split(",")]
    if "*" not in given and etag not in given:
        raise PreconditionFailed(f"If-Match is {header.strip()[:80]}, but the entity's tag is {etag}; read it again, or send *")


def peer_of(request: web.BaseRequest) -> str:
    """address:port"""
    peer = request.transport.get_extra_info("peername") if request.transport is not None else None
    return f"{peer[0]}:{peer[1]}" if peer else request.remote or ""


def note_refused(request: web.BaseRequest, error: BusError) -> None:
    """Whoever comes without a token that is good for it is seen by the operator; the token itself is not."""
    reason, colon, rest = error.description.partition(":")
    # The reason is one of our own words: lines of each are counted, and limited, on their own.
    audit.warning(f"%s %s of %s refused: {reason}%s", request.method, request.path[:100], request.remote, colon + rest)
