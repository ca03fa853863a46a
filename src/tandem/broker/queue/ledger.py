"""One call per fact: it is appended to the journal and applied to the rows, in this order, or neither."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandem.broker import facts
from tandem.broker.queue.rows import Rows
from tandem.model.errors import StoreUnavailable
from tandem.model.message import encode_body

if TYPE_CHECKING:
    from tandem.broker.ports import Effect
    from tandem.broker.queue.lease import Lease
    from tandem.broker.turn import TurnSlot
    from tandem.model.message import Message


class Ledger:
    """Of one queue. Everything here is in one block with the rest of its turn."""

    __slots__ = ("rows", "slot")

    def __init__(self, rows: Rows, slot: TurnSlot) -> None:
        self.rows: Rows = rows
        self.slot: TurnSlot = slot

    def when_durable(self, effect: Effect) -> None:
        """A store that is down answers at once."""
        try:
            self.rows.backing.journal.when_durable(effect)
        except StoreUnavailable as error:
            effect.done(error)
            return
        self.slot.turn.schedule()

    # -- messages ----------------------------------------------------------------------------

    def rewrite(self, seq: int, message: Message, state: int, count: int) -> None:
        """The message stays, with other properties; in this state, whatever it was in."""
        index = self.rows.index
        self.enqueue(message, state, index.enqueued_at(seq), index.expires_at(seq), count, seq)

    def enqueue(self, message: Message, state: int, at: int, expires_at: int, count: int, again: int = 0) -> int:
        """Under the next number, or `again` under the one it has. Returns it."""
        rows = self.rows
        relocated = again != 0
        seq = again or rows.next_seq
        id_ = message.message_id
        session = message.session_id
        scheduled_at = message.scheduled_at
        body = encode_body(message)
        journal = rows.backing.journal
        location = facts.write_enqueued(
            journal, rows.entity_id, seq, state, relocated, id_, session, scheduled_at, at, expires_at, count, body
        )
        rows.apply_enqueued(seq, state, relocated, id_, session, scheduled_at, at, expires_at, count, location, len(body))
        return seq

    def settle(self, seq: int, reason: int, now: int) -> None:
        """The message leaves the queue; its body is free."""
        rows = self.rows
        facts.write_settled(rows.backing.journal, rows.entity_id, seq, reason, now)
        rows.apply_settled(seq)

    def settle_all(self, seqs: list[int], reason: int, now: int) -> int:
        """In a queue without sessions. Returns how many the store took: the next one will be told why."""
        rows = self.rows
        done = facts.write_settled_run(rows.backing.journal, rows.entity_id, seqs, reason, now)
        rows.apply_all_settled(seqs if done == len(seqs) else seqs[:done])
        return done

    def set_state(self, seq: int, state: int, count: int, until: int, now: int) -> None:
        rows = self.rows
        facts.write_state(rows.backing.journal, rows.entity_id, seq, state, count, until, now)
        rows.apply_state(seq, state, count, until)

    def deliver(self, seqs: list[int], now: int) -> None:
        """Lazy: rides along with the next commit. A crash before it merely forgets one delivery attempt."""
        rows = self.rows
        facts.write_delivered(rows.backing.journal, rows.entity_id, seqs, now)
        rows.apply_delivered(seqs)

    # -- sessions and leases -----------------------------------------------------------------

    def set_session_state(self, session_id: str, state: bytes | None, now: int) -> None:
        rows = self.rows
        facts.write_session_state(rows.backing.journal, rows.entity_id, session_id, state, now)
        rows.apply_session_state(session_id, state, now)

    def lease(self, lease_id: str, seqs: list[int], expires_at: int, now: int) -> Lease:
        rows = self.rows
        facts.write_leased(rows.backing.journal, rows.entity_id, lease_id, seqs, expires_at, now)
        return rows.apply_leased(lease_id, seqs, expires_at)

    def renew_lease(self, lease_id: str, expires_at: int, now: int) -> None:
        rows = self.rows
        facts.write_lease_renewed(rows.backing.journal, rows.entity_id, lease_id, expires_at, now)
        rows.apply_lease_renewed(lease_id, expires_at)

    def return_part(self, lease_id: str, seqs: list[int], now: int) -> None:
        rows = self.rows
        facts.write_lease_part(rows.backing.journal, rows.entity_id, lease_id, seqs, now)
        rows.apply_lease_part(lease_id, seqs)

    def end_lease(self, lease: Lease, completed: bool, now: int) -> None:
        rows = self.rows
        left = [seq for seq in lease.seqs if seq]
        facts.write_lease_ended(rows.backing.journal, rows.entity_id, lease.id, completed, left, now)
        rows.apply_lease_ended(lease.id, completed, left)
