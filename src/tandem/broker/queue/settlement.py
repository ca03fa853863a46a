"""What becomes of a delivered message: completed, given back, deferred, dead-lettered, expired."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from tandem.broker import facts, meters
from tandem.broker.meters import ABANDONED, DEAD_LETTERED, OK, RENEW, SETTLE
from tandem.broker.ports import Loaded, Rewriter
from tandem.broker.queue.delivery import Dispatcher
from tandem.broker.queue.index import DEFERRED, DEFERRED_LOCKED, DELAYED, LOCKED, MOVING, READY, SCHEDULED
from tandem.broker.queue.state import HotBudget
from tandem.model.errors import BusError, MessageLockLost, SessionLockLost, StoreUnavailable
from tandem.model.message import encode_body

if TYPE_CHECKING:
    from tandem.broker.ports import Effect, Journal
    from tandem.broker.queue.locks import Lock
    from tandem.broker.queue.sessions import MessageSession
    from tandem.broker.turn import Turn
    from tandem.model.entity import QueueDescription
    from tandem.model.message import Message


class Settler(Dispatcher):
    """Settlement, locks and the way to the dead-letter queue."""

    def __init__(
        self, entity_id: int, path: str, description: QueueDescription, journal: Journal, turn: Turn, budget: HotBudget, nonce: int
    ) -> None:
        super().__init__(entity_id, path, description, journal, turn, budget, nonce)
        self.dead_letters: Settler | None = None
        """Where dead-lettered messages go; None for a dead-letter queue itself."""
        self.rewriter: Rewriter = Rewriter()
        self.delayed: list[tuple[int, int]] = []
        """Heap of (instant, sequence number): given back with a delivery time."""

    # -- locks -------------------------------------------------------------------------------

    def find_lock(self, token: bytes) -> Lock:
        lock = self.locks.find(token)
        if lock is None:
            if self.has_sessions:
                raise SessionLockLost("The session lock was lost, and the message's lock with it. Accept the session again.")
            raise MessageLockLost(
                "The lock supplied is invalid. Either the lock expired, or the message has already been removed from the queue."
            )
        return lock

    def require(self, lock: Lock, now: int) -> None:
        """Only a living lock may settle or renew."""
        session = lock.session
        if session is not None:
            if not lock.held or session.locked_until <= now:
                raise SessionLockLost("The session lock was lost. Accept the session again.")
        elif not lock.held or lock.locked_until <= now:
            raise MessageLockLost(
                "The lock supplied is invalid. Either the lock expired, or the message has already been removed from the queue."
            )

    def renew(self, lock: Lock, now: int) -> int:
        self.require(lock, now)
        self.locks.renew(lock, now + self.lock_ms)
        self.meter.add(RENEW, OK, 1, 0)
        self.wake_for_locks()
        return lock.locked_until

    def _drop_lock(self, lock: Lock) -> None:
        self.locks.drop(lock)
        if lock.session is not None:
            lock.session.locks.pop(lock.seq, None)

    # -- outcomes ----------------------------------------------------------------------------

    def complete(self, lock: Lock, now: int) -> None:
        self.require(lock, now)
        self._drop_lock(lock)
        self.settle(lock.seq, facts.COMPLETED, now)
        self.meter.completed(1)

    def complete_run(self, locks: list[Lock], at: int, now: int) -> int:
        """Those from `at` on that nothing speaks against, in one go; returns how many. About the next one, ask `complete`."""
        if self.has_sessions or self.shared:
            return 0
        journal = self.journal
        entity_id = self.entity_id
        held: list[Lock] = []
        seqs: list[int] = []
        try:
            for i in range(at, len(locks)):
                lock = locks[i]
                if not lock.held or lock.locked_until <= now:
                    break
                seq = lock.seq
                facts.write_settled(journal, entity_id, seq, facts.COMPLETED, now)
                held.append(lock)
                seqs.append(seq)
        except StoreUnavailable:
            pass  # as the next one will be told
        if not held:
            return 0
        self.locks.drop_all(held)
        forget = self.journal.forget
        for location in self.index.remove_all(seqs):
            forget(location)
        hot = self.hot
        for seq in seqs:
            if seq in hot:
                self.drop_hot(seq)
        self.meter.completed(len(held))
        return len(held)

    def abandon(self, lock: Lock, now: int, deliver_at: int, properties: dict[str, object] | None, effect: Effect | None) -> None:
        """Give the message back; the failed delivery counts. With `deliver_at` it stays away until then.

        The fact DELIVERED, written when the lock was taken, already says that a delivery failed unless something follows it.
        """
        self.require(lock, now)
        self._drop_lock(lock)
        self.meter.add(SETTLE, ABANDONED, 1, 0)
        count = self.count_failed(lock)
        if properties:
            self._rewrite(lock.seq, lock, properties, deliver_at if deliver_at > now else 0, count, effect)
            return
        if deliver_at > now and not lock.deferred and count < self.max_delivery_count:
            self._delay(lock.seq, deliver_at, count, now)
        else:
            self._give_back(lock, count, now)
        if effect is not None:
            self.when_durable(effect)

    def give_up(self, lock: Lock, now: int) -> None:
        """The receiver never looked at it (`released`): back as it was, the delivery does not count."""
        if not lock.held:
            return
        self._drop_lock(lock)
        state = DEFERRED if lock.deferred else READY
        facts.write_state(self.journal, self.entity_id, lock.seq, state, lock.count, 0, now)
        self._give_back(lock, lock.count, now)

    def defer(self, lock: Lock, now: int, properties: dict[str, object] | None, effect: Effect | None) -> None:
        self.require(lock, now)
        self._drop_lock(lock)
        self.meter.add(SETTLE, meters.DEFERRED, 1, 0)
        seq = lock.seq
        count = self.count_failed(lock)
        self.index.set_count(seq, count)
        if properties:
            self._rewrite(seq, lock, properties, -1, count, effect)
            return
        facts.write_state(self.journal, self.entity_id, seq, DEFERRED, count, 0, now)
        self.index.set_state(seq, DEFERRED)
        if effect is not None:
            self.when_durable(effect)

    def dead_letter(
        self, lock: Lock, reason: str, description: str, properties: dict[str, object], now: int, effect: Effect | None
    ) -> None:
        """Move it to the dead-letter queue in one fact; `effect` follows when the disk knows. No delivery failed: the count stays."""
        self.require(lock, now)
        self._drop_lock(lock)
        self.meter.add(SETTLE, DEAD_LETTERED, 1, 0)
        changes: dict[str, object] = dict(properties)
        if reason:
            changes["DeadLetterReason"] = reason
        if description:
            changes["DeadLetterErrorDescription"] = description
        self.move_dead(lock.seq, changes, effect)

    def count_failed(self, lock: Lock) -> int:
        """The message's delivery count after a failed delivery. Among dead letters none is counted: nothing would follow from it."""
        return lock.count if self.is_dead_letter else lock.count + 1

    # -- giving back -------------------------------------------------------------------------

    def _give_back(self, lock: Lock, count: int, now: int) -> None:
        seq = lock.seq
        self.index.set_count(seq, count)
        if count >= self.max_delivery_count and not self.is_dead_letter:
            self._too_often(seq)
        elif lock.deferred:
            self.index.set_state(seq, DEFERRED)
        else:
            self.make_ready(seq)

    def make_ready(self, seq: int) -> None:
        """An existing row may be delivered (again): at its old place, so in front of everything younger."""
        self.index.set_state(seq, READY)
        session = self.session_of(seq)
        if session is not None and self.sessions is not None:
            session.give_back(seq)
            self.session_has_more(session)
        else:
            if seq < self.cursor:
                heapq.heappush(self.returned, seq)
            if self.selective is not None:
                self.selective.returned(self, seq)
        self.turn.touch_queue(self)

    def _delay(self, seq: int, until: int, count: int, now: int) -> None:
        self.index.set_count(seq, count)
        facts.write_state(self.journal, self.entity_id, seq, DELAYED, count, until, now)
        self.hold_until(seq, until)

    def hold_until(self, seq: int, until: int) -> None:
        self.index.set_state(seq, DELAYED)
        heapq.heappush(self.delayed, (until, seq))
        self.turn.wake(self, until)

    def locks_ended(self, now: int) -> None:
        for lock in self.locks.ended(now):
            self.lose(lock, now)

    def lose(self, lock: Lock, now: int) -> None:
        """Its time is over, or its holder vanished: the message is back at its old place, the delivery counts."""
        if lock.held:  # it may have stood in line twice
            self._drop_lock(lock)
            self._give_back(lock, self.count_failed(lock), now)

    def lose_locks(self, error: BusError, now: int) -> None:
        """Every lock is gone at once, as after its time: deliveries in hand count, holders of sessions are told."""
        for lock in list(self.locks.by_token.values()):
            if lock.session is None:
                self.lose(lock, now)
        if self.sessions is not None:
            for session in list(self.sessions.by_id.values()):
                if session.holder is not None:
                    self.session_ended(session, error, True, now)

    def delays_ended(self, now: int) -> None:
        while self.delayed and self.delayed[0][0] <= now:
            _, seq = heapq.heappop(self.delayed)
            if self.index.state(seq) == DELAYED:
                self.make_ready(seq)

    def session_ended(self, session: MessageSession, error: BusError | None, failed: bool, now: int) -> None:
        """The holder loses the session. `failed`: by time, or because it vanished, so that the deliveries in its hands count; else by
        closing its link."""
        holder = session.holder
        assert self.sessions is not None
        self.sessions.let_go(session, self.index)
        for lock in list(session.locks.values()):
            if failed:
                self.lose(lock, now)
            else:
                self.give_up(lock, now)
        if holder is not None and error is not None:
            self.remove_consumer(holder)
            holder.lost(error)
        self.turn.touch_queue(self)

    def session_has_more(self, session: MessageSession) -> None:
        """A message of this session may be delivered. Its holder gets it; one whose lock is over hears of that now, when it matters."""
        assert self.sessions is not None
        if session.holder is not None and session.locked_until <= self.turn.now:
            lost = SessionLockLost("The session lock has expired. Accept the session again.")
            self.session_ended(session, lost, True, self.turn.now)
        elif session.holder is not None:
            self.ready_here(session.holder)
        else:
            self.sessions.refresh(session, self.index)

    # -- moves -------------------------------------------------------------------------------

    def remove_spent(self, seq: int, now: int) -> None:
        if self.index.count(seq) >= self.max_delivery_count and not self.is_dead_letter:
            self._too_often(seq)
        else:
            self.expire(seq, now)

    def expire(self, seq: int, now: int) -> None:
        if self.dead_letter_expired and self.dead_letters is not None:
            self.move_dead(
                seq,
                {"DeadLetterReason": "TTLExpiredException", "DeadLetterErrorDescription": "The message expired and was dead lettered."},
                None,
            )
        else:
            self.settle(seq, facts.EXPIRED, now)

    def _too_often(self, seq: int) -> None:
        self.move_dead(
            seq,
            {
                "DeadLetterReason": "MaxDeliveryCountExceeded",
                "DeadLetterErrorDescription": f"Message could not be consumed after {self.max_delivery_count} delivery attempts.",
            },
            None,
        )

    def move_dead(self, seq: int, changes: dict[str, object], effect: Effect | None) -> None:
        if self.dead_letters is None:
            # Dead-lettering inside a dead-letter queue leaves the message there.
            self.make_ready(seq)
            if effect is not None:
                self.when_durable(effect)
            return
        self.index.set_state(seq, MOVING)
        self.load([seq], _DeadLettering(self, seq, changes, effect))

    def moved_dead(
        self, seq: int, changes: dict[str, object], message: Message | None, error: BaseException | None, effect: Effect | None
    ) -> None:
        if error is not None or message is None:
            if self.index.state(seq) == MOVING:
                self.make_ready(seq)
            if effect is not None:
                effect.done(error or BusError("The message left the queue while it was being dead-lettered."))
            return
        target = self.dead_letters
        assert target is not None
        now = self.turn.now
        count = self.index.count(seq)
        enqueued_at = self.index.enqueued_at(seq)
        self.settle(seq, facts.DEAD_LETTERED, now)
        target.take_over(self.rewriter.with_properties(message, changes), enqueued_at, count)
        if effect is not None:
            self.when_durable(effect)
        else:
            self.turn.schedule()

    def set_aside(self, seq: int, message: Message) -> None:
        """Nobody may get it: it is dead-lettered without its body, with the reason. What somebody holds is met again when it comes back."""
        index = self.index
        state = index.state(seq)
        if state not in (READY, DEFERRED, DELAYED, SCHEDULED, MOVING):
            return
        now = self.turn.now
        reason: dict[str, object] = {
            "DeadLetterReason": "MessageDamaged",
            "DeadLetterErrorDescription": message.bare.decode(errors="replace"),
        }
        changed = self.rewriter.with_properties(self.rewriter.damaged(message), reason)
        count, enqueued_at = index.count(seq), index.enqueued_at(seq)
        if self.dead_letters is not None:
            self.settle(seq, facts.DEAD_LETTERED, now)
            self.dead_letters.take_over(changed, enqueued_at, count)
        else:
            # it is a dead letter already, and stays where it is
            body = encode_body(changed)
            old = index.location(seq)
            location = self.append_message(seq, state, True, changed, body, enqueued_at, index.expires_at(seq), count)
            index.set_body(seq, location, len(body))
            self.release(old)
            if state == MOVING:
                self.make_ready(seq)
        self.turn.schedule()

    def take_over(self, message: Message, enqueued_at: int, count: int) -> int:
        """A message that moves in from another (sub-)queue, in the same block as its leaving there."""
        raise AssertionError("implemented by Queue")

    def _rewrite(self, seq: int, lock: Lock, properties: dict[str, object], deliver_at: int, count: int, effect: Effect | None) -> None:
        """Properties to modify: the message is written again under its own number. `deliver_at` < 0 means deferred."""
        self.index.set_count(seq, count)
        self.index.set_state(seq, MOVING)
        self.load([seq], _Rewriting(self, seq, lock, properties, deliver_at, count, effect))

    def rewritten(self, seq: int, lock: Lock, properties: dict[str, object], deliver_at: int, count: int, message: Message | None) -> None:
        if message is None:
            return
        now = self.turn.now
        index = self.index
        changed = self.rewriter.with_properties(message, properties)
        state = DEFERRED if deliver_at < 0 or lock.deferred else READY
        body = encode_body(changed)
        location = self.append_message(seq, state, True, changed, body, index.enqueued_at(seq), index.expires_at(seq), count)
        old = index.location(seq)
        index.set_body(seq, location, len(body))
        self.release(old)
        self.drop_hot(seq)
        if deliver_at < 0:
            index.set_state(seq, DEFERRED)
        elif deliver_at and count < self.max_delivery_count:
            self._delay(seq, deliver_at, count, now)
        else:
            index.set_state(seq, DEFERRED_LOCKED if lock.deferred else LOCKED)
            self._give_back(lock, count, now)
        self.turn.schedule()


