"""The opening handshake of a WebSocket (RFC 6455 4.2), answered now or later: what is asked for, and what a 101 says."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tandem.model.errors import ArgumentRefused

_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class UpgradeNeeded(ArgumentRefused):
    status = 426


@dataclass(frozen=True, slots=True)
class Handshake:
    """A client's wish to speak WebSocket."""

    key: str
    sub_protocols: tuple[str, ...]

    def answer(self, sub_protocol: str | None) -> bytes:
        """No extension is ever agreed on: the two legs of a connection carry the same bytes."""
        digest = base64.b64encode(hashlib.sha1(self.key.encode() + _GUID).digest()).decode()
        lines = ["HTTP/1.1 101 Switching Protocols", "Upgrade: websocket", "Connection: Upgrade", f"Sec-WebSocket-Accept: {digest}"]
        if sub_protocol:
            lines.append(f"Sec-WebSocket-Protocol: {sub_protocol}")
        return ("\r\n".join([*lines, "Server: Tandem"]) + "\r\n\r\n").encode("latin-1")


def read_handshake(method: str, headers: Mapping[str, str]) -> Handshake:
    """Header names are looked up without regard to case. Raises UpgradeNeeded or ArgumentRefused."""
    upgrade = [part.strip().casefold() for part in headers.get("Upgrade", "").split(",")]
    if method != "GET" or "websocket" not in upgrade or "upgrade" not in headers.get("Connection", "").casefold():
        raise UpgradeNeeded("A WebSocket is served here: upgrade to websocket.")
    if headers.get("Sec-WebSocket-Version", "").strip() != "13":
        raise UpgradeNeeded("The WebSocket version must be 13.")
    key = headers.get("Sec-WebSocket-Key", "").strip()
    try:
        length = len(base64.b64decode(key, validate=True))
    except (binascii.Error, ValueError):
        length = 0
    if length != 16:
        raise ArgumentRefused("Sec-WebSocket-Key must be 16 bytes in base64.")
    offered = headers.get("Sec-WebSocket-Protocol", "")
    if not offered.isascii():
        raise ArgumentRefused("Sec-WebSocket-Protocol must be ASCII.")  # it is answered with one of them
    return Handshake(key, tuple(name for part in offered.split(",") if (name := part.strip())))
