"""Where a request for a relay goes: `/$hc/{path}` for WebSockets, `/{path}` for HTTP, and the `sb-hc-*` parameters of both."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar
from urllib.parse import quote, unquote, unquote_plus

RESERVED: Final = "sb-hc-"
"""Parameters whose names begin like this are the relay's own: no listener's application sees them."""
_WEBSOCKET_ROOT: Final = "$hc"
_SEGMENTS_MAX: Final = 64
_ID_CHARS_MAX: Final = 256
_PATH_SAFE: Final = "/!$&'()*+,;=:@~"

T = TypeVar("T")


class Action(enum.Enum):
    LISTEN = "listen"
    CONNECT = "connect"
    ACCEPT = "accept"
    REQUEST = "request"


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayTarget:
    """A request's target, taken apart."""

    segments: tuple[str, ...]
    """Decoded, without `$hc`."""
    raw_segments: tuple[str, ...]
    """The same as they came: the listener gets the suffix as its sender wrote it."""
    user_query: str
    """As it came, without the relay's own parameters."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    """The relay's own, by name in lower case without `sb-hc-`."""

    @property
    def action(self) -> Action | None:
        try:
            return Action(self.parameters.get("action", "").casefold())
        except ValueError:
            return None

    @property
    def token(self) -> str | None:
        return self.parameters.get("token")

    @property
    def id(self) -> str:
        return self.parameters.get("id", "")[:_ID_CHARS_MAX]

    @property
    def path(self) -> str:
        return "/".join(self.segments)

    def suffix(self, depth: int) -> str:
        """What follows the first `depth` segments, with its slash; "" if nothing does."""
        rest = self.raw_segments[depth:]
        return "/" + "/".join(rest) if rest else ""


def is_websocket_path(raw_target: str) -> bool:
    """`/$hc/…`, where `$` may have come as `%24`."""
    return unquote(_origin_form(raw_target)[1:].partition("?")[0].partition("/")[0]).casefold() == _WEBSOCKET_ROOT


def _origin_form(raw_target: str) -> str:
    """Proxies may send a whole address (RFC 9112 3.2.2)."""
    return raw_target if raw_target.startswith("/") else "/" + raw_target.partition("://")[2].partition("/")[2]


def read_target(raw_target: str) -> RelayTarget:
    """Of either form."""
    raw_target = _origin_form(raw_target)
    path, _, query = raw_target.partition("?")
    raw = path.split("/")[1:]
    if is_websocket_path(raw_target):
        raw = raw[1:]
    while raw and not raw[0]:
        del raw[0]
    kept: list[str] = []
    parameters: dict[str, str] = {}
    for part in query.split("&"):
        name, _, value = part.partition("=")
        folded = unquote_plus(name).casefold()
        if folded.startswith(RESERVED):
            parameters.setdefault(folded[len(RESERVED) :], unquote_plus(value))
        elif part:
            kept.append(part)
    return RelayTarget(
        segments=tuple([unquote(segment) for segment in raw]),
        raw_segments=tuple(raw),
        user_query="&".join(kept),
        parameters=parameters,
    )


def longest_match(entities: Mapping[str, T], segments: Sequence[str]) -> tuple[T, int] | None:
    """The entity (kept by its name in lower case) with the longest name that leads this path, and how many segments it has."""
    for depth in range(min(len(segments), _SEGMENTS_MAX), 0, -1):
        found = entities.get("/".join(segments[:depth]).casefold())
        if found is not None:
            return found, depth
    return None


def rendezvous_address(base: str, name: str, suffix: str, user_query: str, action: Action, id_: str, key: str) -> str:
    """What a listener connects to, verbatim. `base` is `ws://host:port`, `key` what nobody can guess."""
    lead = f"{user_query}&" if user_query else ""
    own = f"{RESERVED}action={action.value}&{RESERVED}id={quote(id_, safe='')}&{RESERVED}rendezvous={key}"
    return f"{base}/{_WEBSOCKET_ROOT}/{quote(name, safe=_PATH_SAFE)}{suffix}?{lead}{own}"
