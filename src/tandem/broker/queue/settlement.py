"""What the holder of a lock may do with its message: complete, give back, defer, dead-letter; and what happens when the lock ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandem.broker import facts, meters
from tandem.broker.meters import ABANDONED, DEAD_LETTERED, OK, RENEW, SETTLE, Meter
from tandem.broker.queue.index import DEFERRED, READY
from tandem.broker.queue.ledger import Ledger
from tandem.broker.queue.locks import Lock, LockTable
from tandem.broker.queue.moves import Moves
from tandem.broker.queue.rows import Rows
from tandem.broker.queue.terms import Terms
from tandem.model.errors import MessageLockLost, SessionLockLost

if TYPE_CHECKING:
    from tandem.broker.ports import Effect

_INVALID = "The lock supplied is invalid. Either the lock expired, or the message has already been removed from the queue."


class Settlement:
    """Of one queue: its locks and what is done under them."""

    def __init__(self, ledger: Ledger, terms: Terms, meter: Meter, locks: LockTable, moves: Moves) -> None:
        self.ledger: Ledger = ledger
        self.rows: Rows = ledger.rows
        self.terms: Terms = terms
        self.meter: Meter = meter
        self.locks: LockTable = locks
        self.moves: Moves = moves

    # -- locks -------------------------------------------------------------------------------

    def find_lock(self, token: bytes) -> Lock:
        lock = self.locks.find(token)
        if lock is None:
            if self.terms.has_sessions:
                raise SessionLockLost("The session lock was lost, and the message's lock with it. Accept the session again.")
            raise MessageLockLost(_INVALID)
        return lock

    def require(self, lock: Lock, now: int) -> None:
        """Only a living lock may settle or renew."""
        session = lock.session
        if session is not None:
            if not lock.held or session.locked_until <= now:
                raise SessionLockLost("The session lock was lost. Accept the session again.")
        elif not lock.held or lock.locked_until <= now:
            raise MessageLockLost(_INVALID)

    def renew(self, lock: Lock, now: int) -> int:
        self.require(lock, now)
        self.locks.renew(lock, now + self.terms.lock_ms)
        self.meter.add(RENEW, OK, 1, 0)
        self.wake_for_locks()
        return lock.locked_until

    def drop_lock(self, lock: Lock) -> None:
        """Its holder is done with it; what becomes of the message is decided elsewhere."""
        self.locks.drop(lock)
        if lock.session is not None:
            lock.session.locks.pop(lock.seq, None)

    def wake_for_locks(self) -> None:
        self.ledger.slot.wake(self.locks.next_end())

    # -- outcomes ----------------------------------------------------------------------------

    def complete(self, lock: Lock, now: int) -> None:
        self.require(lock, now)
        self.drop_lock(lock)
        self.ledger.settle(lock.seq, facts.COMPLETED, now)
        self.meter.completed(1)

    def complete_run(self, locks: list[Lock], at: int, now: int) -> int:
        """As many from `at` on as can be completed in one go; returns how many. Ask `complete` about the next one."""
        if self.terms.has_sessions:
            return 0
        held: list[Lock] = []
        seqs: list[int] = []
        for i in range(at, len(locks)):
            lock = locks[i]
            if not lock.held or lock.locked_until <= now:
                break
            held.append(lock)
            seqs.append(lock.seq)
        if not held:
            return 0
        done = self.ledger.settle_all(seqs, facts.COMPLETED, now)
        self.locks.drop_all(held if done == len(held) else held[:done])
        self.meter.completed(done)
        return done

    def abandon(self, lock: Lock, now: int, deliver_at: int, properties: dict[str, object] | None, effect: Effect | None) -> None:
        """Give the message back; the failed delivery counts, since it began. With `deliver_at` it stays away until then."""
        self.require(lock, now)
        self.drop_lock(lock)
        self.meter.add(SETTLE, ABANDONED, 1, 0)
        seq = lock.seq
        if properties:
            self.moves.rewrite(lock, properties, deliver_at if deliver_at > now else 0, effect)
            return
        if deliver_at > now and not lock.deferred and self.rows.index.count(seq) < self.terms.max_delivery_count:
            self.moves.delay(seq, deliver_at, now)
        else:
            self.moves.give_back(lock)
        if effect is not None:
            self.ledger.when_durable(effect)

    def release(self, lock: Lock, now: int) -> None:
        """The receiver never looked at it (`released`): back as it was, the delivery does not count."""
        if lock.held:
            self.drop_lock(lock)
            self.ledger.set_state(lock.seq, DEFERRED if lock.deferred else READY, lock.count, 0, now)
            self.moves.give_back(lock)

    def defer(self, lock: Lock, now: int, properties: dict[str, object] | None, effect: Effect | None) -> None:
        self.require(lock, now)
        self.drop_lock(lock)
        self.meter.add(SETTLE, meters.DEFERRED, 1, 0)
        if properties:
            self.moves.rewrite(lock, properties, -1, effect)
            return
        self.ledger.set_state(lock.seq, DEFERRED, self.rows.index.count(lock.seq), 0, now)
        if effect is not None:
            self.ledger.when_durable(effect)

    def dead_letter(
        self, lock: Lock, reason: str, description: str, properties: dict[str, object], now: int, effect: Effect | None
    ) -> None:
        """Move it to the dead-letter queue in one fact; `effect` follows when the disk knows. No delivery failed: the count stays."""
        self.require(lock, now)
        self.drop_lock(lock)
        self.meter.add(SETTLE, DEAD_LETTERED, 1, 0)
        changes: dict[str, object] = dict(properties)
        if reason:
            changes["DeadLetterReason"] = reason
        if description:
            changes["DeadLetterErrorDescription"] = description
        self.moves.dead_letter(lock.seq, lock.count, changes, effect, lock.deferred)

    # -- the end of a lock -------------------------------------------------------------------

    def lose(self, lock: Lock, now: int) -> None:
        """Its time is over, or its holder vanished: the message is back at its old place, the delivery counts."""
        if lock.held:  # it may have stood in line twice
            self.drop_lock(lock)
            self.moves.give_back(lock)

    def lose_ended(self, now: int) -> None:
        for lock in self.locks.ended(now):
            self.lose(lock, now)

    def lose_all(self, now: int) -> None:
        """Every lock outside of sessions is gone at once, as after its time."""
        for lock in list(self.locks.by_seq.values()):
            if lock.session is None:
                self.lose(lock, now)

    def drop_all(self) -> None:
        for lock in list(self.locks.by_seq.values()):
            self.drop_lock(lock)