class _DeadLettering(Loaded):
    __slots__ = ("changes", "effect", "queue", "seq")

    def __init__(self, queue: Settler, seq: int, changes: dict[str, object], effect: Effect | None) -> None:
        self.queue = queue
        self.seq = seq
        self.changes = changes
        self.effect = effect

    def loaded(self, messages: list[Message | None], error: BaseException | None) -> None:
        self.queue.moved_dead(self.seq, self.changes, messages[0] if messages else None, error, self.effect)


class _Rewriting(Loaded):
    __slots__ = ("count", "deliver_at", "effect", "lock", "properties", "queue", "seq")

    def __init__(
        self, queue: Settler, seq: int, lock: Lock, properties: dict[str, object], deliver_at: int, count: int, effect: Effect | None
    ) -> None:
        self.queue = queue
        self.seq = seq
        self.lock = lock
        self.properties = properties
        self.deliver_at = deliver_at
        self.count = count
        self.effect = effect

    def loaded(self, messages: list[Message | None], error: BaseException | None) -> None:
        queue = self.queue
        if error is not None:
            queue.store_failed(error)
            if self.effect is not None:
                self.effect.done(error)
            return
        queue.rewritten(self.seq, self.lock, self.properties, self.deliver_at, self.count, messages[0])
        if self.effect is not None:
            queue.when_durable(self.effect)
