"""What stands in front of PostgreSQL in many places: clients share a server, each for one transaction at a time."""

from __future__ import annotations

import socket
import socketserver
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_SSL_REQUEST = 80877103
_READY = b"Z"


class _Wire:
    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._stream = line.makefile("rb")

    def message(self) -> bytes:
        """The next one, as it came; empty: there is none any more."""
        head = self._stream.read(5)
        return head + self._stream.read(struct.unpack("!I", head[1:])[0] - 4) if len(head) == 5 else b""

    def first(self) -> bytes:
        """That with which a client begins, which has no kind."""
        while True:
            (size,) = struct.unpack("!I", self._stream.read(4))
            rest = self._stream.read(size - 4)
            if struct.unpack("!I", rest[:4])[0] != _SSL_REQUEST:
                return struct.pack("!I", size) + rest
            self.send(b"N")

    def until_ready(self) -> bytes:
        found = b""
        while message := self.message():
            found += message
            if message[:1] == _READY:
                break
        return found

    def send(self, what: bytes) -> None:
        self._line.sendall(what)


class _Pooler(socketserver.ThreadingTCPServer):
    """With one server."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Client)
        self.mutex = threading.Lock()
        self._behind = socket.create_connection(("127.0.0.1", port))
        self.server_wire = _Wire(self._behind)
        self.greeting = b""

    def server_close(self) -> None:
        self._behind.close()
        super().server_close()


class _Client(socketserver.BaseRequestHandler):
    server: _Pooler

    def handle(self) -> None:
        client, behind = _Wire(self.request), self.server.server_wire
        start = client.first()
        with self.server.mutex:
            if not self.server.greeting:
                behind.send(start)
                self.server.greeting = behind.until_ready()
        client.send(self.server.greeting)
        asked = b""
        while (message := client.message()) and message[:1] != b"X":
            asked += message
            if message[:1] in b"QS":
                with self.server.mutex:
                    behind.send(asked)
                    answer = behind.until_ready()
                client.send(answer)
                asked = b""


@contextmanager
def pooled(port: int) -> Iterator[int]:
    """The port at which transactions are pooled."""
    with _Pooler(port) as pooler:
        threading.Thread(target=pooler.serve_forever, daemon=True).start()
        yield int(pooler.server_address[1])
        pooler.shutdown()
