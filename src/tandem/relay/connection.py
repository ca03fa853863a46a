"""A sender's WebSocket and a listener's, joined: what one says the other hears, at the pace of the slower."""

from __future__ import annotations

from collections.abc import Callable

from tandem.relay.close_codes import GOING_AWAY, INTERNAL_ERROR
from tandem.relay.frames import Piece
from tandem.relay.socket import RelaySocket, answer_code


class RelayedConnection:
    """Owns both sockets from the moment in which both handshakes are done. Keeps nothing: a slow reader stops its writer."""

    __slots__ = ("_on_end", "bytes_relayed", "listener", "sender")

    def __init__(self, sender: RelaySocket, listener: RelaySocket, on_end: Callable[[RelayedConnection], None]) -> None:
        self.sender = sender
        self.listener = listener
        self.bytes_relayed = 0
        self._on_end = on_end
        sender.belong_to(self)
        listener.belong_to(self)

    def start(self) -> None:
        """What either side said meanwhile goes on now; one of them may be gone already."""
        for socket in (self.sender, self.listener):
            if socket.lost:
                self.socket_lost(socket)
            else:
                socket.resume_reading()

    def close(self, code: int, reason: str) -> None:
        """On the relay's own account: the entity is gone, or the broker stops."""
        self.sender.close(code, reason)
        self.listener.close(code, reason)

    def _other(self, socket: RelaySocket) -> RelaySocket:
        return self.listener if socket is self.sender else self.sender

    # -- SocketOwner

    def pieces_came(self, socket: RelaySocket, pieces: list[Piece]) -> None:
        other = self._other(socket)
        other.send(pieces)
        self.bytes_relayed += sum([len(piece[2]) for piece in pieces])
        if not other.is_writable:
            socket.pause_reading()

    def writing_paused(self, socket: RelaySocket, paused: bool) -> None:
        if paused:
            self._other(socket).pause_reading()
        else:
            self._other(socket).resume_reading()

    def peer_closed(self, socket: RelaySocket, code: int, reason: str) -> None:
        """A half-close: the other direction goes on until its own side closes too."""
        other = self._other(socket)
        if other.lost or other.close_received:
            socket.close(answer_code(code), reason)
        other.close(answer_code(code), reason, patient=True)

    def socket_lost(self, socket: RelaySocket) -> None:
        other = self._other(socket)
        if other.lost:
            self._on_end(self)
        elif other.close_sent or other.close_received:
            other.close()
            other.expect_end()
        elif socket is self.sender:
            other.close(GOING_AWAY, "the sender is gone")
        else:
            other.close(INTERNAL_ERROR, "the listener is gone")
