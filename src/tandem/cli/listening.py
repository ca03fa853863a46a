"""Sockets on which clients are awaited, and what is said when there can be none."""

from __future__ import annotations

import errno
import socket
from typing import Final

from tandem.model.errors import ConfigurationError

_TAKEN: Final = (errno.EADDRINUSE, errno.EACCES, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def listen(host: str, port: int, backlog: int = 512) -> socket.socket:
    """On the first address that the name stands for, of whichever family."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address, family=family, backlog=backlog)
    except OSError as error:
        raise cannot_listen(shown_address(host, port), error) from error


def is_about_address(error: OSError) -> bool:
    return isinstance(error, socket.gaierror) or error.errno in _TAKEN


def cannot_listen(wanted: str, error: OSError) -> ConfigurationError:
    return ConfigurationError(f"cannot listen on {wanted}: {error.strerror or error}; choose another with --port or --host")


def shown_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
