"""What a service manager is told (sd_notify): ready, reloading, stopping, still alive. Without one, nothing happens."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Mapping
from typing import Final

_MICROSECOND: Final = 1e-6


class ServiceManager:
    """Speaks to the socket named in NOTIFY_SOCKET; a datagram a message."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        pid = environment.get("WATCHDOG_PID", "")
        usec = environment.get("WATCHDOG_USEC", "")
        ours = not pid or pid == str(os.getpid())
        self.watchdog_seconds = int(usec) * _MICROSECOND if usec.isascii() and usec.isdigit() and ours else 0.0
        """How often it wants to hear from us at least; 0: never."""

    def ready(self, status: str) -> None:
        self._tell(f"READY=1\nSTATUS={status}\nMAINPID={os.getpid()}")

    def reloading(self) -> None:
        self._tell(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1_000}")

    def stopping(self, status: str) -> None:
        self._tell(f"STOPPING=1\nSTATUS={status}")

    async def keep_alive(self) -> None:
        """From the event loop itself: a loop that hangs is silent, and is restarted."""
        if not self._address or not self.watchdog_seconds:
            return
        while True:
            self._tell("WATCHDOG=1")
            await asyncio.sleep(self.watchdog_seconds / 3)

    def _tell(self, state: str) -> None:
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
            out.setblocking(False)
            try:
                out.sendto(state.encode(), self._address)
            except OSError as error:
                os.write(2, f"tandem: the service manager cannot be told: {error.strerror}\n".encode())
