"""What a client has said and heard so far: kept until it attaches to an entity, so that its connection can be moved to where that is."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import struct
from typing import Final

READ_BYTES_MAX: Final = 65_536
"""Of a client that has not attached to an entity yet: what it says until then is a few thousand."""
HEAD: Final = struct.Struct(">Q32s")
LENGTH: Final = struct.Struct(">I")


class Recording:
    """What was read from a client, piece by piece, and a digest of what was written to it."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.frozen = False
        self._pieces: list[bytes] = []
        self._size = 0
        self._sent = 0
        self._digest = hashlib.sha256()
        self._held: list[bytes] = []
        self.later: list[object] = []
        """What came while it was being moved."""

    def read(self, data: bytes) -> bool:
        """False: it is too much to be moved."""
        self._pieces.append(data)
        self._size += len(data)
        return self._size <= READ_BYTES_MAX

    def wrote(self, data: bytes) -> bool:
        """May it be written? Not while the connection is being moved."""
        if self.frozen:
            self._held.append(data)
            return False
        self._sent += len(data)
        self._digest.update(data)
        return True

    def packet(self) -> bytes:
        pieces = [LENGTH.pack(len(piece)) + piece for piece in self._pieces]
        return HEAD.pack(self._sent, self._digest.digest()) + b"".join(pieces)

    def thaw(self) -> None:
        """It stays: what was held back is written."""
        self.frozen = False
        for data in self._held:
            if not self.transport.is_closing():
                self.transport.write(data)
        self._held.clear()


def pieces_of(packet: bytes) -> list[bytes]:
    """What was read, piece by piece: between two of them answers were written."""
    pieces: list[bytes] = []
    at = HEAD.size
    while at < len(packet):
        (length,) = LENGTH.unpack_from(packet, at)
        at += LENGTH.size
        pieces.append(packet[at : at + length])
        at += length
    return pieces


def recorded(transport: asyncio.Transport) -> Recording | None:
    """None: it cannot be moved. What is inside TLS or WebSocket lives in this process."""
    found = transport.get_extra_info("socket")
    inside = any(transport.get_extra_info(layer) is not None for layer in ("sslcontext", "websocket"))
    if found is None or inside or found.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    return Recording(transport)
