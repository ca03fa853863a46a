"""A WebSocket client that may break every rule."""

from __future__ import annotations

import asyncio
import base64
import os
from urllib.parse import urlsplit

MASK = b"\x11\x22\x33\x44"


def frame(opcode: int, payload: bytes = b"", *, fin: bool = True, rsv: int = 0, masked: bool = True) -> bytes:
    head = bytes([(0x80 if fin else 0) | rsv << 4 | opcode])
    bit = 0x80 if masked else 0
    if len(payload) < 126:
        head += bytes([bit | len(payload)])
    elif len(payload) < 65_536:
        head += bytes([bit | 126]) + len(payload).to_bytes(2, "big")
    else:
        head += bytes([bit | 127]) + len(payload).to_bytes(8, "big")
    if not masked:
        return head + payload
    return head + MASK + bytes(byte ^ MASK[at % 4] for at, byte in enumerate(payload))


class RawSocket:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        self.reader = reader
        self.writer = writer
        self.head = head.decode("latin-1")

    @property
    def status(self) -> int:
        return int(self.head.split(" ", 2)[1])

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def frame(self) -> tuple[int, bool, bytes]:
        """(opcode, fin, payload) of the next frame, which must not be masked."""
        first, second = await asyncio.wait_for(self.reader.readexactly(2), 20)
        assert not second & 0x80
        length = second & 0x7F
        if length >= 126:
            length = int.from_bytes(await self.reader.readexactly(2 if length == 126 else 8), "big")
        return first & 0x0F, bool(first & 0x80), await self.reader.readexactly(length)

    async def close_code(self) -> int:
        """Of the close frame that comes next, past anything else."""
        while True:
            opcode, _, payload = await self.frame()
            if opcode == 8:
                return int.from_bytes(payload[:2], "big") if payload else 1005

    def close(self) -> None:
        self.writer.close()


async def upgrade(uri: str, **headers: str) -> RawSocket:
    parts = urlsplit(uri)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    given = {
        "Host": parts.netloc,
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    writer.write(f"GET {parts.path}?{parts.query} HTTP/1.1\r\n{lines}\r\n".encode())
    return RawSocket(reader, writer, await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 40))
