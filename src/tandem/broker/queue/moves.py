"""What becomes of a message that nobody holds any more: given back, dead-lettered, expired, rewritten."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tandem.broker import facts
from tandem.broker.ports import Loaded, Rewriter
from tandem.broker.queue.bodies import Bodies, Lost
from tandem.broker.queue.index import DEFERRED, DELAYED, LEASED, MOVING, READY, SCHEDULED
from tandem.broker.queue.intake import Intake
from tandem.broker.queue.ledger import Ledger
from tandem.broker.queue.ready import Ready
from tandem.broker.queue.rows import Rows
from tandem.broker.queue.terms import Terms
from tandem.model.errors import BusError

if TYPE_CHECKING:
    from tandem.broker.ports import Effect
    from tandem.broker.queue.lease import Lease
    from tandem.broker.queue.locks import Lock
    from tandem.model.message import Message

AGAIN_MS: Final = 1_000
"""After that long messages are tried for again that were due and could not be read: an engine may be away for a moment."""


class Moves(Lost):
    """The way back into the line, or out of the queue."""

    def __init__(self, ledger: Ledger, terms: Terms, bodies: Bodies, ready: Ready, rewriter: Rewriter) -> None:
        self.ledger: Ledger = ledger
        self.rows: Rows = ledger.rows
        self.terms: Terms = terms
        self.bodies: Bodies = bodies
        self.ready: Ready = ready
        self.rewriter: Rewriter = rewriter
        self.dead_letters: Intake | None = None
        """Where dead-lettered messages go; None for a dead-letter queue itself."""

    def dead_letter_into(self, dead_letters: Intake) -> None:
        self.dead_letters = dead_letters

    # -- back --------------------------------------------------------------------------------

    def give_back(self, lock: Lock) -> None:
        """Its delivery is over: to its old place, unless it was delivered too often."""
        seq = lock.seq
        index = self.rows.index
        if index.count(seq) >= self.terms.max_delivery_count and not self.terms.is_dead_letter:
            self._exceed_delivery_count(seq, lock.deferred)
        elif lock.deferred:
            index.set_state(seq, DEFERRED)
        else:
            self.ready.give_back(seq)

    def delay(self, seq: int, until: int, now: int) -> None:
        self.ledger.set_state(seq, DELAYED, self.rows.index.count(seq), until, now)
        self.ledger.slot.wake(until)

    # -- out ---------------------------------------------------------------------------------

    def remove_spent(self, seq: int, now: int) -> None:
        """A message that must not be delivered any more."""
        if self.rows.index.count(seq) >= self.terms.max_delivery_count and not self.terms.is_dead_letter:
            self._exceed_delivery_count(seq)
        else:
            self.expire(seq, now)

    def expire(self, seq: int, now: int) -> None:
        if self.terms.dead_letter_expired and self.dead_letters is not None:
            description = "The message expired and was dead lettered."
            self.dead_letter(seq, self.rows.index.count(seq), reasons("TTLExpiredException", description), None)
        else:
            self.ledger.settle(seq, facts.EXPIRED, now)

    def _exceed_delivery_count(self, seq: int, deferred: bool = False) -> None:
        description = f"Message could not be consumed after {self.terms.max_delivery_count} delivery attempts."
        self.dead_letter(seq, self.rows.index.count(seq), reasons("MaxDeliveryCountExceeded", description), None, deferred)

    def dead_letter(
        self,
        seq: int,
        count: int,
        changes: dict[str, object],
        effect: Effect | None,
        deferred: bool = False,
        lease: Lease | None = None,
    ) -> None:
        """Into the dead-letter queue, with this delivery count. Where it cannot be read it stays what its journal says: `deferred`, or in
        its `lease`, or in line."""
        if self.dead_letters is None:
            # Dead-lettering inside a dead-letter queue leaves the message there.
            self._stay(seq, deferred, None)
            if effect is not None:
                self.ledger.when_durable(effect)
            return
        self.rows.index.set_state(seq, MOVING)
        self.bodies.load_to_write([seq], _DeadLettering(self, seq, count, changes, effect, deferred, lease))

    def dead_letter_loaded(self, asked: _DeadLettering, message: Message | None, error: BaseException | None) -> None:
        seq, effect = asked.seq, asked.effect
        if error is not None or message is None:
            if self.rows.index.state(seq) == MOVING:
                self._stay(seq, asked.deferred, asked.lease)
                again = self.ledger.slot.turn.now + AGAIN_MS
                self.rows.index.look_again(seq, again)
                self.ledger.slot.wake(again)
            elif asked.lease is not None:
                asked.lease.end_move(seq, False)
            if effect is not None:
                effect.done(error or BusError("The message left the queue while it was being dead-lettered."))
            return
        target = self.dead_letters
        assert target is not None
        self.move_to(target, seq, self.rewriter.with_properties(message, asked.changes), asked.count)
        if asked.lease is not None:
            asked.lease.end_move(seq, False)
        if effect is not None:
            self.ledger.when_durable(effect)

    def _stay(self, seq: int, deferred: bool, lease: Lease | None) -> None:
        if lease is not None and self.rows.leases.get(lease.id) is lease:
            lease.end_move(seq, True)
            self.rows.index.set_state(seq, LEASED)
        elif deferred:
            self.rows.index.set_state(seq, DEFERRED)
        else:
            self.ready.give_back(seq)

    def move_to(self, target: Intake, seq: int, message: Message, count: int) -> None:
        """Into a queue beside this one, as `message`: leaving and arriving are one block."""
        enqueued_at = self.rows.index.enqueued_at(seq)
        turn = self.ledger.slot.turn
        self.ledger.settle(seq, facts.DEAD_LETTERED, turn.now)
        target.take_over(message, enqueued_at, count)
        turn.schedule()

    def set_aside(self, seq: int, message: Message) -> None:
        """Nobody may get it: it is dead-lettered without its body, with the reason. What somebody holds is met again when it comes back."""
        index = self.rows.index
        state = index.state(seq)
        if state not in (READY, DEFERRED, DELAYED, SCHEDULED, MOVING):
            return
        changed = self.rewriter.with_properties(
            self.rewriter.damaged(message), reasons("MessageDamaged", message.bare.decode(errors="replace"))
        )
        if self.dead_letters is not None:
            self.move_to(self.dead_letters, seq, changed, index.count(seq))
            return
        # it is a dead letter already, and stays where it is
        self.ledger.rewrite(seq, changed, state if state in (DEFERRED, SCHEDULED) else READY, index.count(seq))
        if state in (DELAYED, MOVING):
            self.ready.give_back(seq)
        self.ledger.slot.turn.schedule()

    # -- rewritten ---------------------------------------------------------------------------

    def rewrite(self, lock: Lock, properties: dict[str, object], deliver_at: int, effect: Effect | None) -> None:
        """Properties to modify: the message is written again under its own number. `deliver_at` < 0 means deferred."""
        self.rows.index.set_state(lock.seq, MOVING)
        self.bodies.load_to_write([lock.seq], _Rewriting(self, lock, properties, deliver_at, effect))

    def rewritten(self, lock: Lock, properties: dict[str, object], deliver_at: int, message: Message | None) -> None:
        if message is None:
            return
        seq = lock.seq
        count = self.rows.index.count(seq)
        turn = self.ledger.slot.turn
        changed = self.rewriter.with_properties(message, properties)
        self.ledger.rewrite(seq, changed, DEFERRED if deliver_at < 0 or lock.deferred else READY, count)
        if deliver_at > 0 and count < self.terms.max_delivery_count:
            self.delay(seq, deliver_at, turn.now)
        elif deliver_at >= 0:
            self.give_back(lock)
        turn.schedule()


def reasons(reason: str, description: str) -> dict[str, object]:
    return {"DeadLetterReason": reason, "DeadLetterErrorDescription": description}


class _DeadLettering(Loaded):
    __slots__ = ("changes", "count", "deferred", "effect", "lease", "moves", "seq")

    def __init__(
        self,
        moves: Moves,
        seq: int,
        count: int,
        changes: dict[str, object],
        effect: Effect | None,
        deferred: bool,
        lease: Lease | None,
    ) -> None:
        self.moves = moves
        self.seq = seq
        self.count: int = count
        self.changes = changes
        self.effect = effect
        self.deferred: bool = deferred
        self.lease = lease

    def loaded(self, messages: list[Message | None], error: BaseException | None) -> None:
        self.moves.dead_letter_loaded(self, messages[0] if messages else None, error)


class _Rewriting(Loaded):
    __slots__ = ("deliver_at", "effect", "lock", "moves", "properties")

    def __init__(self, moves: Moves, lock: Lock, properties: dict[str, object], deliver_at: int, effect: Effect | None) -> None:
        self.moves = moves
        self.lock = lock
        self.properties = properties
        self.deliver_at = deliver_at
        self.effect = effect

    def loaded(self, messages: list[Message | None], error: BaseException | None) -> None:
        moves = self.moves
        if error is not None:
            if moves.rows.index.state(self.lock.seq) == MOVING:
                moves.give_back(self.lock)
            if self.effect is not None:
                self.effect.done(error)
            return
        moves.rewritten(self.lock, self.properties, self.deliver_at, messages[0])
        if self.effect is not None:
            moves.ledger.when_durable(self.effect)
