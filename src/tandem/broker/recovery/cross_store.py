"""What one store remembers about the others: messages that came from them, and its shares of transactions with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tandem.broker import facts
from tandem.broker.ports import IN_SERVICE
from tandem.broker.queue.index import DEFERRED, DEFERRED_LOCKED, MOVING, READY
from tandem.model.errors import StoreUnavailable

if TYPE_CHECKING:
    from tandem.broker.ports import Journal, RowId
    from tandem.broker.queue.queue import Queue
    from tandem.broker.queue.rows import Rows

_DENIED_MAX: Final = 10_000
"""Transactions are over within seconds: the oldest of so many is."""

TransferId = tuple[int, int]
"""The queue a message came from (as journals number it), and its sequence number there."""

Row = tuple[int, int, int]
"""A queue, a sequence number in it, and the state the row goes back to if nothing comes of the transaction."""


class Prepared:
    """A store's share of a transaction that is not over."""

    __slots__ = ("decider", "ended", "in_doubt", "location", "rows")

    def __init__(self, decider: int, rows: list[Row], location: int, in_doubt: bool) -> None:
        self.decider = decider
        self.rows = rows
        self.location = location
        self.in_doubt = in_doubt
        """Nobody in this process knows how it ended: the deciding store does."""
        self.ended = False
        """Carried out or dropped; the disk may not know yet."""

    def end(self) -> None:
        self.ended = True

    def doubt(self, in_doubt: bool) -> None:
        self.in_doubt = in_doubt

    def move(self, location: int) -> None:
        """It was written again."""
        self.location = location

    def touch_only(self, rows: list[Row]) -> None:
        self.rows = rows


