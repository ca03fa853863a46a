"""The mask over what WebSocket clients send (RFC 6455 5.3), taken off in place with the fastest code at hand."""

from __future__ import annotations

try:
    from aiohttp._websocket.helpers import websocket_mask as unmask
except ImportError:  # another layout of aiohttp: slower, and as right

    def unmask(mask: bytes, data: bytearray) -> None:
        """Changes `data` in place."""
        if data:
            key = int.from_bytes((mask * (len(data) // 4 + 1))[: len(data)], "big")
            data[:] = (int.from_bytes(data, "big") ^ key).to_bytes(len(data), "big")


__all__ = ["unmask"]
