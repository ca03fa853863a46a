"""Connections that have not said yet what they speak, looked at without taking a byte, so that whoever gets them finds all of it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable
from typing import Final

from tandem.wire.sniff import FirstBytes, recognise

_LOOKED_AT_BYTES: Final = 4_096
_PATIENCE_SECONDS: Final = 2.0
"""Who is silent for so long, or begins with a few bytes only, is handed on all the same: a worker has patience, and its limits."""
_WAITING_MAX: Final = 10_000
_OF_HTTP: Final = (b"\x08http/1.1", b"\x02h2")
"""In the first message of TLS: what clients that speak HTTP inside offer (ALPN). Clients of AMQP offer nothing; some of HTTP neither."""
_PORTS_OF_AMQP: Final = frozenset({5671, 5672})


def is_port_of_http(port: int, ports: Iterable[int]) -> bool:
    """Where a broker listens on the ports of AMQP, the others are there for HTTP: TLS that does not say what is inside is taken for it."""
    return port not in _PORTS_OF_AMQP and not _PORTS_OF_AMQP.isdisjoint(ports)


class Lobby:
    """`recognised` is told of each connection, once, whether it speaks HTTP; the connection is closed here when it returns."""

    def __init__(self, recognised: Callable[[socket.socket, bool], None]) -> None:
        self._recognised = recognised
        self._waiting: dict[socket.socket, asyncio.TimerHandle] = {}

    def wait(self, connection: socket.socket, port_of_http: bool) -> None:
        if len(self._waiting) >= _WAITING_MAX:
            self._over(connection, False)
            return
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        self._waiting[connection] = loop.call_later(_PATIENCE_SECONDS, self._over, connection, False)
        loop.add_reader(connection, self._look, connection, port_of_http)

    def close(self) -> None:
        for connection in list(self._waiting):
            self._forget(connection)
            connection.close()

    def _look(self, connection: socket.socket, port_of_http: bool) -> None:
        try:
            first = connection.recv(_LOOKED_AT_BYTES, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        opening = recognise(first) if first else FirstBytes.UNKNOWN
        if opening is FirstBytes.UNDECIDED:
            # The reader would be called again and again until more bytes come: looked at again when patience is over.
            asyncio.get_running_loop().remove_reader(connection)
            return
        inside = opening is FirstBytes.TLS and (port_of_http or any(word in first for word in _OF_HTTP))
        self._over(connection, inside or opening is FirstBytes.HTTP)

    def _over(self, connection: socket.socket, speaks_http: bool) -> None:
        self._forget(connection)
        with connection:
            self._recognised(connection, speaks_http)

    def _forget(self, connection: socket.socket) -> None:
        timer = self._waiting.pop(connection, None)
        if timer is not None:
            timer.cancel()
            asyncio.get_running_loop().remove_reader(connection)
