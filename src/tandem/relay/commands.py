"""The JSON commands of a control channel: what the relay says to a listener and what a listener may say back."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, Final

from tandem.relay.headers import HOP_BY_HOP

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
RESPONSE_STATUSES_OF_THE_RELAY = frozenset({502, 504})
"""A sender tells by them that the relay, not the listener, failed: a listener may not use them."""


class CommandRefused(Exception):
    """A command of a known kind that cannot be understood."""

    request_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """`{"response": …}`: the head of an answer; its body, if any, is the next binary message."""

    request_id: str
    status: int
    reason: str
    headers: list[tuple[str, str]] = field(default_factory=list)
    has_body: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewToken:
    token: str


def accept(address: str, id_: str, headers: dict[str, str], remote: tuple[str, int] | None) -> str:
    """Asks a listener to take a WebSocket."""
    return _text("accept", {"address": address, "id": id_, "connectHeaders": headers, **_remote(remote)})


def request(
    address: str, id_: str, method: str, target: str, headers: dict[str, str], has_body: bool, remote: tuple[str, int] | None
) -> str:
    """A whole request; with `has_body` one binary message follows."""
    head = {"address": address, "id": id_, "requestTarget": target, "method": method, "requestHeaders": headers, "body": has_body}
    return _text("request", {**head, **_remote(remote)})


def request_elsewhere(address: str, id_: str) -> str:
    """The request waits at `address`. Nothing else may stand in it: clients tell the two forms apart by what is missing."""
    return _text("request", {"address": address, "id": id_})


def read(text: str) -> Response | RenewToken | None:
    """None: something we do not know, which is ignored. Raises CommandRefused."""
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(told, dict):
        return None
    if isinstance(told.get("response"), dict):
        try:
            return _response(told["response"])
        except CommandRefused as refusal:
            refusal.request_id = str(told["response"].get("requestId", ""))
            raise
    if isinstance(told.get("renewToken"), dict):
        return RenewToken(token=str(told["renewToken"].get("token", "")))
    return None


def _response(told: dict[str, Any]) -> Response:
    status = str(told.get("statusCode", ""))
    if not (status.isascii() and status.isdigit() and 200 <= int(status[:4]) <= 999 and len(status) == 3):
        raise CommandRefused(f"statusCode is '{status[:20]}'; a final HTTP status is needed")
    if int(status) in RESPONSE_STATUSES_OF_THE_RELAY:
        raise CommandRefused(f"statusCode {status} is the relay's own; a listener may not use it")
    headers = told.get("responseHeaders") or {}
    if not isinstance(headers, dict):
        raise CommandRefused("responseHeaders is not an object")
    kept: list[tuple[str, str]] = []
    for name, value in headers.items():
        values = value if isinstance(value, list) else [value]
        for one in values:
            if name.casefold() not in HOP_BY_HOP:
                kept.append((_name(name), _clean(str(one))))
    return Response(
        request_id=str(told.get("requestId", "")),
        status=int(status),
        reason=_clean(str(told.get("statusDescription") or "")),
        headers=kept,
        has_body=bool(told.get("body", False)),
    )


def _name(text: str) -> str:
    """A name with a space or a colon in it would be read as another header, or as none."""
    if not _TOKEN.fullmatch(text):
        raise CommandRefused(f"{text[:40]!r} is no name of a header")
    return text


def _clean(text: str) -> str:
    """No line may be smuggled into a response."""
    if any((ord(letter) < 32 and letter != "\t") or ord(letter) == 127 for letter in text):
        raise CommandRefused("a header or reason has control characters in it")
    return text


def _remote(remote: tuple[str, int] | None) -> dict[str, Any]:
    return {"remoteEndpoint": {"address": remote[0], "port": remote[1]}} if remote else {}


def _text(kind: str, body: dict[str, Any]) -> str:
    return json.dumps({kind: body}, separators=(",", ":"))
