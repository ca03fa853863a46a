"""One batch lease: a run of messages set aside under an id."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandem.broker.ports import Consumer

if TYPE_CHECKING:
    from tandem.broker.queue.sessions import MessageSession


class Lease:
    """Who asked, what it holds, until when."""

    __slots__ = ("expires_at", "holder", "id", "moving", "places", "seqs", "sessions", "size_bytes")

    def __init__(self, lease_id: str, seqs: list[int], expires_at: int, size_bytes: int) -> None:
        self.id: str = lease_id
        self.seqs: list[int] = seqs
        """In order, each at its place for as long as the lease lives; 0 where a message was settled or returned before the others."""
        self.moving: list[int] = []
        """On their way out of the queue: the journal still has them in the lease. Taken out of `seqs` meanwhile."""
        self.places: dict[int, int] = {}
        """Sequence number to place, made when the first part is settled."""
        self.expires_at: int = expires_at
        self.size_bytes: int = size_bytes
        self.holder: Consumer = Consumer(True)
        """Stands in as the holder of leased sessions."""
        self.sessions: list[MessageSession] = []

    def renew(self, expires_at: int) -> None:
        self.expires_at = expires_at

    def grow(self, size_bytes: int) -> None:
        self.size_bytes += size_bytes

    def remaining(self) -> int:
        return len(self.seqs) - self.seqs.count(0)

    def place(self, seq: int) -> int:
        """Where it stands; -1 when it is not (or no longer) part of this lease."""
        if not self.places:
            self.places = {seq: at for at, seq in enumerate(self.seqs) if seq}
        at = self.places.get(seq, -1)
        return at if at >= 0 and self.seqs[at] == seq else -1

    def drop(self, seq: int) -> None:
        """It is no longer part of this lease."""
        at = self.place(seq)
        if at >= 0:
            self.seqs[at] = 0

    def begin_move(self, seq: int) -> None:
        """Nobody else may settle it now, nor does it go with the lease."""
        self.drop(seq)
        self.moving.append(seq)

    def end_move(self, seq: int, stays: bool) -> None:
        """It has left; or it `stays`, at its place."""
        if seq in self.moving:
            self.moving.remove(seq)
            if stays:
                self.seqs[self.places[seq]] = seq

    def journaled(self) -> list[int]:
        """As its journal has it, each at its place."""
        seqs = list(self.seqs)
        for seq in self.moving:
            seqs[self.places[seq]] = seq
        return seqs

    def keep(self, seqs: list[int], size_bytes: int) -> None:
        """After a replay: what is left of it, each at its place."""
        self.seqs = seqs
        self.places = {}
        self.size_bytes = size_bytes

    def joined(self, other: Lease) -> Lease:
        """Two parts of one lease, as its reader sees them."""
        return Lease(self.id, self.seqs + other.seqs, min(self.expires_at, other.expires_at), self.size_bytes + other.size_bytes)