class CrossStoreFacts:
    """Base of the tenant of a store."""

    def __init__(self, journal: Journal, now: int) -> None:
        self.journal = journal
        self._now = now
        self.transfers: dict[TransferId, bool] = {}
        """Messages that came from queues of other stores and may still be there: False while our own disk does not know them."""
        self.rerouted: dict[TransferId, int] = {}
        """Of those that left a store that failed: when they were enqueued there."""
        self.prepared: dict[bytes, Prepared] = {}
        self.committed: dict[bytes, bool] = {}
        """Transactions this store decided: False while the disk does not know yet."""
        self.inherited: set[bytes] = set()
        """Of those, the ones that were read from the journal: other nodes may have shares of them."""
        self.asked: set[bytes] = set()
        """Decided here, and other nodes are being asked whether they still have a share."""
        self.awaited: set[bytes] = set()
        """Decided here, with shares of other nodes: whoever drives it says when they are over."""
        self.denied: dict[bytes, None] = {}
        """Transactions of which another node was told that this store has not decided them: it never will."""

    def _writes(self) -> bool:
        return self.journal.health.state in IN_SERVICE

    # -- transfers ---------------------------------------------------------------------------

    def note_transfer(self, id_: TransferId, target: int, now: int) -> None:
        """In the block in which the message arrives."""
        source, seq = id_
        facts.write_transferred(self.journal, target, source, seq, -1, now)
        self.transfers[id_] = False

    def note_reroute(self, row: RowId, target: int, now: int) -> None:
        """Likewise, for a message that its store may or may not have kept when it failed."""
        source, seq, enqueued_at = row
        facts.write_transferred(self.journal, target, source, seq, enqueued_at, now)
        self.transfers[(source, seq)] = False
        self.rerouted[(source, seq)] = enqueued_at

    def transfers_arrived(self, ids: list[TransferId]) -> None:
        for id_ in ids:
            if id_ in self.transfers:
                self.transfers[id_] = True

    def end_transfers(self, ids: list[TransferId]) -> None:
        """Lazily: whoever asks again before this is on disk gets the same answer."""
        if not self._writes():
            return
        for id_ in ids:
            self.transfers.pop(id_, None)
            self.rerouted.pop(id_, None)
        facts.write_transfer_ended(self.journal, ids, self._now)

    # -- transactions ------------------------------------------------------------------------

    def prepare(self, transaction: bytes, decider: int, rows: list[Row], share: bytes, now: int) -> None:
        settled = [(entity, seq) for entity, seq, _ in rows]
        location = facts.write_prepared(self.journal, transaction, decider, settled, share, now)
        self.prepared[transaction] = Prepared(decider, rows, location, False)

    def end_prepared(self, transaction: bytes) -> None:
        """In the block that carries the share out, or any time later when it is dropped."""
        found = self.prepared.get(transaction)
        if found is not None and not found.ended:
            facts.write_transaction_ended(self.journal, transaction, False, self._now)
            found.end()

    def forget_prepared(self, transaction: bytes) -> None:
        """The disk knows its end."""
        found = self.prepared.pop(transaction, None)
        if found is not None:
            self.journal.forget(found.location)

    def deny(self, transaction: bytes) -> None:
        self.denied[transaction] = None
        if len(self.denied) > _DENIED_MAX:
            del self.denied[next(iter(self.denied))]

    def decide(self, transaction: bytes, shares: int, now: int) -> None:
        if transaction in self.denied:
            raise StoreUnavailable("A store that has a share of the transaction went to another node, which has dropped it.")
        facts.write_committed(self.journal, transaction, shares, now)
        self.committed[transaction] = False

    def end_committed(self, transaction: bytes) -> None:
        """Lazily: at worst somebody asks again whether there is still a share of it."""
        if self._writes():
            facts.write_transaction_ended(self.journal, transaction, True, self._now)
            self.committed.pop(transaction, None)

    # -- replay and compaction ---------------------------------------------------------------

    def replay_cross_store(self, kind: int, flags: int, seq: int, aux: int, key: bytes, location: int) -> bool:
        """True if the fact was one of these."""
        if kind == facts.TRANSFERRED:
            self.transfers[(aux, seq)] = True
            enqueued_at = facts.read_transferred(key)
            if enqueued_at >= 0:
                self.rerouted[(aux, seq)] = enqueued_at
        elif kind == facts.TRANSFER_ENDED:
            for source, number in facts.read_transfer_ended(key):
                self.transfers.pop((source, number), None)
                self.rerouted.pop((source, number), None)
        elif kind == facts.PREPARED:
            transaction, rows = facts.read_prepared(key)
            self.forget_prepared(transaction)
            self.prepared[transaction] = Prepared(aux, [(queue, number, 0) for queue, number in rows], location, True)
        elif kind == facts.COMMITTED:
            self.committed[key] = True
            self.inherited.add(key)
        elif kind == facts.TRANSACTION_ENDED:
            if flags:
                self.committed.pop(key, None)
                self.inherited.discard(key)
            else:
                self.forget_prepared(key)
        else:
            return False
        return True

    def relocate_prepared(
        self, flags: int, entity: int, seq: int, at: int, aux: int, key: bytes, body: bytes | None, location: int
    ) -> bool:
        found = self.prepared.get(facts.read_prepared(key)[0])
        if found is None or found.ended or found.location != location:
            return False
        if body is None:
            return True
        found.move(facts.write_again(self.journal, facts.PREPARED, flags, entity, seq, at, aux, key, body))
        return False

    def relocate_cross_store(self, kind: int, flags: int, entity: int, seq: int, at: int, aux: int, key: bytes) -> bool:
        """Whether it was a fact of this kind."""
        if kind == facts.TRANSFERRED:
            if (aux, seq) in self.transfers:
                facts.write_again(self.journal, kind, flags, entity, seq, at, aux, key, b"")
        elif kind == facts.COMMITTED:
            if key in self.committed:
                facts.write_again(self.journal, kind, flags, entity, seq, at, aux, key, b"")
        else:
            return kind in (facts.TRANSFER_ENDED, facts.TRANSACTION_ENDED)
        return True


def freeze(all_rows: dict[int, Rows], rows: list[Row]) -> list[Row]:
    """Nobody receives, expires or purges these until they are carried out or thawed. Returns them with the states they had."""
    frozen: list[Row] = []
    for entity, seq, _ in rows:
        queue = all_rows.get(entity)
        state = queue.index.state(seq) if queue is not None else 0
        if queue is not None and state:
            queue.index.set_state(seq, MOVING)
            frozen.append((entity, seq, DEFERRED if state in (DEFERRED, DEFERRED_LOCKED) else READY))
    return frozen


def thaw(queues: dict[int, Queue], rows: list[Row]) -> None:
    """It was not decided: they are in their queues as before, and may be received again."""
    for entity, seq, state in rows:
        queue = queues.get(entity)
        if queue is None or queue.index.state(seq) != MOVING:
            continue
        if state == DEFERRED:
            queue.index.set_state(seq, DEFERRED)
        else:
            queue.ready.give_back(seq)
