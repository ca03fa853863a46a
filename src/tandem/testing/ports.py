"""A port for a server that is started again on the same one."""

from __future__ import annotations

import random
import socket
from pathlib import Path
from typing import Final

_OUTGOING: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST: Final = 12_000
_TRIES: Final = 100
_dice: Final = random.SystemRandom()
"""Not the dice of the tests, which are seeded: others on this machine would throw the same."""


def free_port() -> int:
    """Below those that the system gives to outgoing connections: one of them could have it while the server is down."""
    above = _outgoing_from()
    for _ in range(_TRIES if above > _LOWEST else 0):
        port = _dice.randrange(_LOWEST, above)
        if _free(port):
            return port
    with socket.create_server(("127.0.0.1", 0)) as any_port:
        return int(any_port.getsockname()[1])


def _outgoing_from() -> int:
    try:
        return int(_OUTGOING.read_text().split()[0])
    except OSError:
        return 0


def _free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
