"""What an ASGI application is told of a request or a WebSocket that came through a relay."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from tandem.client.relay.endpoint import host_and_port

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]


def scope_of(
    kind: str,
    scheme: str,
    target: str,
    path: str,
    relay: str,
    headers: Mapping[str, str],
    host: str,
    client: tuple[str, int] | None,
    state: Mapping[str, Any],
) -> dict[str, Any]:
    """`path`: decoded, with the relay's name; `target`: as it came, with its query."""
    raw_path, _, query = target.partition("?")
    name, port = host_and_port(host)
    pairs = [(one.encode("latin-1", "replace"), value.encode("latin-1", "replace")) for one, value in headers.items()]
    if host and "host" not in headers:
        pairs.append((b"host", host.encode("latin-1", "replace")))
    return {
        "type": kind,
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "scheme": scheme,
        "path": path,
        "raw_path": raw_path.encode("latin-1", "replace"),
        "query_string": query.encode("latin-1", "replace"),
        "root_path": path[: len(relay) + 1],  # as the sender wrote it: names of relays have no case
        "headers": pairs,
        "client": client,
        "server": (name.strip("[]"), int(port) if port.isdigit() else 443) if host else None,
        "state": dict(state),
    }
